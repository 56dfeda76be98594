"""From what a person types to the settings of a run, and a sentence for every choice that was made for them.

settings = defaults of the task ← settings file ← options ← KEY=VALUE        (1) the later wins
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.studies.config import RunSettings, overridden, run_settings
from holdfast.tasks import TASKS, OwnData, OwnTask, Task

__all__ = ["Chosen", "Request", "choose", "parse_setting", "read_settings_file"]

OWN = next(name for name, kind in TASKS.items() if kind is OwnData)
_LENGTHS = ("train.updates", "train.epochs")
_UPDATES_A_RUN = 2000  # about as many as a small set needs; never fewer than 10 epochs, never more than 200


@dataclasses.dataclass(frozen=True)
class Request:
    """What was asked for.

    Args:
        task: a name from ``holdfast.tasks.TASKS``; None with ``data`` or a settings file that names one.
        data, target: a file of one's own, and the column to predict.
        cells: layers to train, one run each; the settings file's, or "sgornn", if there is none.
        options: by dotted key, ``{"train.lr": 1e-2}``.
        set: ``KEY=VALUE`` texts, see ``parse_setting``.
        config: a settings file: TOML, or a run's settings.json.

    Example:
        >>> Request(task="addition", options={"train.updates": 10}).cells
        ()
    """

    task: str | None = None
    data: Path | None = None
    target: str | None = None
    cells: tuple[str, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    set: tuple[str, ...] = ()
    config: Path | None = None


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Settings for every cell, and what was chosen on the way, a sentence each."""

    settings: tuple[RunSettings, ...]
    choices: tuple[str, ...]


def choose(request: Request) -> Chosen:
    """(1), for each cell that was asked for.

    Example:
        >>> changes = ("task.steps=50", "lstm:train.lr=0.01")
        >>> chosen = choose(Request(task="addition", cells=("sgornn", "lstm"), set=changes))
        >>> [(one.network.name, one.task.steps, one.training.lr) for one in chosen.settings]
        [('sgornn', 50, 0.001), ('lstm', 50, 0.01)]
        >>> chosen.choices
        ('1000 updates: --updates sets another number.',)
    """
    parsed = [parse_setting(text) for text in request.set]
    for cell, key, _ in parsed:
        if cell is not None and cell not in request.cells:
            raise ConfigError(
                f"--set {cell}:{key}=... is for a cell that is not trained; --cell names: {_list(request.cells)}."
            )
    asked = _asked(request)
    settings, reasons = [], {}
    for cell in request.cells or (None,):
        changes = {key: value for only, key, value in parsed if only in (None, cell)}
        table = overridden(asked, {**({"cell.name": cell} if cell else {}), **request.options, **changes})
        defaults, reasons[cell or ""] = _defaults(table, _source(request))
        settings.append(run_settings(overridden(defaults, _dotted(table)), _source(request)))
    return Chosen(tuple(settings), tuple(_told(reasons)))


def _told(reasons: Mapping[str, list[str]]) -> list[str]:
    """Every sentence once; one that is not said of all cells names its own."""
    everywhere = [
        sentence for sentence in next(iter(reasons.values())) if all(sentence in one for one in reasons.values())
    ]
    apart = [f"{cell}: {sentence}" for cell, one in reasons.items() for sentence in one if sentence not in everywhere]
    return everywhere + apart


def parse_setting(text: str) -> tuple[str | None, str, Any]:
    """``KEY=VALUE``, or ``CELL:KEY=VALUE`` for one of several cells; VALUE as in TOML, and a bare word is a text.

    Example:
        >>> parse_setting("train.lr=1e-2"), parse_setting("train.optimiser=rmsprop")
        ((None, 'train.lr', 0.01), (None, 'train.optimiser', 'rmsprop'))
        >>> parse_setting("sgornn:cell.options.gates={horizon = 200}")
        ('sgornn', 'cell.options.gates', {'horizon': 200})
    """
    key, equals, value = text.partition("=")
    cell, colon, rest = key.strip().rpartition(":")
    if not equals or not rest or not all(rest.split(".")) or (colon and not cell):
        raise ConfigError(f"--set expects KEY=VALUE, such as train.lr=1e-2; got {text!r}.")
    return cell or None, rest, _toml_value(value.strip())


