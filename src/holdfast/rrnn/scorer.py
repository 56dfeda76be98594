"""The scoring network α: two layers, from a vector to a number.

    α(v) = w · relu(W v + c) + d        (1)

A search needs (1) of thousands of candidates: holdfast.engine.kernels.scores has it as one loop.

Source: S1, §5 (two layers) and Appendix E.2 (256 hidden units for RRNN). Symbols: docs/notation.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from holdfast.errors import positive_size

__all__ = ["RankingScorer", "TwoLayerScorer"]


class TwoLayerScorer(nn.Module):
    """α (1).

    Args:
        size: p, entries of a vector.
        hidden: units of the first layer.

    Shape:
        (..., p) to (...).

    Example:
        >>> TwoLayerScorer(5, 8)(torch.zeros(4, 3, 5)).shape
        torch.Size([4, 3])
    """

    def __init__(self, size: int, hidden: int = 256):
        super().__init__()
        positive_size("TwoLayerScorer", "hidden", hidden)
        self.weight = nn.Parameter(torch.empty(hidden, size))
        self.bias = nn.Parameter(torch.empty(hidden))
        self.weight_out = nn.Parameter(torch.empty(hidden))
        self.bias_out = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """W, c, w and d."""
        return self.weight, self.bias, self.weight_out, self.bias_out

    def reset_parameters(self) -> None:
        for weights, inputs in (
            ((self.weight, self.bias), self.weight.shape[1]),
            ((self.weight_out, self.bias_out), len(self.bias)),
        ):
            for weight in weights:
                nn.init.uniform_(weight, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))

    def forward(self, v: Tensor) -> Tensor:
        hidden = nn.functional.linear(v, self.weight, self.bias).relu_()  # the largest tensor of a search
        return hidden @ self.weight_out + self.bias_out  # (1)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, hidden={len(self.bias)}"


class RankingScorer(nn.Module):
    """α(v) = Σ_k (n + 1 - k) exp(-‖v - v_k‖² / (2σ²)): it ranks the n wanted vectors first, in their order.

    This is Lemma 1 with decreasing weights and a small σ. In print the weights increase with k and σ is large: then
    every exponential is close to one, and the order is different.

    Law: if the v_k are further apart than σ √(2 log(n(n+1))), then α(v_1) > .. > α(v_n).

    Args:
        wanted: (n, p), or (n, batch, p) to rank other vectors for every sample.
        sigma: σ; None for a quarter of the smallest distance divided by √(2 log(n(n+1))).

    Example:
        >>> scorer = RankingScorer(torch.eye(3))
        >>> scorer(torch.eye(3)).argsort(descending=True)
        tensor([0, 1, 2])
    """

    def __init__(self, wanted: Tensor, sigma: float | None = None):
        super().__init__()
        wanted = wanted if wanted.dim() == 3 else wanted[:, None]
        self.register_buffer("wanted", wanted)
        self.sigma = _small_sigma(wanted) if sigma is None else sigma

    def forward(self, v: Tensor) -> Tensor:
        """(..., p), or (..., batch, p) if every sample has its own."""
        wanted: Tensor = self.wanted  # pyright: ignore[reportAssignmentType]
        count = len(wanted)
        shared = wanted.shape[1] == 1
        total = torch.zeros_like(v[..., 0])
        for k in range(count):
            distance = (v - (wanted[k, 0] if shared else wanted[k])).square().sum(dim=-1)
            total = total + (count - k) * torch.exp(-distance / (2 * self.sigma**2))
        return total


def _small_sigma(wanted: Tensor) -> float:
    count = len(wanted)
    if count == 1:
        return 1.0
    apart = (wanted[:, None] - wanted[None]).norm(dim=-1)  # (n, n, batch)
    apart = apart + torch.eye(count, dtype=apart.dtype, device=apart.device)[..., None] * apart.max()
    return float(apart.min()) / 4 / math.sqrt(2 * math.log(count * (count + 1)))
