"""ExpRNN: an RNN whose recurrent matrix is the exponential of a skew-symmetric one.

    z_t = W x_t + exp(A) h_{t-1}                   (1)
    h_t = modrelu(z_t; b) = sign(z_t) max(|z_t| + b, 0)   (2), or φ(z_t + b) for a φ given by name

With ``rebase_every`` it is dtriv: B exp(A) instead of exp(A), with a base point B that follows the optimiser.

Source: Lezcano-Casado & Martínez-Rubio (2019), §3 and §4; dtriv: Lezcano-Casado (2019), §5; modrelu: Arjovsky et al.
(2016). Symbols: docs/notation.md.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.cells.nonlinearity import Slopes, identity, nonlinearity_named, register_slopes
from holdfast.constraints.dynamic import DynamicExponential
from holdfast.constraints.orthogonal import OrthogonalMap, SkewExponential
from holdfast.types import Hidden, Nonlinearity, State, Weights

__all__ = ["ExpRNNCell", "ModReLUCell", "modrelu"]


def modrelu(z: Tensor, bias: Tensor) -> Tensor:
    """(2). It shrinks towards zero where b ≤ 0, and jumps from -b to b at zero where b > 0."""
    return torch.sign(z) * torch.relu(torch.abs(z) + bias)


register_slopes(modrelu, Slopes(lipschitz=1.0, smoothness=math.inf, sup=math.inf, at_zero=0.0))  # for b ≤ 0


class ModReLUCell(Cell):
    """(1) and (2) over any orthogonal map: what ExpRNN and scoRNN share. A cell sets ``recurrent`` and resets."""

    recurrent: OrthogonalMap

    def __init__(self, input_size: int, hidden_size: int, nonlinearity: str | Nonlinearity, bias: bool):
        super().__init__(input_size, hidden_size)
        self.modrelu = nonlinearity == "modrelu" and bias
        self.phi = identity if nonlinearity == "modrelu" else nonlinearity_named(type(self).__name__, nonlinearity)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias else None

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight_ih)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., hidden)
        return nn.functional.linear(x, self.weight_ih, None if self.modrelu else self.bias)

    def weights(self) -> Weights:
        bias = (self.bias,) if self.modrelu and self.bias is not None else ()
        return *self.recurrent.weights(), *bias

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h,), (weight_hh, *bias) = state, weights
        z = drive + self.recurrent.transform(h, (weight_hh,))  # (1)
        return (modrelu(z, bias[0]) if bias else self.phi(z),)  # (2)


class ExpRNNCell(ModReLUCell):
    """One step of an ExpRNN.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        nonlinearity: "modrelu" as printed, or φ by name or any elementwise callable.
        bias: whether to add b; modrelu needs it.
        init: the start of A, "cayley", "henaff" or "identity".
        rebase_every: K of dtriv: B ← B exp(A) and A ← 0 after every K steps of the optimiser; None for B = I.

    Example:
        >>> cell = ExpRNNCell(3, 4)
        >>> h = torch.randn(2, 4)
        >>> with torch.no_grad():  # no input, no bias: the state turns and keeps its length
        ...     torch.testing.assert_close(cell(torch.zeros(2, 3), h).norm(dim=1), h.norm(dim=1))

    References:
        Lezcano-Casado & Martínez-Rubio (2019), Cheap orthogonal constraints in neural networks.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: str | Nonlinearity = "modrelu",
        bias: bool = True,
        init: Literal["cayley", "henaff", "identity"] = "cayley",
        rebase_every: int | None = None,
    ):
        super().__init__(input_size, hidden_size, nonlinearity, bias)
        if rebase_every is None:
            self.recurrent = SkewExponential(hidden_size, init=init)
        else:
            self.recurrent = DynamicExponential(hidden_size, every=rebase_every, init=init)
        self.reset_parameters()
