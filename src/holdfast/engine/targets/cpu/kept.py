"""Weights as kernels read them, kept from one scan without gradients to the next.

    kept = Kept.of(tensors, make);   kept.holds_for(tensors)   →   kept.values, kept.packed

Whether a weight has changed cannot be asked: ``weight.data.add_(1)`` leaves no trace. So what was packed is a copy of
the weights, the copy stays beside it, and before it serves again it is compared with the weights byte by byte. That
takes a tenth of the time of packing.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from holdfast.engine.targets.cpu.pack import Tensors

__all__ = ["Kept"]

MOST = 1 << 24  # bytes of weights that are kept: beyond, a scan takes far longer than packing

Packed = tuple[tuple[Tensor, ...], dict[Any, Tensor]]  # what a prologue made of weights; the same as kernels read it


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """``copies``: what ``values`` and ``packed`` were made of; nobody else can reach them."""

    copies: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    packed: dict[Any, Tensor]

    @classmethod
    def of(cls, tensors: Tensors, make: Callable[[Tensors], Packed]) -> Kept | None:
        """What ``make`` returns for these tensors, to be kept; None if they are too large or not whole in memory."""
        size = sum(t.nbytes for t in tensors)
        if size > MOST or _memcmp() is None or not all(t.device.type == "cpu" and _is_dense(t) for t in tensors):
            return None
        copies = tuple(t.detach().clone() for t in tensors)  # with the strides that they have
        return cls(copies, *make(copies))

    def holds_for(self, tensors: Tensors) -> bool:
        """Whether the tensors are still those that were packed, to the last bit."""
        same = _memcmp()
        for tensor, copy in zip(tensors, self.copies, strict=True):
            if tensor.shape != copy.shape or tensor.stride() != copy.stride() or tensor.dtype != copy.dtype:
                return False
            if same(tensor.data_ptr(), copy.data_ptr(), copy.nbytes):  # type: ignore[misc]
                return False
        return True


def _is_dense(tensor: Tensor) -> bool:
    """Whether its memory is all its own, without gaps, so that ``clone`` keeps its strides."""
    return tensor.is_contiguous() or (tensor.dim() == 2 and tensor.mT.is_contiguous())


@functools.cache
def _memcmp() -> Callable[[int, int, int], int] | None:
    """The C library's; None where it cannot be found, and nothing is kept there."""
    for name in (None, "msvcrt"):
        try:
            function = ctypes.CDLL(name).memcmp
        except (OSError, AttributeError, TypeError):
            continue
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
        return function
    return None
