"""Operators that move entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from holdfast.engine.program.graph import Node, Unsupported
from holdfast.engine.program.rules.table import check_features, features_of, indexed, moves, rows_of, rule
from holdfast.engine.program.tiles import Cat, Constant
from holdfast.engine.program.trace import Batch
from holdfast.engine.program.values import Rows

if TYPE_CHECKING:
    from holdfast.engine.program.lower import Lowering

__all__ = ["joined"]


@moves("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "flatten", "unflatten", "_reshape_alias")
def _view(low: Lowering, node: Node, x: Rows, *_: Any) -> Rows:
    return low.viewed(x, node.shape)


@rule("expand")
def _expand(low: Lowering, node: Node, x: Any, size: Any, implicit: bool = False) -> Any:
    return x if isinstance(x, Constant) else low.pointwise("same", x, shape=node.shape)


@moves("t", "transpose", "permute")
def _permute(low: Lowering, node: Node, rows: Rows, *dims: Any) -> Rows:
    order = np.arange(len(rows.axes))
    match node.name:
        case "t":
            order = order[::-1]
        case "transpose":
            order[[dims[0], dims[1]]] = order[[dims[1], dims[0]]]
        case _:
            order = order[list(dims[0])]
    places, count = list[list[int]](), 0  # of each axis among the sizes: an axis may hold several, or none
    for axis in rows.axes:
        size = sum(n is not None for n in axis)
        places.append(list(range(count, count + size)))
        count += size
    table = np.arange(rows.tile.features).reshape(rows.sizes).transpose([p for d in order for p in places[d]])
    return Rows(low.gather(rows.tile, table), tuple(rows.axes[d] for d in order))


@moves("repeat")
def _repeat(low: Lowering, node: Node, x: Rows, repeats: Sequence[int]) -> Rows:
    rows = low.viewed(x, [1] * (len(repeats) - len(node.args[0].shape)) + list(node.args[0].shape))
    return indexed(low, node, rows, np.tile(rows.table(), repeats))


@moves("flip")
def _flip(low: Lowering, node: Node, x: Rows, dims: Sequence[int]) -> Rows:
    return indexed(low, node, x, np.flip(x.table(), tuple(dims)), dims)


@moves("roll")
def _roll(low: Lowering, node: Node, x: Rows, shifts: Any, dims: Any = ()) -> Rows:
    if not dims:
        raise Unsupported(f"operator {node.target} without dims")
    return indexed(low, node, x, np.roll(x.table(), tuple(shifts), tuple(dims)), dims)


@moves("select")
def _select(low: Lowering, node: Node, rows: Rows, dim: int, index: int) -> Rows:
    check_features(node, rows, [dim])
    axes = list(rows.axes)
    del axes[dim % len(axes)]
    return Rows(low.gather(rows.tile, np.take(rows.table(), index, axis=dim)), tuple(axes))


@rule("slice")
def _slice(low: Lowering, node: Node, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if isinstance(x, Constant) or node.shape == node.args[0].shape:
        return x
    return indexed(low, node, rows_of(node, x), x.table()[_cut(node, dim, slice(start, end, step))], [dim])


def _cut(node: Node, dim: int, part: slice | int) -> tuple[slice | int, ...]:
    """An index of the node's shape: ``part`` of axis ``dim``."""
    cut: list[slice | int] = [slice(None)] * len(node.shape)
    cut[dim] = part
    return tuple(cut)


@rule("narrow")
def _narrow(low: Lowering, node: Node, x: Any, dim: int, start: int, length: int) -> Any:
    return _slice(low, node, x, dim, start, start + length)


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes")
def _split(low: Lowering, node: Node, x: Any, sizes: Any, dim: int = 0) -> list[Any]:
    rows, _ = features_of(node, x, dim)
    table = rows.table()
    width = table.shape[dim]
    ends = np.cumsum(sizes if isinstance(sizes, list | tuple) else [sizes] * math.ceil(width / sizes))
    return [indexed(low, node, rows, part, [dim]) for part in np.split(table, ends[:-1], axis=dim)]


@rule("unbind")
def _unbind(low: Lowering, node: Node, x: Any, dim: int = 0) -> list[Any]:
    return [_select(low, node, x, dim, i) for i in range(rows_of(node, x).table().shape[dim])]


