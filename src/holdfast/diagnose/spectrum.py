"""Eigenvalues: of the recurrent matrix U, and of the Jacobian of a step at states that a sequence visits.

An eigenvalue of modulus ρ multiplies its direction by ρ at each step: a time constant of -1 / log ρ steps. A pair
ρ e^{±iθ} also turns, with a period of 2π / θ steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.cells import Cell, GRUCell, LSTMCell, step_form
from holdfast.diagnose.jacobian import FlatStep, flat
from holdfast.types import State

__all__ = ["jacobian_eigenvalues", "recurrent_eigenvalues"]

_LSTM, _GRU = ("input i", "forget f", "candidate g", "output o"), ("reset r", "update z", "candidate n")


@torch.no_grad()
def recurrent_eigenvalues(cell: Cell) -> dict[str, Tensor]:
    """The eigenvalues of U, complex128, by name: one matrix per gate; none for a cell of another form.

    Example:
        >>> from holdfast import RNNCell
        >>> cell = RNNCell(2, 2)
        >>> _ = cell.weight_hh.data.copy_(torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
        >>> recurrent_eigenvalues(cell)["U"].abs().tolist()
        [1.0, 1.0]
    """
    if isinstance(cell, LSTMCell | GRUCell):
        parts = cell.weight_hh.double().split(cell.hidden_size)
        names = _LSTM if isinstance(cell, LSTMCell) else _GRU
        return {name: torch.linalg.eigvals(part) for name, part in zip(names, parts, strict=True)}
    form = step_form(cell)
    return {} if form is None else {"U": torch.linalg.eigvals(form.weight_hh.double())}


def jacobian_eigenvalues(step: FlatStep, xs: Tensor, states: State, times: list[int]) -> Tensor:
    """The eigenvalues of ∂s_{t+1}/∂s_t of the first sequence at ``times``, (times, size), largest modulus first."""
    along, found = flat(states), []
    for t in times:  # one at a time: a few hundred units make a large matrix
        values = torch.linalg.eigvals(step.jacobian(xs[t, :1], along[t, :1])[0])
        found.append(values[values.abs().argsort(descending=True)])
    return torch.stack(found)
