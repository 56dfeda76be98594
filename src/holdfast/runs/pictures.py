"""Pictures of one run: its curves, and what it answers on the sequences it is scored on.

scores.png     after an automatic choice: the models that were compared, with intervals
curve.png      otherwise: loss and score over the updates, from log.jsonl
answers.png    classes: a confusion matrix; numbers: predicted over true, in the units of the data (own data only)
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.errors import MissingExtraError
from holdfast.files import write_atomically
from holdfast.runs.choice import StoredChoice, read_choice
from holdfast.runs.intervals import wilson
from holdfast.runs.load import Run, load_run
from holdfast.tasks import IGNORED, OwnTask, Task
from holdfast.train import sums
from holdfast.train.log import read_log
from holdfast.train.loop import predict
from holdfast.train.metrics import HIGHER_IS_BETTER

__all__ = ["draw_run"]

_MOST_CLASSES, _MOST_POINTS = 40, 3000
_BLUE, _RED, _GREY = "#1b6ca8", "#d1495b", "#777777"


def draw_run(folder: str | Path, task: Task | None = None) -> list[Path]:
    """Draw the pictures of the run in ``folder`` there; the files that were written.

    Args:
        folder: of a run that has ended.
        task: that of the run, if it has been loaded before; else its data are read.

    Example:
        >>> import tempfile
        >>> from holdfast.runs import run_settings, train_run
        >>> table = {"task": {"name": "addition", "steps": 4, "validation": 8}, "train": {"updates": 4, "batch": 4}}
        >>> _ = train_run(run_settings(table), folder := tempfile.mkdtemp(), progress=False)
        >>> [path.name for path in draw_run(folder)]
        ['curve.png']
    """
    folder = Path(folder)
    run = load_run(folder, None, task)
    chosen = (folder / sums.CHOICE).is_file()
    made = [_compared(run, read_choice(folder)) if chosen else _curve(run, read_log(folder / sums.LOG))]
    if run.stored is not None and isinstance(run.task, OwnTask):
        made.append(_answers(run, run.task))
    return [path for path in made if path is not None]


def _curve(run: Run, entries: list[dict[str, Any]]) -> Path | None:
    if not entries:
        return None
    spec, monitored = run.task.spec, run.settings.training.monitored
    updates = [entry["update"] for entry in entries]
    apart = spec.metric not in ("mse", "loss")
    figure = _figure((7, 5.4 if apart else 4.2))
    axes = figure.subplots(2 if apart else 1, 1, sharex=True, squeeze=False)[:, 0]
    splits = [name for name, scores in entries[-1].items() if isinstance(scores, dict)]
    for name, colour in (("train", _GREY), *zip(splits, (_BLUE, _RED, "#3a7d44"), strict=False)):
        losses = [entry["train_loss"] if colour == _GREY else entry[name]["loss"] for entry in entries]
        label = "training" if colour == _GREY else name
        axes[0].plot(updates, [loss if loss else math.nan for loss in losses], color=colour, label=label, linewidth=1.6)
        if apart and colour != _GREY:
            axes[1].plot(updates, [entry[name][spec.metric] for entry in entries], color=colour, label=name)
    axes[0].set_yscale("log")
    axes[0].set_ylabel("mean squared error" if spec.loss == "mse" else "cross-entropy")
    if apart:
        axes[1].set_ylabel(spec.metric)
    if spec.baseline is not None:
        axes[-1].axhline(spec.baseline, color=_GREY, linestyle=":", label="best constant answer")
    pick = max if spec.metric in HIGHER_IS_BETTER else min
    scores = [entry[monitored][spec.metric] for entry in entries]
    used = updates[scores.index(pick(scores))] if run.which == "best" else updates[-1]
    for one in axes:
        one.axvline(used, color="#000000", linewidth=0.8, linestyle="--", label="weights in use")
        one.grid(True, alpha=0.25)
    axes[-1].legend(fontsize=8)
    axes[-1].set_xlabel("updates")
    axes[0].set_title(f"{_name(run)}, seed {run.settings.training.seed}", fontsize=10)
    return _saved(figure, run.folder / "curve.png")


def _compared(run: Run, choice: StoredChoice) -> Path:
    """Every score of an automatic choice, with its interval; the chosen model in colour."""
    figure = _figure((7, 1.2 + 0.4 * len(choice.scores)))
    axes = figure.subplots()
    for place, one in enumerate(reversed(choice.scores)):
        colour = _BLUE if one.name == choice.chosen else _GREY
        axes.plot([one.low, one.high], [place, place], color=colour, linewidth=2)
        axes.plot([one.value], [place], "o", color=colour)
        text = f"{one.value:.3f}" if choice.metric == "accuracy" else f"{one.value:.3g}"
        axes.annotate(text, (one.value, place), (0, 5), textcoords="offset points", ha="center", fontsize=8)
    axes.set_yticks(range(len(choice.scores)), [one.name for one in reversed(choice.scores)])
    axes.set_ylim(-0.6, len(choice.scores) - 0.3)
    if choice.metric != "accuracy" and all(one.low > 0 for one in choice.scores):
        axes.set_xscale("log")
    axes.set_xlabel(f"{choice.metric} on left-out sequences, with 95% interval")
    axes.set_title(f"{choice.chosen}, chosen for {Path(run.settings.task.path).name}", fontsize=10)
    axes.grid(True, axis="x", alpha=0.25)
    return _saved(figure, run.folder / "scores.png")


def _answers(run: Run, task: OwnTask) -> Path | None:
    split = "test" if "test" in task.spec.splits else task.spec.splits[-1]
    batches = list(task.evaluation(split, 256))
    outputs = [rows.flatten(0, -2) for rows in predict(run.model, batches)]
    answers, targets = torch.cat(outputs), torch.cat([batch.targets.flatten() for batch in batches])
    if task.spec.loss == "cross_entropy":
        kept = targets != IGNORED
        return _confusion(run, split, targets[kept], answers.argmax(dim=1)[kept])
    kept = torch.ones(len(answers), dtype=torch.bool)
    if task.spec.every_step:
        inside = [
            torch.ones(batch.inputs.shape[:2], dtype=torch.bool) if batch.lengths is None
            else torch.arange(len(batch.inputs))[:, None] < batch.lengths
            for batch in batches
        ]  # fmt: skip
        kept = torch.cat([one.flatten() for one in inside])
    return _scatter(run, split, targets.reshape(len(answers), -1)[kept], answers[kept])


def _confusion(run: Run, split: str, targets: torch.Tensor, guesses: torch.Tensor) -> Path | None:
    classes = run.preparation.classes
    if len(classes) > _MOST_CLASSES:
        return None
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (targets.numpy(), guesses.numpy()), 1)
    share = counts.trace() / counts.sum()
    low, high = wilson(share, int(counts.sum()))
    size = min(10.0, 2.8 + 0.45 * len(classes))
    figure = _figure((size + 0.8, size))
    axes = figure.subplots()
    rows = counts.sum(axis=1, keepdims=True)
    shown = axes.imshow(counts / np.maximum(rows, 1), cmap="Blues", vmin=0, vmax=1)
    if len(classes) <= 15:
        for row, column in np.ndindex(*counts.shape):
            dark = counts[row, column] > 0.5 * max(rows[row, 0], 1)
            colour = "white" if dark else "black" if counts[row, column] else _GREY
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=8, color=colour)
    names = [name if len(name) <= 14 else f"{name[:13]}…" for name in classes]
    axes.set_xticks(range(len(classes)), names, rotation=45 if max(map(len, names)) > 3 else 0, fontsize=8)
    axes.set_yticks(range(len(classes)), names, fontsize=8)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    chance = f"n = {counts.sum():,}, 95% interval {low:.3f} to {high:.3f}"
    axes.set_title(f"{_name(run)}, {split}: accuracy {share:.3f}\n{chance}", fontsize=9)
    figure.colorbar(shown, ax=axes, label="share of the true class", shrink=0.8)
    return _saved(figure, run.folder / "answers.png")


def _scatter(run: Run, split: str, targets: torch.Tensor, answers: torch.Tensor) -> Path:
    every = max(1, -(-len(answers) // _MOST_POINTS))
    preparation = run.preparation
    true, guessed = (np.asarray(preparation.answers(values[::every])) for values in (targets, answers))
    names = preparation.columns.target if preparation.kind == "regression" else preparation.columns.features
    count = min(4, true.shape[1])
    figure = _figure((3.6 * count + 0.6, 4.0))
    for index, axes in enumerate(figure.subplots(1, count, squeeze=False)[0]):
        ends = [float(min(true[:, index].min(), guessed[:, index].min())),
                float(max(true[:, index].max(), guessed[:, index].max()))]  # fmt: skip
        axes.plot(ends, ends, color=_GREY, linewidth=1, linestyle=":")
        axes.scatter(true[:, index], guessed[:, index], s=10, alpha=0.5, color=_BLUE, linewidths=0)
        name = names[index] if len(names) == true.shape[1] else f"{names[0]} {index}"
        axes.set_xlabel(f"{name}, true")
        axes.set_ylabel("predicted")
        axes.grid(True, alpha=0.25)
    error = float((answers - targets).square().mean())
    score = f"mean squared error {error:.3g} of the training variance, n = {len(answers):,}"
    figure.suptitle(f"{_name(run)}, {split}:\n{score}", fontsize=9)
    return _saved(figure, run.folder / "answers.png")


def _name(run: Run) -> str:
    network = run.settings.network
    file = f" on {Path(run.settings.task.path).name}" if run.stored is not None else f" on {run.settings.task_name}"
    return f"{network.name}, {network.hidden_size} units{file}"


def _figure(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure  # not pyplot, which keeps figures and may want a screen
    except ModuleNotFoundError:
        raise MissingExtraError("Figures need matplotlib: pip install 'holdfast[train]'.") from None
    return Figure(figsize=size, layout="constrained")


def _saved(figure: Any, path: Path) -> Path:
    raw = io.BytesIO()
    figure.savefig(raw, format="png", dpi=130, metadata={"Software": None})
    write_atomically(path, raw.getvalue())
    return path
