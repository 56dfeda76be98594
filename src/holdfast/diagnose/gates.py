"""The gates and nonlinear units of a cell at every step, worked out from its states.

    LSTM                i, f, o sigmoid;  g the cell's φ
    GRU                 r, z sigmoid;  n tanh
    all other cells     c_t = (h_t - β h_{t-1}) / α = φ(...)              the candidate: see ``step_form``

A unit is saturated where the slope of its nonlinearity is nearly zero:

    sigmoid   below 0.02 or above 0.98;   tanh   |·| above 0.98;   relu   exactly 0                        (1)
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from holdfast.cells import Cell, GRUCell, LSTMCell, step_form
from holdfast.cells.nonlinearity import name_of
from holdfast.types import State

__all__ = ["EDGE", "Gate", "gates_of"]

EDGE = 0.02  # (1)


@dataclasses.dataclass(frozen=True, eq=False)
class Gate:
    """The values of one gate.

    Args:
        name: as in the cell's equations.
        kind: "sigmoid", "tanh", "relu", or the name of another nonlinearity.
        values: (time, batch, units).
        keeps: whether the value 1 keeps the old state, as a forget gate does: then being near 1 is no fault.
    """

    name: str
    kind: str
    values: Tensor
    keeps: bool = False

    def saturated(self) -> Tensor | None:
        """(1), as bool like the values; None if the nonlinearity has no flat part that is known."""
        if self.kind == "sigmoid":
            return (self.values < EDGE) | (self.values > 1 - EDGE)
        if self.kind == "tanh":
            return self.values.abs() > 1 - EDGE
        return self.values == 0 if self.kind == "relu" else None


@functools.singledispatch
def gates_of(cell: Cell, xs: Tensor, states: State) -> tuple[Gate, ...]:
    """The gates of ``cell`` over time; none for a cell of another form. Register a cell of your own.

    Args:
        cell: whose.
        xs: (time, batch, input).
        states: entries (time + 1, batch, size), the first one first.

    Example:
        >>> from holdfast import GRUCell
        >>> [gate.name for gate in gates_of(GRUCell(3, 5), torch.zeros(7, 2, 3), (torch.zeros(8, 2, 5),))]
        ['reset r', 'update z', 'candidate n']
    """
    form = step_form(cell)
    if form is None:
        return ()
    alpha, beta = form.gate_values
    h = states[-1] if form.weight_ho is not None else states[0]
    return (Gate("candidate", name_of(form.phi), (h[1:] - beta * h[:-1]) / alpha),)


@gates_of.register
@torch.no_grad()
def _(cell: LSTMCell, xs: Tensor, states: State) -> tuple[Gate, ...]:
    h = states[0][:-1]
    i, f, g, o = (cell.drive(xs) + h @ cell.weight_hh.mT).chunk(4, dim=-1)
    return (
        Gate("input i", "sigmoid", torch.sigmoid(i)),
        Gate("forget f", "sigmoid", torch.sigmoid(f), keeps=True),
        Gate("output o", "sigmoid", torch.sigmoid(o)),
        Gate("candidate g", name_of(cell.phi), cell.phi(g)),
    )


@gates_of.register
@torch.no_grad()
def _(cell: GRUCell, xs: Tensor, states: State) -> tuple[Gate, ...]:
    h, n = states[0][:-1], cell.hidden_size
    drive_r, drive_z, drive_n = cell.drive(xs).chunk(3, dim=-1)
    weight_r, weight_z, weight_n = cell.weight_hh.split(n)
    r, z = torch.sigmoid(drive_r + h @ weight_r.mT), torch.sigmoid(drive_z + h @ weight_z.mT)
    if cell.reset == "before":
        candidate = torch.tanh(drive_n + (r * h) @ weight_n.mT)
    else:
        bias = 0.0 if cell.bias_hn is None else cell.bias_hn
        candidate = torch.tanh(drive_n + r * (h @ weight_n.mT + bias))
    return (
        Gate("reset r", "sigmoid", r),
        Gate("update z", "sigmoid", z, keeps=True),
        Gate("candidate n", "tanh", candidate),
    )
