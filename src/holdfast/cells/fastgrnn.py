"""FastGRNN: a gate that shares its matrices with the candidate, of low rank if wanted.

    p_t = W x_t + U h_{t-1}                                            (1) shared by gate and candidate
    z_t = σ(p_t + b_z),  c_t = φ(p_t + b_c)                            (2)
    h_t = z_t ⊙ h_{t-1} + (ζ (1 - z_t) + ν) ⊙ c_t,  0 < ζ, ν < 1       (3) ζ = σ(ζ'), ν = σ(ν')
    W = W_1 W_2ᵀ,  U = U_1 U_2ᵀ                                        (4) ``input_rank``, ``recurrent_rank``

Starts are those of the authors' program: weights normal with deviation 0.1, biases 1, ζ' = 1 and ν' = -4.
Source: Kusupati et al. (2018), §3.2; EdgeML's FastGRNNCell. Symbols: docs/notation.md.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.cells.nonlinearity import nonlinearity_named
from holdfast.errors import positive_size
from holdfast.types import Hidden, Nonlinearity, State, Weights

__all__ = ["FastGRNNCell"]


class FastGRNNCell(Cell):
    """One step of a FastGRNN.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        nonlinearity: φ, by name or any elementwise callable.
        bias: whether to add b_z and b_c.
        input_rank, recurrent_rank: of W and U, EdgeML's wRank and uRank; default: full matrices.

    Example:
        >>> full, low = FastGRNNCell(9, 80), FastGRNNCell(9, 80, input_rank=3, recurrent_rank=8)
        >>> [sum(weight.numel() for weight in cell.parameters()) for cell in (full, low)]
        [7282, 1709]

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
        input_rank: int | None = None,
        recurrent_rank: int | None = None,
    ):
        super().__init__(input_size, hidden_size)
        self.phi = nonlinearity_named("FastGRNNCell", nonlinearity)
        for name, rank in (("input_rank", input_rank), ("recurrent_rank", recurrent_rank)):
            if rank is not None:
                positive_size("FastGRNNCell", name, rank)
        self.input_rank, self.recurrent_rank = input_rank, recurrent_rank
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_rank or input_size))  # W, or W_1
        self.weight_ih_2 = nn.Parameter(torch.empty(input_size, input_rank)) if input_rank else None
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, recurrent_rank or hidden_size))  # U, or U_1
        self.weight_hh_2 = nn.Parameter(torch.empty(hidden_size, recurrent_rank)) if recurrent_rank else None
        self.bias = nn.Parameter(torch.empty(2 * hidden_size)) if bias else None  # b_z, b_c
        self.zeta_logit = nn.Parameter(torch.empty(()))
        self.nu_logit = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.weight_ih, self.weight_ih_2, self.weight_hh, self.weight_hh_2):
            if weight is not None:
                nn.init.normal_(weight, std=0.1)
        if self.bias is not None:
            nn.init.ones_(self.bias)
        nn.init.constant_(self.zeta_logit, 1.0)
        nn.init.constant_(self.nu_logit, -4.0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, input_rank={self.input_rank}, recurrent_rank={self.recurrent_rank}"

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., hidden)
        inner = x if self.weight_ih_2 is None else x @ self.weight_ih_2  # (4)
        return nn.functional.linear(inner, self.weight_ih)

    def weights(self) -> Weights:
        biases = () if self.bias is None else tuple(self.bias.chunk(2))
        factors = (self.weight_hh,) if self.weight_hh_2 is None else (self.weight_hh, self.weight_hh_2)
        return torch.sigmoid(self.zeta_logit), torch.sigmoid(self.nu_logit), *factors, *biases

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h,), (zeta, nu, weight_hh, *rest) = state, weights
        inner = h if self.recurrent_rank is None else h @ rest.pop(0)  # (4)
        p = drive + inner @ weight_hh.mT  # (1)
        gate, candidate = (p + rest[0], p + rest[1]) if rest else (p, p)
        z = torch.sigmoid(gate)  # (2)
        return (z * h + (zeta * (1 - z) + nu) * self.phi(candidate),)  # (2), (3)
