"""Algorithm 1 for a whole batch: a tree for every sample, in one tensor program.

    V_k  = {u(o(L_r c_i, R_r c_j) + b_r) : i < j, r, o, u}        (1) candidates of round k
    c_k* = argmax {α(v) : v in V_k, v not in P_{k-1}}             (2) the choice
    P_k  = P_{k-1} ∪ {c_k*},   h_t = c_N̄*                         (3)

What makes it fast. A candidate's vector and score do not change after it is born, so a round makes only the pairs of
the newest node, which is the right child of all of them; L_r c and R_r c are computed once a node; vectors and scores
are made by compiled loops (compiled_values.py, compiled_scores.py); nothing here is recorded for the gradient: grow.py
evaluates the chosen and the runners-up again, with it.

Note [Ties and duplicates]. Candidates have an order: by right child, left child, tuple, operator, activation. Of equal
scores the first candidate wins; scores are equal if they differ by at most eps^(2/3) · max(1, |score|): one vector that
is made in two ways can be scored in two roundings. "Not in the pool" holds up to rounding too: v counts as c if no
entry differs by more than eps^(2/3) · max(1, max|v|), since 1 - (1 - z) is z on paper and not in floating point. The
pool here is P: leaves may be made again. The runner-up is the best candidate that neither is in P_k nor equals the
choice. A sample that has no new candidate left, such as one of zeros with zero biases, takes its best candidate again.

Source: S1, Algorithm 1. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.rrnn.grow import Found
from holdfast.rrnn.normalise import BirthNorm
from holdfast.rrnn.scorer import TwoLayerScorer
from holdfast.rrnn.sets import ACTIVATIONS, OPERATORS, Sets
from holdfast.rrnn.tree import Matrices

__all__ = ["search", "tolerance"]


def tolerance(dtype: torch.dtype) -> float:
    """How far apart two vectors may be and count as one, relative to the larger of 1 and their largest entry.

    Example:
        >>> f"{tolerance(torch.float32):.0e} {tolerance(torch.float64):.0e}"
        '2e-05 4e-11'
    """
    return torch.finfo(dtype).eps ** (2 / 3)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Where candidates are kept: which numbers a flat index stands for.

    Activations are made from ``bases``: one minus is the identity, flipped, and needs no memory of its own.
    """

    table: Tensor  # (candidates, 5)
    right: np.ndarray  # (candidates,): right child
    row: np.ndarray  # (candidates,): of the buffer of vectors, (operators, bases, pairs, tuples)
    flipped: np.ndarray  # (candidates,)
    bases: tuple[str, ...]
    scored: tuple[tuple[int, bool], ...]  # base and flip of every activation


@functools.lru_cache(maxsize=64)
def _layout(sets: Sets, leaves: int, device: torch.device) -> _Layout:
    bases = tuple(dict.fromkeys("identity" if name == "one_minus" else name for name in sets.activations))
    scored = tuple(
        (bases.index("identity"), True) if name == "one_minus" else (bases.index(name), False)
        for name in sets.activations
    )
    last = leaves + sets.rounds - 1  # nodes that the last round can use
    right, left = torch.tril_indices(last, last, offset=-1)  # by right child, then by left child
    inner = torch.cartesian_prod(
        torch.arange(sets.tuples), torch.arange(len(sets.operators)), torch.arange(len(sets.activations))
    )
    pairs = torch.stack((left, right), dim=1).repeat_interleave(len(inner), dim=0)
    table = torch.cat((pairs, inner.repeat(len(left), 1)), dim=1)
    base = torch.tensor([base for base, _ in scored])[table[:, 4]]
    flipped = torch.tensor([flip for _, flip in scored])[table[:, 4]]
    pair = torch.arange(len(left)).repeat_interleave(len(inner))
    row = ((table[:, 3] * len(bases) + base) * len(left) + pair) * sets.tuples + table[:, 2]
    return _Layout(table.to(device), table[:, 1].numpy(), row.numpy(), flipped.numpy(), bases, scored)


@functools.cache
def _loops() -> tuple[Any, Any] | None:
    """The modules of the compiled loops; None where their compiler is not installed."""
    try:
        from holdfast.rrnn import compiled_scores, compiled_values
    except ImportError:
        return None
    return compiled_values, compiled_scores


_HELD = threading.local()


def _memory(name: str, like: Tensor, *shape: int) -> Tensor:
    """An empty tensor in memory that this thread's last search used too: new pages cost more than what is done in them.

    Nothing that a search returns lies in it.
    """
    held: dict[tuple, Tensor] = _HELD.__dict__.setdefault("tensors", {})
    key, count = (name, like.dtype, like.device), math.prod(shape)
    if key not in held or held[key].numel() < count:
        held[key] = torch.empty(count, dtype=like.dtype, device=like.device)
    return held[key][:count].view(shape)


