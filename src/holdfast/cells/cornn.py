"""coRNN: a network of damped, driven oscillators, in small steps of time.

    z_t = z_{t-1} + Δ (φ(W x_t + U y_{t-1} + V z_{t-1} + b) - γ y_{t-1} - ε z_{t-1})   (1) velocity
    y_t = y_{t-1} + Δ z_t                                                              (2) position, the output

This is the authors' program; their analysis takes the damping at step t, ε z_t, and γ = ε = 1. Starts are those of a
linear layer over (x, z, y). Good values depend on the task; the authors' are Δ from 0.01 to 0.1, γ from 0.2 to 100 and
ε from 5 to 15. Source: Rusch & Mishra (2021), equation (3). Symbols: docs/notation.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.cells.nonlinearity import nonlinearity_named
from holdfast.errors import SettingError, positive_number
from holdfast.types import Hidden, Nonlinearity, State, Weights

__all__ = ["CoRNNCell"]


class CoRNNCell(Cell):
    """One step of a coupled oscillatory network; the state is (y, z).

    Args:
        input_size, hidden_size: features of ``x``, and of ``y`` and ``z``.
        nonlinearity: φ, by name or any elementwise callable.
        bias: whether to add b.
        dt: Δ, the step of time.
        gamma: γ, the squared frequency of an oscillator.
        epsilon: ε, its damping.

    Example:
        >>> y, z = CoRNNCell(3, 5)(torch.zeros(2, 3))
        >>> y.shape, z.shape
        (torch.Size([2, 5]), torch.Size([2, 5]))

    References:
        Rusch & Mishra (2021), Coupled oscillatory recurrent neural network (coRNN).
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: str | Nonlinearity = "tanh",
        bias: bool = True,
        dt: float = 0.05,
        gamma: float = 1.0,
        epsilon: float = 1.0,
    ):
        super().__init__(input_size, hidden_size)
        self.phi = nonlinearity_named("CoRNNCell", nonlinearity)
        self.dt = positive_number("CoRNNCell", "dt", dt)
        if not all(0 <= number < math.inf for number in (gamma, epsilon)):
            raise SettingError(f"CoRNNCell expects finite gamma and epsilon of at least 0, got {gamma} and {epsilon}.")
        self.gamma, self.epsilon = float(gamma), float(epsilon)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size))  # U, of the positions
        self.weight_zh = nn.Parameter(torch.empty(hidden_size, hidden_size))  # V, of the velocities
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.input_size + 2 * self.hidden_size)
        for weight in self.parameters():
            nn.init.uniform_(weight, -bound, bound)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return self.hidden_size, self.hidden_size

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dt={self.dt:g}, gamma={self.gamma:g}, epsilon={self.epsilon:g}"

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., hidden)
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def weights(self) -> Weights:
        return self.weight_hh, self.weight_zh

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (y, z), (weight_hh, weight_zh) = state, weights
        force = self.phi(drive + y @ weight_hh.mT + z @ weight_zh.mT)
        z = z + self.dt * (force - self.gamma * y - self.epsilon * z)  # (1)
        return y + self.dt * z, z  # (2)