@rule("cat")
def _cat(low: Lowering, node: Node, parts: Any, dim: int = 0) -> Rows:
    shapes = [arg.shape for arg in node.args[0]]
    given = [
        (low.filled(p, shape) if isinstance(p, Constant) else rows_of(node, p))
        for p, shape in zip(parts, shapes, strict=True)
        if shape[dim if len(shape) > 1 else 0] != 0
    ]
    return joined(low, node, given, dim)


@rule("stack")
def _stack(low: Lowering, node: Node, parts: Any, dim: int = 0) -> Rows:
    shapes = [list(arg.shape) for arg in node.args[0]]
    for shape in shapes:
        shape.insert(dim % len(node.shape), 1)
    given = [
        low.filled(p, shape) if isinstance(p, Constant) else low.viewed(rows_of(node, p), shape)
        for p, shape in zip(parts, shapes, strict=True)
    ]
    return joined(low, node, given, dim)


def joined(low: Lowering, node: Node, parts: list[Rows], dim: int) -> Rows:
    tables, start = list[np.ndarray](), 0
    for part in parts:
        check_features(node, part, [dim])
        tables.append(part.table() + start)
        start += part.tile.features
    if len(parts) == 1:
        return parts[0]
    tiles = tuple(low.as_kind(part.tile, mask=False) for part in parts)
    whole = Rows(Cat(tiles, start), parts[0].axes)
    joined = indexed(low, node, whole, np.concatenate(tables, axis=dim), [dim])
    return low.pointwise("nonzero", joined) if node.dtype == torch.bool else joined


@rule("slice_backward")
def _slice_backward(low: Lowering, node: Node, grad: Any, sizes: Any, dim: int, start: int, end: int, step: int) -> Any:
    if node.args[0].shape == node.shape:  # of a slice that was the whole
        return grad
    return _placed(low, node, grad, dim, slice(start, end, step))


@rule("select_backward")
def _select_backward(low: Lowering, node: Node, grad: Any, sizes: Any, dim: int, index: int) -> Any:
    return _placed(low, node, grad, dim, index)


def _placed(low: Lowering, node: Node, grad: Any, dim: int, part: slice | int) -> Any:
    """Zeros of the node's shape with ``grad`` put at ``part`` of axis ``dim``."""
    if isinstance(grad, Constant) and grad.value == 0:
        return grad
    rows = low.rows(node.args[0])
    result = Rows(rows.tile, tuple((None,) if isinstance(n, Batch) else (n,) for n in node.shape))
    check_features(node, result, [dim])
    table = np.full([1 if isinstance(n, Batch) else n for n in node.shape], -1)
    table[_cut(node, dim, part)] = rows.table()
    flat = table.reshape(-1)
    edges = np.flatnonzero(flat >= 0)
    if len(edges) and np.array_equal(flat[edges[0] : edges[-1] + 1], np.arange(len(edges))):  # zeros on both sides
        zeros = [low.filled(Constant(0.0), (Batch(), int(n))).tile for n in (edges[0], len(flat) - 1 - edges[-1])]
        tiles = [t for t in (zeros[0], rows.tile, zeros[1]) if t.features]
        return Rows(Cat(tuple(tiles), len(flat)) if len(tiles) > 1 else rows.tile, result.axes)
    padded = Cat((rows.tile, low.filled(Constant(0.0), (Batch(), 1)).tile), rows.tile.features + 1)
    return Rows(low.gather(padded, np.where(flat < 0, rows.tile.features, flat)), result.axes)


@rule("constant_pad_nd")
def _pad(low: Lowering, node: Node, x: Any, pad: Sequence[int], value: float = 0) -> Rows:
    rows = rows_of(node, x)
    table, widths = rows.table(), [(0, 0)] * len(rows.axes)
    for i in range(len(pad) // 2):
        widths[-1 - i] = (pad[2 * i], pad[2 * i + 1])
    check_features(node, rows, [d for d, width in enumerate(widths) if width != (0, 0)])
    table = table[tuple(slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(widths, table.shape, strict=True))]
    widths = [(max(0, a), max(0, b)) for a, b in widths]
    if not any(map(any, widths)):
        return indexed(low, node, rows, table)
    end = low.filled(Constant(float(value)), (Batch(), 1)).tile
    padded = Rows(Cat((rows.tile, end), rows.tile.features + 1), rows.axes)
    return indexed(low, node, padded, np.pad(table, widths, constant_values=rows.tile.features))
