"""SGORNN: FastRNN's scalar gates over an orthogonal recurrence.

    h_t = α φ(W x_t + U h_{t-1} + b) + β h_{t-1},  U = U(Θ) orthogonal   (1)
    β ≤ 1 - 2α                                                           (3)

With (3) the generalisation gap grows as α T, and with β ≤ 1 - α the gradients as (α T)² and no faster.
Source: S3, §2, equations (1) and (3), Theorems 1 and 2. Symbols: docs/notation.md.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.cells.nonlinearity import nonlinearity_named
from holdfast.constraints.gates import ScalarGates
from holdfast.constraints.orthogonal import OrthogonalMap, orthogonal_map
from holdfast.types import Hidden, Nonlinearity, State, Weights

__all__ = ["SGORNNCell"]


class SGORNNCell(Cell):
    """One step of an SGORNN.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        nonlinearity: φ, by name or any elementwise callable. The theorems are for ReLU.
        bias: whether to add b.
        recurrent: the orthogonal map: "rotations" (as printed), "exp", "cayley", "householder", or a ready one.
        gates: where α and β start and how they are clipped; default: logits -3.75 and 3, clip (3). For a long
            sequence ``ScalarGates(clip="2alpha", horizon=T)`` spans it from the first step.

    Example:
        >>> cell = SGORNNCell(2, 128)
        >>> sum(weight.numel() for weight in cell.parameters())  # and 129 for a readout: 1,411
        1282

    References:
        SGORNN: Combining scalar gates and orthogonal constraints in recurrent networks.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: str | Nonlinearity = "relu",
        bias: bool = True,
        recurrent: str | OrthogonalMap = "rotations",
        gates: ScalarGates | None = None,
    ):
        super().__init__(input_size, hidden_size)
        self.phi = nonlinearity_named("SGORNNCell", nonlinearity)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias else None
        self.recurrent = orthogonal_map(recurrent, hidden_size)
        self.gates = gates or ScalarGates(alpha_logit=-3.75, beta_logit=3.0, clip="2alpha")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight_ih)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., hidden)
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def weights(self) -> Weights:
        return *self.recurrent.weights(), *self.gates()

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h,), (*recurrent, alpha, beta) = state, weights
        candidate = self.phi(drive + self.recurrent.transform(h, tuple(recurrent)))
        return (alpha * candidate + beta * h,)  # (1)
