"""A training that is looked at on its way: what is seen of the model after some updates.

    look(model, u) for u = 0, and for each update u that is asked for                (1)

A run that is killed goes on from its checkpoint and makes the same updates again, so a look that is taken twice sees
the same; ``look`` keeps what it sees in files, and may leave alone those that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from holdfast.errors import DivergedError
from holdfast.studies.config import RunSettings
from holdfast.studies.result import Measured
from holdfast.studies.run import prepare, read_outcome
from holdfast.train.log import read_log
from holdfast.train.loop import fit
from holdfast.train.model import SequenceModel
from holdfast.train.progress import Progress, make_progress

__all__ = ["updates_of", "watched_run"]

Look = Callable[[SequenceModel, int], None]


class _Watch:
    """A progress display that also looks."""

    def __init__(self, inner: Progress, model: SequenceModel, look: Look, at: Collection[int]):
        self.inner, self.model, self.look, self.at = inner, model, look, at

    def start(self, updates: int, done: int) -> None:
        self.inner.start(updates, done)

    def update(self, done: int, loss: float, gradient_norm: float) -> None:
        self.inner.update(done, loss, gradient_norm)
        if done in self.at:
            _seen(self.model, self.look, done)

    def evaluated(self, done: int, score: str) -> None:
        self.inner.evaluated(done, score)

    def stop(self) -> None:
        self.inner.stop()


def updates_of(settings: RunSettings, task: object) -> int:
    """Updates of the whole run, as the loop counts them.

    Example:
        >>> from holdfast.studies import run_settings
        >>> settings = run_settings({"task": {"name": "gaussian", "instances": 6}, "train": {"epochs": 2, "batch": 4}})
        >>> updates_of(settings, settings.task.load())
        4
    """
    training = settings.training
    if training.updates is not None:
        return training.updates
    epoch = task.epoch(training.batch)  # type: ignore[attr-defined]
    return max(1, round((training.epochs or 0) * (epoch or 0)))


def watched_run(
    settings: RunSettings,
    folder: Path,
    look: Look,
    at: Callable[[int], Collection[int]],
    *,
    progress: bool = True,
    label: str = "training",
) -> Measured:
    """Train by the settings in ``folder``, looking on the way; a run that diverges is measured up to there.

    Args:
        settings: what to train.
        folder: of the run; one that holds a checkpoint goes on.
        look: (1); it gets the model in evaluation mode and must draw no random numbers.
        at: from the updates of the whole run to those to look after. 0 is before the first.

    Example:
        >>> import tempfile
        >>> from holdfast.studies import run_settings
        >>> settings = run_settings({
        ...     "task": {"name": "addition", "steps": 4, "validation": 8},
        ...     "cell": {"hidden_size": 4},
        ...     "train": {"updates": 4, "batch": 4},
        ... })
        >>> seen = []
        >>> found = watched_run(
        ...     settings, Path(tempfile.mkdtemp()), lambda model, u: seen.append(u), lambda n: {0, n // 2, n},
        ...     progress=False,
        ... )
        >>> seen, found.updates
        ([0, 2, 4], 4)
    """
    model, task = prepare(settings)
    moments = at(updates_of(settings, task))
    if 0 in moments:
        _seen(model, look, 0)
    watch = _Watch(make_progress(label, progress), model, look, moments)
    try:
        outcome = fit(model, task, settings.training, folder, progress=watch, label=label)
    except DivergedError:
        outcome = read_outcome(folder)
        if outcome is None:
            raise
    rows = read_log(folder / "log.jsonl")
    best: dict[str, dict[str, float]] = next((row for row in rows if row["update"] == outcome.best_update), {})
    return Measured(
        status=outcome.status,
        reason=outcome.reason.replace(f"{folder}/", ""),
        best=_flat(best),
        last={} if outcome.status == "diverged" else _flat(outcome.last),
        parameters=outcome.parameters,
        cell_parameters=sum(weight.numel() for weight in model.rnn.parameters()),
        updates=outcome.updates,
        seconds=outcome.seconds,
    )


def _seen(model: SequenceModel, look: Look, update: int) -> None:
    training = model.training
    model.eval()
    try:
        look(model, update)
    finally:
        model.train(training)


def _flat(scores: dict[str, dict[str, float]]) -> dict[str, float | None]:
    """``{"validation": {"mse": 0.1}}`` to ``{"validation.mse": 0.1}``."""
    parts = {split: it for split, it in scores.items() if isinstance(it, dict)}
    return {f"{split}.{name}": value for split, it in parts.items() for name, value in it.items()}
