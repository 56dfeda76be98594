"""One training run in a folder of its own: begun, gone on with, or loaded again.

    settings.json      what it was told, every default written out; its presence makes the folder a run's
    environment.json   where it began
    model.json         what was built of them: its layers in words, its free numbers and those of the recurrent layer
    log.jsonl, times.jsonl, last.safetensors, best.safetensors, outcome.json      by ``holdfast.train.fit``

Each file appears whole or not at all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from holdfast.errors import CheckpointError, ConfigError, DivergedError
from holdfast.files import write_atomically
from holdfast.studies.config import RunSettings, run_settings, to_table
from holdfast.studies.environment import environment
from holdfast.studies.schema import structured, table_of
from holdfast.tasks import Task
from holdfast.train.checkpoint import load_model_
from holdfast.train.loop import Outcome, fit
from holdfast.train.model import SequenceModel, build
from holdfast.train.progress import Progress

__all__ = ["cell_parameters", "load_run", "prepare", "read_outcome", "read_settings", "resume_run", "train_run"]


def train_run(
    settings: RunSettings,
    folder: str | Path,
    *,
    progress: bool | Progress = True,
    devices: int = 1,
    label: str = "training",
) -> Outcome:
    """Train in ``folder``, or go on there if it holds a run of the same settings; a finished one is not run again.

    Args:
        settings: what to train.
        folder: made if it is not there. One that holds a run of other settings is refused.
        progress: show it: True, False, or an object of your own, as in ``fit``.
        devices: processes to share each batch among.
        label: what the progress bar says.

    Raises:
        DivergedError: the loss or a gradient was no number; ``outcome.json`` says so too.

    Example:
        >>> import tempfile
        >>> settings = run_settings({
        ...     "task": {"name": "addition", "steps": 4, "validation": 8},
        ...     "cell": {"hidden_size": 4},
        ...     "train": {"updates": 2, "batch": 4},
        ... })
        >>> train_run(settings, tempfile.mkdtemp(), progress=False).updates
        2
    """
    folder = Path(folder)
    _claim(folder, to_table(settings))
    if (outcome := read_outcome(folder)) is not None:
        if outcome.status == "diverged":
            raise DivergedError(outcome.reason)
        return outcome
    model, task = prepare(settings)
    _write(
        folder / "model.json", {"model": str(model), "parameters": _count(model), "cell_parameters": _count(model.rnn)}
    )
    return fit(model, task, settings.training, folder, progress=progress, devices=devices, label=label)


def resume_run(folder: str | Path, *, progress: bool | Progress = True, devices: int = 1) -> Outcome:
    """Go on with the run in ``folder``, to the weights it would have ended with had it never stopped.

    Example:
        >>> resume_run("no-such-run")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: no-such-run holds no run: there is no settings.json in it.
    """
    return train_run(read_settings(folder), folder, progress=progress, devices=devices)


def load_run(folder: str | Path, which: Literal["best", "last"] = "best") -> tuple[RunSettings, SequenceModel, Task]:
    """The settings, the trained model and the task of the run in ``folder``.

    Args:
        folder: of a run.
        which: the weights at the best evaluation so far, or the last ones saved.

    Example:
        >>> load_run("no-such-run")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: no-such-run holds no run: there is no settings.json in it.
    """
    settings, path = read_settings(folder), Path(folder) / f"{which}.safetensors"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {path.name} yet; train it first: holdfast resume {folder}")
    model, task = prepare(settings)
    load_model_(model, path)
    return settings, model, task


def prepare(settings: RunSettings) -> tuple[SequenceModel, Task]:
    """The task, and the model at its start: its weights are a function of the settings and their seed alone.

    Example:
        >>> settings = run_settings({"task": {"name": "addition"}, "train": {"updates": 10}})
        >>> model, task = prepare(settings)
        >>> sum(weight.numel() for weight in model.parameters())
        1411
    """
    task = settings.task.load()
    seed = settings.training.seed
    torch.manual_seed(seed)
    random.seed(seed)  # the checkpoint holds these two too, so they must not differ from run to run
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global one
    return build(settings.network, task.spec, getattr(task, "vectors", None)), task


def read_settings(folder: str | Path) -> RunSettings:
    """The settings of the run in ``folder``.

    Example:
        >>> read_settings("no-such-run")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: no-such-run holds no run: there is no settings.json in it.
    """
    path = Path(folder) / "settings.json"
    if not path.is_file():
        raise ConfigError(f"{folder} holds no run: there is no settings.json in it.")
    return run_settings(_json(path), str(path))


def read_outcome(folder: str | Path) -> Outcome | None:
    """What the run in ``folder`` came to, or None if it has not ended.

    Example:
        >>> read_outcome("no-such-run") is None
        True
    """
    path = Path(folder) / "outcome.json"
    return structured(Outcome, _json(path), str(path)) if path.is_file() else None


def cell_parameters(folder: str | Path) -> int:
    """Free numbers of the recurrent layer of the run in ``folder``, as its ``model.json`` has them.

    Example:
        >>> cell_parameters("no-such-run")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: no-such-run holds no run: there is no settings.json in it.
    """
    path = Path(folder) / "model.json"
    if path.is_file():
        return int(_json(path)["cell_parameters"])
    return _count(prepare(read_settings(folder))[0].rnn)  # a folder that was trained by ``fit`` alone


def _claim(folder: Path, table: dict[str, Any]) -> None:
    """Write the settings into a new folder, or see that those in an old one are the same."""
    path = folder / "settings.json"
    if not path.is_file():
        _write(folder / "environment.json", table_of(environment()))
        _write(path, table)
        return
    held = to_table(run_settings(_json(path), str(path)))
    for name, (before, now) in _differences(held, table):
        raise ConfigError(
            f"{folder} holds a run with {name} = {before!r}, not {now!r}; choose another folder, or go on with that "
            f"run: holdfast resume {folder}"
        )


def _differences(held: Mapping[str, Any], wanted: Mapping[str, Any], where: str = ""):
    for name in {**held, **wanted}:
        before, now = held.get(name), wanted.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            yield from _differences(before, now, f"{where}{name}.")
        elif before != now:
            yield f"{where}{name}", (before, now)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}; the run in this folder cannot go on.") from None


def _write(path: Path, table: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(table, indent=2) + "\n")
    except OSError as error:
        raise CheckpointError(f"Could not write {path}: {error.strerror}; choose another folder.") from None


def _count(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
