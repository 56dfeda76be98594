"""AntisymmetricRNN: small steps of a differential equation that neither grows nor decays.

    h_t = h_{t-1} + ε φ(M h_{t-1} + W x_t + b),  M = A - γ I,  Aᵀ = -A                     (1)
    g_t = σ(M h_{t-1} + W_g x_t + b_g)                                                     (2) ``gated=True``
    h_t = h_{t-1} + ε g_t ⊙ φ(M h_{t-1} + W x_t + b)                                       (3)

The eigenvalues of A are imaginary; γ, the diffusion, makes up for the finite step. A is stored as its n(n-1)/2 entries
below the diagonal, and the gate shares M, so (2) costs input weights only. Rows of the weights are stacked (1), (2).
Source: Chang, Chen, Haber & Chi (2019), equations (12) to (14). Symbols: docs/notation.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.cells.nonlinearity import nonlinearity_named
from holdfast.errors import SettingError, positive_number
from holdfast.linalg.skew import skew_from_vector
from holdfast.types import Hidden, Nonlinearity, State, Weights

__all__ = ["AntisymmetricRNNCell"]


class AntisymmetricRNNCell(Cell):
    """One step of an antisymmetric RNN.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        nonlinearity: φ, by name or any elementwise callable.
        bias: whether to add b.
        gated: whether to take (2), (3) instead of (1).
        epsilon: ε, the step.
        gamma: γ, the diffusion.

    Example:
        >>> cell = AntisymmetricRNNCell(1, 128)
        >>> sum(weight.numel() for weight in cell.parameters())  # 128 · 127 / 2 + 2 · 128; printed as 10K with readout
        8384

    References:
        Chang et al. (2019), AntisymmetricRNN.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: str | Nonlinearity = "tanh",
        bias: bool = True,
        gated: bool = False,
        epsilon: float = 0.1,
        gamma: float = 0.01,
    ):
        super().__init__(input_size, hidden_size)
        self.phi, self.gated = nonlinearity_named("AntisymmetricRNNCell", nonlinearity), bool(gated)
        self.epsilon = positive_number("AntisymmetricRNNCell", "epsilon", epsilon)
        if not 0 <= gamma < math.inf:
            raise SettingError(f"AntisymmetricRNNCell expects a finite gamma of at least 0, got {gamma}.")
        self.gamma = float(gamma)
        rows = (2 if gated else 1) * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.skew = nn.Parameter(torch.empty(hidden_size * (hidden_size - 1) // 2))
        self.bias = nn.Parameter(torch.empty(rows)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight_ih, std=1 / math.sqrt(self.input_size))
        nn.init.normal_(self.skew, std=1 / math.sqrt(self.hidden_size))
        if self.bias is not None:
            nn.init.zeros_(self.bias)
            if self.gated:
                nn.init.ones_(self.bias[self.hidden_size :])  # gates start open

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, gated={self.gated}, epsilon={self.epsilon:g}, gamma={self.gamma:g}"

    def matrix(self) -> Tensor:
        """M of (1)."""
        eye = torch.eye(self.hidden_size, dtype=self.skew.dtype, device=self.skew.device)
        return skew_from_vector(self.skew, self.hidden_size) - self.gamma * eye

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., hidden), or twice that if gated
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def weights(self) -> Weights:
        return (self.matrix(),)

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h,), (matrix,) = state, weights
        own = h @ matrix.mT
        if not self.gated:
            return (h + self.epsilon * self.phi(drive + own),)  # (1)
        drive_h, drive_g = drive.chunk(2, dim=1)
        gate = torch.sigmoid(drive_g + own)  # (2)
        return (h + self.epsilon * gate * self.phi(drive_h + own),)  # (3)
