"""Numbers kept in [-r, r] under any optimiser: the nearest number inside, with a gradient that can come back.

    u = min(max(v, -r), r)                                          (1)
    ∂L/∂v = ∂L/∂u,  but 0 where v lies outside and a step against the gradient would go further out      (2)

Inside the interval (2) is the gradient of (1). Outside, the gradient of (1) is zero and v would stay there for ever;
(2) is that of a projected method, for which v is never outside. Source: ours; the use: Li et al. (2018), §3.1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["inside_interval"]


class _Inside(torch.autograd.Function):
    @staticmethod
    def forward(v: Tensor, radius: float) -> Tensor:
        return v.clamp(-radius, radius)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.radius = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (v,), (grad,) = ctx.saved_tensors, grads
        leaves = ((v > ctx.radius) & (grad < 0)) | ((v < -ctx.radius) & (grad > 0))  # (2)
        return torch.where(leaves, 0.0, grad), None


def inside_interval(v: Tensor, radius: float) -> Tensor:
    """(1), with the gradient (2).

    Law: |u| ≤ r for every v, and u = v inside.

    Example:
        >>> inside_interval(torch.tensor([-3.0, 0.5, 2.0]), 1.0)
        tensor([-1.0000, 0.5000, 1.0000])
    """
    return _Inside.apply(v, radius)
