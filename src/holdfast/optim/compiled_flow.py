"""One compiled loop over time, for matrices that stay in the cache of one core.

    x_t ← x_t + x_{t-1} M,  t = 1, 2, ...   (1) in place, in rows; before it, x holds the drive

A product with a vector is bound by reading M. While M stays in a core's second-level cache, reading it once a step
costs less than the squarings of block doubling, and no threads have to meet. Columns are taken 32 at a time, with their
sums in registers. The code comes from the fused scan's compiler and is kept in its cache; without that compiler, flows
go by block doubling.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

__all__ = ["compiled_flow", "fits"]

LARGEST = 256  # units: 256² doubles are 512 KB, a common size of second-level caches
LANES = 16  # columns come in sixteens: zeros fill up the last ones

LOOP = """
{name}:
  %{name}.c = phi i64 [ {first}, %{before} ], [ %{name}.c.next, %{name}.done ]
  %{name}.end = add i64 %{name}.c, {width}
  %{name}.more = icmp ule i64 %{name}.end, %size
  br i1 %{name}.more, label %{name}.block, label %{after}
{name}.block:
  %{name}.out = getelementptr double, ptr %row, i64 %{name}.c
  %{name}.drive = load <{width} x double>, ptr %{name}.out, align 8
  br label %{name}.sum
{name}.sum:
  %{name}.j = phi i64 [ 0, %{name}.block ], [ %{name}.j.next, %{name}.sum ]
  %{name}.acc = phi <{width} x double> [ %{name}.drive, %{name}.block ], [ %{name}.acc.next, %{name}.sum ]
  %{name}.xp = getelementptr double, ptr %last, i64 %{name}.j
  %{name}.x = load double, ptr %{name}.xp, align 8
  %{name}.x0 = insertelement <{width} x double> undef, double %{name}.x, i32 0
  %{name}.xs = shufflevector <{width} x double> %{name}.x0, <{width} x double> undef, <{width} x i32> zeroinitializer
  %{name}.mo = mul i64 %{name}.j, %size
  %{name}.mc = add i64 %{name}.mo, %{name}.c
  %{name}.mp = getelementptr double, ptr %matrix, i64 %{name}.mc
  %{name}.m = load <{width} x double>, ptr %{name}.mp, align 8
  %{name}.xm = fmul contract <{width} x double> %{name}.xs, %{name}.m
  %{name}.acc.next = fadd contract <{width} x double> %{name}.acc, %{name}.xm
  %{name}.j.next = add i64 %{name}.j, 1
  %{name}.go = icmp ult i64 %{name}.j.next, %size
  br i1 %{name}.go, label %{name}.sum, label %{name}.done
{name}.done:
  store <{width} x double> %{name}.acc.next, ptr %{name}.out, align 8
  %{name}.c.next = add i64 %{name}.c, {width}
  br label %{name}
"""

TEXT = (
    """
define void @flow(ptr noalias %matrix, ptr %rows, i64 %count, i64 %size) {
start:
  br label %time
time:
  %t = phi i64 [ 1, %start ], [ %t.next, %time.end ]
  %on = icmp ult i64 %t, %count
  br i1 %on, label %step, label %exit
step:
  %t.last = sub i64 %t, 1
  %row.at = mul i64 %t, %size
  %last.at = mul i64 %t.last, %size
  %row = getelementptr double, ptr %rows, i64 %row.at
  %last = getelementptr double, ptr %rows, i64 %last.at
  br label %wide
"""
    + LOOP.format(name="wide", first=0, before="step", after="narrow", width=32)
    + LOOP.format(name="narrow", first="%wide.c", before="wide", after="time.end", width=LANES)
    + """
time.end:
  %t.next = add i64 %t, 1
  br label %time
exit:
  ret void
}
"""
)


def fits(matrix: Tensor) -> bool:
    """Whether the compiled loop takes this matrix: on the CPU, in float64, small, and without gradients.

    Example:
        >>> fits(torch.eye(1000, dtype=torch.float64)), fits(torch.eye(3, dtype=torch.float32))
        (False, False)
    """
    tracked = torch.is_grad_enabled() and matrix.requires_grad
    plain = matrix.device.type == "cpu" and matrix.dtype == torch.float64 and not tracked
    return plain and len(matrix) <= LARGEST and _function() is not None


def compiled_flow(matrix: Tensor, drive: Tensor) -> Tensor:
    """The rows x of (1) for a drive (rows, size), x_0 its first row.

    Example:
        >>> two = torch.full((1, 1), 2.0, dtype=torch.float64)
        >>> compiled_flow(two, torch.ones(4, 1, dtype=torch.float64)).flatten().tolist()
        [1.0, 3.0, 7.0, 15.0]
    """
    size = len(matrix)
    fill = -size % LANES
    if fill:
        matrix, rows = torch.nn.functional.pad(matrix, (0, fill, 0, fill)), torch.nn.functional.pad(drive, (0, fill))
    else:
        matrix, rows = matrix.contiguous(), drive.clone(memory_format=torch.contiguous_format)
    function = _function()
    assert function is not None
    function(matrix.data_ptr(), rows.data_ptr(), len(rows), size + fill)
    return rows[:, :size] if fill else rows


@functools.cache
def _function() -> Any:
    try:
        from holdfast.engine.fused.cache import library
    except ImportError:
        return None
    found = library(TEXT)
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    function = ctypes.CFUNCTYPE(None, pointer, pointer, count, count)(found.address("flow"))
    function.library = found  # type: ignore[attr-defined]  # its code lives as long as the function
    return function
