"""GORU: a GRU whose candidate turns the old state by an orthogonal matrix, so that it can both keep and forget.

    r_t = σ(W_r x_t + U_r h_{t-1} + b_r)                      (1) reset gate
    z_t = σ(W_z x_t + U_z h_{t-1} + b_z)                      (2) update gate
    c_t = modrelu(W_c x_t + r_t ⊙ (U h_{t-1}); b_c)           (3) candidate, U orthogonal
    h_t = z_t ⊙ h_{t-1} + (1 - z_t) ⊙ c_t                     (4)

U is a product of real plane rotations in the order of EUNN: see holdfast/constraints/unitary.py. Input and gate weights
start uniform in ±0.01, b_r at 2 and angles in ±π, as in the authors' program; b_z and b_c at 0.
Source: Jing et al. (2019), §3; modrelu: Arjovsky et al. (2016). Symbols: docs/notation.md.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.cells.exprnn import modrelu
from holdfast.constraints.orthogonal import OrthogonalMap, orthogonal_map
from holdfast.constraints.unitary import PlaneRotations
from holdfast.types import Hidden, State, Weights

__all__ = ["GORUCell"]


class GORUCell(Cell):
    """One step of a GORU.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``; ``hidden_size`` is even.
        order: of the rotations, "tunable", or "fft", for which ``hidden_size`` is a power of 2.
        capacity: factors of the tunable order, at most ``hidden_size``; default 2.
        recurrent: another orthogonal map instead: "exp", "cayley", "householder", "rotations", or a ready one.

    Example:
        >>> cell = GORUCell(3, 8, order="fft")
        >>> cell.recurrent.angles.shape  # log₂ 8 factors of 4 planes
        torch.Size([12])

    References:
        Jing et al. (2019), Gated orthogonal recurrent units: On learning to forget.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        order: Literal["tunable", "fft"] = "tunable",
        capacity: int | None = None,
        recurrent: str | OrthogonalMap | None = None,
    ):
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size))  # W_r, W_z, W_c
        self.weight_hh = nn.Parameter(torch.empty(2 * hidden_size, hidden_size))  # U_r, U_z
        self.bias = nn.Parameter(torch.empty(2 * hidden_size))  # b_r, b_z
        self.bias_c = nn.Parameter(torch.empty(hidden_size))
        if recurrent is None:
            self.recurrent = PlaneRotations(hidden_size, order, capacity, complex=False)
        else:
            self.recurrent = orthogonal_map(recurrent, hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight_ih, -0.01, 0.01)
        nn.init.uniform_(self.weight_hh, -0.01, 0.01)
        with torch.no_grad():
            self.bias.zero_()[: self.hidden_size] = 2.0
            self.bias_c.zero_()

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., 3 hidden)
        return x @ self.weight_ih.mT

    def weights(self) -> Weights:
        return *self.recurrent.weights(), self.weight_hh, self.bias, self.bias_c

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h,), (*recurrent, weight_hh, bias, bias_c) = state, weights
        gates, from_input = drive.split((2 * self.hidden_size, self.hidden_size), dim=-1)
        r, z = torch.sigmoid(gates + h @ weight_hh.mT + bias).chunk(2, dim=-1)  # (1), (2)
        candidate = modrelu(from_input + r * self.recurrent.transform(h, tuple(recurrent)), bias_c)  # (3)
        return (z * h + (1 - z) * candidate,)  # (4)
