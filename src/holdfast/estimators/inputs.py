"""Sequences as people hold them, as one padded tensor and lengths.

array (cases, time) or (cases, time, channels), DataFrame with one row per case (and possibly series in its cells),
list of arrays (time,) or (time, channels) of any lengths, nested lists, tensors
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import DataError
from holdfast.tasks.memory import pad

__all__ = ["is_ragged", "padded", "standardised"]


def is_ragged(X: Any) -> bool:
    """Whether these are separate sequences (a list of arrays, or cells that hold series), not one array."""
    if hasattr(X, "iloc"):
        return X.shape[1] > 0 and all(hasattr(cell, "__len__") and not isinstance(cell, str) for cell in X.iloc[0])
    if isinstance(X, np.ndarray):
        return X.dtype == object and X.ndim == 1 and len(X) > 0 and hasattr(X[0], "__len__")
    if not isinstance(X, list | tuple) or not len(X) or isinstance(X[0], str) or not hasattr(X[0], "__len__"):
        return False
    return not isinstance(X[0], list | tuple) or len({len(row) for row in X}) > 1


def padded(X: Any, who: str) -> tuple[np.ndarray, np.ndarray]:
    """(cases, time, channels) in float64, zeros behind the end of shorter sequences, and the lengths.

    Example:
        >>> x, lengths = padded([[1.0, 2.0, 3.0], [4.0]], "example")
        >>> x.shape, lengths.tolist()
        ((2, 3, 1), [3, 1])
    """
    if hasattr(X, "iloc"):
        X = [np.stack([np.asarray(cell, dtype=float) for cell in row], axis=1) for row in X.itertuples(index=False)]
    x, lengths = pad(X, who)
    if (odd := ~np.isfinite(x).all(axis=(1, 2))).any():
        raise DataError(
            f"{who}: sequence {odd.argmax()} contains NaN or infinity; fill in missing values, for example with the "
            "last known one."
        )
    return x, lengths


def standardised(x: np.ndarray, lengths: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> tuple[Tensor, Tensor]:
    """(x - mean) / scale in float32, zeros behind the end of each sequence."""
    inside = (np.arange(x.shape[1]) < lengths[:, None])[..., None]
    with np.errstate(over="ignore"):
        values = torch.from_numpy(np.where(inside, (x - mean) / scale, 0.0).astype(np.float32))
    if not values.isfinite().all():
        raise DataError("The values are too far from those of the training set: infinity in float32. Rescale them.")
    return values, torch.from_numpy(lengths.astype(np.int64))
