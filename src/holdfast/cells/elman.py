"""The Elman RNN, with the starts that make a ReLU network remember.

    h_t = φ(W x_t + U h_{t-1} + b)   (1)

Starts of U: ``uniform`` is PyTorch's; ``identity`` with small W is the IRNN of Le, Jaitly & Hinton (2015), §2;
``np`` is the normalised positive-definite U = (A + I) / λ_max(A + I), A = R Rᵀ / n with Gaussian R, of Talathi &
Vartak (2015), §3. Source of (1): Elman (1990). Symbols: docs/notation.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.cells.nonlinearity import nonlinearity_named
from holdfast.errors import one_of
from holdfast.types import Hidden, Nonlinearity, State, Weights

__all__ = ["RNNCell"]

STARTS = ("uniform", "identity", "np")


class RNNCell(Cell):
    """One step of an Elman RNN.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        nonlinearity: φ, by name ("tanh", "relu", ...) or any elementwise callable.
        bias: whether to add b.
        init: the start of the weights, "uniform", "identity" (IRNN) or "np".

    Example:
        >>> cell = RNNCell(3, 5, nonlinearity="relu", init="identity")
        >>> torch.equal(cell.weight_hh, torch.eye(5))
        True

    References:
        Elman (1990), Finding structure in time.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: str | Nonlinearity = "tanh",
        bias: bool = True,
        init: str = "uniform",
    ):
        super().__init__(input_size, hidden_size)
        one_of("RNNCell", "init", init, STARTS)
        self.phi, self.init = nonlinearity_named("RNNCell", nonlinearity), init
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.init == "uniform":
            bound = 1 / math.sqrt(self.hidden_size)
            for weight in self.parameters():
                nn.init.uniform_(weight, -bound, bound)
            return
        if self.init == "identity":
            nn.init.eye_(self.weight_hh)
            nn.init.normal_(self.weight_ih, std=0.001)
        else:
            normalised_positive_(self.weight_hh)
            nn.init.xavier_normal_(self.weight_ih, gain=math.sqrt(2.0))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., hidden)
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def weights(self) -> Weights:
        return (self.weight_hh,)

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h,), (weight_hh,) = state, weights
        return (self.phi(drive + h @ weight_hh.mT),)  # (1)


def normalised_positive_(weight: Tensor) -> Tensor:
    """Fill with a symmetric positive-definite matrix whose largest eigenvalue is 1. Talathi & Vartak (2015), §3."""
    with torch.no_grad():
        gaussian, eye = torch.randn_like(weight), torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
        positive = gaussian @ gaussian.mT / len(weight) + eye
        return weight.copy_(positive / torch.linalg.eigvalsh(positive)[-1])
