"""GRU, in the two forms that go by this name. They are different cells.

    r, z = σ(W_{r,z} x_t + U_{r,z} h_{t-1} + b_{r,z})          (1), (2) gates
    n    = tanh(W_n x_t + U_n (r ⊙ h_{t-1}) + b_n)             (3) reset before the matrix: S1, Cho et al. (2014)
    n    = tanh(W_n x_t + b_n + r ⊙ (U_n h_{t-1} + c_n))       (3') reset after it: PyTorch's
    h_t  = z ⊙ h_{t-1} + (1 - z) ⊙ n                           (4)

Rows of the weights are stacked r, z, n, as in ``torch.nn.GRU``. Each gate has one bias; (3') also needs c_n, which
no other bias can replace.
Source: S1, equations (1)-(4); Cho et al. (2014). Symbols: docs/notation.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.errors import one_of
from holdfast.types import Hidden, State, Weights

__all__ = ["GRUCell"]


class GRUCell(Cell):
    """One step of a GRU.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        reset: "after" the matrix (PyTorch's cell) or "before" it (the cell of S1 and of the first paper).
        bias: whether to add biases.

    Example:
        >>> before, after = GRUCell(3, 5, reset="before"), GRUCell(3, 5)
        >>> [sum(w.numel() for w in cell.parameters()) for cell in (before, after)]
        [135, 140]

    References:
        Cho et al. (2014), Learning phrase representations using RNN encoder-decoder.
    """

    def __init__(self, input_size: int, hidden_size: int, *, reset: str = "after", bias: bool = True):
        super().__init__(input_size, hidden_size)
        one_of("GRUCell", "reset", reset, ("before", "after"))
        self.reset = reset
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(3 * hidden_size)) if bias else None
        self.bias_hn = nn.Parameter(torch.empty(hidden_size)) if bias and reset == "after" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            nn.init.uniform_(weight, -bound, bound)

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., 3 hidden)
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def weights(self) -> Weights:
        if self.reset == "before":
            return self.weight_hh[: 2 * self.hidden_size], self.weight_hh[2 * self.hidden_size :]
        return (self.weight_hh,) if self.bias_hn is None else (self.weight_hh, self.bias_hn)

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h,) = state
        if self.reset == "before":
            weight_gates, weight_n = weights
            drive_gates, drive_n = drive.split([2 * self.hidden_size, self.hidden_size], dim=1)
            r, z = torch.sigmoid(drive_gates + h @ weight_gates.mT).chunk(2, dim=1)  # (1), (2)
            n = torch.tanh(drive_n + (r * h) @ weight_n.mT)  # (3)
        else:
            weight_hh, *bias_hn = weights
            drive_r, drive_z, drive_n = drive.chunk(3, dim=1)
            u_r, u_z, u_n = (h @ weight_hh.mT).chunk(3, dim=1)
            r, z = torch.sigmoid(drive_r + u_r), torch.sigmoid(drive_z + u_z)  # (1), (2)
            n = torch.tanh(drive_n + r * (u_n + bias_hn[0] if bias_hn else u_n))  # (3')
        return (z * h + (1 - z) * n,)  # (4)
