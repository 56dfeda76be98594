"""Choosing: the best candidate that is not in the pool yet, for every sample.

    c_k* = argmax {α(v) : v in V_k, v not in P_{k-1}}             (2) the choice
    P_k  = P_{k-1} ∪ {c_k*},   h_t = c_N̄*                         (3)

Note [Ties and duplicates]. Of equal scores the first candidate wins. Scores are equal if they differ by at most
eps^(2/3) · max(1, |score|), since one vector that is made in two ways can be scored in two roundings. "Not in the pool"
holds up to rounding too: v counts as c if no entry differs by more than eps^(2/3) · max(1, max|v|), since 1 - (1 - z)
is z on paper and not in floating point. The pool here is P: leaves may be made again. The runner-up is the best
candidate that is neither in P_k nor equal to the choice. A sample that has no new candidate left, such as one of zeros
with zero biases, takes its best candidate again.

Source: S1, Algorithm 1. Symbols: docs/notation.md.
"""

from __future__ import annotations

import numpy as np
import torch

from holdfast.rrnn.making import Made

__all__ = ["Choosing", "tolerance"]


def tolerance(dtype: torch.dtype) -> float:
    """How far apart two vectors may be and count as one, relative to the larger of 1 and their largest entry.

    Example:
        >>> f"{tolerance(torch.float32):.0e} {tolerance(torch.float64):.0e}"
        '2e-05 4e-11'
    """
    return torch.finfo(dtype).eps ** (2 / 3)


