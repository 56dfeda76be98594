"""The statements of a schedule as instructions, one function for each kind."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from holdfast.engine.program.schedule import Loop, Statement, Write, sides
from holdfast.engine.program.tiles import AngleSum, Fold, Outer, Product, Rotate, RotateBack, RowSum, Running
from holdfast.engine.targets.cpu.arguments import Role
from holdfast.engine.targets.cpu.expressions import Memo, evaluate, key_of
from holdfast.engine.targets.cpu.operators import OPERATORS
from holdfast.engine.targets.cpu.tile_builder import TileBuilder
from holdfast.engine.targets.cpu.vec import Value, Vec, fma

__all__ = ["write_statements"]


def write_statements(k: TileBuilder) -> None:
    for statement in k.schedule.statements:
        _statement(statement, k)


@functools.singledispatch
def _statement(statement: Statement, k: TileBuilder) -> None:
    raise AssertionError(statement)


@_statement.register
def _(loop: Loop, k: TileBuilder) -> None:
    wides = [r.tile if isinstance(r, RowSum) else sides(r)[0] for r in loop.sums]

    def body(f: Value) -> None:
        memo: Memo = {}
        values: list[tuple[Write, int, Vec]] = []
        for v in range(k.groups):
            for write in loop.writes:
                value = evaluate(k, write.value, f, v, memo, root=write.target is write.value)
                if write.target is write.value:
                    memo[key_of(write.value, f, 0, v)] = value
                values.append((write, v, value))
            for wide in wides:
                evaluate(k, wide, f, v, memo)
        for write, v, value in values:
            row = k.add(f, write.offset) if write.offset else f
            k.store(value, k.places[write.target], k.offset(row, v))
        for reduction, wide in zip(loop.sums, wides, strict=True):
            target = k.sum_place(reduction)
            parts = [k.if_alive(v, evaluate(k, wide, f, v, memo), 0.0) for v in range(k.groups)]
            if isinstance(reduction, RowSum):
                where = k.mul(f, k.width)
                k.store(functools.reduce(lambda a, b: a + b, parts, k.load(target, where)), target, where)
            else:
                _add_outer(k, reduction, f, parts, target)

    k.loop(loop.features, body)


def _add_outer(k: TileBuilder, outer: Outer, f: Value, parts: list[Vec], target: Value) -> None:
    """Add a row of the wide side times the narrow side."""
    narrow = sides(outer)[1]
    for j in range(narrow.features):
        where = k.mul(k.add(k.mul(f, narrow.features), j), k.width)
        total = k.load(target, where)
        for v, part in enumerate(parts):
            other = k.load(k.places[narrow], j * k.lanes + v * k.width)
            total = fma(part, k.if_alive(v, other, 0.0), total)
        k.store(total, target, where)


@_statement.register
def _(node: Product, k: TileBuilder) -> None:
    """A panel of rows and two vectors of lanes at a time, in registers; the matrix lies as (panel, k, row)."""
    rows, depth = k.shape.panel, node.tile.features
    panels, wide = math.ceil(node.features / rows), min(2, k.groups)
    matrix, tile, result = k.arg(Role.PANELS, node.matrix.index), k.source(node.tile), k.places[node]
    unroll = _unroll(depth)

    def panel(p: Value, groups: range) -> None:
        start = k.mul(p, depth * rows)

        def column(i: Value, totals: list[Value]) -> list[Value]:
            sums = [k.vec(t) for t in totals]
            for u in range(unroll):
                index = k.add(i, u)
                lanes = [k.load(tile, k.offset(index, v)) for v in groups]
                for r in range(rows):
                    weight = k.splat_at(matrix, k.add(start, k.add(k.mul(index, rows), r)))
                    for v in range(wide):
                        sums[r * wide + v] = fma(weight, lanes[v], sums[r * wide + v])
            return [t.value for t in sums]

        totals = k.loop_with(depth, [k.number(0.0).value] * (rows * wide), column, step=unroll)
        for r in range(rows):
            row = k.add(k.mul(p, rows), r)
            for i, v in enumerate(groups):
                k.store(k.vec(totals[r * wide + i]), result, k.offset(row, v))

    def every_group(p: Value) -> None:
        for first in range(0, k.groups, wide):  # the panel stays in the first cache for the second pair
            panel(p, range(first, first + wide))

    k.loop(panels, every_group)


@_statement.register
def _(node: Outer, k: TileBuilder) -> None:
    """Add left ⊗ right to its sum: a panel of rows and two vectors of columns at a time, lane by lane."""
    rows, unroll = k.shape.panel, _unroll(k.lanes)
    height, width = k.shape.outer_size(node)
    target = k.sum_place(node)
    left = k.living(k.places[node.left], node.left.features)
    turned = k.scratch(width)  # (lane, column)
    right = k.living(k.places[node.right], node.right.features)
    k.store_tile(right, turned, k.const(width), node.right.features, every_lane=True)

    def pair(row: Value, j: Value) -> Iterator[Value]:
        """Two vectors of a row from column j on."""
        start = k.add(k.mul(row, width), j)
        return (k.add(start, v * k.width) for v in range(2))

    def block(j: Value) -> None:
        def panel(p: Value) -> None:
            first = k.mul(p, rows)
            places = [place for r in range(rows) for place in pair(k.add(first, r), j)]

            def lane(i: Value, totals: list[Value]) -> list[Value]:
                sums = [k.vec(t) for t in totals]
                for u in range(unroll):
                    index = k.add(i, u)
                    columns = [k.load(turned, place) for place in pair(index, j)]
                    for r in range(rows):
                        weight = k.splat_at(left, k.add(k.mul(k.add(first, r), k.lanes), index))
                        for v in range(2):
                            sums[2 * r + v] = fma(weight, columns[v], sums[2 * r + v])
                return [t.value for t in sums]

            totals = k.loop_with(k.lanes, [k.load(target, place).value for place in places], lane, step=unroll)
            for place, total in zip(places, totals, strict=True):
                k.store(k.vec(total), target, place)

        k.loop(height // rows, panel)

    k.loop(width, block, step=2 * k.width)


def _unroll(turns: int) -> int:
    return next(n for n in (4, 2, 1) if turns % n == 0)


@_statement.register
def _(node: Fold | Running, k: TileBuilder) -> None:
    """Groups of features one after another; a running sum writes every row, a fold the last one."""
    op, is_running = ("add", True) if isinstance(node, Running) else (node.op, False)
    start = [k.number(0.0 if op == "add" else -math.inf).value] * k.groups

    def group(g: Value) -> None:
        first = k.mul(g, node.size)

        def body(f: Value, totals: list[Value]) -> list[Value]:
            memo: Memo = {}
            row = k.add(first, f)
            values = [evaluate(k, node.tile, row, v, memo) for v in range(k.groups)]
            new = [OPERATORS[op](k.vec(t), value) for t, value in zip(totals, values, strict=True)]
            for v, total in enumerate(new if is_running else ()):
                k.store(total, k.places[node], k.offset(row, v))
            return [total.value for total in new]

        totals = k.loop_with(node.size, start, body)
        for v, total in enumerate(() if is_running else totals):
            k.store(k.vec(total), k.places[node], k.offset(g, v))

    k.loop(node.tile.features // node.size, group)


# Note [Rotations in place]: program/turns.py


def _turn(k: TileBuilder, node: Rotate | RotateBack, pair: Value) -> tuple[list[Value], Vec, Vec]:
    """The two rows of a pair, and the cosine and the sine by which they turn."""
    index, two = node.angles.index, k.mul(pair, 2)
    rows = [k.load_integer(k.arg(Role.PAIRS, index), k.add(two, j)) for j in range(2)]
    turns = k.arg(Role.TURNS, index)
    cos, sin = (k.splat_at(turns, k.add(two, j)) for j in range(2))
    return rows, cos, sin


def _start(k: TileBuilder, node: Rotate | RotateBack, f: Value) -> Value:
    return k.load_integer(k.arg(Role.STARTS, node.angles.index), f)


def _ends(k: TileBuilder, tile: Value, rows: list[Value]) -> list[list[Vec]]:
    return [[k.load(tile, k.add(row, v * k.width)) for v in range(k.groups)] for row in rows]


@_statement.register
def _(node: Rotate, k: TileBuilder) -> None:
    target = k.places[node]

    def start(f: Value) -> None:
        memo: Memo = {}
        row = _start(k, node, f)
        for v in range(k.groups):
            k.store(evaluate(k, node.tile, f, v, memo), target, k.add(row, v * k.width))

    def turn(pair: Value) -> None:
        rows, cos, sin = _turn(k, node, pair)
        for v, (a, b) in enumerate(zip(*_ends(k, target, rows), strict=True)):
            k.store(fma(cos, a, -(sin * b)), target, k.add(rows[0], v * k.width))
            k.store(fma(sin, a, cos * b), target, k.add(rows[1], v * k.width))

    k.loop(node.features, start)
    k.loop(math.prod(node.angles.shape), turn)


@_statement.register
def _(node: RotateBack, k: TileBuilder) -> None:
    outputs, grads, pairs = k.scratch(node.features), k.scratch(node.features), math.prod(node.angles.shape)
    reductions = k.schedule.program.reductions
    angles = next((r for r in reductions if isinstance(r, AngleSum) and r.source is node), None)

    def start(f: Value) -> None:
        memo: Memo = {}
        for v in range(k.groups):
            grad = k.if_alive(v, evaluate(k, node.grad, f, v, memo), 0.0)
            k.store(grad, grads, k.offset(f, v))
            if angles is not None:
                k.store(evaluate(k, node.output, f, v, memo), outputs, k.offset(f, v))

    def turn(i: Value) -> None:
        pair = k.sub(pairs - 1, i)
        rows, cos, sin = _turn(k, node, pair)
        g = _ends(k, grads, rows)
        if angles is not None:
            y = _ends(k, outputs, rows)
            where, target = k.mul(pair, k.width), k.sum_place(angles)
            total = k.load(target, where)
            for v in range(k.groups):  # dθ = Σ (g_b y_a - g_a y_b)
                total = fma(g[1][v], y[0][v], total)
                total = fma(-g[0][v], y[1][v], total)
            k.store(total, target, where)
            turn_back(outputs, rows, cos, sin, y)
        turn_back(grads, rows, cos, sin, g)

    def turn_back(tile: Value, rows: list[Value], cos: Vec, sin: Vec, ends: list[list[Vec]]) -> None:
        for v, (a, b) in enumerate(zip(*ends, strict=True)):
            k.store(fma(cos, a, sin * b), tile, k.add(rows[0], v * k.width))
            k.store(fma(cos, b, -(sin * a)), tile, k.add(rows[1], v * k.width))

    def end(f: Value) -> None:
        row = _start(k, node, f)
        for v in range(k.groups):
            k.store(k.load(grads, k.add(row, v * k.width)), k.places[node], k.offset(f, v))

    k.loop(node.features, start)
    k.loop(pairs, turn)
    k.loop(node.features, end)
