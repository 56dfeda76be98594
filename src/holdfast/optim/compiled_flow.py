"""One compiled loop over time, for matrices that stay in the cache of one core.

    x_t = x_{t-1} M + d_t,  t = 1, 2, ...   (1) in rows; d constant, or a row for every t

A product with a vector is bound by reading M. While M stays in a core's second-level cache, reading it once a step
costs less than the squarings of block doubling, and no threads have to meet. Columns are taken eight registers at a
time, with their sums in registers. The code comes from the fused scan's compiler and is kept in its cache; without that
compiler, flows go by block doubling.
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
  %{name}.out = getelementptr {real}, ptr %row, i64 %{name}.c
  %{name}.in = getelementptr {real}, ptr %drive, i64 %{name}.c
  %{name}.drive = load <{width} x {real}>, ptr %{name}.in, align {bytes}
  br label %{name}.sum
{name}.sum:
  %{name}.j = phi i64 [ 0, %{name}.block ], [ %{name}.j.next, %{name}.sum ]
  %{name}.acc = phi <{width} x {real}> [ %{name}.drive, %{name}.block ], [ %{name}.acc.next, %{name}.sum ]
  %{name}.xp = getelementptr {real}, ptr %last, i64 %{name}.j
  %{name}.x = load {real}, ptr %{name}.xp, align {bytes}
  %{name}.x0 = insertelement <{width} x {real}> undef, {real} %{name}.x, i32 0
  %{name}.xs = shufflevector <{width} x {real}> %{name}.x0, <{width} x {real}> undef, <{width} x i32> zeroinitializer
  %{name}.mo = mul i64 %{name}.j, %size
  %{name}.mc = add i64 %{name}.mo, %{name}.c
  %{name}.mp = getelementptr {real}, ptr %matrix, i64 %{name}.mc
  %{name}.m = load <{width} x {real}>, ptr %{name}.mp, align {bytes}
  %{name}.xm = fmul contract <{width} x {real}> %{name}.xs, %{name}.m
  %{name}.acc.next = fadd contract <{width} x {real}> %{name}.acc, %{name}.xm
  %{name}.j.next = add i64 %{name}.j, 1
  %{name}.go = icmp ult i64 %{name}.j.next, %size
  br i1 %{name}.go, label %{name}.sum, label %{name}.done
{name}.done:
  store <{width} x {real}> %{name}.acc.next, ptr %{name}.out, align {bytes}
  %{name}.c.next = add i64 %{name}.c, {width}
  br label %{name}
"""

FUNCTION = """
define void @flow(ptr noalias %matrix, ptr %rows, ptr %drives, i64 %stride, i64 %count, i64 %size) {{
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
  %drive.at = mul i64 %t, %stride
  %row = getelementptr {real}, ptr %rows, i64 %row.at
  %last = getelementptr {real}, ptr %rows, i64 %last.at
  %drive = getelementptr {real}, ptr %drives, i64 %drive.at
  br label %wide
{wide}{narrow}
time.end:
  %t.next = add i64 %t, 1
  br label %time
exit:
  ret void
}}
"""


def _text(real: str, size: int) -> str:
    wide = LOOP.format(name="wide", first=0, before="step", after="narrow", width=256 // size, real=real, bytes=size)
    narrow = LOOP.format(
        name="narrow", first="%wide.c", before="wide", after="time.end", width=LANES, real=real, bytes=size
    )
    return FUNCTION.format(real=real, wide=wide, narrow=narrow)


TEXTS = {torch.float64: _text("double", 8), torch.float32: _text("float", 4)}


def fits(matrix: Tensor) -> bool:
    """Whether the compiled loop takes this matrix: on the CPU, in float32 or float64, small, and without gradients.

    Example:
        >>> fits(torch.eye(1000, dtype=torch.float64)), fits(torch.eye(3, dtype=torch.float16))
        (False, False)
    """
    tracked = matrix.requires_grad and torch.is_grad_enabled()
    plain = matrix.dtype in TEXTS and matrix.device.type == "cpu" and not tracked
    return plain and matrix.shape[0] <= LARGEST and _function(matrix.dtype) is not None


def compiled_flow(matrix: Tensor, start: Tensor, drive: Tensor, rows: int) -> Tensor:
    """The rows x_0 = ``start``, x_1, ... of (1), (rows, size), for a drive (size), or (rows, size), whose row t is d_t.

    Example:
        >>> two, one = torch.full((1, 1), 2.0, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        >>> compiled_flow(two, one, one, 4).flatten().tolist()
        [1.0, 3.0, 7.0, 15.0]
    """
    size = matrix.shape[0]
    fill = -size % LANES
    if fill:
        matrix = torch.nn.functional.pad(matrix, (0, fill, 0, fill))
        start, drive = (torch.nn.functional.pad(values, (0, fill)) for values in (start, drive))
    else:
        matrix, drive = matrix.contiguous(), drive.contiguous()
    states = matrix.new_empty(rows, size + fill)
    states[0] = start
    function = _function(matrix.dtype)
    assert function is not None
    stride = size + fill if drive.dim() == 2 else 0
    function(matrix.data_ptr(), states.data_ptr(), drive.data_ptr(), stride, rows, size + fill)
    return states[:, :size] if fill else states


@functools.cache
def _function(dtype: torch.dtype) -> Any:
    try:
        from holdfast.engine.fused.cache import library
    except ImportError:
        return None
    found = library(TEXTS[dtype])
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    function = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, count, count, count)(found.address("flow"))
    function.library = found  # type: ignore[attr-defined]  # its code lives as long as the function
    return function
