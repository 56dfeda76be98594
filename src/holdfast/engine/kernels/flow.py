"""One compiled loop over time, for matrices that stay in the cache of one core.

    x_t = x_{t-1} M + d_t,  t = 1, 2, ...   (1) in rows; d constant, or one row per t

A product with a vector is limited by reading M. While M stays in a core's second-level cache, reading it once per step
costs less than the squarings of block doubling, and no threads have to synchronise. Columns are taken eight registers
at a time, with their sums in registers. The code comes from the fused scan's compiler and is kept in its cache;
without that compiler, flows use block doubling.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.errors import ShapeError

__all__ = ["compiled_flow", "fits", "padded", "padded_flow"]

LARGEST = 256  # units: 256² doubles are 512 KB, a common size of second-level caches
COLUMNS = 16  # columns come in sixteens: zeros fill up the last ones


def fits(matrix: Tensor) -> bool:
    """Whether the compiled loop takes this matrix: on the CPU, in float32 or float64, small, and without gradients.

    Example:
        >>> fits(torch.eye(1000, dtype=torch.float64)), fits(torch.eye(3, dtype=torch.float16))
        (False, False)
    """
    tracked = matrix.requires_grad and torch.is_grad_enabled()
    plain = matrix.dtype in (torch.float32, torch.float64) and matrix.device.type == "cpu" and not tracked
    return plain and matrix.shape[0] <= LARGEST and _kernel(matrix.dtype) is not None


def compiled_flow(matrix: Tensor, start: Tensor, drive: Tensor, rows: int) -> Tensor:
    """The rows x_0 = ``start``, x_1, ... of (1), (rows, size), for a drive (size), or (rows, size), whose row t is d_t.

    With one dimension more in front of all three, several flows at once, divided among threads.

    Example:
        >>> two, one = torch.full((1, 1), 2.0, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        >>> compiled_flow(two, one, one, 4).flatten().tolist()
        [1.0, 3.0, 7.0, 15.0]
        >>> compiled_flow(torch.stack([two, 3 * two]), one.expand(2, 1), one.expand(2, 1), 3)[..., 0].tolist()
        [[1.0, 3.0, 7.0], [1.0, 7.0, 43.0]]
    """
    several, size = matrix.shape[:-2], matrix.shape[-1]
    fits_drive = drive.shape in ((*several, size), (*several, rows, size)) and drive.dtype == matrix.dtype
    if matrix.shape[-2:] != (size, size) or start.shape != (*several, size) or not fits_drive or len(several) > 1:
        raise ShapeError(
            f"compiled_flow expects a matrix ({size}, {size}), a start ({size},) and a drive ({size},) or "
            f"({rows}, {size}), of one dtype and all or none with a number of flows in front, got "
            f"{tuple(matrix.shape)}, {tuple(start.shape)} and {tuple(drive.shape)} of {matrix.dtype} and {drive.dtype}."
        )
    fill = padded(size) - size
    if fill:
        matrix = torch.nn.functional.pad(matrix, (0, fill, 0, fill))
        start, drive = (torch.nn.functional.pad(values, (0, fill)) for values in (start, drive))
    else:
        matrix, drive = matrix.contiguous(), drive.contiguous()
    return padded_flow(matrix, start, drive, rows, size)


def padded(size: int) -> int:
    """The size of a matrix that the loop reads: ``size`` and zeros.

    Example:
        >>> padded(100), padded(128)
        (112, 128)
    """
    return size + -size % COLUMNS


def padded_flow(matrix: Tensor, start: Tensor, drive: Tensor, rows: int, size: int) -> Tensor:
    """``compiled_flow`` of contiguous arguments that have zeros from ``size`` to ``padded(size)``, unchecked.

    Example:
        >>> matrix, row = torch.zeros(16, 16), torch.zeros(16)
        >>> matrix[0, 0], row[0] = 2.0, 1.0
        >>> padded_flow(matrix, row, row, 4, 1).flatten().tolist()
        [1.0, 3.0, 7.0, 15.0]
    """
    *several, whole = start.shape
    states = matrix.new_empty(*several, rows, whole)
    states[..., 0, :] = start
    run = _kernel(matrix.dtype)
    assert run is not None
    flows, stride = several[0] if several else 1, whole if drive.dim() > start.dim() else 0
    apart = whole * (rows if stride else 1)
    addresses = (matrix.data_ptr(), states.data_ptr(), drive.data_ptr())
    run(*addresses, stride, apart, rows, whole, size, flows, parts=flows)
    return states[..., :size]


@functools.cache
def _kernel(dtype: torch.dtype) -> Callable[..., None] | None:
    try:
        from holdfast.engine.kernels.flow_loop import FlowBuilder
    except ImportError:
        return None
    return FlowBuilder(dtype, COLUMNS).compiled()
