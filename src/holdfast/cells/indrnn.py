"""IndRNN: each unit sees its own past alone, through one weight.

    h_t = φ(W x_t + u ⊙ h_{t-1} + b)                        (1)
    |u_j| ≤ 2^(1/T)                                         (2) ``horizon=T``, for φ = ReLU

With ReLU, |∂h_T/∂h_0| of a unit is at most |u|^T, which (2) keeps at 2 or below. Units mix in the next layer only, so
use two layers or more. u starts uniform in [0, 2^(1/T)], or in [0, 1] without (2).
Source: Li et al. (2018), §3 and §4.1. Symbols: docs/notation.md.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.cells.nonlinearity import nonlinearity_named
from holdfast.constraints.interval import inside_interval
from holdfast.errors import positive_size
from holdfast.types import Hidden, Nonlinearity, State, Weights

__all__ = ["IndRNNCell"]


class IndRNNCell(Cell):
    """One step of an independently recurrent network.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        nonlinearity: φ, by name or any elementwise callable.
        bias: whether to add b.
        horizon: T of (2), the longest sequence; default: u is free.

    Example:
        >>> cell = IndRNNCell(3, 5, horizon=100)
        >>> bool(cell.recurrent.abs().max() <= 2 ** 0.01)
        True

    References:
        Li et al. (2018), Independently recurrent neural network.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: str | Nonlinearity = "relu",
        bias: bool = True,
        horizon: int | None = None,
    ):
        super().__init__(input_size, hidden_size)
        self.phi = nonlinearity_named("IndRNNCell", nonlinearity)
        self.bound = None if horizon is None else 2.0 ** (1 / positive_size("IndRNNCell", "horizon", horizon))
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight_ih)
        nn.init.uniform_(self.weight_hh, 0.0, self.bound or 1.0)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def recurrent(self) -> Tensor:
        """The numbers u that the step uses: ``weight_hh``, within (2)."""
        return self.weight_hh if self.bound is None else inside_interval(self.weight_hh, self.bound)

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., hidden)
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def weights(self) -> Weights:
        return (self.recurrent,)

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h,), (u,) = state, weights
        return (self.phi(drive + u * h),)  # (1)
