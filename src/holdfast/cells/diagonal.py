"""Cells whose step is linear in the state, unit by unit, with coefficients that depend on the input alone.

    h_t = a_t ⊙ h_{t-1} + b_t,  (a_t, b_t) = g(x_t)                            (1)
    (a, b) ∘ (a', b') = (a a', a b' + b)                                       (2) two steps are one step

(2) is associative, so all h_t can be computed in parallel: ``scan(..., backend="parallel")``. minGRU and minLSTM are
such cells. Source of (2): Blelloch (1990), Prefix sums and their applications, §1.4.
"""

from __future__ import annotations

import abc

from torch import Tensor

from holdfast.cells._base import Cell
from holdfast.types import Hidden, State, Weights

__all__ = ["DiagonalCell"]


class DiagonalCell(Cell, abc.ABC):
    """The base of the cells (1). A new one fills in ``drive`` and ``coefficients``.

    Example:
        >>> import torch
        >>> class AverageCell(DiagonalCell):
        ...     def drive(self, x):
        ...         return x
        ...     def coefficients(self, drive):
        ...         return torch.full_like(drive, 0.9), 0.1 * drive
        >>> cell = AverageCell(3, 3)
        >>> cell.step(torch.ones(2, 3), (torch.zeros(2, 3),), ())[0][0]
        tensor([0.1000, 0.1000, 0.1000])
    """

    @abc.abstractmethod
    def coefficients(self, drive: Tensor) -> tuple[Tensor, Tensor]:
        """A and b of (1), (..., drive) to (..., hidden): of one step or of all of them."""

    def weights(self) -> Weights:
        return ()

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h,), (a, b) = state, self.coefficients(drive)
        return (a * h + b,)  # (1)
