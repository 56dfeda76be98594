"""The automatic choice: a reservoir first, trained cells while there is time, and baselines beside them.

1. Baselines and the reservoir, each scored by leaving out one training sequence at a time (closed forms).
2. Trained cells, scored on five folds, or on one fifth of the data if there are 1,000 sequences or more. A cell that is
   clearly behind the reservoir after a fold is not tried on the others.
3. The reservoir is chosen unless a trained cell is better on the same sequences by more than one standard error of the
   difference. What is chosen is fitted to all sequences.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from holdfast.errors import SettingError, one_of
from holdfast.estimators.baselines import baselines
from holdfast.estimators.readout import fit_reservoir
from holdfast.estimators.trained import TRAINED, fit_trained
from holdfast.runs.intervals import wilson

__all__ = ["Choice", "Score", "automatic"]

FOLDS, MANY = 5, 1000
FEWEST = 20  # sequences below which trained cells are not tried
SHORTEST = 1.0  # seconds below which a training is not begun


@dataclasses.dataclass(frozen=True)
class Score:
    """How well a model answers sequences that it was not fitted to.

    Args:
        name: of the model.
        how: "leave one out", "5 folds" or "held out".
        losses: (n,) of each sequence: 0 or 1, whether the answer is wrong, or the squared error per variance; NaN for
            sequences that it was not tried on.
        classes: whether ``losses`` are wrong answers.
        seconds: of all its fits.

    Example:
        >>> print(Score("gru", "5 folds", torch.tensor([0.0, 0, 1, 0]), classes=True))
        gru: accuracy 0.750 [0.301, 0.954], n = 4, 5 folds
    """

    name: str
    how: str
    losses: Tensor
    classes: bool
    seconds: float = 0.0

    @property
    def n(self) -> int:
        """Sequences that were answered."""
        return int((~self.losses.isnan()).sum())

    @property
    def value(self) -> float:
        """The accuracy, or the squared error as a share of the variance."""
        mean = self.losses.nanmean().item()
        return 1 - mean if self.classes else mean

    @property
    def interval(self) -> tuple[float, float]:
        """95%: Wilson's for an accuracy, the mean ± 1.96 standard errors for an error."""
        n, p = self.n, self.value
        if self.classes:
            return wilson(p, n)
        error = 1.96 * self.losses[~self.losses.isnan()].std().item() / math.sqrt(n) if n > 1 else math.inf
        return max(0.0, p - error), p + error

    def __str__(self) -> str:
        (low, high), what = self.interval, "accuracy" if self.classes else "error per variance"
        return f"{self.name}: {what} {self.value:.3f} [{low:.3f}, {high:.3f}], n = {self.n}, {self.how}"


@dataclasses.dataclass(frozen=True)
class Choice:
    """What ``automatic`` chose, and what it compared.

    Args:
        name: of the model chosen.
        model: fitted to all sequences: (batch, time, channels), lengths to logits or numbers.
        scores: of everything that was tried.

    Example:
        >>> losses = torch.tensor([0.0, 0, 1, 0])
        >>> scores = Score("gru", "held out", losses, True), Score("most common", "held out", 1 - losses, True)
        >>> print(Choice("gru", nn.Identity(), scores).summary())
        * gru: accuracy 0.750 [0.301, 0.954], n = 4, held out
          most common: accuracy 0.250 [0.046, 0.699], n = 4, held out
        gru was chosen: 0.500 better than most common, the best of the others.
    """

    name: str
    model: nn.Module
    scores: tuple[Score, ...]

    def summary(self) -> str:
        """One line for each score, and who won by how much."""
        ranked = sorted(self.scores, key=lambda score: score.value, reverse=self.scores[0].classes)
        own = next(score for score in self.scores if score.name == self.name)
        rival = next((score for score in ranked if score is not own), None)
        lines = [f"{'*' if score is own else ' '} {score}" for score in ranked]
        if rival is not None:
            ahead = (own.value - rival.value) * (1 if own.classes else -1)
            verdict = f"{abs(ahead):.3f} {'better' if ahead > 0 else 'worse'} than" if ahead else "level with"
            lines.append(f"{self.name} was chosen: {verdict} {rival.name}, the best of the others.")
        return "\n".join(lines)


