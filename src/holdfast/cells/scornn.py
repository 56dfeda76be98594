"""scoRNN: an RNN whose recurrent matrix is a scaled Cayley transform, which reaches every orthogonal matrix.

    z_t = V x_t + U h_{t-1},  U = (I + A)⁻¹ (I - A) D             (1) A skew, D = diag(1, ..., 1, -1, ..., -1) fixed
    h_t = modrelu(z_t; b)                                         (2), or φ(z_t + b) for a φ given by name

D has ρ entries -1. A starts with blocks of ±√((1 - cos t) / (1 + cos t)), t uniform in [0, π/2], on its diagonal.
Source: Helfrich, Willmott & Ye (2018), §3 and §4; modrelu: Arjovsky et al. (2016). Symbols: docs/notation.md.
"""

from __future__ import annotations

from holdfast.cells.exprnn import ModReLUCell
from holdfast.constraints.orthogonal import ScaledCayley
from holdfast.types import Nonlinearity

__all__ = ["ScoRNNCell"]


class ScoRNNCell(ModReLUCell):
    """One step of a scoRNN.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        nonlinearity: "modrelu" as printed, or φ by name or any elementwise callable.
        bias: whether to add b; modrelu needs it.
        negative_signs: ρ, the number of entries of D that are -1; default hidden_size//2. The paper tunes it.

    Example:
        >>> import torch
        >>> cell = ScoRNNCell(3, 4, negative_signs=1)
        >>> round(torch.linalg.det(cell.recurrent.matrix()).item(), 4)  # no rotation: exp(A) is one
        -1.0

    References:
        Helfrich, Willmott & Ye (2018), Orthogonal recurrent neural networks with scaled Cayley transform.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: str | Nonlinearity = "modrelu",
        bias: bool = True,
        negative_signs: int | None = None,
    ):
        super().__init__(input_size, hidden_size, nonlinearity, bias)
        self.recurrent = ScaledCayley(hidden_size, negative_signs)
        self.reset_parameters()
