"""The automatic choice: a reservoir first, trained cells while there is time, and baselines beside them.

1. The reservoir, the nearest neighbour and ridge regression, each scored by leaving out one training sequence at a time
   (closed forms).
2. A plain GRU, the third baseline, and trained cells, scored on five folds, or on one fifth of the data if there are
   1,000 sequences or more. A cell that is clearly behind the reservoir after a fold is not tried on the others.
3. The reservoir is chosen unless a trained cell that was tried on all folds is better by more than one standard error
   of the difference. What is chosen is fitted to all sequences.

Note [Once]: every piece of work goes through a ``Journal``, with the seconds that it took. What is decided depends on
the journal alone: on scores, and on the seconds in it, never on the clock of the moment. So a choice that was killed
and goes on from its journal ends as it would have ended.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import SettingError, one_of
from holdfast.estimators.baselines import baselines, with_shares
from holdfast.estimators.readout import fit_reservoir
from holdfast.estimators.trained import (
    PLAIN,
    TRAINED,
    UPDATES,
    fit_trained,
    network_of,
    seconds_per_update,
    updates_within,
)
from holdfast.runs.intervals import wilson
from holdfast.train import ModelSettings
from holdfast.train.progress import Progress

__all__ = ["CELLS", "Choice", "Journal", "Score", "automatic"]

CELLS = ("sgornn", "gru", "lstm", "mingru")
FOLDS, MANY = 5, 1000
FEWEST = 20  # sequences below which trained cells are not tried
SHORTEST = 150  # updates below which a training is not begun
WORST = 1e6  # the loss that stands for a non-finite one
BATCH = 256


class Journal:
    """Pieces of work that are done once: see Note [Once].

    ``spent`` is the time of all pieces that were asked for so far, also of those that were in the journal already.

    Args:
        entries: of an earlier sitting: piece, value and seconds of each.
        write: called with the entry of every new piece, whose value JSON can hold.

    Example:
        >>> entries = []
        >>> Journal(write=entries.append).once("sum", lambda: 1 + 1)
        2
        >>> Journal(entries).once("sum", lambda: 1 / 0)
        2
    """

    def __init__(
        self, entries: Sequence[Mapping[str, Any]] = (), write: Callable[[dict[str, Any]], None] | None = None
    ):
        self.values = {entry["piece"]: entry["value"] for entry in entries}
        self.times = {entry["piece"]: float(entry["seconds"]) for entry in entries}
        self.write, self.spent = write, 0.0
        self._seen: set[str] = set()

    def once(self, piece: str, work: Callable[[], Any]) -> Any:
        """The value of ``work()``, from the journal if it is there."""
        if piece not in self.values:
            began = time.monotonic()
            value = work()
            entry = {"piece": piece, "value": value, "seconds": round(time.monotonic() - began, 3)}
            if self.write is not None:
                self.write(entry)
            self.values[piece], self.times[piece] = value, entry["seconds"]
        self.spent += 0.0 if piece in self._seen else self.times[piece]
        self._seen.add(piece)
        return self.values[piece]

    def seconds(self, of: str) -> float:
        """The seconds of all pieces whose names begin with ``of``."""
        return sum(seconds for piece, seconds in self.times.items() if piece.startswith(of))


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
        form = ".3f" if self.classes else ".3g"
        return f"{self.name}: {what} {self.value:{form}} [{low:{form}}, {high:{form}}], n = {self.n}, {self.how}"


@dataclasses.dataclass(frozen=True)
class Choice:
    """What ``automatic`` chose, and what it compared.

    Args:
        name: of the model chosen.
        network: its settings.
        model: fitted to all sequences; takes (time, batch, channels) and lengths, as ``holdfast.train.SequenceModel``.
        scores: of everything that was tried.
        note: what was not tried, and why.

    Example:
        >>> losses = torch.tensor([0.0, 0, 1, 0])
        >>> scores = Score("gru", "held out", losses, True), Score("most common", "held out", 1 - losses, True)
        >>> print(Choice("gru", network_of("gru"), nn.Identity(), scores).summary())
        * gru: accuracy 0.750 [0.301, 0.954], n = 4, held out
          most common: accuracy 0.250 [0.046, 0.699], n = 4, held out
        gru was chosen: 0.500 better than most common, the best of the others.
    """

    name: str
    network: ModelSettings
    model: nn.Module
    scores: tuple[Score, ...]
    note: str = ""

    def ranked(self) -> list[Score]:
        """The scores, best first."""
        return sorted(self.scores, key=lambda score: score.value, reverse=self.scores[0].classes)

    def verdict(self) -> str:
        """Who won, and by how much; and what was not tried."""
        own = next(score for score in self.scores if score.name == self.name)
        rival = next((score for score in self.ranked() if score is not own), None)
        if rival is None:
            return f"{self.name} was chosen. {self.note}".rstrip()
        ahead = (own.value - rival.value) * (1 if own.classes else -1)
        size = f"{abs(ahead):.3f}" if own.classes else f"{abs(ahead):.2g}"
        level = abs(ahead) < (5e-4 if own.classes else 0.01 * own.value)
        how = "level with" if level else f"{size} {'better' if ahead > 0 else 'worse'} than"
        part = "" if rival.n >= own.n else f" (tried on {rival.n:,} of {own.n:,} sequences)"
        return f"{self.name} was chosen: {how} {rival.name}{part}, the best of the others. {self.note}".rstrip()

    def summary(self) -> str:
        """One line for each score, and the verdict."""
        lines = [f"{'*' if score.name == self.name else ' '} {score}" for score in self.ranked()]
        return "\n".join([*lines, self.verdict()])


def automatic(
    x: Tensor,
    lengths: Tensor,
    y: Tensor,
    *,
    classes: int | None,
    minutes: float = 5.0,
    cells: Sequence[str] = CELLS,
    units: int | None = None,
    updates: int = UPDATES,
    seed: int = 0,
    journal: Journal | None = None,
    say: Callable[[str], None] | None = None,
    progress: Callable[[str], Progress] | None = None,
) -> Choice:
    """Choose and fit a model for these sequences.

    Args:
        x: (n, time, channels), standardised, zeros behind the end of shorter sequences.
        lengths: (n,).
        y: (n,) indices of classes, or (n, outputs) standardised numbers.
        classes: how many; None for numbers.
        minutes: for everything; 0 leaves out the plain GRU and trained cells. The reservoir and the closed forms take
            what they need.
        cells: layers to train, in this order.
        units: of each cell of the reservoir; None for its default.
        updates: of a training, at most; fewer where time is short.
        seed: of everything random. With trained cells the time that they get decides too.
        journal: of an earlier sitting, to go on from; it is added to.
        say: called with each score as it is known.
        progress: makes the display of a training from its name.

    Example:
        >>> x, y = torch.randn(30, 12, 1), torch.arange(30) % 2
        >>> x[y == 1] += 1
        >>> choice = automatic(x, torch.full((30,), 12), y, classes=2, minutes=0, units=4)
        >>> choice.name, len(choice.scores)
        ('reservoir', 4)
    """
    for cell in cells:
        one_of("automatic", "cells", cell, TRAINED)
    if not 0 <= minutes < math.inf:
        raise SettingError(f"automatic expects minutes of at least 0, got {minutes}.")
    search = _Search(x, lengths, y, classes, updates, seed, journal or Journal(), say, progress)
    return search.choice(minutes, cells, units)


@dataclasses.dataclass(frozen=True)
class _Search:
    """One choice: the data, and who is told about it."""

    x: Tensor
    lengths: Tensor
    y: Tensor
    classes: int | None
    updates: int
    seed: int
    journal: Journal
    say: Callable[[str], None] | None
    progress: Callable[[str], Progress] | None
    scores: list[Score] = dataclasses.field(default_factory=list)

    def choice(self, minutes: float, cells: Sequence[str], units: int | None) -> Choice:
        reservoir, fitted = self._reservoir(units)
        best, plans, limit, note, late = reservoir, {}, 60 * minutes, "", list[str]()
        if len(self.x) < FEWEST or minutes == 0:
            cells = ()
            note = f"No cell was trained: fewer than {FEWEST} sequences." if minutes else ""
        elif not reservoir.losses.any():
            cells = (PLAIN,)  # nothing to gain; the baseline is shown all the same
        else:
            cells = (PLAIN, *cells)
        for index, cell in enumerate(cells):
            share = (limit - self.journal.spent) / (len(cells) - index + 1)  # the last share is for the final fit
            updates, folds = plans[cell] = self._plan(cell, share)
            score = self._tried(cell, updates, folds, reservoir, limit)
            late += [cell] if score is None else []
            better = (
                score is not None and self._decides(score) and _gain(best, score) > 0 and _gain(reservoir, score) > 1
            )
            best = score if score is not None and better else best
        if late:
            note = f"Not tried, for lack of time: {', '.join(late)}."
        if best is not reservoir:
            model = self._fit(best.name, plans[best.name][0], torch.arange(len(self.x)), "all sequences")
            return Choice(best.name, network_of(best.name), model, tuple(self.scores), note)
        model = fitted[0] if fitted else self._fit_reservoir(units)[0]
        network = ModelSettings("reservoir", model.reservoir.units, options=model.options())
        return Choice("reservoir", network, model, tuple(self.scores), note)

    def _decides(self, score: Score) -> bool:
        """Whether a cell was tried on enough sequences to be chosen: on all folds, or on a fifth of many sequences."""
        return score.name != PLAIN and score.n >= (len(self.x) if len(self.x) < MANY else len(self.x) // FOLDS)

    def _scored(self, name: str, how: str, losses: Tensor, piece: str = "") -> Score:
        score = Score(name, how, losses, self.classes is not None, self.journal.seconds(piece) if piece else 0.0)
        self.scores.append(score)
        if self.say is not None:
            self.say(str(score))
        return score

    def _fit_reservoir(self, units: int | None) -> tuple[Any, Tensor]:
        return fit_reservoir(self.x, self.lengths, self.y, classes=self.classes, seed=self.seed, units=units)

    def _reservoir(self, units: int | None) -> tuple[Score, list[Any]]:
        """The scores of closed forms; that of the reservoir, and its model if it was fitted now."""
        fitted: list[Any] = []

        def reservoir() -> list[float]:
            model, left_out = self._fit_reservoir(units)
            fitted.append(model)
            if self.classes is not None:
                targets = nn.functional.one_hot(self.y, self.classes) * 2.0 - 1  # as in fit_reservoir
                left_out = with_shares((left_out / model.sharpness).double(), targets.double())
            return _losses(left_out, self.y, self.classes).tolist()

        losses = torch.tensor(self.journal.once("reservoir", reservoir), dtype=torch.float32)
        score = self._scored("reservoir", "leave one out", losses, "reservoir")
        simple = self.journal.once(
            "baselines",
            lambda: {
                name: _losses(answers, self.y, self.classes).tolist()
                for name, answers in baselines(self.x, self.y, classes=self.classes).items()
            },
        )
        for name, values in simple.items():
            self._scored(name, "leave one out", torch.tensor(values, dtype=torch.float32))
        return score, fitted

    def _plan(self, cell: str, seconds: float) -> tuple[int, int]:
        """How many updates of a training, and on how many folds, fit into so many seconds; (0, 0) if none do."""
        if seconds <= 0:
            return 0, 0
        folds = 1 if len(self.x) >= MANY else FOLDS
        each = self.journal.once(
            f"{cell}: time of an update",
            lambda: seconds_per_update(cell, self.x, self.lengths, self.y, classes=self.classes, seed=self.seed),
        )
        for count in range(folds, 0, -1):
            updates = min(self.updates, updates_within(seconds / count, each))
            if updates >= min(SHORTEST, self.updates):
                return updates, count
        return 0, 0

    def _tried(self, cell: str, updates: int, count: int, rival: Score, limit: float) -> Score | None:
        """The score of a trained cell on so many folds, or None if there is no time for it."""
        losses, how = torch.full((len(self.x),), math.nan, dtype=torch.float32), ""
        parts = list(_folds(self.y, self.classes, self.seed))
        for done, test in enumerate(parts[:count], 1):
            if done > 1 and self.journal.spent > limit:  # slower than planned
                break
            train = torch.ones(len(self.x), dtype=torch.bool)
            train[test] = False
            rows, label = train.nonzero()[:, 0], f"fold {done} of {count}" if count > 1 else "held out"

            def fold(rows: Tensor = rows, test: Tensor = test, label: str = label) -> list[float]:
                model = self._fit(cell, updates, rows, label)
                return _losses(self._answers(model, test), self.y[test], self.classes, self.y).tolist()

            losses[test] = torch.tensor(self.journal.once(f"{cell}: {label}", fold), dtype=torch.float32)
            tried = "" if done == len(parts) else f"{done} of "
            how = "held out" if len(parts) == 1 else f"{tried}{len(parts)} folds"
            if _gain(rival, Score(cell, how, losses, self.classes is not None)) < -2 and cell != PLAIN:
                break
        if not how:
            return None
        return self._scored(cell, how, losses, f"{cell}: ")

    def _fit(self, cell: str, updates: int, rows: Tensor, label: str) -> nn.Module:
        progress = None if self.progress is None else self.progress(f"{cell}, {label}")
        data = self.x[rows], self.lengths[rows], self.y[rows]
        return fit_trained(cell, *data, classes=self.classes, updates=updates, seed=self.seed, progress=progress)

    @torch.no_grad()
    def _answers(self, model: nn.Module, rows: Tensor) -> Tensor:
        parts = [model(self.x[some].transpose(0, 1), self.lengths[some])[0] for some in rows.split(BATCH)]
        return torch.cat(parts)


def _folds(y: Tensor, classes: int | None, seed: int) -> Iterator[Tensor]:
    """Rows to test on: five parts, or the first of them if there are many. Classes are spread evenly over the parts."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    if classes is not None:
        order = order[y[order].argsort(stable=True)]
    parts = [order[part::FOLDS] for part in range(FOLDS)]
    yield from parts[:1] if len(y) >= MANY else parts


def _losses(z: Tensor, y: Tensor, classes: int | None, of: Tensor | None = None) -> Tensor:
    """Of each sequence: whether the answer is wrong, or its squared error per variance of all targets ``of``."""
    if classes is not None:
        return (z.argmax(dim=1) != y).float()
    spread = (y if of is None else of).double().var(dim=0, correction=0).clamp_min(1e-12)
    losses = ((z - y).double().square() / spread).mean(dim=1)
    return losses.nan_to_num(WORST, WORST).clamp(max=WORST).float()


def _gain(old: Score, new: Score) -> float:
    """By how many standard errors ``new`` is better than ``old``, on the sequences that both have answered."""
    both = ~(old.losses.isnan() | new.losses.isnan())
    difference = (old.losses - new.losses)[both].double()
    spread = difference.std().item() / math.sqrt(len(difference)) if len(difference) > 1 else math.inf
    return difference.mean().item() / spread if spread > 0 else 0.0
