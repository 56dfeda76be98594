"""Tiles without memory: evaluated inside the loop that writes or sums a row."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

from llvmlite import ir

from holdfast.engine.program.tiles import TILES, Constant, Gather, Operand, Pointwise, Product, Slice, Weight
from holdfast.engine.targets.cpu import elementary
from holdfast.engine.targets.cpu.arguments import Role
from holdfast.engine.targets.cpu.builder import I32, I64
from holdfast.engine.targets.cpu.operators import OPERATORS
from holdfast.engine.targets.cpu.tile_builder import TileBuilder
from holdfast.engine.targets.cpu.vec import Value, Vec, fma

__all__ = ["Memo", "evaluate", "key_of"]

Memo = dict[Hashable, Any]  # values that are known in the body of a loop, by ``key_of``


def evaluate(k: TileBuilder, node: Operand, row: Value, v: int, memo: Memo, offset: int = 0, root: bool = False) -> Vec:
    """``node`` at feature ``row + offset`` and vector group ``v``; what is evaluated once is not again."""
    if isinstance(node, Constant):
        return k.truth(node.value) if isinstance(node.value, bool) else k.number(node.value)
    if isinstance(node, Weight):
        return _weight(k, node, row, offset, memo)
    if node.features == 1 and not root:
        row, offset = k.const(0), 0
    key = key_of(node, row, offset, v)
    if key in memo and not root:
        return memo[key]
    if node in k.places and not root:
        result = k.load(k.places[node], k.offset(_shifted(k, row, offset), v))
    elif isinstance(node, Slice):
        result = evaluate(k, node.tile, row, v, memo, offset + node.start)
    elif isinstance(node, Gather):
        result = evaluate(k, node.tile, _gathered(k, node, row, offset, memo), v, memo)
    elif isinstance(node, Product):
        result = _narrow_product(k, node, row, v, memo, offset)
    elif isinstance(node, Pointwise):
        result = _pointwise(k, node, row, v, memo, offset)
    else:
        raise AssertionError(f"{node} has no place in memory")
    memo[key] = result
    return result


def key_of(node: Operand, row: Value, offset: int, *more: Hashable) -> Hashable:
    """What a value in a loop depends on: the node, the row and the offset, and the lanes or the column."""
    if isinstance(node, TILES) and node.features == 1:
        return (node, 0, 0, *more)
    return (node, f"#{row.constant}" if isinstance(row, ir.Constant) else id(row), offset, *more)


def _shifted(k: TileBuilder, row: Value, offset: int) -> Value:
    return k.add(row, offset) if offset else row


def _gathered(k: TileBuilder, node: Gather, row: Value, offset: int, memo: Memo) -> Value:
    """The row that a gather's table has for this one."""
    key = key_of(node, row, offset, "row")
    if key not in memo:
        if node not in k.tables:
            kind = ir.ArrayType(I32, len(node.table))
            table = ir.GlobalVariable(k.module, kind, f"table{len(k.tables)}")
            table.initializer = ir.Constant(kind, node.table)  # type: ignore[assignment]
            table.global_constant, table.linkage = True, "internal"
            k.tables[node] = table
        where = k.builder.gep(k.tables[node], [k.const(0), _shifted(k, row, offset)])
        memo[key] = k.builder.sext(k.builder.load(where, typ=I32), I64)
    return memo[key]


def _pointwise(k: TileBuilder, node: Pointwise, row: Value, v: int, memo: Memo, offset: int) -> Vec:
    if node.op == "pow" and isinstance(node.args[1], Constant):
        return elementary.pow_scalar(evaluate(k, node.args[0], row, v, memo, offset), float(node.args[1].value))
    return OPERATORS[node.op](*(evaluate(k, arg, row, v, memo, offset) for arg in node.args))


def _weight(k: TileBuilder, weight: Weight, row: Value, offset: int, memo: Memo) -> Vec:
    if math.prod(weight.shape) == 1:
        if weight not in k.scalars:  # before the loop over time
            k.scalars[weight] = k.splat(k.entry.load(k.arg(Role.WEIGHT, weight.index), typ=k.element), k.entry)
        value = k.scalars[weight]
    else:
        key = key_of(weight, row, offset)
        if key not in memo:
            index = _shifted(k, row, offset)
            memo[key] = k.splat_at(k.arg(Role.WEIGHT, weight.index), index)
        value = memo[key]
    return value != 0.0 if weight.is_mask else value


def _narrow_product(k: TileBuilder, node: Product, row: Value, v: int, memo: Memo, offset: int) -> Vec:
    """Σ_j matrix[j, f] tile[j]: the matrix lies transposed, one row per feature."""
    width, source = node.tile.features, k.source(node.tile)
    index = k.mul(k.add(row, offset), width)
    total: Vec | None = None
    for j in range(width):
        key = key_of(node, row, offset, "weight", j)
        if key not in memo:
            memo[key] = k.splat_at(k.arg(Role.NARROW, node.matrix.index), k.add(index, j))
        other = k.load(source, j * k.lanes + v * k.width)
        total = memo[key] * other if total is None else fma(memo[key], other, total)
    assert total is not None
    return total
