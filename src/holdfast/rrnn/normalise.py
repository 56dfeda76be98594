"""Batch normalisation of candidates, with one set of statistics per birth.

    v̂ = γ ⊙ (v - μ_g) / √(σ²_g + ε) + β        (1)

All candidates that are born in one round g share μ_g and σ²_g, taken over the batch and over the round's candidates in
training and from running averages in evaluation. A candidate keeps its statistics: its vector and its score do not
change afterwards. Statistics are constants in the gradient.

S1 says only that candidates are batch-normalised to stabilise training (Appendix E.1); where the normalisation is
applied, and over what, is our choice.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["BirthNorm"]


class BirthNorm(nn.Module):
    """(1).

    Args:
        size: p.
        rounds: births: pairs of leaves first, then the pairs of each node but the last.
        momentum, eps: as in ``torch.nn.BatchNorm1d``.

    Example:
        >>> norm = BirthNorm(4, rounds=2)
        >>> scale, shift = norm.affine(*norm.statistics(0, torch.zeros(4), torch.ones(4)))
        >>> torch.allclose(scale, torch.ones(4), atol=1e-5), norm.mean.shape
        (True, torch.Size([2, 4]))
    """

    mean: Tensor
    var: Tensor

    def __init__(self, size: int, rounds: int, *, momentum: float = 0.1, eps: float = 1e-5):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.register_buffer("mean", torch.zeros(rounds, size))
        self.register_buffer("var", torch.ones(rounds, size))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self.mean.zero_()
        self.var.fill_(1)

    @torch.no_grad()
    def statistics(self, birth: int, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """μ_g and σ²_g to use: in training those given, which update the running averages; else the averages."""
        if not self.training:
            return self.mean[birth], self.var[birth]
        self.mean[birth] += self.momentum * (mean - self.mean[birth])
        self.var[birth] += self.momentum * (var - self.var[birth])
        return mean, var

    def affine(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """(1) as v̂ = scale ⊙ v + shift."""
        scale = self.weight / torch.sqrt(var + self.eps)
        return scale, self.bias - mean * scale

    def extra_repr(self) -> str:
        return f"{self.mean.shape[1]}, rounds={len(self.mean)}"
