"""Ridge regression in closed form, from features that never stand side by side.

    min ‖Y - 1 bᵀ - Z W‖² + λ ‖W‖²,   Z the standardised features                 (1)
    I - H = V diag(λ / (s + λ)) Vᵀ,  Z Zᵀ = V diag(s) Vᵀ                          (2) without V's column along 1
    y_i - ŷ_{-i} = ((I - H) Y)_i / (I - H)_ii                                     (3) leave one out, exactly

With more features than sequences, ``dual`` sums Z Zᵀ over blocks of features. With fewer, ``primal`` sums ZᵀZ over
blocks of sequences and takes (2) from its eigenvectors. Both pass over the blocks twice. λ is the one whose mean square
of (3) is least, as in scikit-learn's ``RidgeCV``, with the intercept b estimated again for each left-out sequence.

Note [Nearly constant features]: the maximum of a saturated unit may vary by 1e-6 in the training set and by 0.1 in the
next sequence, which is 100,000 deviations. A feature lies in [-1, 1], [0, 1] or is of the size of a standardised input,
so a deviation below ``FLOOR`` counts as ``FLOOR``: such a feature is nearly left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["RidgeFit", "dual", "primal"]

FLOOR = 0.01  # the least deviation of a feature: see Note [Nearly constant features]

Blocks = Callable[[], Iterable[Tensor]]


@dataclasses.dataclass(frozen=True)
class RidgeFit:
    """A solution of (1), in float64.

    Args:
        mean, scale: (features,) of the training set; features that do not vary have scale infinity, so that Z is 0.
        weight, bias: (features, outputs) of Z, and (outputs,).
        penalty: λ.
        left_out: (n, outputs) ŷ_{-i}: what the model says of each training sequence without having seen it.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    penalty: float
    left_out: Tensor


def dual(blocks: Blocks, y: Tensor, penalties: Sequence[float], masks: Sequence[Tensor] | None = None) -> RidgeFit:
    """(1) for few sequences: ``blocks()`` gives (n, some features) again and again, in the same order.

    Args:
        blocks, y, penalties: the features, the answers (n, outputs), and the λ to choose from.
        masks: choices of features: (width of a block,) booleans, the same for each block. The one with the least error
            (3) is taken, with λ in proportion to how many features it has. Default: all features.

    Example:
        >>> x = torch.randn(9, 20, dtype=torch.float64)
        >>> fit = dual(lambda: x.split(8, dim=1), x[:, :1], penalties=(0.1, 1.0))
        >>> fit.weight.shape, fit.left_out.shape
        (torch.Size([20, 1]), torch.Size([9, 1]))
    """
    y, n, spreads = y.double(), len(y), []
    grams = torch.zeros(len(masks or (None,)), n, n, dtype=torch.float64)
    for block in blocks():
        spreads.append(_spread(block.double()))
        z = (block.double() - spreads[-1][0]) / spreads[-1][1]
        for gram, mask in zip(grams, masks or (slice(None),), strict=True):
            gram += z[:, mask] @ z[:, mask].mT
    best: tuple[float, float, Tensor, Tensor, Tensor | None] | None = None
    for gram, mask in zip(grams, masks or (None,), strict=True):
        s, V = _spectrum(gram)
        inside, share = V.mT @ y, 1.0 if mask is None else mask.double().mean().item()
        for penalty in (share * penalty for penalty in penalties):
            shrunk = penalty / (s + penalty)
            kept = V.square() @ shrunk  # the diagonal of (2)
            error = (V @ (shrunk[:, None] * inside)) / kept[:, None].clamp_min(1e-300)  # (3)
            loss = error.square().mean().item()
            if best is None or loss < best[0]:
                best = loss, penalty, error, V @ (inside / (s + penalty)[:, None]), mask
    assert best is not None
    _, penalty, error, coefficients, mask = best
    weights = []
    for block, (mean, scale) in zip(blocks(), spreads, strict=True):
        weight = ((block.double() - mean) / scale).mT @ coefficients
        weights.append(weight if mask is None else weight * mask[:, None])
    mean, scale = (torch.cat(parts) for parts in zip(*spreads, strict=True))
    return RidgeFit(mean, scale, torch.cat(weights), y.mean(dim=0), penalty, y - error)


def _spectrum(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of Z Zᵀ, but for the one along 1.

    Z 1 = 0 up to rounding. This makes it exact, and 1 the eigenvector of the mean eigenvalue, so that it is found. If
    no feature varies, all eigenvalues are 0 and that of 1 is made 1.
    """
    n = len(gram)
    gram = gram - gram.mean(dim=0)
    gram += (gram.diagonal().mean().item() or 1.0) / n - gram.mean(dim=1, keepdim=True)
    s, V = torch.linalg.eigh(gram)
    others = torch.arange(n) != V.sum(dim=0).abs().argmax()
    return s[others].clamp_min(0), V[:, others]


def primal(blocks: Blocks, y: Tensor, penalties: Sequence[float]) -> RidgeFit:
    """(1) for few features: ``blocks()`` gives (some sequences, features) again and again, in the order of ``y``.

    Example:
        >>> x = torch.randn(20, 3, dtype=torch.float64)
        >>> primal(lambda: x.split(8), x[:, :1], penalties=(0.1, 1.0)).penalty
        0.1
    """
    y, n, shift = y.double(), len(y), torch.empty(0)
    total = square = cross = torch.empty(0)
    bias, done = y.mean(dim=0), 0
    for block in blocks():
        if not done:
            shift = block.double().mean(dim=0)  # near the mean, so that the products below lose no digits
            total, square = torch.zeros_like(shift), shift.new_zeros(len(shift), len(shift))
            cross = shift.new_zeros(len(shift), y.shape[1])
        near = block.double() - shift
        total += near.sum(dim=0)
        square += near.mT @ near
        cross += near.mT @ (y[done : done + len(block)] - bias)
        done += len(block)
    covariance = square - total[:, None] * total / n
    mean, scale = shift + total / n, _usable((covariance.diagonal() / n).clamp_min(0).sqrt(), shift)
    s, V = torch.linalg.eigh(covariance / scale / scale[:, None])
    inside = V.mT @ (cross / scale[:, None])
    s, grid = s.clamp_min(0), torch.tensor(penalties, dtype=torch.float64)
    ratios = 1 / (s[:, None] + grid)  # (features, penalties)
    solutions = (inside[:, :, None] * ratios[:, None, :]).flatten(1)
    errors, done = [], 0
    for block in blocks():
        turned = ((block.double() - mean) / scale) @ V
        fitted = (turned @ solutions).unflatten(1, (y.shape[1], len(grid)))
        kept = 1 - 1 / n - turned.square() @ ratios
        residual = (y[done : done + len(block)] - bias)[:, :, None] - fitted
        errors.append(residual / kept[:, None, :].clamp_min(1e-12))  # (3)
        done += len(block)
    error = torch.cat(errors)
    choice = int(error.square().mean(dim=(0, 1)).argmin())
    weight = V @ (inside * ratios[:, choice, None])
    return RidgeFit(mean, scale, weight, bias, float(grid[choice]), y - error[:, :, choice])


def _spread(block: Tensor) -> tuple[Tensor, Tensor]:
    mean = block.mean(dim=0)
    return mean, _usable(block.std(dim=0, correction=0), mean)


def _usable(scale: Tensor, mean: Tensor) -> Tensor:
    """A deviation that is more than the rounding of float32, or infinity; see Note [Nearly constant features]."""
    return torch.where(scale > 1e-6 * mean.abs().clamp_min(1e-6), scale.clamp_min(FLOOR), torch.inf)