class _Candidates:
    """All candidates born so far of one batch, with their scores.

    Vectors are the device's. Scores are NumPy's: to find the best of a few thousand is many small steps, and there a
    small step costs a quarter of what it does in PyTorch.
    """

    def __init__(self, leaves: Tensor, matrices: Matrices, sets: Sets, scorer: nn.Module, norm: BirthNorm | None):
        count, batch, size = leaves.shape
        self.sets, self.matrices, self.scorer, self.norm = sets, matrices, scorer, norm
        self.layout, self.leaf_count = _layout(sets, count, leaves.device), count
        nodes = count + sets.rounds - 1
        pairs, tuples, operators = nodes * (nodes - 1) // 2, sets.tuples, len(sets.operators)
        self.vectors = _memory("vectors", leaves, operators, len(self.layout.bases), pairs, tuples, batch, size)
        self.rows = self.vectors.view(-1, batch, size)
        self.rows_here = self.rows.numpy() if self.rows.device.type == "cpu" else None
        self.score_shape = (pairs, tuples, operators, len(sets.activations))
        self.each = pairs and tuples * operators * len(sets.activations)  # candidates of a pair
        self.scores = np.empty((batch, pairs * self.each), dtype=leaves.detach()[:0].cpu().numpy().dtype)
        self.tolerance = tolerance(leaves.dtype)
        self.samples = np.arange(batch)
        self.left = _memory("left", leaves, nodes, tuples, batch, size)  # L_r c of every node
        self.statistics: list[tuple[Tensor, Tensor]] = []
        self.pool = np.full((sets.rounds, batch, size), np.nan, dtype=self.scores.dtype)
        self.pool_scores = np.full((sets.rounds, batch), np.nan, dtype=self.scores.dtype)
        self.struck: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # sample, place, score of what is in the pool
        self.scales, self.shifts = np.empty((2, sets.rounds, size), dtype=self.scores.dtype)  # of a normalisation
        self.pairs = 0  # born so far
        # x ↦ (L_1 x .. L_n x, R_1 x .. R_n x) as one product
        self.project = torch.cat((matrices.flat_left, matrices.flat_right), dim=1)
        flat = tuples * batch * size
        self.wide_bias: Tensor | None = None  # b_r for every sample, where vectors are made by the compiled loop
        self.compiled, self.loops = None, _loops()
        if self.loops:
            values, scores = self.loops
            bias = matrices.bias[:, None].expand(-1, batch, -1)
            if bias.dtype == leaves.dtype and values.takes(bias, sets.operators, self.layout.bases, flat):
                self.wide_bias = bias.flatten()
            if isinstance(scorer, TwoLayerScorer) and scores.CompiledScores.takes(scorer.weight, leaves):
                self.compiled = scores.CompiledScores(*(weight.detach() for weight in scorer.parts))
        rights = [self._project(leaf, at) for at, leaf in enumerate(leaves)]
        self._birth([(at, rights[at]) for at in range(1, count)], 0)  # the pairs of leaves are one birth

    def _project(self, node: Tensor, at: int) -> Tensor:
        """Note L_r c of the node that is ``at`` in the pool and return R_r c: (tuples, batch, p)."""
        both = (node @ self.project).view(len(node), 2, self.sets.tuples, -1).permute(1, 2, 0, 3)
        self.left[at] = both[0]
        return both[1].contiguous()

    def add(self, k: int) -> None:
        """The pairs of the newest node, that of round ``k``, with all that are older."""
        node, at = torch.from_numpy(self.pool[k]).to(self.vectors.device), self.leaf_count + k
        self._birth([(at, self._project(node, at))], k + 1)

    def _birth(self, births: list[tuple[int, Tensor]], nodes: int) -> None:
        begin = self.pairs
        for at, right in births:
            self._values(at, right, self.pairs)
            self.pairs += at
        affine = self._normalisation(begin)
        self._score(begin, affine)
        if nodes:
            self._strike_born_again(begin * self.each, nodes)

    def _values(self, at: int, right: Tensor, begin: int) -> None:
        """u(o(L_r c_i, R_r c_j) + b_r) for all older i, every o and every base u, where they are kept."""
        bases, bias, left = self.layout.bases, self.matrices.bias[:, None], self.left[:at]
        out = self.vectors[:, :, begin : begin + at]
        if self.loops and self.wide_bias is not None:
            flat = (left.flatten(1), right.flatten(), self.wide_bias, out.flatten(3))
            self.loops[0].compiled_values(*flat, self.sets.operators, bases)
            return
        z = out[:, bases.index("identity")] if "identity" in bases else torch.empty_like(out[:, 0])
        for o, operator in enumerate(self.sets.operators):
            if operator == "add":
                torch.add(left, right + bias, out=z[o])
            elif operator == "mul":
                torch.addcmul(bias, left, right, out=z[o])
            else:
                torch.add(OPERATORS[operator].apply(left, right), bias, out=z[o])
        for a, base in enumerate(bases):
            match base:
                case "sigmoid":
                    torch.sigmoid(z, out=out[:, a])
                case "tanh":
                    torch.tanh(z, out=out[:, a])
                case "identity":
                    pass
                case _:
                    out[:, a] = ACTIVATIONS[base].apply(z)

    def _normalisation(self, begin: int) -> tuple[Tensor, Tensor] | None:
        """Scale and shift of this birth, from sums over the bases: E(1 - z) = 1 - E z, E(1 - z)² = 1 - 2 E z + E z²."""
        if self.norm is None:
            return None
        size = self.vectors.shape[-1]
        mean, square = self.vectors.new_zeros(2, size)
        if self.norm.training:
            born = self.vectors[:, :, begin : self.pairs].flatten(2, 4)  # (operators, bases, rows, p)
            # sums, not torch.var_mean, which takes twelve times as long over rows
            means, squares = born.mean(dim=2).mean(dim=0), born.square().mean(dim=2).mean(dim=0)  # (bases, p)
            for base, flipped in self.layout.scored:
                mean = mean + (1 - means[base] if flipped else means[base])
                square = square + (1 - 2 * means[base] + squares[base] if flipped else squares[base])
        mean, square = mean / len(self.layout.scored), square / len(self.layout.scored)
        variance = (square - mean.square()).clamp_min(0)
        birth = len(self.statistics)
        self.statistics.append(self.norm.statistics(birth, mean, variance))
        affine = self.norm.affine(*self.statistics[-1])
        self.scales[birth], self.shifts[birth] = (part.cpu().numpy() for part in affine)
        return affine

    def _score(self, begin: int, affine: tuple[Tensor, Tensor] | None) -> None:
        """α of every vector that was born, once."""
        batch, bases = len(self.samples), len(self.layout.bases)
        born = self.vectors[:, :, begin : self.pairs]  # (operators, bases, pairs, tuples, batch, p)
        target = self.scores.reshape(batch, *self.score_shape)[:, begin : self.pairs]
        if self.compiled is not None:
            scorer = self.compiled if affine is None else self.compiled.folded(*affine)
            scores = scorer(born.flatten(0, 1).flatten(1, 3)).reshape(2, -1, bases, *born.shape[2:5])
            base, flipped = map(list, zip(*self.layout.scored, strict=True))
            chosen = scores[list(map(int, flipped)), :, base]  # (activations, operators, pairs, tuples, batch)
            target[:] = chosen.transpose(4, 2, 3, 1, 0)
            return
        for o in range(len(self.sets.operators)):
            for u, (base, flipped) in enumerate(self.layout.scored):
                v = born[o, base]
                v = 1 - v if flipped else v
                v = v if affine is None else v * affine[0] + affine[1]
                target[:, :, :, o, u] = self.scorer(v).reshape(v.shape[:-1]).cpu().numpy().transpose(2, 0, 1)

    def picked(self, places: np.ndarray, samples: np.ndarray | None = None) -> np.ndarray:
        """The vectors (any, p) of some candidates; without ``samples``, one of each sample."""
        layout, samples = self.layout, self.samples if samples is None else samples
        if self.rows_here is not None:
            v = self.rows_here[layout.row[places], samples]
        else:
            where = torch.from_numpy(layout.row[places]).to(self.rows.device)
            v = self.rows[where, torch.from_numpy(samples).to(self.rows.device)].cpu().numpy()
        if (flipped := layout.flipped[places]).any():
            v[flipped] = 1 - v[flipped]
        if self.norm is not None:
            birth = np.maximum(layout.right[places] - self.leaf_count + 1, 0)
            v = v * self.scales[birth] + self.shifts[birth]
        return v

    def choose(self, k: int, runner_up: bool) -> tuple[np.ndarray, np.ndarray]:
        """(2) for every sample: place of the choice, whose vector becomes ``pool[k]``, and of the runner-up or -1.

        See Note [Ties and duplicates]. What is once in the pool stays there, so its score is struck out for good.
        """
        scores, pool = self.scores[:, : self.pairs * self.each], self.pool
        chosen, runner = np.full_like(self.samples, -1), np.full_like(self.samples, -1)
        waiting = np.ones(len(self.samples), dtype=bool)
        while waiting.any():
            best, place = _first_best(scores, self.tolerance)
            second, found = chosen >= 0, scores[self.samples, place]
            v = self.picked(place)
            seen = self._seen(v, k)
            if (found != best).any():  # what ties with one that is in the pool ties with nothing
                top = scores.argmax(axis=1)
                highest = self.picked(top)
                stale = self._seen(highest, k)
                place, seen = np.where(stale, top, place), seen | stale
                v = np.where(stale[:, None], highest, v)
            lost = waiting & (best == -np.inf)
            if lost.any():
                again = lost & ~second  # nothing new is left
                place = np.where(again, self._best_again(scores), place)
                v = np.where(again[:, None], self.picked(place), v)
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
        """Which of ``v``, one a sample, are among the nodes of the rounds up to ``k``."""
        return (np.abs(self.pool[: k + 1] - v).max(axis=2) <= self._close(v)).any(axis=0)

    def _close(self, v: np.ndarray) -> np.ndarray:
        return self.tolerance * np.maximum(np.abs(v).max(axis=1), 1)

    def _strike(self, scores: np.ndarray, place: np.ndarray, v: np.ndarray, which: np.ndarray) -> None:
        """Take out, in these samples, the candidate at ``place`` and those that have its vector.

        Equal vectors have nearly equal scores, so only such are looked at. One that is missed here is found when it
        comes to be the best: this saves turns of ``choose``, and decides nothing.
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
            others = self.picked(places, samples)
            same = np.abs(others - v[samples]).max(axis=1) <= self._close(others)
            samples, places = samples[same], places[same]
        self._strike_out(scores, np.concatenate((which, samples)), np.concatenate((place[which], places)))

    def _strike_born_again(self, begin: int, nodes: int) -> None:
        """Take out what was born, from ``begin`` on, with the vector of one of the first ``nodes`` nodes: as above."""
        scores = self.scores[:, begin : self.pairs * self.each]
        value = self.pool_scores[:nodes, :, None]
        near = np.abs(scores - value) <= self.tolerance * np.maximum(np.abs(value), 1)
        node, samples, places = np.nonzero(near)
        if len(samples):
            others = self.picked(places + begin, samples)
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

    NaN is the highest of all, and is found: it is the loss's to say that it is not finite.
    """
    best = scores.max(axis=1)
    size = np.minimum(np.maximum(np.abs(best), 1), np.finfo(best.dtype).max)  # -inf stays what it is
    place = (scores >= (best - tolerance * size)[:, None]).argmax(axis=1)
    if np.isnan(best).any():
        place = np.where(np.isnan(best), np.isnan(scores).argmax(axis=1), place)
    return best, place


