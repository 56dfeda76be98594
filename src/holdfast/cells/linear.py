"""A linear dynamical system, optionally with an output map.

    h_t = U h_{t-1} + W x_t + b       (1) state
    y_t = C h_t + D x_t               (2) output; without C, y_t = h_t

Source: Miller & Hardt (2019), §6.1 for (1) and appendix (experiments) for (2). Symbols: docs/notation.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.errors import SettingError, positive_size
from holdfast.types import Hidden, State, Weights

__all__ = ["LinearCell"]


class LinearCell(Cell):
    """One step of a linear dynamical system.

    Without ``output_size`` the output is the state. With it the state has two entries, (y, h), the output first, as
    in an LSTM with a projection.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        bias: whether to add b.
        output_size: features of y in (2).
        direct: whether to add the direct term D x_t; needs ``output_size``.

    Example:
        >>> cell = LinearCell(3, 5, output_size=2, direct=True)
        >>> y, h = cell(torch.zeros(4, 3))
        >>> y.shape, h.shape
        (torch.Size([4, 2]), torch.Size([4, 5]))

    References:
        Miller & Hardt (2019), Stable recurrent models.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        bias: bool = True,
        output_size: int | None = None,
        direct: bool = False,
    ):
        super().__init__(input_size, hidden_size)
        if direct and output_size is None:
            raise SettingError(
                "LinearCell expects output_size with direct=True, got None; give output_size, the features of y."
            )
        self.output_size = None if output_size is None else positive_size("LinearCell", "output_size", output_size)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias else None
        self.weight_ho = None if output_size is None else nn.Parameter(torch.empty(output_size, hidden_size))
        self.weight_io = nn.Parameter(torch.empty(output_size, input_size)) if output_size and direct else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            nn.init.uniform_(weight, -bound, bound)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size,) if self.output_size is None else (self.output_size, self.hidden_size)

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., hidden), or (..., hidden + output) with D
        drive = nn.functional.linear(x, self.weight_ih, self.bias)
        return drive if self.weight_io is None else torch.cat([drive, x @ self.weight_io.mT], dim=-1)

    def weights(self) -> Weights:
        return (self.weight_hh,) if self.weight_ho is None else (self.weight_hh, self.weight_ho)

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        h, weight_hh = state[-1], weights[0]
        if self.weight_io is None:
            h = h @ weight_hh.mT + drive  # (1)
            return (h,) if self.output_size is None else (h @ weights[1].mT, h)  # (2)
        drive, direct = drive.split([self.hidden_size, state[0].shape[1]], dim=1)
        h = h @ weight_hh.mT + drive  # (1)
        return (h @ weights[1].mT + direct, h)  # (2)
