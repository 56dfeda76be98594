"""Algorithm 1 with a soft choice: a node is the mean of all candidates, weighted by the softmax of their scores.

    p = softmax {α(v) : v in V_k, v not in P_{k-1}},   c_k = Σ p_v v        (1)
    v ← (v - mean v) / √(var v + ε), over the batch and the entries         (2) normalisation per candidate, if asked

V_k can be another set than Algorithm 1's (``rules``):

- "multiset": a node, leaves included, is used once, as in §3.1. The pool then holds copies of x and h, and the last
  round has two nodes left.
- "published code": an inner node is used once, and all of them are in the last tree. Rounds 1 and 2 have the first and
  the second tuple alone. Where an entry of o(L c, R d) + b exceeds 1 in absolute value, only σ and tanh are candidates.
  The whole batch has one tree at each step, that of the highest sum of scores. Margins are those of each sample.

Neither leaves out what is in the pool already.

It is differentiable in the scorer too, but keeps every candidate for the gradient. Trees and records show the candidate
with the largest weight. A candidate is made and scored once, in the round in which its right child is new. One that the
rules of the published code leave out for good, since its left child was used or a large entry would pass, is not made.

Source: S1, Appendix E.1, where RRNN-GRU chooses its tuples this way; (2) is in the authors' code of RRNN, in evaluation
too, so that there a sample's trees depend on the others of its batch. Symbols: docs/notation.md.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.errors import SettingError
from holdfast.rrnn.choosing import tolerance
from holdfast.rrnn.grow import Found
from holdfast.rrnn.sets import ACTIVATIONS, OPERATORS, Sets
from holdfast.rrnn.tree import Matrices

__all__ = ["Rules", "soft_search"]

Rules = Literal["algorithm 1", "multiset", "published code"]

BOUNDED = ("sigmoid", "tanh")


def soft_search(
    leaves: Tensor,
    matrices: Matrices,
    sets: Sets,
    scorer: nn.Module,
    *,
    normalise: bool = False,
    rules: Rules = "algorithm 1",
) -> tuple[Found, Tensor, Tensor]:
    """(1) for every round.

    Args:
        leaves: (leaves, batch, p).
        matrices, sets, scorer: as in ``search``.
        normalise: (2).
        rules: which candidates a round has, see above.

    Returns:
        The candidates with the largest weights, with the mixed vectors; and the two highest scores of each round, each
        (rounds, batch), the second -inf if there is none.

    Example:
        >>> from holdfast.rrnn.scorer import TwoLayerScorer
        >>> leaves, sets = torch.randn(3, 4, 5), Sets(tuples=1, rounds=2)
        >>> found, best, second = soft_search(leaves, Matrices.identity(5, leaves), sets, TwoLayerScorer(5, 8))
        >>> found.vectors.requires_grad, (best >= second).all()
        (True, tensor(True))
    """
    if rules == "published code" and not any(name in BOUNDED for name in sets.activations):
        got = ", ".join(sets.activations)
        raise SettingError(f'The rules "published code" expect sigmoid or tanh among the activations, got {got}.')
    batch = leaves.shape[1]
    made = _Candidates(matrices, sets, scorer, batch, normalise=normalise, lasting=rules == "published code")
    nodes, choices, runners, bests, seconds = [], [], [], [], []
    seen = torch.zeros(0, batch, dtype=torch.bool, device=leaves.device)
    used = torch.zeros(len(leaves) + sets.rounds, batch, dtype=torch.bool, device=leaves.device)
    for leaf in leaves:
        made.add(leaf, used)
    for k in range(sets.rounds):
        if k:
            made.add(nodes[-1], used)
        if rules != "algorithm 1":
            seen = made.left_out(used, k, len(leaves), rules)
        elif k:
            seen = torch.cat((seen | made.like(nodes[-1].detach(), len(seen)), made.in_pool(nodes, len(seen))))
        else:
            seen = made.in_pool((), 0)
        score = made.score.masked_fill(seen & ~seen.all(dim=0), -torch.inf)
        nodes.append(made.mean(torch.softmax(score, dim=0)))  # (1)
        top = score.max(dim=0)
        first = top.indices
        if rules == "published code":
            first = score.sum(dim=1).max(dim=0).indices.expand(batch)
        pair = made.table[first, :2]  # (batch, 2)
        used.scatter_(
            0,
            pair.T,
            (pair >= len(leaves)).T if rules == "published code" else torch.ones_like(pair.T, dtype=torch.bool),
        )
        others = score.masked_fill(made.like(made.row(top.indices)), -torch.inf)
        second = others.max(dim=0)
        table = made.table
        choices.append(table[first])
        runners.append(torch.where((second.values == -torch.inf)[:, None], -1, table[second.indices]))
        bests.append(top.values)
        seconds.append(second.values)
    found = Found(torch.stack(choices), torch.stack(runners), torch.stack(nodes))
    return found, torch.stack(bests), torch.stack(seconds)


class _Candidates:
    """All candidates of one step so far: one block (candidates, batch, p) for every right child.

    Args:
        lasting: whether to make only those that the rules of the published code may choose, now or in a later round.
    """

    def __init__(
        self, matrices: Matrices, sets: Sets, scorer: nn.Module, batch: int, *, normalise: bool, lasting: bool
    ):
        self.matrices, self.sets, self.scorer, self.normalise = matrices, sets, scorer, normalise
        self.lasting = lasting
        device = matrices.bias.device
        counts = (sets.tuples, len(sets.operators), len(sets.activations))
        self.inner = torch.cartesian_prod(*(torch.arange(n, device=device) for n in counts)).view(-1, 3)
        self.lefts: list[Tensor] = []
        self.blocks: list[Tensor] = []
        self.score, self.table = matrices.bias.new_zeros(0, batch), torch.zeros(0, 5, dtype=torch.long, device=device)
        # Note [Equal vectors]. Vectors that are equal up to ``close`` have products with a fixed vector that are, up to
        # its 1-norm times ``close``. Only candidates that pass this are compared entry by entry.
        size = matrices.bias.shape[1]
        self.probe = torch.cos(torch.arange(1.0, size + 1, device=device) ** 2).to(matrices.bias.dtype)
        self.probed, self.close = self.score, self.score

    def add(self, node: Tensor, used: Tensor) -> None:
        """A new node, (batch, p): all pairs in which it is on the right. ``used``: (nodes, batch)."""
        left, right = ((node @ flat).unflatten(1, (self.sets.tuples, -1)).transpose(0, 1) for flat in self._flat)
        before = len(self.lefts)
        self.lefts.append(left)
        if before == 0:
            return
        partners = [i for i in range(before) if not (self.lasting and used[i, 0])]
        lefts, bias = torch.stack([self.lefts[i] for i in partners]), self.matrices.bias[:, None]
        z = torch.stack([OPERATORS[name].apply(lefts, right) + bias for name in self.sets.operators], dim=2)
        pairs = torch.tensor([(i, before) for i in partners], device=z.device)
        rows = torch.cat((pairs.repeat_interleave(len(self.inner), dim=0), self.inner.repeat(len(pairs), 1)), dim=1)
        z = z.flatten(0, 2)  # (pairs tuples operators, batch, p)
        if self.lasting:
            v, rows = self._bounded(z, rows)
        else:
            v = torch.stack([ACTIVATIONS[name].apply(z) for name in self.sets.activations], dim=1).flatten(0, 1)
        if self.normalise:
            v = nn.functional.layer_norm(v, v.shape[1:])  # (2)
        self.blocks.append(v)
        self.table = torch.cat((self.table, rows))
        self.score = torch.cat((self.score, self.scorer(v).reshape(v.shape[:-1])))
        known = v.detach()
        self.probed = torch.cat((self.probed, known @ self.probe))
        self.close = torch.cat((self.close, tolerance(v.dtype) * known.abs().amax(dim=2).clamp_min(1)))

    def _bounded(self, z: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Every u(z) but those of a z with an entry above 1 for u other than σ and tanh, in the order of ``rows``."""
        large = z.detach().abs().amax(dim=(1, 2)) > 1
        order = torch.arange(len(rows), device=z.device).view(len(z), -1)
        small, values, places = (~large).nonzero()[:, 0], [], []
        for u, name in enumerate(self.sets.activations):
            bounded = name in BOUNDED
            values.append(ACTIVATIONS[name].apply(z if bounded else z[small]))
            places.append(order[:, u] if bounded else order[small, u])
        place, index = torch.cat(places).sort()
        return torch.cat(values)[index], rows[place]

    @property
    def _flat(self) -> tuple[Tensor, Tensor]:
        return self.matrices.flat_left, self.matrices.flat_right

    def mean(self, weights: Tensor) -> Tensor:
        """Σ p_v v for every sample, of weights (candidates, batch)."""
        parts = zip(weights.split([len(block) for block in self.blocks]), self.blocks, strict=True)
        means = [torch.bmm(part.T[:, None], block.transpose(0, 1)) for part, block in parts]  # (batch, 1, p) each
        return torch.stack(means).sum(dim=0)[:, 0]

    def row(self, index: Tensor) -> Tensor:
        """One candidate of every sample, without its gradient: (batch, p)."""
        out, begin = torch.zeros_like(self.blocks[0][0]), 0
        sample = torch.arange(len(index), device=index.device)
        for block in self.blocks:
            inside = (index >= begin) & (index < begin + len(block))
            out[inside] = block.detach()[index[inside] - begin, sample[inside]]
            begin += len(block)
        return out

    def like(self, vector: Tensor, end: int | None = None) -> Tensor:
        """Which of the first ``end`` candidates equal their sample's vector, (batch, p); see Note [Equal vectors]."""
        probed, close = self.probed[:end], self.close[:end]
        # the products themselves are rounded: as much again is allowed for
        same = (probed - vector @ self.probe).abs() <= 2 * close * self.probe.abs().sum()
        where = same.nonzero()
        if len(where):
            begin, found = 0, []
            for block in self.blocks:
                here = where[(where[:, 0] >= begin) & (where[:, 0] < begin + len(block))]
                apart = (block.detach()[here[:, 0] - begin, here[:, 1]] - vector[here[:, 1]]).abs().amax(dim=1)
                found.append(apart <= close[here[:, 0], here[:, 1]])
                begin += len(block)
            same[where[:, 0], where[:, 1]] = torch.cat(found)
        return same

    def left_out(self, used: Tensor, k: int, leaves: int, rules: Rules) -> Tensor:
        """Which candidates round k does not have by these rules, (candidates, batch)."""
        left, right, index, _, _ = self.table.unbind(dim=1)
        out = used[left] | used[right]
        if rules == "multiset":
            return out
        rest, free = self.sets.rounds - k, int((~used[leaves : leaves + k, 0]).sum())  # rounds; nodes not used yet
        more = torch.zeros_like(left, dtype=torch.bool)
        if rest <= free:  # the rounds left must join them: two at once, or at least one
            more |= (left if rest < free else right) < leaves
        if k < 2:
            more |= index != min(k, self.sets.tuples - 1)
        return out | more[:, None]

    def in_pool(self, nodes: list[Tensor] | tuple[()], begin: int) -> Tensor:
        """Which of the candidates from ``begin`` on are among the nodes."""
        seen = torch.zeros_like(self.score[begin:], dtype=torch.bool)
        for node in nodes:
            seen |= self.like(node.detach())[begin:]
        return seen
