"""Plane rotations without moving a row: which two rows turn together, and in which row a feature starts."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["turn_tables"]

# Note [Rotations in place]
# Permutations cost nothing: a row stays where it is, and the table of pairs says which two rows turn together. Rows
# are laid out so that after the last sublayer row p is feature p; ``starts`` says in which row feature f begins.


def turn_tables(permutations: Tensor) -> tuple[Tensor, Tensor]:
    """``pairs``, (sublayers, size / 2, 2) in the order in which they turn, and ``starts``, (size,).

    Example:
        >>> pairs, starts = turn_tables(torch.tensor([[0, 1, 2, 3]]))
        >>> pairs.tolist(), starts.tolist()
        ([[[0, 2], [1, 3]]], [0, 1, 2, 3])
    """
    sublayers, size = permutations.shape
    order, table = torch.arange(size), []
    for j in range(sublayers):  # from the last sublayer to turn to the first
        table.append(order.view(2, size // 2).mT)
        before = torch.empty_like(order)
        before[permutations[j]] = order
        order = before
    pairs = torch.stack(table[::-1]).contiguous() if table else torch.empty(0, size // 2, 2, dtype=torch.int64)
    return pairs, order