@torch.no_grad()
def search(
    leaves: Tensor,
    matrices: Matrices,
    sets: Sets,
    scorer: nn.Module,
    *,
    norm: BirthNorm | None = None,
    runner_up: bool = True,
) -> Found:
    """Algorithm 1 for every sample of a batch, without gradients.

    Args:
        leaves: (leaves, batch, p), at least two leaves: data, previous states, auxiliary vectors, in this order.
        matrices: the tuples.
        sets: operators, activations, rounds.
        scorer: α, from (..., p) to (...). ``TwoLayerScorer`` has a faster way on the CPU.
        norm: normalise candidates.
        runner_up: also find the second-best of each round.

    Example:
        >>> leaves = torch.stack((torch.randn(2, 3), torch.randn(2, 3), torch.zeros(2, 3)))
        >>> found = search(leaves, Matrices.identity(3, leaves), Sets(tuples=1, rounds=4), TwoLayerScorer(3, 8))
        >>> (found.choices[:, :, 0] < found.choices[:, :, 1]).all()
        tensor(True)
    """
    choices, runners = [], []
    with np.errstate(all="ignore"):  # what overflows is the loss's to report
        born = _Candidates(leaves.detach(), matrices.detached(), sets, scorer, norm)
        for k in range(sets.rounds):
            if k:
                born.add(k - 1)  # (1), what is new of it
            chosen, runner = born.choose(k, runner_up)  # (2), (3)
            choices.append(chosen)
            runners.append(runner)
    table, device = born.layout.table, leaves.device
    chosen, runner = (torch.from_numpy(np.stack(places)).to(device) for places in (choices, runners))
    statistics = None if norm is None else torch.stack([torch.stack(pair) for pair in born.statistics])
    others = torch.where(runner[..., None] < 0, -1, table[runner])
    return Found(table[chosen], others, torch.from_numpy(born.pool).to(device), statistics)
