"""From a request, as typed on the command line, to the settings of a run, with a note for every default chosen.

settings = defaults of the task ← settings file ← options ← KEY=VALUE        (1) later ones win
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.runs.intervals import answers_in
from holdfast.runs.schema import listed, read_file
from holdfast.runs.settings import RunSettings, overridden, run_settings
from holdfast.tasks import TASKS, OwnData, OwnTask, Task
from holdfast.train.model import AUTOMATIC, RESERVOIR

__all__ = ["Chosen", "Request", "choose", "parse_setting"]

OWN = next(name for name, kind in TASKS.items() if kind is OwnData)
MINUTES = 5.0  # of an automatic choice
_FEW = 50  # validation sequences: with fewer, which evaluation is best is mostly chance
_UPDATES = 2000  # about what a small data set needs; but at least 10 epochs and at most 200


@dataclasses.dataclass(frozen=True)
class Request:
    """What a person asked for.

    Args:
        task: a name from ``holdfast.tasks.TASKS``; None with ``data`` or a settings file that names one.
        data, target: your own file, and the column to predict; several columns are several numbers.
        cells: layers to train, one run each; if empty, the settings file's, or "sgornn".
        options: by dotted key, ``{"train.lr": 1e-2}``.
        set: ``KEY=VALUE`` texts, see ``parse_setting``.
        config: a settings file: TOML, or a run's settings.json.

    Example:
        >>> Request(task="addition", options={"train.updates": 10}).cells
        ()
    """

    task: str | None = None
    data: Path | None = None
    target: str | tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    set: tuple[str, ...] = ()
    config: Path | None = None


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Settings for every cell.

    Args:
        settings: one per cell.
        tasks: theirs, loaded; cells with the same task options share one.
        choices: the defaults that were chosen, one sentence each.
    """

    settings: tuple[RunSettings, ...]
    tasks: tuple[Task, ...]
    choices: tuple[str, ...]


def choose(request: Request) -> Chosen:
    """(1), for each requested cell.

    Example:
        >>> changes = ("task.steps=50", "lstm:train.lr=0.01")
        >>> chosen = choose(Request(task="addition", cells=("sgornn", "lstm"), set=changes))
        >>> [(one.network.name, one.task.steps, one.training.lr) for one in chosen.settings]
        [('sgornn', 50, 0.001), ('lstm', 50, 0.01)]
        >>> chosen.choices
        ('1000 updates (change with --updates).',)
    """
    parsed = [parse_setting(text) for text in request.set]
    for cell, key, _ in parsed:
        if cell is not None and cell not in request.cells:
            raise ConfigError(
                f"--set {cell}:{key}=... is for the cell {cell}, but --cell names {listed(request.cells)}; "
                f"add --cell {cell} or leave out {cell!r}."
            )
    asked = _asked(request)
    source = str(request.config) if request.config is not None else "train"
    settings: list[RunSettings] = []
    tasks: list[Task] = []
    reasons: dict[str, list[str]] = {}
    for cell in request.cells or (None,):
        changes = {key: value for only, key, value in parsed if only in (None, cell)}
        table = overridden(asked, {**({"cell.name": cell} if cell else {}), **request.options, **changes})
        table, probe, task, instead = _loaded(table, source, list(zip(settings, tasks, strict=True)))
        tasks.append(task)
        defaults, found = _defaults(table, task, probe.training.batch)
        reasons[cell or ""] = [*found, *instead]
        settings.append(run_settings(overridden(defaults, _dotted(table)), source))
    return Chosen(tuple(settings), tuple(tasks), tuple(_told(reasons)))


def _loaded(
    table: dict[str, Any], source: str, before: list[tuple[RunSettings, Task]]
) -> tuple[dict[str, Any], RunSettings, Task, list[str]]:
    """The table, its settings and its task, loaded once; and a sentence if there is no automatic choice for it."""
    asked = table
    cell, task_name = (
        part.get("name") if isinstance(part := table.get(key), Mapping) else None for key in ("cell", "task")
    )
    if cell in (AUTOMATIC, RESERVOIR) and task_name != OWN:
        raise ConfigError(f"--cell {cell} is for your own data; add --data FILE, or name another cell.")
    if chosen := cell == AUTOMATIC:  # cross-validation needs no split, nor weights
        table = overridden({"task": {"validation": 0.0, "weights": "none"}}, _dotted(table))
    probe = run_settings(overridden({"train": {"updates": 1}}, _dotted(table)), source)
    same = [task for one, task in before if one.task == probe.task]
    task = same[0] if same else probe.task.load()
    if not chosen or not task.spec.every_step:
        return table, probe, task, []
    plain = {name: value for name, value in asked.items() if name != "cell"}
    what = "the next step" if not task.spec.classes else "a class at every step"
    sentence = f"The automatic choice is for one answer per sequence; for {what}, an SGORNN is trained (--cell)."
    return *_loaded(plain, source, before)[:3], [sentence]