class Choosing:
    """The scores of all candidates, and the pool of those that were chosen.

    Scores are NumPy arrays: finding the best of a few thousand takes many small steps, and each costs a quarter of what
    it does in PyTorch.

    Args:
        made: the candidates' vectors.
    """

    def __init__(self, made: Made):
        self.made, sets = made, made.sets
        operators, _, pairs, tuples, batch, size = made.vectors.shape
        self.shape = (pairs, tuples, operators, len(sets.activations))
        self.each = tuples * operators * len(sets.activations)  # candidates per pair
        self.scores = np.empty((batch, pairs * self.each), dtype=made.scales.dtype)
        self.count = 0  # candidates so far
        self.tolerance, self.samples = tolerance(made.vectors.dtype), np.arange(batch)
        self.pool = np.full((sets.rounds, batch, size), np.nan, dtype=self.scores.dtype)
        self.pool_scores = np.full((sets.rounds, batch), np.nan, dtype=self.scores.dtype)
        self.struck: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # sample, place, score of what is in the pool

    def room(self) -> np.ndarray:
        """Where the scores of what was made last belong: (batch, pairs, tuples, operators, activations)."""
        return self.scores.reshape(len(self.samples), *self.shape)[:, self.count // self.each : self.made.pairs]

    def take(self, nodes: int) -> None:
        """Count in what was scored last, without what is in the pool of the first ``nodes`` rounds."""
        begin, self.count = self.count, self.made.pairs * self.each
        if nodes:
            self._strike_made_again(begin, nodes)

    def choose(self, k: int, runner_up: bool) -> tuple[np.ndarray, np.ndarray]:
        """(2) for every sample: place of the choice, whose vector becomes ``pool[k]``, and of the runner-up or -1.

        See Note [Ties and duplicates]. What is in the pool stays there, so its score is removed for good.
        """
        scores, pool = self.scores[:, : self.count], self.pool
        chosen, runner = np.full_like(self.samples, -1), np.full_like(self.samples, -1)
        waiting = np.ones(len(self.samples), dtype=bool)
        while waiting.any():
            best, place = _first_best(scores, self.tolerance)
            second, found = chosen >= 0, scores[self.samples, place]
            v = self.made.picked(place)
            seen = self._seen(v, k)
            if (found != best).any():  # a tie with a candidate that is in the pool is no tie
                top = scores.argmax(axis=1)
                highest = self.made.picked(top)
                stale = self._seen(highest, k)
                place, seen = np.where(stale, top, place), seen | stale
                v = np.where(stale[:, None], highest, v)
            lost = waiting & (best == -np.inf)
            if lost.any():
                again = lost & ~second  # nothing new is left
                place = np.where(again, self._best_again(scores), place)
                v = np.where(again[:, None], self.made.picked(place), v)
                chosen[again], pool[k, again] = place[again], v[again]
                waiting = waiting & ~lost
            fresh = waiting & ~seen
            taken = fresh & ~second
            runner[fresh & second] = place[fresh & second]
            chosen[taken], pool[k, taken] = place[taken], v[taken]
            self.pool_scores[k, taken] = best[taken]
            self._strike(scores, place, v, waiting & (seen | taken))
            waiting = waiting & ~(fresh & second if runner_up else fresh)
        return chosen, runner

    def _seen(self, v: np.ndarray, k: int) -> np.ndarray:
        """Which of ``v``, one per sample, are among the nodes of the rounds up to ``k``."""
        return (np.abs(self.pool[: k + 1] - v).max(axis=2) <= self._close(v)).any(axis=0)

    def _close(self, v: np.ndarray) -> np.ndarray:
        return self.tolerance * np.maximum(np.abs(v).max(axis=1), 1)

    def _strike(self, scores: np.ndarray, place: np.ndarray, v: np.ndarray, which: np.ndarray) -> None:
        """Take out, in these samples, the candidate at ``place`` and those that have its vector.

        Equal vectors have nearly equal scores, so only those are compared. One that is missed here is found when it
        becomes the best: this saves iterations of ``choose`` and does not change the result.
        """
        which = np.flatnonzero(which)
        if not len(which):
            return
        value = scores[which, place[which], None]
        scores_of = scores[which] if len(which) < len(self.samples) else scores
        near = scores_of >= value - self.tolerance * np.maximum(np.abs(value), 1)  # above it there is nothing
        some, places = np.divmod(np.flatnonzero(near), near.shape[1])
        samples = which[some]
        more = places != place[samples]
        samples, places = samples[more], places[more]
        if len(samples):
            others = self.made.picked(places, samples)
            same = np.abs(others - v[samples]).max(axis=1) <= self._close(others)
            samples, places = samples[same], places[same]
        self._strike_out(scores, np.concatenate((which, samples)), np.concatenate((place[which], places)))

    def _strike_made_again(self, begin: int, nodes: int) -> None:
        """Take out what was made from ``begin`` on with the vector of one of the first ``nodes`` nodes, as above."""
        scores = self.scores[:, begin : self.count]
        value = self.pool_scores[:nodes, :, None]
        near = np.abs(scores - value) <= self.tolerance * np.maximum(np.abs(value), 1)
        node, samples, places = np.nonzero(near)
        if len(samples):
            others = self.made.picked(places + begin, samples)
            same = np.abs(others - self.pool[node, samples]).max(axis=1) <= self._close(others)
            self._strike_out(scores, samples[same], places[same], begin)

    def _strike_out(self, scores: np.ndarray, samples: np.ndarray, places: np.ndarray, begin: int = 0) -> None:
        held = scores[samples, places]
        there = held != -np.inf
        self.struck.append((samples[there], places[there] + begin, held[there]))
        scores[samples, places] = -np.inf

    def _best_again(self, scores: np.ndarray) -> np.ndarray:
        """The best of all candidates, those in the pool too."""
        whole = scores.copy()
        for samples, places, held in self.struck:
            whole[samples, places] = held
        return _first_best(whole, self.tolerance)[1]


def _first_best(scores: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """The highest score of every row, and the first place that has it up to rounding.

    NaN counts as the highest, so that it reaches the loss, which reports it.
    """
    best = scores.max(axis=1)
    size = np.minimum(np.maximum(np.abs(best), 1), np.finfo(best.dtype).max)  # -inf stays what it is
    place = (scores >= (best - tolerance * size)[:, None]).argmax(axis=1)
    if np.isnan(best).any():
        place = np.where(np.isnan(best), np.isnan(scores).argmax(axis=1), place)
    return best, place
