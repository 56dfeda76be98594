"""An automatic choice on your own data, in a run folder.

    settings.json, environment.json, preparation.json      as of every run on your own data
    log.jsonl            the journal: one line per piece of work, so that a killed choice goes on and ends the same
    last.safetensors     the chosen model, fitted to all sequences that are not kept apart
    choice.json          what was chosen, and what it was compared with: see ``runs.choice``
    SHA256SUMS           checksums of these files

``load_run``, ``evaluate_run`` and ``predict_run`` read such a folder as that of any other run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch

from holdfast.errors import CheckpointError, ConfigError, DataError, Interrupted
from holdfast.estimators.choice import CELLS, Choice, Journal, automatic
from holdfast.estimators.trained import UPDATES
from holdfast.files import sha256_of, write_atomically
from holdfast.runs.choice import StoredChoice, StoredScore, choice_text, read_choice
from holdfast.runs.load import store
from holdfast.runs.settings import RunSettings, to_table
from holdfast.runs.train import claim
from holdfast.tasks import OwnTask, Task
from holdfast.train import checkpoint, evaluate, sums
from holdfast.train.log import Log, read_log
from holdfast.train.loop import only_run_in
from holdfast.train.model import AUTOMATIC
from holdfast.train.progress import make_progress

__all__ = ["train_automatic"]


def train_automatic(
    settings: RunSettings,
    folder: str | Path,
    *,
    task: Task | None = None,
    progress: bool = True,
    say: Callable[[str], None] | None = None,
) -> StoredChoice:
    """Choose a model for your own data and keep it in ``folder``, or go on there; an ended choice is not repeated.

    Args:
        settings: with the cell "auto", whose options are those of ``automatic``: minutes, cells and units. Of its
            training settings, ``updates`` and ``seed`` count.
        folder: made if it does not exist. A folder that holds a run of other settings is refused.
        task: that of the settings, if it has been loaded before.
        progress: show that of each training.
        say: called with each score as it is known.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from holdfast import load_run
        >>> from holdfast.runs import run_settings
        >>> folder, rng = Path(tempfile.mkdtemp()), np.random.default_rng(0)
        >>> x, y = rng.normal(size=(40, 12)), np.repeat(["low", "high"], 20)
        >>> x[20:] += 2
        >>> np.savez(folder / "mine.npz", x=x, y=y)
        >>> settings = run_settings({
        ...     "task": {"name": "own", "path": str(folder / "mine.npz"), "validation": 0.0},
        ...     "cell": {"name": "auto", "options": {"minutes": 0.0, "units": 4}},
        ...     "train": {"updates": 1, "weights": "last"},
        ... })
        >>> train_automatic(settings, folder / "run", progress=False).chosen
        'reservoir'
        >>> load_run(folder / "run").predict(np.full((1, 12), 2.0))
        array(['high'], dtype='<U4')
    """
    folder, options = Path(folder), settings.network.options
    if settings.network.name != AUTOMATIC:
        raise ConfigError(f'train_automatic expects cell.name = "auto", got {settings.network.name!r}.')
    if settings.task_name != "own":
        raise ConfigError(f"The automatic choice is for your own data (--data), got the task {settings.task_name}.")
    claim(folder, to_table(settings))
    if (folder / sums.CHOICE).is_file():
        return read_choice(folder)
    task = cast(Task, settings.task.load()) if task is None else task
    own, data = _data(task)
    with only_run_in(folder), _resumable(folder):
        store(folder, task)
        sums.write(folder, _digests(folder, sums.SETTINGS, sums.PREPARATION))
        journal = _journal(folder / sums.LOG)
        choice = automatic(
            *data,
            classes=len(own.preparation.classes) or None,
            minutes=options.get("minutes", 5.0),
            cells=options.get("cells", CELLS),
            units=options.get("units"),
            updates=settings.training.updates or UPDATES,
            seed=settings.training.seed,
            journal=journal,
            say=say,
            progress=functools.partial(make_progress, wanted=True) if progress else None,
        )
        tested = evaluate(choice.model, task, "test") if "test" in task.spec.splits else {}
        return _ended(folder, choice, task, tested, journal.spent)


def _data(task: Task) -> tuple[OwnTask, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The task, and sequences, lengths and targets of its training split."""
    if not isinstance(task, OwnTask) or task.spec.every_step:
        raise ConfigError("The automatic choice is for one answer per sequence of your own data; name a cell instead.")
    held = task.data["train"]
    if len(held) < 2:
        raise DataError(f"The automatic choice expects at least 2 training sequences, got {len(held)}.")
    lengths = torch.full((len(held),), held.inputs.shape[1]) if held.lengths is None else held.lengths
    return task, (held.inputs, lengths, held.targets)


def _journal(path: Path) -> Journal:
    """The journal in a log, whose last line may be cut short; new pieces are added to it."""
    entries = read_log(path) if path.is_file() else []
    position = path.read_bytes().rfind(b"\n") + 1 if path.is_file() else 0
    try:
        return Journal(entries, Log(path, position).write)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not the journal of an automatic choice ({error!r}); start a new run in another folder."
        ) from None


def _ended(folder: Path, choice: Choice, task: Any, tested: dict[str, float], seconds: float) -> StoredChoice:
    """Write the model, the checksums of (2) in ``sums``, and last ``choice.json``, which says that all is there."""
    weights = sum(tensor.numel() for tensor in choice.model.parameters() if tensor.requires_grad)
    if choice.name == "reservoir":
        weights = choice.model.weight.numel() + choice.model.bias.numel()  # type: ignore[union-attr,operator]
    scores = tuple(
        StoredScore(one.name, one.how, one.n, one.value, *one.interval, round(one.seconds, 1))
        for one in choice.ranked()
    )
    metric = "accuracy" if choice.scores[0].classes else "error per variance"
    parts = choice.name, metric, choice.network, scores, choice.verdict(), tested, weights, round(seconds, 1)
    stored = StoredChoice(*parts)
    text = choice_text(stored)
    tree = {"model": choice.model.state_dict(), "data": task.sha256, "settings": sha256_of(folder / sums.SETTINGS)}
    checkpoint.save(folder / sums.LAST, tree)
    digests = _digests(folder, sums.SETTINGS, sums.PREPARATION, sums.LOG, sums.LAST)
    sums.write(folder, {**digests, sums.CHOICE: hashlib.sha256(text.encode()).hexdigest()})
    write_atomically(folder / sums.CHOICE, text)
    return read_choice(folder)


def _digests(folder: Path, *names: str) -> dict[str, str]:
    return {name: sha256_of(folder / name) for name in names}


@contextlib.contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """SIGINT and SIGTERM end with the command that goes on; pieces that are done are in the journal already."""
    caught = [signal.SIGINT]

    def catch(number: int, _: Any) -> None:
        caught[0] = signal.Signals(number)
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, catch) if main else None
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"Stopped by {caught[0].name}; what is done is kept. Resume with: holdfast resume {folder}", caught[0]
        ) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
