"""FastRNN: an Elman candidate, mixed with the old state by two scalars.

    c_t = φ(W x_t + U h_{t-1} + b)           (1) candidate
    h_t = α c_t + β h_{t-1},  0 < α, β < 1   (2) scalar gates

Source: Kusupati et al. (2018), §3.1, and its start of the gates. S3's experiments start them at -3.75 and 3 and clip β
to 1 - 2α, as in SGORNN: ``gates=ScalarGates(-3.75, 3.0, clip="2alpha")``. Symbols: docs/notation.md.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.cells.nonlinearity import nonlinearity_named
from holdfast.constraints.gates import ScalarGates
from holdfast.types import Hidden, Nonlinearity, State, Weights

__all__ = ["FastRNNCell"]


class FastRNNCell(Cell):
    """One step of a FastRNN.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        nonlinearity: φ, by name or any elementwise callable. Bounds on the gradient need it to be 1-Lipschitz.
        bias: whether to add b.
        gates: where α and β start and how they are clipped; default: logits -3 and 3, no clip.

    Example:
        >>> cell = FastRNNCell(3, 5)
        >>> cell(torch.zeros(2, 3), cell.initial_state(2)).shape
        torch.Size([2, 5])

    References:
        Kusupati et al. (2018), FastGRNN.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: str | Nonlinearity = "tanh",
        bias: bool = True,
        gates: ScalarGates | None = None,
    ):
        super().__init__(input_size, hidden_size)
        self.phi = nonlinearity_named("FastRNNCell", nonlinearity)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias else None
        self.gates = gates or ScalarGates(alpha_logit=-3.0, beta_logit=3.0)  # starts near the identity map
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight_ih)
        nn.init.orthogonal_(self.weight_hh)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., hidden)
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def weights(self) -> Weights:
        return self.weight_hh, *self.gates()

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h,), (weight_hh, alpha, beta) = state, weights
        candidate = self.phi(drive + h @ weight_hh.mT)  # (1)
        return (alpha * candidate + beta * h,)  # (2)
