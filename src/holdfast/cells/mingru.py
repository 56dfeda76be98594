"""minGRU: a GRU whose gate and candidate see the input alone, so that the state enters linearly.

    z_t = σ(W_z x_t + b_z)                              (1) gate
    c_t = g(W_c x_t + b_c)                              (2) candidate; g the identity, or ``positive``
    h_t = (1 - z_t) ⊙ h_{t-1} + z_t ⊙ c_t               (3)
    positive(v) = v + 1/2 for v ≥ 0, σ(v) for v < 0     (4)

Rows of the weights are stacked z, c. The paper trains with (4), which keeps states positive for its parallel form in
log space; ours (``backend="parallel"``) needs no logarithm and takes any g.
Source: Feng et al. (2024), §3.1 and appendix B. Symbols: docs/notation.md.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from holdfast.cells.diagonal import DiagonalCell
from holdfast.cells.nonlinearity import Slopes, nonlinearity_named, register_slopes
from holdfast.types import Nonlinearity

__all__ = ["InputGatedCell", "MinGRUCell", "positive"]


def positive(v: Tensor) -> Tensor:
    """(4). Continuous and increasing, with a kink at 0.

    Example:
        >>> positive(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.2689, 0.5000, 1.5000])
    """
    return torch.where(v >= 0, v + 0.5, torch.sigmoid(v))


register_slopes(positive, Slopes(lipschitz=1.0, smoothness=math.inf, sup=math.inf, at_zero=0.5))


class InputGatedCell(DiagonalCell):
    """What minGRU and minLSTM share: ``parts`` rows per unit, of gates and candidate, that see the input alone."""

    parts: ClassVar[int]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: str | Nonlinearity = "identity",
        bias: bool = True,
    ):
        super().__init__(input_size, hidden_size)
        who = type(self).__name__
        self.phi = positive if nonlinearity == "positive" else nonlinearity_named(who, nonlinearity)  # g of (2)
        self.weight_ih = nn.Parameter(torch.empty(self.parts * hidden_size, input_size))
        self.bias = nn.Parameter(torch.empty(self.parts * hidden_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.input_size)  # a linear layer's, as in the paper's code
        for weight in self.parameters():
            nn.init.uniform_(weight, -bound, bound)

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., parts · hidden)
        return nn.functional.linear(x, self.weight_ih, self.bias)


class MinGRUCell(InputGatedCell):
    """One step of a minGRU.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        nonlinearity: g, "identity", "positive" as in the paper's code, another name or any elementwise callable.
        bias: whether to add b.

    Example:
        >>> cell = MinGRUCell(3, 5)
        >>> sum(weight.numel() for weight in cell.parameters())  # 2 hidden (input + 1)
        40

    References:
        Feng et al. (2024), Were RNNs all we needed?
    """

    parts = 2

    def coefficients(self, drive: Tensor) -> tuple[Tensor, Tensor]:
        gate, candidate = drive.chunk(2, dim=-1)
        z = torch.sigmoid(gate)  # (1)
        return 1 - z, z * self.phi(candidate)  # (2), (3)
