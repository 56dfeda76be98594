"""Trainings of RRNN and RRNN-GRU that note their trees: S1, Figures 2, 3 and 4.

    N_e = choices of tuples that differ from the epoch before, over some training sequences in a fixed order        (1)

After every epoch the layer runs over the first sequences of the training split, in evaluation mode, and its choices are
kept. The most frequent trees of the first epochs and of the best one are drawn.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.errors import ConfigError
from holdfast.files import write_atomically
from holdfast.rrnn import ACTIVATIONS, OPERATORS, Record, Tree, count_trees, tuple_changes
from holdfast.rrnn.layer import TreeLayer
from holdfast.runs.curves import pyplot
from holdfast.runs.measured import Measured, columns, flat, measure
from holdfast.runs.settings import RunSettings, overridden, run_settings
from holdfast.studies.procedures import procedure
from holdfast.tasks import Task
from holdfast.train.log import read_log
from holdfast.train.loop import run_lengths
from holdfast.train.metrics import HIGHER_IS_BETTER
from holdfast.train.model import SequenceModel

__all__ = ["trees"]

_KEPT = 12  # trees of an epoch that are kept by name


@procedure("trees", {"sequences": 200, "early": 2, "draw": 4, "teacher": 0})
def trees(table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str) -> Measured:
    """Train, and note the trees after every epoch.

    The curve has, besides the log's columns, "changes" (1), "changes.share", of all choices, "shapes", different trees
    whatever their tuples, "top.share", of the most frequent one, and "nodes" and "depth", means over all trees. The
    most frequent trees stand in ``trees-<epoch>.json``; ``picture-early.png`` and ``picture-best.png`` show them.

    Args:
        options: ``sequences`` of the training split to look at; ``early``, epochs that count as such; ``draw``, trees
            in a picture; ``teacher``: first train a GRU of the same size for this many updates with the same settings,
            and take the target's vectors from it.

    Example:
        >>> import tempfile
        >>> table = {
        ...     "task": {"name": "addition", "steps": 4, "validation": 8},
        ...     "cell": {"name": "rrnn", "hidden_size": 4, "options": {"rounds": 2, "scorer": 4}},
        ...     "train": {"updates": 2, "batch": 4},
        ... }
        >>> trees(table, {}, Path(tempfile.mkdtemp()), progress=False, label="tiny")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: tiny: trees needs a task with epochs; addition has none.
    """
    settings, taught = run_settings(table, label), None
    task = settings.task.load()
    if options.get("teacher"):
        gru = {**table["cell"], "name": "gru", "options": {"reset": "before"}}
        own = overridden({**table, "cell": gru}, {"train.updates": options["teacher"]})
        teacher = run_settings(own, label)
        taught = measure(teacher, folder / "teacher", task=task, progress=progress, label=f"{label}, teacher")
        table = overridden(table, {"cell.options.loss.teacher": str(folder / "teacher")})
        settings = run_settings(table, label)
    epoch = task.epoch(settings.training.batch)
    if epoch is None:
        raise ConfigError(f"{label}: trees needs a task with epochs; {settings.task_name} has none.")

    def look(model: SequenceModel, update: int) -> None:
        path = folder / f"trees-{update // epoch}.json"
        if not path.is_file():
            _look(model, task, settings, options["sequences"], path)

    at = range(0, run_lengths(task, settings.training)[0] + 1, epoch)
    found = measure(settings, folder, task=task, look=look, at=at, progress=progress, label=label)
    found = found if taught is None else found.after(taught)
    rows, before = [], None
    for number in range(found.updates // epoch + 1):
        path = folder / f"trees-{number}.json"
        row: dict[str, float | None] = {"epoch": float(number), **json.loads(path.read_text())["numbers"]}
        now = torch.from_numpy(np.load(path.with_suffix(".npy")))
        if before is not None:
            row["changes"] = tuple_changes(before, now)
            row["changes.share"] = row["changes"] / now.numel()
        before = now
        rows.append(row)
    log, best = read_log(folder / "log.jsonl"), 0
    for entry in log:
        whole = round(entry["epoch"])
        if abs(entry["epoch"] - whole) < 1e-9 and whole < len(rows):
            rows[whole] |= {name: value for name, value in flat(entry).items() if name != "epoch"}
    metric = f"{settings.training.monitored}.{task.spec.metric}"
    scored = [(row[metric], number) for number, row in enumerate(rows) if row.get(metric) is not None]
    if scored:
        best = (max if task.spec.metric in HIGHER_IS_BETTER else min)(scored)[1]
    early = min(options["early"], len(rows) - 1)
    _draw(folder, list(range(1, early + 1)) or [0], options["draw"], "early", "first epochs")
    _draw(folder, [best], options["draw"], "best", f"epoch {best}, the best")
    numbers = {
        name: value for name, value in rows[-1].items() if name in ("changes", "changes.share", "shapes", "depth")
    }
    numbers |= {f"first.{name}": rows[1][name] for name in ("changes", "changes.share") if len(rows) > 1}
    of_best = {name: rows[best][name] for name in ("nodes", "depth", "shapes", "top.share")}
    return dataclasses.replace(
        found, curve=columns(rows), last=found.last | numbers, best=found.best | numbers | of_best
    )


@torch.no_grad()
def _look(model: SequenceModel, task: Task, settings: RunSettings, sequences: int, path: Path) -> None:
    """The choices over the first training sequences: tuples as an array, trees as counts."""
    if not isinstance(layer := model.rnn, TreeLayer):
        raise ConfigError(f"trees needs the cell rrnn or rrnn-gru, got {settings.network.name}.")
    records: list[Record] = []
    left, size = sequences, min(sequences, max(settings.training.batch, 64))
    for batch in task.evaluation("train", size):
        inputs = batch.inputs[:, :left]
        xs = inputs if model.embedding is None else model.embedding(inputs)
        records.append(layer.trace(xs).records[-1])
        left -= inputs.shape[1]
        if left <= 0:
            break
    counted = count_trees(records)
    total = sum(counted.values())
    steps = min(len(record.tuples) for record in records)
    chosen = torch.cat([record.tuples[-steps:].transpose(0, 1).flatten(1) for record in records])
    numbers = {
        "shapes": len(counted),
        "top.share": counted.most_common(1)[0][1] / total,
        "nodes": sum(tree.size * times for tree, times in counted.items()) / total,
        "depth": sum(tree.depth * times for tree, times in counted.items()) / total,
    }
    common = [[_table(tree), times] for tree, times in counted.most_common(_KEPT)]
    np.save(path.with_suffix(".npy"), chosen.to(torch.int8).numpy())
    write_atomically(path, json.dumps({"numbers": numbers, "total": total, "trees": common}))


def _table(tree: Tree | str) -> Any:
    return tree if isinstance(tree, str) else [tree.operator, tree.activation, _table(tree.left), _table(tree.right)]


def _tree(table: Any) -> Tree | str:
    if isinstance(table, str):
        return table
    operator, activation, left, right = table
    return Tree(operator, activation, None, _tree(left), _tree(right))


def _draw(folder: Path, epochs: list[int], count: int, name: str, title: str) -> None:
    """The most frequent trees of some epochs, side by side."""
    total, seen = 0, collections.Counter()
    for epoch in epochs:
        held = json.loads((folder / f"trees-{epoch}.json").read_text())
        total += held["total"]
        for table, times in held["trees"]:
            seen[_tree(table)] += times
    common = [(tree, times) for tree, times in seen.most_common(count) if isinstance(tree, Tree)]
    plt = pyplot()
    widths = [max(_leaves(tree), 3) for tree, _ in common]
    high = max(tree.depth for tree, _ in common)
    picture, axes = plt.subplots(
        1, len(common), figsize=(min(0.55 * sum(widths) + 1, 24), 0.62 * high + 1.5), layout="constrained",
        gridspec_kw={"width_ratios": widths}, squeeze=False,
    )  # fmt: skip
    for axis, (tree, times), width in zip(axes[0], common, widths, strict=True):
        _draw_tree(axis, tree, 0.0, 0.0)
        axis.set_xlim(-0.6, width - 0.4)
        axis.set_ylim(-high - 0.5, 0.7)
        axis.set_title(f"{100 * times / total:.1f}%", fontsize=10)
        axis.axis("off")
    picture.suptitle(f"Most frequent trees, {title}", fontsize=11)
    picture.savefig(folder / f"picture-{name}.png", dpi=110, metadata={"Software": None})
    plt.close(picture)


def _leaves(tree: Tree | str) -> int:
    return 1 if isinstance(tree, str) else sum(map(_leaves, tree.children))


def _draw_tree(axis: Any, tree: Tree | str, left: float, depth: float) -> float:
    """Draw below (left, -depth); return where the root stands."""
    box = {"boxstyle": "round,pad=0.25", "facecolor": "#f3efe0", "edgecolor": "#4d4d4d", "linewidth": 0.8}
    if isinstance(tree, str):
        axis.text(left, -depth, tree, ha="center", va="center", fontsize=9, bbox=box, zorder=3)
        return left
    roots, begin = [], left
    for child in tree.children:
        roots.append(_draw_tree(axis, child, begin, depth + 1))
        begin += _leaves(child)
    x = sum(roots) / 2
    for root in roots:
        axis.plot([x, root], [-depth, -depth - 1], color="#4d4d4d", linewidth=0.9, zorder=1)
    symbol, function = OPERATORS[tree.operator].symbol, ACTIVATIONS[tree.activation].symbol
    text = symbol if tree.activation == "identity" else f"{function}\n{symbol}"
    style = {**box, "boxstyle": "circle,pad=0.22", "facecolor": "#dbe9f6"}
    axis.text(x, -depth, text, ha="center", va="center", fontsize=8, bbox=style, zorder=3, linespacing=0.85)
    return x
