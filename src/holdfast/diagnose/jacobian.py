"""One step as a map of its flat state, and its derivative: what all linearised measures share.

    F(s) = step(x, s),   s = (h, c, ...) side by side                          (1)
    J v = d⟨Jᵀ y, v⟩ / dy                                                      (2) two backward passes

Everything is in float64, on a copy of the cell. (2) takes k directions at once: each is a sample of a batch. A cell
whose U is a product of rotations takes its step with U as a dense matrix, which is the same map and much faster here.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from holdfast.cells import Cell, step_form
from holdfast.cells.exprnn import modrelu
from holdfast.constraints.orthogonal import OrthogonalMap
from holdfast.types import State

__all__ = ["FlatStep", "flat"]


def flat(states: State) -> Tensor:
    """The entries of a state side by side, (..., size of all)."""
    return torch.cat(states, dim=-1).double()


class FlatStep:
    """(1) and (2) of a cell.

    Example:
        >>> from holdfast import LinearCell
        >>> cell = LinearCell(1, 2)
        >>> step = FlatStep(cell)
        >>> x, s = torch.zeros(1, 1), torch.zeros(1, 2)
        >>> torch.allclose(step.jacobian(x, s)[0], cell.weight_hh.double())
        True
    """

    @torch.no_grad()
    def __init__(self, cell: Cell):
        self.cell = copy.deepcopy(cell).double().requires_grad_(False)
        self.sizes = list(self.cell.state_sizes)
        self.weights = self.cell.weights()
        form = step_form(self.cell)
        self.form = form if form is not None and isinstance(form.recurrent, OrthogonalMap) else None
        self.dense = None if self.form is None else self.form.weight_hh

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def drive(self, x: Tensor) -> Tensor:
        """What a step needs of its input, (batch, drive)."""
        return self.cell.drive(x.double())

    def after(self, drive: Tensor, s: Tensor) -> Tensor:
        """F(s) of (1), (batch, size)."""
        if self.form is not None and self.dense is not None:
            z, (alpha, beta) = drive + s @ self.dense.mT, self.form.gate_values
            return (
                alpha * (self.form.phi(z, self.form.bias) if self.form.phi is modrelu else self.form.phi(z)) + beta * s
            )
        return torch.cat(self.cell.step(drive, tuple(s.split(self.sizes, dim=-1)), self.weights), dim=-1)

    def times(self, x: Tensor, s: Tensor, v: Tensor) -> Tensor:
        """(2): J v for v of shape (batch, size, k)."""
        count = v.shape[-1]
        with torch.no_grad():
            drive = self.drive(x).repeat_interleave(count, dim=0)
        many = s.detach().double().repeat_interleave(count, dim=0).requires_grad_()
        direction = v.transpose(1, 2).flatten(0, 1)
        with torch.enable_grad():
            after = self.after(drive, many)
            y = torch.zeros_like(after, requires_grad=True)
            (pulled,) = torch.autograd.grad(after, many, y, create_graph=True, materialize_grads=True)
            pushed = None
            if pulled.requires_grad:  # otherwise the next state does not depend on this one
                (pushed,) = torch.autograd.grad(pulled, y, direction, allow_unused=True)
        pushed = torch.zeros_like(direction) if pushed is None else pushed
        return pushed.unflatten(0, (len(s), count)).transpose(1, 2)

    def jacobian(self, x: Tensor, s: Tensor) -> Tensor:
        """J, (batch, size, size)."""
        return self.times(x, s, torch.eye(self.size, dtype=torch.float64).expand(len(s), -1, -1))
