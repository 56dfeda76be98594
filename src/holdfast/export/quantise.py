"""Matrices in int8, one scale per row, and what that costs in accuracy.

    Ŵ_r = s_r clip(round(W_r / s_r), -127, 127)                        (1)
    s_r = c_r max |W_r| / 127,  c_r ∈ {1, 0.98, ..., 0.6}              (2)
    c_r minimises (Ŵ_r - W_r) C (Ŵ_r - W_r)ᵀ,  C = mean of x xᵀ         (3) the error of the product on calibration data

Without data C is the identity. Biases, rotations and states stay in float32.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from holdfast.engine.targets.c import Quantised

__all__ = ["CLIPS", "Moments", "quantise"]

CLIPS = np.arange(1.0, 0.59, -0.02)


def quantise(matrix: Tensor, moments: Tensor | None = None) -> Quantised:
    """(1) with the best scale of (2) by (3).

    Args:
        matrix: (rows, columns).
        moments: C, (columns, columns); None for the identity.

    Example:
        >>> rounded = quantise(torch.tensor([[1.0, -0.5], [0.0, 0.0]]))
        >>> rounded.values.tolist(), rounded.scale.tolist()[1]
        ([[127, -64], [0, 0]], 1.0)
    """
    rows = matrix.detach().double().numpy()
    weight = np.eye(rows.shape[1]) if moments is None else moments.double().numpy()
    largest = np.abs(rows).max(axis=1)
    best = np.full(len(rows), np.inf)
    values, scales = np.zeros(rows.shape, np.int8), np.ones(len(rows), np.float32)
    for clip in CLIPS:
        scale = np.where(largest > 0, clip * largest / 127, 1.0).astype(np.float32)
        whole = np.clip(np.rint(rows / scale[:, None].astype(np.float64)), -127, 127)
        error = whole * scale[:, None].astype(np.float64) - rows
        cost = np.einsum("rk,kl,rl->r", error, weight, error, optimize=True)
        better = cost < best  # the first, unclipped, wins a tie
        best = np.where(better, cost, best)
        values[better], scales[better] = whole[better].astype(np.int8), scale[better]
    return Quantised(values, scales)


class Moments:
    """C of (3) for every matrix, gathered while a network runs on calibration data.

    Example:
        >>> moments = Moments()
        >>> moments(("row0", 1), torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
        >>> moments[("row0", 1)].tolist()
        [[5.0, 1.0], [1.0, 2.0]]
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], Tensor] = {}
        self._counts: dict[tuple[str, int], int] = {}

    def __call__(self, name: tuple[str, int], x: Tensor) -> None:
        x = x.double()
        self._sums[name] = self._sums.get(name, torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype)) + x.mT @ x
        self._counts[name] = self._counts.get(name, 0) + len(x)

    def __getitem__(self, name: tuple[str, int]) -> Tensor | None:
        return self._sums[name] / self._counts[name] if self._counts.get(name) else None
