"""Whether an array of shape (sequences, a, b) has its steps along a or along b.

    r_k = mean (x_{k+1} - x_k)² / 2 var    along the axis k, each line along the other axis standardised      (1)

Signals are smooth in time: r is far below 1 along the time axis and near 1 along an axis without order. An order is
taken for granted only where nothing speaks against it; else the person is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from holdfast.errors import DataError

__all__ = ["ORDERS", "Order", "order_of"]

Order = Literal["time-first", "channels-first"]
ORDERS = "time-first", "channels-first"
_MUCH = 4  # times as many steps as channels is the usual case
_CLEAR, _STRIKING = 0.7, 0.35  # times as rough along one axis as along the other
_SAMPLE = 200  # sequences that (1) looks at


def order_of(x: np.ndarray, lengths: np.ndarray | None, path: Path, name: str) -> Order:
    """The order of ``x``, by its lengths, its shape and its smoothness; a DataError if they leave it open.

    Example:
        >>> waves = np.sin(np.arange(60.0) / 5 + np.arange(30)[:, None, None] + np.array([[0.0], [2.0], [4.0]]))
        >>> waves.shape, order_of(waves, None, Path("a.npz"), "x")
        ((30, 3, 60), 'channels-first')
        >>> order_of(waves.swapaxes(1, 2), None, Path("a.npz"), "x")
        'time-first'
    """
    _, first, second = x.shape
    if lengths is not None and lengths.ndim == 1 and lengths.size and lengths.dtype.kind in "iu" and first != second:
        longest = int(lengths.max())  # the padding reaches to the longest
        if longest == second or longest > first:
            return "channels-first"
        if longest == first:
            return "time-first"
    if first >= _MUCH * second or second == 1:
        return "time-first"
    if first == 1:
        return "channels-first"
    ratio = _roughness(x, 2) / max(_roughness(x, 1), 1e-9)
    if first >= second and ratio >= _STRIKING:  # the documented order, as in PyTorch, and little against it
        return "time-first"
    if first < second and ratio < _CLEAR:
        return "channels-first"
    if first < second < _MUCH * first and ratio > 1 / _CLEAR:
        return "time-first"
    raise DataError(
        f"{path}: {name!r} has the shape {x.shape}, which may be (sequences, time, channels) or (sequences, channels, "
        f"time). Say which: order='time-first' for {first} steps of {second} channels, order='channels-first' for "
        f"{second} steps of {first} channels."
    )


def _roughness(x: np.ndarray, axis: int) -> float:
    """(1); 1 if there is nothing to see."""
    x = np.moveaxis(x[: _SAMPLE * max(1, len(x) // _SAMPLE) : max(1, len(x) // _SAMPLE)].astype(np.float64), axis, 1)
    x = np.where(np.isfinite(x), x, np.nan)
    with np.errstate(all="ignore"):
        spread = np.nanvar(x, axis=(0, 1)) if np.isfinite(x).any(axis=(0, 1)).all() else np.zeros(x.shape[2])
        steps = np.nanmean(np.square(np.diff(x, axis=1)), axis=(0, 1)) if x.shape[1] > 1 else spread
        ratios = (steps / (2 * spread))[spread > 0]
    return float(np.mean(ratios)) if ratios.size and np.isfinite(ratios).all() else 1.0
