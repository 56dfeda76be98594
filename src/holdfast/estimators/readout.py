"""A reservoir with a ridge readout: the model that is tried first, fitted in closed form.

    z = τ ((f - m) / s · W + b)                                     (1) f: the reservoir's features
    τ = argmin -Σ_i log softmax(τ ŷ_{-i})_{y_i} - log p(wrong)      (2) for classes: the sharpness of left-out answers

(1) is fitted to ±1 for each class, or to standardised numbers. With fewer sequences than features it has either all
features or only maxima and shares, whichever has less left-out error: means and last states help with numbers, and
hurt with classes (docs/sequences.md). In (2) one more sequence counts as wrong, with the mean
loss of the runner-up class: n right answers of n are no proof that the next one is right (Laplace's rule).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.estimators.ridge import dual, primal
from holdfast.layers import Reservoir
from holdfast.train.whole import ReservoirModel

__all__ = ["fit_reservoir"]

LARGEST = 4096  # the smaller of sequences and features: the size of the matrix whose eigenvectors are found
UNITS = 128  # of each cell
KEPT = 2**29  # bytes of features that are kept for the second pass instead of being computed again
PENALTIES = tuple(10 ** (k / 2) for k in range(-12, 5))  # λ per feature


@torch.no_grad()
def fit_reservoir(
    x: Tensor, lengths: Tensor, y: Tensor, *, classes: int | None, seed: int = 0, **settings: Any
) -> tuple[ReservoirModel, Tensor]:
    """A fitted model, and its outputs for each training sequence as if that one had been left out.

    Args:
        x: (n, time, channels), of float32 or float64.
        lengths: (n,).
        y: (n,) indices of classes, or (n, outputs) numbers.
        classes: how many; None for numbers.
        seed, settings: of ``Reservoir``. ``units`` is 128, or fewer for more than 4,096 sequences: then there are at
            most 4,096 features.

    Example:
        >>> x, y = torch.randn(20, 9, 1), torch.arange(20) % 2
        >>> model, left_out = fit_reservoir(x, torch.full((20,), 9), y, classes=2, units=4)
        >>> model(x.transpose(0, 1))[0].shape, left_out.shape
        (torch.Size([20, 2]), torch.Size([20, 2]))
    """
    n, sizes = len(x), (x.shape[2], int(lengths.max()))
    if settings.get("units") is None:
        settings["units"] = UNITS
        wide = Reservoir(*sizes, **{**settings, "units": 2}).features
        if n > LARGEST:
            settings["units"] = max(2, min(UNITS, 2 * (LARGEST // wide)))
    reservoir = Reservoir(*sizes, seed=seed, **settings).to(x.dtype).fit(x, lengths)
    targets = y.double() if classes is None else 2.0 * nn.functional.one_hot(y, classes).double() - 1
    features = reservoir.features
    penalties = [features * penalty for penalty in PENALTIES]
    rows = max(1, KEPT // (32 * features))

    def blocks() -> Iterable[Tensor]:
        if n <= features:
            return reservoir.blocks(x, lengths)
        return (reservoir(*part) for part in zip(x.split(rows), lengths.split(rows), strict=True))

    kept = list(blocks()) if n * features * x.element_size() <= KEPT else None
    source = blocks if kept is None else lambda: kept
    if n <= features:
        each = torch.arange(features // len(reservoir.cells))
        masks = [each >= 2 * reservoir.units, each >= 0]  # without mean and last, and with them
        fit = dual(source, targets, penalties, masks if reservoir.quantiles else None)
    else:
        fit = primal(source, targets, penalties)
    model = ReservoirModel(reservoir, targets.shape[1])
    for name in ("mean", "scale", "weight", "bias"):
        getattr(model, name).copy_(getattr(fit, name))
    if classes is not None:
        model.sharpness.fill_(_sharpness(fit.left_out, y))
    return model, (model.sharpness * fit.left_out).to(x.dtype)


def _sharpness(values: Tensor, y: Tensor) -> float:
    """τ of (2), from a grid."""
    n, rows = len(values), torch.arange(len(values))
    second = values.scatter(1, y[:, None], -math.inf).argmax(dim=1)
    grid = [10 ** (k / 20) for k in range(-20, 41)]
    losses = []
    for tau in grid:
        logs = (tau * values).log_softmax(dim=1)
        losses.append(-(logs[rows, y].sum() + logs[rows, second].sum() / n).item())
    return grid[min(range(len(grid)), key=losses.__getitem__)]
