"""Matrices in the order in which a product reads them, packed by compiled loops.

    panels(matrix, height)  →  (panel, k, feature): ``height`` features to a panel

A scan with gradients packs its weights at every call, since they have changed (kept.py: without). For large states that
is a matter of milliseconds, and PyTorch's copies of strided tensors would take ten times as long.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import torch
from llvmlite import ir
from torch import Tensor

from holdfast.engine.targets.cpu import buffers
from holdfast.engine.targets.cpu.builder import I32, Builder
from holdfast.engine.targets.cpu.team import Compiled, worker_count
from holdfast.engine.targets.cpu.vec import WIDTH, Value

__all__ = ["panels"]

BLOCK = 32  # rows that all panels read before the next ones
SMALL = 1 << 15  # elements up to which one thread packs


def panels(matrix: Tensor, height: int, *, narrow_last: bool = False) -> Tensor:
    """(k, features) as (panel, k, feature), flat, with a vector of room at the end.

    Args:
        narrow_last: whether the last panel has no more vectors than there are features left; else zeros fill it.
    """
    matrix = matrix.detach()
    depth, features = matrix.shape
    width = WIDTH[matrix.dtype]
    whole, rest = divmod(features, height)
    wide = (math.ceil(rest / width) * width if narrow_last else height) if rest else 0
    count = (whole * height + wide) * depth
    flat = buffers.empty((count + width + 64 // matrix.element_size(),), matrix.dtype)
    flat = flat[-flat.data_ptr() % 64 // flat.element_size() :][:count]
    if 1 not in matrix.stride():
        matrix = matrix.contiguous()
    if whole:
        _fill(matrix, flat, height, height, whole)
    if rest:
        last = flat[whole * height * depth :]
        if rest < wide:
            last.zero_()
        _fill(matrix[:, whole * height :], last, rest, wide, 1)
    return flat


def _fill(matrix: Tensor, flat: Tensor, features: int, height: int, count: int) -> None:
    """``count`` panels of ``height`` rows, from as many times ``features`` of the matrix."""
    depth, turned = matrix.shape[0], matrix.stride(0) == 1
    done = depth // WIDTH[matrix.dtype] * WIDTH[matrix.dtype] if turned else depth
    if done:
        workers = worker_count(count) if matrix.numel() > SMALL else 1
        start = matrix.data_ptr(), flat.data_ptr(), depth, done, matrix.stride(1 if turned else 0)
        ends = [count * i // workers for i in range(workers + 1)]
        table = np.array([[*start, first, last] for first, last in itertools.pairwise(ends)], dtype=np.int64)
        _kernel(matrix.dtype, features, height, turned)(table, workers)
    if done < depth:
        rows = matrix[done:, : count * features].unflatten(1, (count, features))
        flat[: count * height * depth].view(count, depth, height)[:, done:, :features] = rows.transpose(0, 1)


@functools.cache
def _kernel(dtype: torch.dtype, features: int, height: int, turned: bool) -> Compiled:
    """Panels from the first to the last: of a matrix whose features lie apart (``turned``), or side by side."""
    k = Builder("panels", dtype, align=dtype.itemsize)
    source, target = (k.argument(i, is_number=False) for i in range(2))
    depth, done, stride, first, last = (k.argument(i, is_number=True) for i in range(2, 7))

    def panel(begin: Value, end: Value, p: Value, _: list[Value]) -> None:
        start = k.at(target, k.mul(k.mul(p, height), depth))
        for column in range(0, features, k.width):
            count, feature = min(k.width, features - column), k.add(k.mul(p, features), column)
            rows = functools.partial(_rows, k, source, start, stride, feature, column, count, height, turned)
            k.count(begin, end, k.width if turned else 1, rows)

    def block(begin: Value, _: list[Value]) -> None:
        k.count(first, last, 1, functools.partial(panel, begin, k.least(k.add(begin, BLOCK), done)))

    if turned:
        k.count(first, last, 1, functools.partial(panel, k.const(0), done))
    else:  # a panel takes little of each row, so all panels take theirs before it has left the cache
        k.count(0, done, BLOCK, block)
    return Compiled(k.text())


def _rows(
    k: Builder,
    source: Value,
    target: Value,
    stride: Value,
    feature: Value,
    column: int,
    count: int,
    height: int,
    turned: bool,
    i: Value,
    _: list[Value],
) -> None:
    """``count`` features from ``feature`` on, of row i, or of as many rows as a vector has lanes."""
    if turned:
        places = (k.mul(k.add(feature, min(j, count - 1)), stride) for j in range(k.width))
        block = k.turned([k.load(source, k.add(place, i)).value for place in places])
    else:
        block = [_load(k, k.at(source, k.add(k.mul(i, stride), feature)), count)]
    for j, value in enumerate(block):
        _store(k, value, k.at(target, k.add(k.mul(k.add(i, j), height), column)), count)


def _pieces(count: int) -> list[tuple[int, int]]:
    """(start, size): a number of elements as powers of two."""
    found, start = [], 0
    while start < count:
        size = 1 << ((count - start).bit_length() - 1)
        found.append((start, size))
        start += size
    return found


def _load(k: Builder, pointer: Value, count: int) -> Value:
    """``count`` elements as a vector, the others undefined."""
    if count == k.width:
        return k.load(pointer, 0).value
    value: Value = ir.Constant(k.vector, ir.Undefined)
    for lane in range(count):
        value = k.builder.insert_element(value, k.load_one(pointer, lane), ir.Constant(I32, lane))
    return value


def _store(k: Builder, value: Value, pointer: Value, count: int) -> None:
    for start, size in _pieces(count):
        lanes = ir.Constant(ir.VectorType(I32, size), list(range(start, start + size)))
        part = value if size == k.width else k.builder.shuffle_vector(value, value, lanes)
        k.builder.store(part, k.at(pointer, start), align=k.size)