def _told(reasons: Mapping[str, list[str]]) -> list[str]:
    """Every sentence once; one that is not true of all cells names its cell."""
    everywhere = [
        sentence for sentence in next(iter(reasons.values())) if all(sentence in one for one in reasons.values())
    ]
    apart = [f"{cell}: {sentence}" for cell, one in reasons.items() for sentence in one if sentence not in everywhere]
    return everywhere + apart


def parse_setting(text: str) -> tuple[str | None, str, Any]:
    """``KEY=VALUE``, or ``CELL:KEY=VALUE`` for one of several cells; VALUE is TOML, and a bare word is a string.

    Example:
        >>> parse_setting("train.lr=1e-2"), parse_setting("train.optimiser=rmsprop")
        ((None, 'train.lr', 0.01), (None, 'train.optimiser', 'rmsprop'))
        >>> parse_setting("sgornn:cell.options.gates={horizon = 200}")
        ('sgornn', 'cell.options.gates', {'horizon': 200})
    """
    key, equals, value = text.partition("=")
    cell, colon, rest = key.strip().rpartition(":")
    if not equals or not rest or not all(rest.split(".")) or (colon and not cell):
        raise ConfigError(f"--set must be KEY=VALUE, such as train.lr=1e-2; got {text!r}.")
    return cell or None, rest, _toml_value(value.strip())


def _asked(request: Request) -> dict[str, Any]:
    """The settings file and the task, as tables."""
    table = read_file(request.config) if request.config is not None else {}
    targets = (request.target,) if isinstance(request.target, str) else request.target
    if request.data is not None:
        if request.task not in (None, OWN):
            raise ConfigError(f"Give a task or --data, not both; got {request.task!r} and --data {request.data}.")
        target: dict[str, Any] = {"task.target": targets[0] if len(targets) == 1 else [*targets]} if targets else {}
        return overridden(table, {"task": {"name": OWN, "path": str(request.data.resolve())}, **target})
    if targets:
        raise ConfigError(f"--target {targets[0]} names a column of a file; add --data FILE.")
    if request.task is not None:
        if request.task not in TASKS:
            raise ConfigError(
                f"Unknown task {request.task!r}; known: {listed(sorted(TASKS))}. For your own file use --data FILE."
            )
        held = table.get("task", {}).get("name") if isinstance(table.get("task", {}), Mapping) else None
        if held not in (None, request.task):
            raise ConfigError(
                f"{request.config} is for the task {held!r}, got {request.task!r}; leave out one of them."
            )
        return overridden(table, {"task.name": request.task})
    if request.config is None:
        raise ConfigError(f"Nothing to train on: give a task ({listed(sorted(TASKS))}), --data FILE or --config FILE.")
    return table


def _defaults(table: Mapping[str, Any], task: Task, batch: int) -> tuple[dict[str, Any], list[str]]:
    """Settings that are needed and were not given, chosen by what the task is; and the sentences about them."""
    train: Mapping[str, Any] = table.get("train", {})
    changes: dict[str, Any] = {}
    choices: list[str] = []
    if isinstance(task, OwnTask):
        automatic = table.get("cell", {}).get("name") == AUTOMATIC
        changes, reasons = (_automatic_defaults if automatic else _own_defaults)(table, task)
        choices += [*task.choices, *reasons]
        if automatic:
            return overridden({}, changes), choices
    if "evaluate_on" not in train and "validation" not in task.spec.splits:
        split = "test" if "test" in task.spec.splits else task.spec.splits[0]
        changes["train.evaluate_on"] = [split]
        choices.append(
            f"Evaluated on the {split} split, as there is no validation split (--set train.evaluate_on=...)."
        )
    if all(train.get(name) is None for name in ("updates", "epochs")):
        how_long, reason = _length(task, changes.get("train.batch", batch), train)
        changes |= how_long
        choices.append(reason)
    return overridden({}, changes), choices


