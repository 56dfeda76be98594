"""VPRNN: an Elman RNN whose recurrent matrix is a product of plane rotations and fixed permutations.

    h_t = φ(W x_t + U h_{t-1} + b),  U = R_1 Q_1 ... R_k Q_k   (1)

Source: Taylor-Melanson, MacDonald & Godbout (2021); U as in S3, equation (2). Symbols: docs/notation.md.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.cells.nonlinearity import nonlinearity_named
from holdfast.constraints.orthogonal import RotationProduct
from holdfast.types import Hidden, Nonlinearity, State, Weights

__all__ = ["VPRNNCell"]


class VPRNNCell(Cell):
    """One step of a volume-preserving RNN.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``; ``hidden_size`` is even, since units rotate in pairs.
        nonlinearity: φ, by name or any elementwise callable.
        bias: whether to add b.
        sublayers: k, the number of rotations; default 2 ⌈log₂ hidden_size⌉.

    Example:
        >>> cell = VPRNNCell(2, 128)
        >>> sum(weight.numel() for weight in cell.parameters())  # and 129 for a readout: 1,409
        1280

    References:
        Taylor-Melanson, MacDonald & Godbout (2021), Volume-preserving recurrent neural networks.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: str | Nonlinearity = "relu",
        bias: bool = True,
        sublayers: int | None = None,
    ):
        super().__init__(input_size, hidden_size)
        self.phi = nonlinearity_named("VPRNNCell", nonlinearity)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias else None
        self.recurrent = RotationProduct(hidden_size, sublayers=sublayers)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight_ih)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., hidden)
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def weights(self) -> Weights:
        return self.recurrent.weights()

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h,) = state
        return (self.phi(drive + self.recurrent.transform(h, weights)),)  # (1)
