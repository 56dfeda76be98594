"""The choices of every sample and step, as trees, as counts, and as changes from epoch to epoch.

    N_e = Σ_{i,t,j} 1{I_{e,i,t,j} ≠ I_{e-1,i,t,j}}        (1)

I_{e,i,t,j} is the tuple that node j of sample i at step t uses in epoch e.

Source: S1, §5.2, Figures 2 to 4. Symbols: docs/notation.md.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.rrnn.sets import Sets
from holdfast.rrnn.tree import Tree, nodes_of

__all__ = ["Grown", "Record", "count_trees", "tuple_changes"]


@dataclasses.dataclass(frozen=True)
class Grown:
    """One run of Algorithm 1 at one step, or at all of them: tensors with their gradient.

    Args:
        leaves: (leaves, batch, p), or (leaves, time, batch, p), and so on.
        choices: (rounds, batch, 5), as in ``Found``.
        vectors: (rounds, batch, p).
        best, second: (rounds, batch): the scores of the chosen and of the runner-up, -inf where there is none; None
            if they were not asked for.

    Example:
        >>> from holdfast.rrnn import RRNNCell
        >>> cell = RRNNCell(4, 4, rounds=2)
        >>> _, (grown,) = cell.grown_step(torch.randn(3, 4), cell.initial_state(3), cell.weights(), scores=True)
        >>> grown.vectors.shape, (grown.best >= grown.second).all()
        (torch.Size([2, 3, 4]), tensor(True))
    """

    leaves: Tensor
    choices: Tensor
    vectors: Tensor
    best: Tensor | None = None
    second: Tensor | None = None

    @classmethod
    def over_time(cls, steps: Sequence[Grown]) -> Grown:
        """All steps as one: time becomes the second dimension."""
        leaves, choices, vectors = ([getattr(it, name) for it in steps] for name in ("leaves", "choices", "vectors"))
        scores = [
            torch.stack(found, dim=1) if (found := [it for it in every if it is not None]) else None
            for every in ([step.best for step in steps], [step.second for step in steps])
        ]
        return cls(*(torch.stack(parts, dim=1) for parts in (leaves, choices, vectors)), *scores)


@dataclasses.dataclass(frozen=True)
class Record:
    """The choices of one cell over a batch of sequences.

    Args:
        choices: per state vector, one (time, batch, rounds, 5) tensor of small integers.
        leaves: names of the leaves, one tuple per state vector; a number k is node k of the run before.
        sets: what the numbers mean, one per state vector.

    Example:
        >>> from holdfast.rrnn import RRNN
        >>> trace = RRNN(4, 4, rounds=3).trace(torch.randn(5, 2, 4))
        >>> trace.records[0].choices[0].shape, type(trace.records[0].tree(time=0, sample=1)).__name__
        (torch.Size([5, 2, 3, 5]), 'Tree')
    """

    choices: tuple[Tensor, ...]
    leaves: tuple[tuple[str | int, ...], ...]
    sets: tuple[Sets, ...]

    def tree(self, time: int, sample: int, state: int = -1) -> Tree:
        """The tree that made a state vector (the last one if none is named) at a step."""
        return self._rows([choices[time, sample] for choices in self.choices])[state]

    def _rows(self, choices: Sequence[Tensor]) -> list[Tree]:
        roots, before = [], []
        for rows, names, sets in zip(choices, self.leaves, self.sets, strict=True):
            leaves = [name if isinstance(name, str) else before[name] for name in names]
            before = nodes_of(rows.tolist(), leaves, sets)
            roots.append(before[-1])
        return roots

    def count(self, state: int = -1, *, tuples: bool = False) -> collections.Counter[Tree]:
        """How often each tree was found over all samples and steps; with ``tuples``, trees differ by them too."""
        flat = torch.cat([choices.flatten(0, 1).flatten(1) for choices in self.choices], dim=1)  # one row per tree
        rows, counts = torch.unique(flat, dim=0, return_counts=True)
        sizes = [choices.shape[2] * 5 for choices in self.choices]
        total: collections.Counter[Tree] = collections.Counter()
        for row, times in zip(rows, counts.tolist(), strict=True):
            tree = self._rows([part.view(-1, 5) for part in row.split(sizes)])[state]
            total[tree if tuples else tree.without_tuples()] += times
        return total

    @property
    def tuples(self) -> Tensor:
        """I of (1): (time, batch, nodes), the nodes of all state vectors side by side."""
        return torch.cat([choices[..., 2] for choices in self.choices], dim=-1)


def count_trees(records: Sequence[Record], state: int = -1, *, tuples: bool = False) -> collections.Counter[Tree]:
    """How often each tree was found, over several batches.

    Example:
        >>> from holdfast.rrnn import RRNN
        >>> layer = RRNN(4, 4, rounds=1)
        >>> trees = count_trees([layer.trace(torch.randn(5, 2, 4)).records[0] for _ in range(3)])
        >>> sum(trees.values())
        30
    """
    total: collections.Counter[Tree] = collections.Counter()
    for record in records:
        total.update(record.count(state, tuples=tuples))
    return total


def tuple_changes(before: Tensor, after: Tensor) -> int:
    """N_e (1), of ``Record.tuples`` over the same samples in the same order.

    Example:
        >>> tuple_changes(torch.tensor([[[0, 1, 2]]]), torch.tensor([[[0, 2, 1]]]))
        2
    """
    if before.shape != after.shape:
        raise ShapeError(
            f"tuple_changes expects choices of the same samples, got {tuple(before.shape)} and {tuple(after.shape)}."
        )
    return int((before != after).sum())