def _automatic_defaults(table: Mapping[str, Any], task: OwnTask) -> tuple[dict[str, Any], list[str]]:
    """What an automatic choice needs in its settings; its options say the rest."""
    minutes = table.get("cell", {}).get("options", {}).get("minutes", MINUTES)
    changes: dict[str, Any] = {"cell.options.minutes": float(minutes), "train.updates": 600, "train.weights": "last"}
    if "validation" not in task.spec.splits:
        changes["train.evaluate_on"] = ["test" if "test" in task.spec.splits else "train"]
    tried = "a reservoir and simple baselines" if not minutes else (
        f"a reservoir, cells that are trained within {minutes:g} min, and simple baselines"
    )  # fmt: skip
    return changes, [f"Model: chosen automatically from {tried} (--minutes; --cell NAME trains one cell)."]


def _own_defaults(table: Mapping[str, Any], task: OwnTask) -> tuple[dict[str, Any], list[str]]:
    """A network and a batch for a data set of this size."""
    data, cell, train = task.data["train"], table.get("cell", {}), table.get("train", {})
    count, longest = len(data), data.inputs.shape[1]
    changes: dict[str, Any] = {}
    reasons = []
    if "hidden_size" not in cell:
        changes["cell.hidden_size"] = 64 if count < 5000 else 128
        reasons.append(f"{changes['cell.hidden_size']} hidden units for {count:,} training sequences (--hidden).")
    if "batch" not in train:
        changes["train.batch"] = min(64, max(4, 2 ** int(math.log2(max(1, count / 16)))))
        reasons.append(f"Batches of {changes['train.batch']} (--batch).")
    scalar = cell.get("name", "sgornn") == "sgornn"
    if "lr" not in train and "optimiser" not in train:
        rate = 1e-2 if scalar else 5e-3  # its few weights, each used at every step, allow larger steps
        changes |= {"train.optimiser": "adam", "train.lr": rate, "train.clip": 1.0}
        reasons.append(f"Adam with learning rate {rate:g}, gradients clipped at norm 1 (--optimiser, --lr, --clip).")
    if scalar and "gates" not in cell.get("options", {}):
        memory = max(10, longest // 4)
        changes["cell.options.gates"] = {"clip": "2alpha", "horizon": memory}
        reasons.append(
            f"Initial memory of about {memory} steps; the longest sequence has {longest} "
            f"(--set 'cell.options.gates={{clip=\"2alpha\", horizon={longest}}}' for more; "
            "--cell sgornn --cell gru compares cells)."
        )
    return changes, reasons


def _length(task: Task, batch: int, train: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """How long to train, and with which weights to end, if the request does not say."""
    epoch = task.epoch(batch)
    if epoch is None:
        return {"train.updates": 1000}, "1000 updates (change with --updates)."
    epochs = min(200, max(10, math.ceil(_UPDATES / epoch)))
    changes: dict[str, Any] = {"train.epochs": epochs}
    if "validation" not in task.spec.splits:  # stopping early by the test split would tune on it
        return changes, f"{epochs} epochs (change with --epochs)."
    count = answers_in(task, "validation") if isinstance(task, OwnTask) and not task.spec.every_step else None
    if count and count < _FEW and not {"patience", "weights", "schedule"} & {*train}:
        changes |= {"train.weights": "last", "train.schedule": {"kind": "linear"}}
        return changes, (
            f"{epochs} epochs with a learning rate that falls to zero, and the last weights are used: {count:,} "
            "validation sequences are too few to choose the best by "
            f"({f'an accuracy on them is known to ±{0.98 / math.sqrt(count):.2f}; ' if task.spec.classes else ''}"
            "--epochs; --patience N stops early and uses the best)."
        )
    patience = max(5, epochs // 4)
    changes["train.patience"] = patience
    return changes, (
        f"At most {epochs} epochs; stops after {patience} without a better validation {task.spec.metric} "
        "(--epochs, --patience)."
    )


def _dotted(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of tables as changes, one per inner key; a null length, as in settings.json, is left out."""
    flat: dict[str, Any] = {}
    for name, part in table.items():
        flat |= {f"{name}.{key}": value for key, value in part.items()} if isinstance(part, Mapping) else {name: part}
    return {
        key: value for key, value in flat.items() if value is not None or key not in ("train.updates", "train.epochs")
    }


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        if text and text[0] not in "\"'[{" and "\n" not in text:
            return text
        raise ConfigError(f"The value of --set must be TOML or a bare word, got {text!r}.") from None
