"""A training that is looked at on its way: what is seen of the model after some updates.

    look(model, u) for u = 0, and for each update u that is asked for                (1)

A run that is killed goes on from its checkpoint and makes the same updates again, so a look that is taken twice sees
the same; ``look`` keeps what it sees in files, and may leave alone those that are there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path

from holdfast.studies.config import RunSettings
from holdfast.studies.procedures import measured_run
from holdfast.studies.result import Measured
from holdfast.studies.run import prepare
from holdfast.train.loop import fit, run_lengths
from holdfast.train.model import SequenceModel
from holdfast.train.progress import Progress, make_progress

__all__ = ["watched_run"]

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
    moments = at(run_lengths(task, settings.training)[0])
    if 0 in moments:
        _seen(model, look, 0)
    watch = _Watch(make_progress(label, progress), model, look, moments)
    found = measured_run(folder, lambda: fit(model, task, settings.training, folder, progress=watch, label=label))
    parameters = sum(weight.numel() for weight in model.rnn.parameters())
    return dataclasses.replace(found, cell_parameters=parameters, curve={})  # the curve is the look's to draw


def _seen(model: SequenceModel, look: Look, update: int) -> None:
    training = model.training
    model.eval()
    try:
        look(model, update)
    finally:
        model.train(training)
