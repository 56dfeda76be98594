"""The largest learning rate that gradient descent stands at these weights.

    H v ≈ (∇L(w + ε v) - ∇L(w - ε v)) / 2ε                              (1) needs first derivatives only
    v ← H v / ‖H v‖,  λ_max = ⟨v, H v⟩                                  (2) power iteration, from the gradient
    η > 2 / λ_max: a step w - η ∇L overshoots along v                   (3) the edge of stability

Source of (3): Cohen et al. (2021), Gradient descent on neural networks typically occurs at the edge of stability.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["Sharpness", "sharpness"]


@dataclasses.dataclass(frozen=True)
class Sharpness:
    """The sharpest direction.

    Args:
        largest: λ_max of (2), by modulus, or NaN if it cannot be measured.
        loss: here; after: the loss after one step of gradient descent with the learning rate, NaN without one.
        gradient: ‖∇L‖.

    Example:
        >>> Sharpness(4.0, 1.0, 0.5, 1.0).edge
        0.5
    """

    largest: float
    loss: float
    after: float
    gradient: float

    @property
    def edge(self) -> float:
        """2 / λ_max."""
        return 2 / self.largest if self.largest > 0 else math.inf


def sharpness(
    model: nn.Module, loss: Callable[[], Tensor], lr: float | None = None, *, iterations: int = 8, eps: float = 1e-3
) -> Sharpness:
    """(1) and (2) at the weights of ``model``, which are moved and put back bit for bit.

    Args:
        model: whose trainable weights.
        loss: computes the loss of the model as it is.
        lr: also take one step of this size, and measure the loss there.
        iterations: of (2); each takes two gradients.
        eps: ε relative to the length of w.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> found = sharpness(model, lambda: 3 * model.weight.square().sum(), lr=0.5)  # H = 6
        >>> round(found.largest, 3), found.after > found.loss
        (6.0, True)
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    kept = [weight.detach().clone() for weight in weights]

    def gradient() -> tuple[float, list[Tensor]]:
        with torch.enable_grad():
            value = loss()
            grads = torch.autograd.grad(value, weights, materialize_grads=True, allow_unused=True)
        return float(value.detach()), [grad.detach() for grad in grads]

    def at(direction: list[Tensor], size: float) -> None:
        with torch.no_grad():
            for weight, before, part in zip(weights, kept, direction, strict=True):
                weight.copy_(before + size * part)

    try:
        here, grads = gradient()
        length, norm = (float(torch.stack([it.norm() for it in some]).norm()) for some in (kept, grads))
        if not weights or not math.isfinite(norm) or norm == 0:
            return Sharpness(math.nan, here, math.nan, norm)
        v, largest, step = [grad / norm for grad in grads], math.nan, eps * max(length, 1e-3)
        for _ in range(iterations):
            at(v, step)
            ahead = gradient()[1]
            at(v, -step)
            behind = gradient()[1]
            Hv = [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]
            largest = float(sum((part * other).sum() for part, other in zip(v, Hv, strict=True)))
            size = float(torch.stack([part.norm() for part in Hv]).norm())
            if not size > 0 or not math.isfinite(size):
                break
            v = [part / size for part in Hv]
        after = math.nan
        if lr is not None:
            at(grads, -lr)
            with torch.no_grad():
                after = float(loss())
        return Sharpness(largest, here, after, norm)
    finally:
        with torch.no_grad():
            for weight, before in zip(weights, kept, strict=True):
                weight.copy_(before)