def automatic(
    x: Tensor,
    lengths: Tensor,
    y: Tensor,
    *,
    classes: int | None,
    minutes: float = 5.0,
    cells: Sequence[str] = ("sgornn", "gru", "lstm"),
    units: int | None = None,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> Choice:
    """Choose and fit a model for these sequences.

    Args:
        x: (n, time, channels), standardised, zeros behind the end of shorter sequences.
        lengths: (n,).
        y: (n,) indices of classes, or (n, outputs) standardised numbers.
        classes: how many; None for numbers.
        minutes: for trained cells; 0 leaves them out. The reservoir and the baselines take what they need.
        cells: layers to train, in this order.
        units: of each cell of the reservoir; None for its default.
        seed: of everything random. With trained cells the time that they get decides too.
        say: called with each score as it is known.

    Example:
        >>> x, y = torch.randn(30, 12, 1), torch.arange(30) % 2
        >>> x[y == 1] += 1
        >>> choice = automatic(x, torch.full((30,), 12), y, classes=2, minutes=0, units=4)
        >>> choice.name, len(choice.scores)
        ('reservoir', 4)
    """
    for cell in cells:
        one_of("automatic", "cells", cell, TRAINED)
    if not minutes >= 0:
        raise SettingError(f"automatic expects minutes of at least 0, got {minutes}.")
    began, scores = time.monotonic(), []

    def scored(name: str, how: str, losses: Tensor, seconds: float = 0.0) -> Score:
        scores.append(Score(name, how, losses, classes is not None, seconds))
        if say is not None:
            say(str(scores[-1]))
        return scores[-1]

    model, left_out = fit_reservoir(x, lengths, y, classes=classes, seed=seed, units=units)
    reservoir = scored("reservoir", "leave one out", _losses(left_out, y, classes), time.monotonic() - began)
    for name, answers in baselines(x, y, classes=classes).items():
        scored(name, "leave one out", _losses(answers, y, classes))
    best, deadline = reservoir, began + 60 * minutes
    if len(x) >= FEWEST and reservoir.losses.sum() > 0:
        for index, cell in enumerate(cells):
            share = (deadline - time.monotonic()) / (len(cells) - index + 1)  # the last share is for the final fit
            score = _tried(cell, x, lengths, y, classes, share, seed, reservoir)
            if score is not None:
                scored(score.name, score.how, score.losses, score.seconds)
                if score.n and _gain(best, scores[-1]) > 0 and _gain(reservoir, scores[-1]) > 1:
                    best = scores[-1]
    if best is not reservoir:
        seconds = max(SHORTEST, deadline - time.monotonic())
        model = fit_trained(best.name, x, lengths, y, classes=classes, seconds=seconds, seed=seed)
    return Choice(best.name, model, tuple(scores))


def _tried(
    cell: str, x: Tensor, lengths: Tensor, y: Tensor, classes: int | None, seconds: float, seed: int, rival: Score
) -> Score | None:
    """The score of a trained cell within this time, or None if there is none."""
    losses, began = torch.full((len(x),), math.nan, dtype=torch.float32), time.monotonic()
    folds, how = list(_folds(y, classes, seed)), ""
    for done, test in enumerate(folds):
        left = (seconds - (time.monotonic() - began)) / (len(folds) - done)
        if left < SHORTEST:
            break
        train = torch.ones(len(x), dtype=torch.bool)
        train[test] = False
        model = fit_trained(cell, x[train], lengths[train], y[train], classes=classes, seconds=left, seed=seed)
        with torch.no_grad():
            losses[test] = _losses(model(x[test], lengths[test]), y[test], classes)
        tried = "" if done + 1 == len(folds) else f"{done + 1} of "
        how = "held out" if len(folds) == 1 else f"{tried}{len(folds)} folds"
        if _gain(rival, Score(cell, how, losses, classes is not None)) < -2:
            break
    return Score(cell, how, losses, classes is not None, time.monotonic() - began) if how else None


def _folds(y: Tensor, classes: int | None, seed: int) -> Iterator[Tensor]:
    """Rows to test on: five parts, or the first of them if there are many. Classes are spread evenly over the parts."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    if classes is not None:
        order = order[y[order].argsort(stable=True)]
    parts = [order[part::FOLDS] for part in range(FOLDS)]
    yield from parts[:1] if len(y) >= MANY else parts


def _losses(z: Tensor, y: Tensor, classes: int | None) -> Tensor:
    """Of each sequence: whether the answer is wrong, or its squared error per variance."""
    if classes is not None:
        return (z.argmax(dim=1) != y).float()
    return ((z - y).double().square() / y.double().var(dim=0, correction=0).clamp_min(1e-12)).mean(dim=1).float()


def _gain(old: Score, new: Score) -> float:
    """By how many standard errors ``new`` is better than ``old``, on the sequences that both have answered."""
    both = ~(old.losses.isnan() | new.losses.isnan())
    difference = (old.losses - new.losses)[both].double()
    spread = difference.std().item() / math.sqrt(len(difference)) if len(difference) > 1 else math.inf
    return difference.mean().item() / spread if spread > 0 else 0.0
