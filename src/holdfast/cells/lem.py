"""LEM: long expressive memory, two states that move at speeds of their own.

    s_t = Δ σ(W_s x_t + U_s y_{t-1} + b_s),  r_t = Δ σ(W_r x_t + U_r y_{t-1} + b_r)   (1) steps of time, per unit
    z_t = (1 - s_t) ⊙ z_{t-1} + s_t ⊙ φ(W_z x_t + U_z y_{t-1} + b_z)                  (2) memory
    y_t = (1 - r_t) ⊙ y_{t-1} + r_t ⊙ φ(W_y x_t + V z_t + b_y)                        (3) output

Rows of the weights are stacked s, r, z and, for the input, y. Each row has one bias, as in the authors' CUDA version;
their plain program adds two.
Source: Rusch, Mishra, Erichson & Mahoney (2022), equation (3). Symbols: docs/notation.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.cells.nonlinearity import nonlinearity_named
from holdfast.errors import SettingError
from holdfast.types import Hidden, Nonlinearity, State, Weights

__all__ = ["LEMCell"]


class LEMCell(Cell):
    """One step of a long expressive memory; the state is (y, z).

    Args:
        input_size, hidden_size: features of ``x``, and of ``y`` and ``z``.
        nonlinearity: φ, by name or any elementwise callable.
        bias: whether to add b.
        dt: Δ, the largest step of time, in (0, 1].

    Example:
        >>> y, z = LEMCell(3, 5)(torch.zeros(2, 3))
        >>> y.shape, z.shape
        (torch.Size([2, 5]), torch.Size([2, 5]))

    References:
        Rusch et al. (2022), Long expressive memory for sequence modeling.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: str | Nonlinearity = "tanh",
        bias: bool = True,
        dt: float = 1.0,
    ):
        super().__init__(input_size, hidden_size)
        self.phi = nonlinearity_named("LEMCell", nonlinearity)
        if not 0 < dt <= 1:
            raise SettingError(f"LEMCell expects dt in (0, 1], so that (2) and (3) are means, got {dt}.")
        self.dt = float(dt)
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden_size, hidden_size))
        self.weight_zh = nn.Parameter(torch.empty(hidden_size, hidden_size))  # V
        self.bias = nn.Parameter(torch.empty(4 * hidden_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            nn.init.uniform_(weight, -bound, bound)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return self.hidden_size, self.hidden_size

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dt={self.dt:g}"

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., 4 hidden)
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def weights(self) -> Weights:
        return self.weight_hh, self.weight_zh

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (y, z), (weight_hh, weight_zh) = state, weights
        drive_s, drive_r, drive_z, drive_y = drive.chunk(4, dim=1)
        u_s, u_r, u_z = (y @ weight_hh.mT).chunk(3, dim=1)
        s, r = self.dt * torch.sigmoid(drive_s + u_s), self.dt * torch.sigmoid(drive_r + u_r)  # (1)
        z = (1 - s) * z + s * self.phi(drive_z + u_z)  # (2)
        return (1 - r) * y + r * self.phi(drive_y + z @ weight_zh.mT), z  # (3)
