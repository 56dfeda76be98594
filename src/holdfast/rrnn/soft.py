"""Algorithm 1 with a soft choice: a node is the mean of all candidates, weighted by the softmax of their scores.

    p = softmax {α(v) : v in V_k, v not in P_{k-1}},   c_k = Σ p_v v        (1)

It is differentiable in the scorer too, but keeps every candidate for the gradient. Trees and records show the candidate
with the largest weight.

Source: S1, Appendix E.1, where RRNN-GRU chooses its tuples this way. Symbols: docs/notation.md.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.rrnn.choosing import tolerance
from holdfast.rrnn.grow import Found, candidates
from holdfast.rrnn.sets import Sets
from holdfast.rrnn.tree import Matrices

__all__ = ["soft_search"]


def soft_search(leaves: Tensor, matrices: Matrices, sets: Sets, scorer: nn.Module) -> tuple[Found, Tensor, Tensor]:
    """(1) for every round.

    Args:
        leaves: (leaves, batch, p).
        matrices, sets, scorer: as in ``search``.

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
    count, batch, _ = leaves.shape
    inner = torch.cartesian_prod(
        torch.arange(sets.tuples), torch.arange(len(sets.operators)), torch.arange(len(sets.activations))
    ).view(-1, 3)
    nodes, tables, vectors, scores = leaves, [], [], []
    choices, runners, tops = [], [], []
    for k in range(sets.rounds):
        rights = range(1, count) if k == 0 else [count + k - 1]
        pairs = torch.tensor([(left, right) for right in rights for left in range(right)])
        table = torch.cat((pairs.repeat_interleave(len(inner), dim=0), inner.repeat(len(pairs), 1)), dim=1)
        v = candidates(nodes, table[:, None].expand(-1, batch, -1), matrices, sets)
        tables, vectors, scores = [*tables, table], [*vectors, v], [*scores, scorer(v).reshape(v.shape[:-1])]
        table, v, score = torch.cat(tables), torch.cat(vectors), torch.cat(scores)
        score = score.masked_fill(_excluded(v, nodes[count:]), -torch.inf)
        node = (torch.softmax(score, dim=0)[..., None] * v).sum(dim=0)  # (1)
        first = score.max(dim=0).indices
        best = score.gather(0, first[None])[0]
        same = (v - v[first, torch.arange(batch)]).abs().amax(dim=2) <= _close(v)
        second_values = score.masked_fill(same, -torch.inf)
        second = second_values.max(dim=0)
        nodes = torch.cat((nodes, node[None]))
        choices.append(table[first])
        runners.append(torch.where((second.values == -torch.inf)[:, None], -1, table[second.indices]))
        tops.append((best, second.values))
    found = Found(torch.stack(choices), torch.stack(runners), nodes[count:])
    return found, torch.stack([best for best, _ in tops]), torch.stack([second for _, second in tops])


def _close(v: Tensor) -> Tensor:
    return tolerance(v.dtype) * v.detach().abs().amax(dim=-1).clamp_min(1)


def _excluded(v: Tensor, pool: Tensor) -> Tensor:
    """Which candidates are in the pool, up to rounding; none for a sample with all of them in it."""
    seen = torch.zeros(v.shape[:-1], dtype=torch.bool, device=v.device)
    for node in pool.detach():
        seen |= (v.detach() - node).abs().amax(dim=2) <= _close(v)
    return seen & ~seen.all(dim=0)
