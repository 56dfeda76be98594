"""One training run in a folder of its own: started or resumed.

    settings.json      the settings, every default written out; a folder with this file is a run folder
    environment.json   versions and hardware
    preparation.json   of your own data: columns, classes, scale, and the digest of the file (see ``load``)
    model.json         the layers in words, and how many weights the model and its recurrent layer have
    log.jsonl, times.jsonl, last.safetensors, best.safetensors, outcome.json, SHA256SUMS      by ``holdfast.train.fit``

Each file appears whole or not at all. One that has changed since is an error when it is read: see ``train.sums``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from holdfast.errors import CheckpointError, ConfigError
from holdfast.files import write_atomically
from holdfast.runs.environment import environment
from holdfast.runs.load import read_settings, store
from holdfast.runs.prepare import count, prepare
from holdfast.runs.schema import table_of
from holdfast.runs.settings import RunSettings, to_table
from holdfast.tasks import Task
from holdfast.train.loop import Outcome, check_accelerator, ended, fit
from holdfast.train.model import AUTOMATIC, RESERVOIR

__all__ = ["Look", "claim", "resume_run", "train_run", "write_table"]

Look = Callable[[nn.Module, int], None]
"""What inspects a model during training: it gets the model in evaluation mode and the number of updates made."""


def train_run(
    settings: RunSettings,
    folder: str | Path,
    *,
    task: Task | None = None,
    progress: bool = True,
    devices: int = 1,
    accelerator: str = "cpu",
    label: str = "training",
    look: Look | None = None,
    at: Collection[int] | Literal["evaluations"] = (),
) -> Outcome:
    """Train in ``folder``, or resume there if it holds a run of the same settings; a finished run is not repeated.

    Args:
        settings: what to train.
        folder: made if it does not exist. A folder that holds a run of other settings is refused.
        task: that of the settings, if it has been loaded before.
        progress: show it.
        devices: number of processes that share each batch.
        accelerator: where they run: "cpu", "cuda", "mps" or "auto".
        label: what the progress bar says.
        look, at: called after these numbers of updates; 0 is before the first. Or after every evaluation, in the first
            process. It must draw no random numbers. A run that is killed repeats some updates, so it may see the same
            model twice.

    Raises:
        DivergedError: a loss or gradient was not finite; ``outcome.json`` says so too.

    Example:
        >>> import tempfile
        >>> from holdfast.runs import run_settings
        >>> settings = run_settings({
        ...     "task": {"name": "addition", "steps": 4, "validation": 8},
        ...     "cell": {"hidden_size": 4},
        ...     "train": {"updates": 2, "batch": 4},
        ... })
        >>> train_run(settings, tempfile.mkdtemp(), progress=False).updates
        2
    """
    folder = Path(folder)
    check_accelerator(accelerator)
    if settings.network.name in (AUTOMATIC, RESERVOIR):
        raise ConfigError(
            f"cell.name = {settings.network.name!r} is not trained step by step. Use holdfast.estimators."
            'train_automatic with cell.name = "auto", or name a layer.'
        )
    claim(folder, to_table(settings))
    if (outcome := ended(folder)) is not None:
        return outcome
    model, task = prepare(settings, task)
    store(folder, task)
    write_table(
        folder / "model.json", {"model": str(model), "parameters": count(model), "cell_parameters": count(model.rnn)}
    )

    def seen(update: int) -> None:
        if look is not None and (at == "evaluations" or update in at):
            _look(model, look, update)

    if at != "evaluations":
        seen(0)
    evaluated, watch = (seen, None) if at == "evaluations" else (None, seen)
    return fit(
        model, task, settings.training, folder, progress=progress, label=label, watch=watch, evaluated=evaluated,
        devices=devices, accelerator=accelerator,
    )  # fmt: skip


def resume_run(folder: str | Path, *, progress: bool = True, devices: int = 1, accelerator: str = "cpu") -> Outcome:
    """Resume the run in ``folder``. It ends with the same weights as if it had never stopped.

    Example:
        >>> resume_run("no-such-run")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: no-such-run is not a run folder: it has no settings.json.
    """
    return train_run(read_settings(folder), folder, progress=progress, devices=devices, accelerator=accelerator)


def claim(folder: Path, table: dict[str, Any]) -> None:
    """Write the settings into a new folder, or see that those in an old one are the same."""
    if not (folder / "settings.json").is_file():
        write_table(folder / "environment.json", table_of(environment()))
        write_table(folder / "settings.json", table)
        return
    for name, (before, now) in _differences(to_table(read_settings(folder)), table):
        raise ConfigError(
            f"{folder} holds a run with {name} = {before!r}, but {now!r} was asked for; choose another folder, or "
            f"resume that run: holdfast resume {folder}"
        )


def _differences(held: Mapping[str, Any], wanted: Mapping[str, Any], where: str = ""):
    for name in {**held, **wanted}:
        before, now = held.get(name), wanted.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            yield from _differences(before, now, f"{where}{name}.")
        elif before != now:
            yield f"{where}{name}", (before, now)


def write_table(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table as JSON, whole or not at all; the folder is made if it does not exist."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(table, indent=2) + "\n")
    except OSError as error:
        raise CheckpointError(f"Could not write {path}: {error.strerror}; choose another folder.") from None


def _look(model: nn.Module, look: Look, update: int) -> None:
    training = model.training
    model.eval()
    try:
        look(model, update)
    finally:
        model.train(training)
