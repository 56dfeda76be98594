"""Large buffers, used again: fresh pages from the system cost more than the arithmetic that fills them.

    empty(shape, dtype)  →  a tensor whose memory goes back to the pool when the last tensor on it is gone

A tensor lives as long as anybody holds it, as any tensor does; the pool only keeps what is no longer used, and at
most ``KEPT`` bytes of that.
"""

from __future__ import annotations

import math
import threading
import weakref

import numpy as np
import torch
from torch import Tensor

__all__ = ["empty"]

LARGE = 1 << 20  # bytes from which a buffer comes from the pool
KEPT = 1 << 30  # bytes at rest in the pool, at most

_lock = threading.RLock()  # a buffer may come back by garbage collection while this thread is borrowing
_rest: list[np.ndarray] = []


class _Lease(np.ndarray):
    """A view of a pooled buffer; when it dies the buffer goes back."""


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Like ``torch.empty`` on the CPU, aligned to 64 bytes."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < LARGE:
        return torch.empty(shape, dtype=dtype)
    lease = _take(size)
    return torch.from_numpy(lease)[:size].view(dtype).view(shape)


def _take(size: int) -> np.ndarray:
    with _lock:
        fits = [i for i, buffer in enumerate(_rest) if size <= buffer.nbytes <= 2 * size]
        buffer = _rest.pop(min(fits, key=lambda i: _rest[i].nbytes)) if fits else None
    if buffer is None:
        raw = np.empty(size + 63, dtype=np.uint8)
        start = -raw.ctypes.data % 64
        buffer = raw[start : start + size]
    lease = buffer.view(_Lease)
    weakref.finalize(lease, _give_back, buffer).atexit = False
    return lease


def _give_back(buffer: np.ndarray) -> None:
    with _lock:
        _rest.append(buffer)
        while sum(b.nbytes for b in _rest) > KEPT:
            _rest.pop(0)
