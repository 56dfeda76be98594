"""The diagnosis of a run: its model, sequences of its task, its learning rate and log; and a page while it trains."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from holdfast.diagnose.diagnosis import Diagnosis, plain
from holdfast.diagnose.examine import Subject, examine
from holdfast.diagnose.page import page
from holdfast.errors import CheckpointError, ConfigError, HoldfastError
from holdfast.files import write_atomically
from holdfast.runs.load import load_run, read_settings
from holdfast.runs.prepare import prepare
from holdfast.runs.settings import RunSettings
from holdfast.tasks import Addition, Arrays, Batch, Copying, Task
from holdfast.train.log import read_log
from holdfast.train.loop import read_outcome
from holdfast.train.metrics import loss_sum, target_count
from holdfast.train.model import SequenceModel

__all__ = ["PAGE", "Watch", "diagnose_run"]

PAGE = "diagnosis.html"
_SEQUENCES, _WATCHED = 64, 8


def diagnose_run(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    which: Literal["best", "last"] | None = None,
    lag: int | None = None,
    sequences: int = 16,
    progress: bool = False,
) -> Diagnosis:
    """Find out what is wrong with a trained run, if anything.

    Args:
        folder: of the run, whether it has ended, diverged or still trains.
        data: a file like the training file; default: sequences of the run's own validation split.
        which: the weights of the best evaluation, or the last ones; default: what the run's settings say.
        lag: how many steps back the task needs its inputs; known for the addition and copying problems.
        sequences, progress: as in ``diagnose``.

    Example:
        >>> import tempfile
        >>> from holdfast.runs import run_settings, train_run
        >>> table = {"task": {"name": "addition", "steps": 12, "validation": 8}, "train": {"updates": 2, "batch": 4}}
        >>> _ = train_run(run_settings(table), folder := tempfile.mkdtemp(), progress=False)
        >>> diagnose_run(folder).curves[-1]["update"]
        2
    """
    folder, notes = Path(folder), ()
    settings = read_settings(folder)
    saved = [name for name in ("best", "last") if (folder / f"{name}.safetensors").is_file()]
    if which is None and saved:
        which = "last" if settings.training.weights not in saved else None
    if which is None and not saved:  # it diverged before its first evaluation
        model, task = cast("tuple[SequenceModel, Task]", prepare(settings))  # other models are saved in one go
        split, notes = None, ("The run saved no weights; this is the network at its start.",)
        if data is not None:
            raise ConfigError(f"{folder} saved no weights, so --data cannot be looked at; leave it out.")
    else:
        run = load_run(folder, which)
        model = run.stepwise("holdfast diagnose")
        if data is None:
            task, split = run.task, None
        else:
            task, split = Arrays(run.preparation.spec(), {"data": run.preparation.sequences(data)}), "data"
    subject = _subject(model, settings, task, _batch(task, split), folder, lag)
    return examine(dataclasses.replace(subject, notes=notes), sequences=sequences, progress=progress)


class Watch:
    """Writes the page of a run again, for ``train_run(look=..., at="evaluations")``. It never stops the training.

    Args:
        folder: of the run; the page is ``diagnosis.html`` in it.
        settings, task: of the run.
        warn: told once if a page cannot be made or written; default: a Python warning.

    Example:
        >>> import tempfile
        >>> from holdfast.runs import run_settings, train_run
        >>> table = {"task": {"name": "addition", "steps": 4, "validation": 8}, "train": {"updates": 2, "batch": 4}}
        >>> settings, folder = run_settings(table), Path(tempfile.mkdtemp())
        >>> watch = Watch(folder, settings, settings.task.load())
        >>> _ = train_run(settings, folder, look=watch, at="evaluations", progress=False)
        >>> watch.path.is_file()
        True
    """

    def __init__(
        self, folder: str | Path, settings: RunSettings, task: Task, warn: Callable[[str], None] | None = None
    ):
        self.folder, self.settings, self.task = Path(folder), settings, task
        self.path = self.folder / PAGE
        self._warn, self._batch, self._warned = warn or _warning, _batch(task, None, _WATCHED), False

    def __call__(self, model: SequenceModel, update: int) -> None:
        try:
            subject = _subject(model, self.settings, self.task, self._batch, self.folder, None)
            write_atomically(self.path, page([examine(subject, sequences=_WATCHED)], reload=20))
        except Exception as error:  # whatever it is, a picture is not worth a training
            if not self._warned:
                self._warned = True
                self._warn(f"The page {self.path} could not be written after update {update}: {error}")


def _warning(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)


def _batch(task: Task, split: str | None, count: int = _SEQUENCES) -> Batch:
    """The first sequences of a split: validation, or the last one there is."""
    splits = task.spec.splits
    chosen = split or ("validation" if "validation" in splits else splits[-1])
    return next(iter(task.evaluation(chosen, count)))


def _subject(
    model: SequenceModel, settings: RunSettings, task: Task, batch: Batch, folder: Path, lag: int | None
) -> Subject:
    spec, training = task.spec, settings.training

    def part(which: Tensor | None) -> Batch:
        if which is None:
            return batch
        targets = batch.targets[:, which] if spec.every_step else batch.targets[which]
        return Batch(batch.inputs[:, which], targets, None if batch.lengths is None else batch.lengths[which])

    def call(which: Tensor | None) -> Any:
        own = part(which)
        return model(own.inputs, own.lengths)

    def loss(answers: Any, which: Tensor | None) -> Tensor:
        own = part(which)
        return loss_sum(spec.loss, answers, own) / max(1, target_count(spec.loss, own))

    curves = _curves(folder)
    network = settings.network
    return Subject(
        model,
        batch.inputs,
        batch.targets,
        call,
        loss,
        None,
        training.lr if training.optimiser == "sgd" and not training.options.get("momentum") else None,
        lag or _lag(settings.task, len(batch.inputs)),
        f"{folder.name}: {network.name}, {network.hidden_size} units on {settings.task_name}",
        {"third_lr": training.lr / 3, **_trouble(curves, folder)},
        curves,
    )


def _lag(task: Any, steps: int) -> int | None:
    """How far back the answer of a synthetic task always needs its inputs."""
    if isinstance(task, Addition):
        return max(1, steps // 2 - 1)  # one of the two numbers is in the first half
    return task.delay + task.length if isinstance(task, Copying) else None


def _curves(folder: Path) -> tuple[dict[str, Any], ...]:
    path = folder / "log.jsonl"
    if not path.is_file():
        return ()
    try:
        entries = plain(read_log(path))
    except HoldfastError:  # of a run that is being written to, or was changed: the model can be diagnosed without it
        return ()
    every = max(1, -(-len(entries) // 500))
    return tuple(entries[::-every][::-1])


def _trouble(curves: tuple[dict[str, Any], ...], folder: Path) -> dict[str, Any]:
    """Whether the training loss ended far above its best, or was not finite."""
    try:
        outcome = read_outcome(folder)
    except CheckpointError:
        outcome = None
    if outcome is not None and outcome.status == "diverged":
        return {"loss_rise": math.inf, "log_trouble": f"training diverged: {outcome.reason}".rstrip(".")}
    if not curves:
        return {}
    last = curves[-1]
    if count := (last.get("skipped") or 0) + (last.get("rewinds") or 0):
        return {"loss_rise": math.inf, "log_trouble": f"{count} updates were not finite or were taken back"}
    losses = [entry["train_loss"] for entry in curves if entry.get("train_loss") is not None]
    if len(losses) < 6:
        return {}
    means = torch.tensor(losses, dtype=torch.float64).unfold(0, 3, 1).mean(dim=1)
    rise = float(means[-1] / means.min().clamp_min(1e-300))
    if float(means[-1]) < 0.2 * float(means[0]):  # near the end of a good training small losses jump by factors
        rise = 1.0
    text = f"the training loss ended at {float(means[-1]):.3g}, {rise:.3g} times its lowest value"
    return {"loss_rise": rise, "log_trouble": text}