def read_settings_file(path: str | Path) -> dict[str, Any]:
    """The tables of a settings file: TOML, or JSON as in a run's settings.json.

    Example:
        >>> read_settings_file("no-such-file.toml")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: no-such-file.toml cannot be read: No such file or directory.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode()
        table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # also wrong UTF-8, wrong TOML and wrong JSON
        raise ConfigError(f"{path} is not {'JSON' if path.suffix == '.json' else 'TOML'}: {error}.") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path} expects the tables task, cell and train; got a {type(table).__name__}.")
    return table


def _asked(request: Request) -> dict[str, Any]:
    """The settings file and the task, as tables."""
    table = read_settings_file(request.config) if request.config is not None else {}
    if request.data is not None:
        if request.task not in (None, OWN):
            raise ConfigError(f"--data is a task of its own; leave out {request.task!r}, or leave out --data.")
        return overridden(table, {"task": {"name": OWN, "path": str(request.data.resolve())}} | _target(request))
    if request.target is not None:
        raise ConfigError("--target names a column of --data, which is missing.")
    if request.task is not None:
        if request.task not in TASKS:
            raise ConfigError(
                f"Unknown task {request.task!r}; known: {_list(sorted(TASKS))}. A file of your own: --data FILE."
            )
        held = table.get("task", {}).get("name") if isinstance(table.get("task", {}), Mapping) else None
        if held not in (None, request.task):
            raise ConfigError(f"{request.config} is about {held!r}, not {request.task!r}; leave out one of them.")
        return overridden(table, {"task.name": request.task})
    if request.config is None:
        raise ConfigError(f"What to train on? A task ({_list(sorted(TASKS))}), --data FILE or --config FILE.")
    return table


def _target(request: Request) -> dict[str, Any]:
    return {} if request.target is None else {"task.target": request.target}


def _defaults(table: dict[str, Any], source: str) -> tuple[dict[str, Any], list[str]]:
    """What nobody asked for and is needed, by what the task turns out to be; and the sentences about it."""
    train = table.get("train", {})
    if not isinstance(train, Mapping):
        return {}, []  # the schema says what is wrong with it
    length = any(train.get(name) is not None for name in ("updates", "epochs"))
    if length and "evaluate_on" in train and table.get("task", {}).get("name") != OWN:
        return {}, []
    probe = run_settings(overridden({"train": {"updates": 1}}, _dotted(table)), source)
    task = probe.task.load()
    changes: dict[str, Any] = {}
    choices: list[str] = []
    if isinstance(task, OwnTask):
        changes, reasons = _own_defaults(table, task)
        choices += [*task.choices, *reasons]
    if "evaluate_on" not in train and "validation" not in task.spec.splits:
        watched = "test" if "test" in task.spec.splits else task.spec.splits[0]
        changes["train.evaluate_on"] = [watched]
        choices.append(
            f"No validation split, so the {watched} split is what training is watched by: --set train.evaluate_on=..."
        )
    if not length:
        how_long, reason = _length(task, changes.get("train.batch", probe.training.batch))
        changes |= how_long
        choices.append(reason)
    return overridden({}, changes), choices


def _own_defaults(table: Mapping[str, Any], task: OwnTask) -> tuple[dict[str, Any], list[str]]:
    """A network and a batch for a set of this size."""
    data, cell, train = task.data["train"], table.get("cell", {}), table.get("train", {})
    count, longest = len(data), data.inputs.shape[1]
    changes: dict[str, Any] = {}
    reasons = []
    if "hidden_size" not in cell:
        changes["cell.hidden_size"] = 64 if count < 5000 else 128
        reasons.append(f"{changes['cell.hidden_size']} hidden units for {count:,} training sequences: --hidden.")
    if "batch" not in train:
        changes["train.batch"] = min(64, max(4, 2 ** int(math.log2(max(1, count / 16)))))
        reasons.append(f"Batches of {changes['train.batch']}: --batch.")
    scalar = cell.get("name", "sgornn") == "sgornn"
    if "lr" not in train and "optimiser" not in train:
        rate = 1e-2 if scalar else 5e-3  # few weights, each seen at every step, bear larger steps
        changes |= {"train.optimiser": "adam", "train.lr": rate, "train.clip": 1.0}
        reasons.append(f"Adam with learning rate {rate:g}, gradients clipped at norm 1: --optimiser, --lr, --clip.")
    if scalar and "gates" not in cell.get("options", {}):
        memory = max(10, longest // 4)
        changes["cell.options.gates"] = {"clip": "2alpha", "horizon": memory}
        reasons.append(
            f"A cell that remembers about {memory} steps when training begins (the longest sequence has {longest}): "
            f"--set 'cell.options.gates={{clip=\"2alpha\", horizon={longest}}}' for more, "
            "--cell sgornn --cell gru to compare."
        )
    return changes, reasons


def _length(task: Task, batch: int) -> tuple[dict[str, Any], str]:
    """How long to train when nobody says."""
    epoch = task.epoch(batch)
    if epoch is None:
        return {"train.updates": 1000}, "1000 updates: --updates sets another number."
    epochs = min(200, max(10, math.ceil(_UPDATES_A_RUN / epoch)))
    changes: dict[str, Any] = {"train.epochs": epochs}
    if "validation" not in task.spec.splits:  # stopping early by the test split would tune on it
        return changes, f"{epochs} epochs: --epochs sets another number."
    patience = max(5, epochs // 4)
    changes["train.patience"] = patience
    return changes, (
        f"At most {epochs} epochs, and an end after {patience} without a better validation {task.spec.metric}: "
        "--epochs, --patience."
    )


def _dotted(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of tables as changes, one a key of the inner tables; a null length, as in settings.json, is none."""
    flat: dict[str, Any] = {}
    for name, part in table.items():
        flat |= {f"{name}.{key}": value for key, value in part.items()} if isinstance(part, Mapping) else {name: part}
    return {key: value for key, value in flat.items() if value is not None or key not in _LENGTHS}


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        if text and text[0] not in "\"'[{" and "\n" not in text:
            return text
        raise ConfigError(f"--set expects a value as TOML has it, or a bare word; got {text!r}.") from None


def _source(request: Request) -> str:
    return str(request.config) if request.config is not None else "train"


def _list(names: Any) -> str:
    return ", ".join(names) or "none"
