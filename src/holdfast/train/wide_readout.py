"""Cross-entropy of a readout with thousands of classes, without ever storing all its logits.

    z = W h + b,  ℓ = log Σ_c exp(z_c) - z_y                                     (1) of each row h with class y
    ∂ℓ/∂z = softmax(z) - e_y,  ∂ℓ/∂h = Wᵀ ∂ℓ/∂z,  ∂ℓ/∂W = ∂ℓ/∂z hᵀ              (2)

A block of rows goes through (1) and (2) while its logits are in the cache, so that a training step has three products
and no tensor of (rows, classes). The gradients are ready before anyone asks for them, and are scaled when asked.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["WIDE", "Unread", "linear_cross_entropy"]

WIDE = 1000  # classes from which on a readout is not written out
BLOCK = 512  # rows at a time


@dataclasses.dataclass(frozen=True)
class Unread:
    """Answers that are not computed yet: what a readout would be given, and the readout.

    Example:
        >>> Unread(torch.zeros(5, 2, 8), nn.Linear(8, 3)).written().shape
        torch.Size([5, 2, 3])
    """

    hidden: Tensor
    readout: nn.Linear

    def written(self) -> Tensor:
        """The answers themselves."""
        return self.readout(self.hidden)

    def cross_entropy(self, targets: Tensor, weights: Tensor | None, ignored: int) -> Tensor:
        """``linear_cross_entropy`` of the rows whose class counts."""
        rows, classes = self._counting(targets, ignored)
        return linear_cross_entropy(rows, self.readout.weight, self.readout.bias, classes, weights)

    def right(self, targets: Tensor, ignored: int) -> int:
        """For how many rows the most likely class is the right one."""
        rows, classes = self._counting(targets, ignored)
        pairs = zip(rows.split(BLOCK), classes.split(BLOCK), strict=True)
        return sum(int((self.readout(block).argmax(dim=-1) == own).sum()) for block, own in pairs)

    def _counting(self, targets: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
        rows, classes = self.hidden.reshape(-1, self.hidden.shape[-1]), targets.reshape(-1)
        counts = classes != ignored
        return (rows, classes) if bool(counts.all()) else (rows[counts], classes[counts])


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, class_weights: Tensor | None = None
) -> Tensor:
    """The sum of (1) over the rows of ``hidden``, each times its class's weight.

    Law: values and first gradients are those of ``torch.nn.functional.cross_entropy`` of ``linear``, to rounding. It is
    not twice differentiable.

    Args:
        hidden: (rows, features).
        weight, bias: of the readout, (classes, features) and (classes,).
        targets: (rows,), classes.
        class_weights: (classes,); 1 each if None.

    Example:
        >>> hidden, readout = torch.zeros(4, 3), nn.Linear(3, 10, bias=False)
        >>> loss = linear_cross_entropy(hidden, readout.weight, None, torch.tensor([0, 1, 2, 3]))
        >>> round(loss.item(), 4)  # 4 log 10
        9.2103
    """
    return _LinearCrossEntropy.apply(hidden, weight, bias, targets, class_weights)  # pyright: ignore[reportReturnType]


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, class_weights: Tensor | None
    ) -> Tensor:
        wanted = ctx.needs_input_grad[:3]
        total = hidden.new_zeros((), dtype=torch.float64)
        of_hidden = torch.empty_like(hidden) if wanted[0] else None
        of_weight = torch.zeros_like(weight) if wanted[1] else None
        of_bias = torch.zeros_like(bias) if wanted[2] and bias is not None else None
        for start in range(0, len(hidden), BLOCK):
            rows, own = hidden[start : start + BLOCK], targets[start : start + BLOCK, None]
            scale = None if class_weights is None else class_weights[own]
            logits = nn.functional.linear(rows, weight, bias)
            top = logits.amax(dim=1, keepdim=True)
            right = logits.gather(1, own) - top
            logits.sub_(top).exp_()  # (1), shifted so that nothing overflows
            sums = logits.sum(dim=1, keepdim=True)
            losses = sums.log() - right
            total += (losses if scale is None else losses * scale).sum(dtype=torch.float64)
            if not any(wanted):
                continue
            logits.div_(sums).scatter_add_(1, own, logits.new_full((), -1.0).expand_as(own))  # (2)
            if scale is not None:
                logits.mul_(scale)
            if of_hidden is not None:
                torch.mm(logits, weight, out=of_hidden[start : start + BLOCK])
            if of_weight is not None:
                of_weight.addmm_(logits.mT, rows)
            if of_bias is not None:
                of_bias.add_(logits.sum(dim=0))
        ctx.save_for_backward(of_hidden, of_weight, of_bias)
        return total.to(hidden.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return *(None if own is None else own * grad for own in ctx.saved_tensors), None, None
