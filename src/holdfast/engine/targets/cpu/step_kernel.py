"""One step of a few samples as LLVM assembly: lanes over features instead of over samples.

    emit_step(schedule, dtype)  →  Kernel(text, arguments, work)

A scan's kernel (emit.py) has one lane per sample, and a stream has one sample. Here a tile is a plain vector of
features in memory, and a loop goes through it a vector at a time, sample after sample. The program, its schedule and
the builder are those of a scan.

Memory of a tile, a weight or a row outside ends with at least one vector of padding (``padded``), so that the last
vector of a loop may read behind the last feature. What it computes there is never written.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from llvmlite import ir

from holdfast.engine.program.graph import Unsupported
from holdfast.engine.program.schedule import Loop, Schedule, Statement, Write
from holdfast.engine.program.tiles import (
    Constant,
    Fold,
    Gather,
    Input,
    Kind,
    Operand,
    Pointwise,
    Product,
    Rotate,
    Running,
    Slice,
    Tile,
    Weight,
)
from holdfast.engine.targets.cpu import elementary
from holdfast.engine.targets.cpu.arguments import Argument, Part, Role
from holdfast.engine.targets.cpu.builder import I32, I64, Builder, Int
from holdfast.engine.targets.cpu.emit import Kernel
from holdfast.engine.targets.cpu.expressions import Memo, key_of
from holdfast.engine.targets.cpu.operators import OPERATORS
from holdfast.engine.targets.cpu.vec import Value, Vec, fma, select

__all__ = ["PANEL", "StepBuilder", "emit_step", "evaluate", "padded", "write_statement"]

PANEL = 8  # vectors of a product that are summed together: two fused multiply-adds per cycle take four cycles each


def padded(features: int, width: int) -> int:
    """Elements of memory that ``features`` take: whole vectors, and one more."""
    return (math.ceil(features / width) + 1) * width


def emit_step(schedule: Schedule, dtype: torch.dtype) -> Kernel:
    """One step for each of some samples: their states, ``Role.FIRST``, are overwritten by the new ones."""
    k = StepBuilder(schedule, dtype)
    program = schedule.program
    if any(slot.kind not in (Kind.SOURCE, Kind.STATE) for slot in program.inputs):
        raise Unsupported("its step draws random numbers")

    def sample(i: Value, _: list[Value]) -> None:
        roles = {Kind.SOURCE: Role.SOURCE, Kind.STATE: Role.FIRST}
        for slot, tile in program.inputs.items():
            k.places[tile] = k.row(i, roles[slot.kind], slot.index)
        for tile in schedule.memory:
            k.places[tile] = k.scratch(tile.features)
        for statement in schedule.statements:
            write_statement(statement, k)
        news = {slot: new for slot, new in program.outputs.items() if new is not None}
        for new in news.values():
            if isinstance(new, Input):  # passed on as it came, perhaps to another entry, which is not written yet
                k.places[new] = k.copied(k.places[new], k.scratch(new.features), new.features)
        for slot, new in news.items():
            k.copied(k.places[new], k.row(i, Role.FIRST, slot.index), new.features)

    k.count(0, k.arg(Role.SAMPLES), 1, sample)
    return Kernel(k.text(), tuple(a for a in k.arguments if isinstance(a, Argument)), k.work)


class StepBuilder(Builder):
    """``places``: where each tile lies that is in memory."""

    def __init__(self, schedule: Schedule, dtype: torch.dtype):
        super().__init__("step", dtype, align=dtype.itemsize)
        self.schedule = schedule
        self.places: dict[Tile, Value] = {}
        self.tables: dict[Gather, Value] = {}
        self.scalars: dict[Weight, Vec] = {}
        self.work = 0  # elements of scratch memory

    def arg(self, role: Role, index: int = 0, part: Part = Part.ADDRESS) -> Value:
        argument = Argument(role, index, part)
        return self.argument(argument, is_number=argument.is_number)

    def row(self, sample: Value, role: Role, index: int) -> Value:
        return self.at(self.arg(role, index), self.mul(sample, self.arg(role, index, Part.ROW)))

    def scratch(self, features: int) -> Value:
        offset = self.work
        self.work += padded(features, self.width)
        return self.entry.gep(self.arg(Role.WORK), [self.const(offset)], source_etype=self.element)

    def source(self, tile: Tile) -> Value:
        """Where the features of a tile lie that is in memory, or that is a slice of one."""
        if tile in self.places:
            return self.places[tile]
        assert isinstance(tile, Slice)
        return self.at(self.source(tile.tile), tile.start)

    def vectors(self, features: int, body: Callable[[Value, int], None]) -> None:
        """``body(f, count)`` for every vector from feature f on; ``count`` of its lanes are features."""
        whole = features // self.width * self.width
        if whole:
            self.loop(whole, lambda f: body(f, self.width), step=self.width)
        if features > whole:
            body(self.const(whole), features - whole)

    def put(self, value: Vec, pointer: Value, offset: Int, count: int) -> None:
        """The first ``count`` lanes to memory."""
        if count == self.width:
            self.store(value, pointer, offset)
            return
        for lane in range(count):
            self.builder.store(self.lane(value, lane), self.at(pointer, self.add(offset, lane)))

    def lane(self, value: Vec, lane: int) -> Value:
        return self.builder.extract_element(value.value, ir.Constant(I32, lane))

    def copied(self, source: Value, target: Value, features: int) -> Value:
        self.vectors(features, lambda f, count: self.put(self.load(source, f), target, f, count))
        return target

    def gathered(self, pointer: Value, indices: list[Value]) -> Vec:
        value: Value = ir.Constant(self.vector, ir.Undefined)
        for lane, index in enumerate(indices):
            value = self.builder.insert_element(value, self.load_one(pointer, index), ir.Constant(I32, lane))
        return self.vec(value)


# -- tiles without memory --------------------------------------------------------------------------------------------


def evaluate(k: StepBuilder, node: Operand, row: Value, memo: Memo, offset: int = 0, root: bool = False) -> Vec:
    """``node`` at the features from ``row + offset`` on; a single feature in every lane."""
    if isinstance(node, Constant):
        return k.truth(node.value) if isinstance(node.value, bool) else k.number(node.value)
    if isinstance(node, Weight):
        return _weight(k, node, row, offset)
    single = node.features == 1 and not root
    if single:
        row, offset = k.const(0), 0
    key = key_of(node, row, offset)
    if key in memo and not root:
        return memo[key]
    index = k.add(row, offset) if offset else row
    if node in k.places and not root:
        result = k.load(k.places[node], index)
    elif isinstance(node, Slice):
        result = evaluate(k, node.tile, row, memo, offset + node.start)
    elif isinstance(node, Gather):
        result = _gather(k, node, index)
    elif isinstance(node, Product):
        result = _narrow_product(k, node, index)
    elif isinstance(node, Pointwise) and node.op == "pow" and isinstance(node.args[1], Constant):
        result = elementary.pow_scalar(evaluate(k, node.args[0], row, memo, offset), float(node.args[1].value))
    elif isinstance(node, Pointwise):
        result = OPERATORS[node.op](*(evaluate(k, arg, row, memo, offset) for arg in node.args))
    else:
        raise AssertionError(f"{node} has no place in memory")
    memo[key] = _first_lane(k, result) if single else result
    return memo[key]


def _first_lane(k: StepBuilder, value: Vec) -> Vec:
    lanes = ir.Constant(ir.VectorType(I32, k.width), [0] * k.width)
    return k.vec(k.builder.shuffle_vector(value.value, value.value, lanes))


def _weight(k: StepBuilder, weight: Weight, row: Value, offset: int) -> Vec:
    pointer = k.arg(Role.WEIGHT, weight.index)
    if math.prod(weight.shape) == 1:
        if weight not in k.scalars:
            k.scalars[weight] = k.splat(k.entry.load(pointer, typ=k.element), k.entry)
        value = k.scalars[weight]
    else:
        value = k.load(pointer, k.add(row, offset))
    return value != 0.0 if weight.is_mask else value


def _gather(k: StepBuilder, node: Gather, index: Value) -> Vec:
    if node not in k.tables:
        entries = [*node.table, *[0] * (padded(node.features, k.width) - node.features)]
        kind = ir.ArrayType(I32, len(entries))
        table = ir.GlobalVariable(k.module, kind, f"table{len(k.tables)}")
        table.initializer = ir.Constant(kind, entries)  # type: ignore[assignment]
        table.global_constant, table.linkage = True, "internal"
        k.tables[node] = table
    places = (k.builder.gep(k.tables[node], [k.const(0), k.add(index, lane)]) for lane in range(k.width))
    return k.gathered(k.source(node.tile), [k.builder.sext(k.builder.load(p, typ=I32), I64) for p in places])


def _narrow_product(k: StepBuilder, node: Product, index: Value) -> Vec:
    """Σ_j matrix[j] tile[j]: the matrix has padded rows."""
    source, matrix, row = k.source(node.tile), k.arg(Role.NARROW, node.matrix.index), padded(node.features, k.width)
    total: Vec | None = None
    for j in range(node.tile.features):
        weight, other = k.load(matrix, k.add(index, j * row)), k.splat_at(source, j)
        total = weight * other if total is None else fma(weight, other, total)
    assert total is not None
    return total


# -- statements ------------------------------------------------------------------------------------------------------


@functools.singledispatch
def write_statement(statement: Statement, k: StepBuilder, *more: Any) -> None:
    raise Unsupported(f"its step has a {type(statement).__name__}")


@write_statement.register
def _(loop: Loop, k: StepBuilder, sums: Callable[[Loop, Value, int, Memo], None] | None = None) -> None:
    """``sums``: writes what the loop adds up, besides what it writes."""

    def body(f: Value, count: int) -> None:
        memo: Memo = {}
        values: list[tuple[Write, Vec]] = []
        for write in loop.writes:
            value = evaluate(k, write.value, f, memo, root=write.target is write.value)
            if write.target is write.value:
                memo[key_of(write.value, f, 0)] = _first_lane(k, value) if write.value.features == 1 else value
            values.append((write, value))
        for write, value in values:
            k.put(value, k.places[write.target], k.add(f, write.offset), count)
        if sums is not None:
            sums(loop, f, count, memo)

    k.vectors(loop.features, body)


@write_statement.register
def _(node: Product, k: StepBuilder) -> None:
    """A panel of vectors at a time, in registers; the matrix lies as (panel, k, feature): ``step.panels``."""
    depth, vectors = node.tile.features, math.ceil(node.features / k.width)
    matrix, tile, result = k.arg(Role.PANELS, node.matrix.index), k.source(node.tile), k.places[node]

    def panel(first: Value, wide: int) -> None:
        """``wide`` vectors from vector ``first`` on. Few of them are summed in several parts, for as many chains."""
        parts = max(1, PANEL // wide)
        unroll = max(2, parts)
        start = k.mul(first, k.width * depth)

        def column(index: Value, u: int, sums: list[Vec]) -> None:
            here = k.add(start, k.mul(k.add(index, u), wide * k.width))
            other = k.splat_at(tile, k.add(index, u))
            for v in range(wide):
                place = u % parts * wide + v
                sums[place] = fma(k.load(matrix, k.add(here, v * k.width)), other, sums[place])

        def columns(index: Value, totals: list[Value]) -> list[Value]:
            sums = [k.vec(t) for t in totals]
            for u in range(unroll):
                column(index, u, sums)
            return [t.value for t in sums]

        totals, whole = [k.number(0.0).value] * (parts * wide), depth // unroll * unroll
        if whole:
            totals = k.loop_with(whole, totals, columns, step=unroll)
        sums = [k.vec(t) for t in totals]
        for u in range(depth - whole):
            column(k.const(whole), u, sums)
        for v in range(wide):
            total = functools.reduce(lambda a, b: a + b, (sums[p * wide + v] for p in range(parts)))
            k.store(total, result, k.mul(k.add(first, v), k.width))

    if vectors // PANEL:
        k.loop(vectors // PANEL, lambda p: panel(k.mul(p, PANEL), PANEL))
    if vectors % PANEL:
        panel(k.const(vectors // PANEL * PANEL), vectors % PANEL)


@write_statement.register
def _(node: Fold, k: StepBuilder) -> None:
    """Each group's vectors together, then its lanes."""
    apply, neutral = OPERATORS[node.op], 0.0 if node.op == "add" else -math.inf
    whole = node.size // k.width * k.width

    def group(g: Value) -> None:
        first = k.mul(g, node.size)

        def body(f: Value, totals: list[Value]) -> list[Value]:
            return [apply(k.vec(totals[0]), evaluate(k, node.tile, k.add(first, f), {})).value]

        total = k.number(neutral)
        if whole:
            total = k.vec(k.loop_with(whole, [total.value], body, step=k.width)[0])
        if rest := node.size - whole:
            inside = ir.Constant(ir.VectorType(ir.IntType(1), k.width), [int(i < rest) for i in range(k.width)])
            total = apply(total, select(k.vec(inside), evaluate(k, node.tile, k.add(first, whole), {}), neutral))
        half = k.width // 2
        while half:
            lanes = ir.Constant(ir.VectorType(I32, k.width), [i ^ half for i in range(k.width)])
            total = apply(total, k.vec(k.builder.shuffle_vector(total.value, total.value, lanes)))
            half //= 2
        k.put(total, k.places[node], g, 1)

    k.loop(node.features, group)


@write_statement.register
def _(node: Running, k: StepBuilder) -> None:
    """Feature after feature."""

    def group(g: Value) -> None:
        first = k.mul(g, node.size)

        def body(f: Value, totals: list[Value]) -> list[Value]:
            row = k.add(first, f)
            total = k.vec(totals[0]) + evaluate(k, node.tile, row, {})
            k.put(total, k.places[node], row, 1)
            return [total.value]

        k.loop_with(node.size, [k.number(0.0).value], body)

    k.loop(node.features // node.size, group)


@write_statement.register
def _(node: Rotate, k: StepBuilder) -> None:
    """Sublayer after sublayer between two places: the permutation picks, then both halves turn as vectors."""
    index, size = node.angles.index, node.features
    half, (sublayers, _) = size // 2, node.angles.shape
    there = k.scratch(size)

    def begin(f: Value, count: int) -> None:
        k.put(evaluate(k, node.tile, f, {}), k.places[node], f, count)

    def turn(j: Value, pointers: list[Value]) -> list[Value]:
        source, target = pointers
        table, turns = k.mul(j, padded(size, k.width)), k.mul(j, 2 * padded(half, k.width))

        def body(f: Value, count: int) -> None:
            ends = []
            for start in (0, half):
                places = [k.add(table, k.add(f, start + lane)) for lane in range(k.width)]
                ends.append(k.gathered(source, [k.load_integer(k.arg(Role.PAIRS, index), place) for place in places]))
            cos, sin = (
                k.load(k.arg(Role.TURNS, index), k.add(turns, k.add(f, part * padded(half, k.width))))
                for part in range(2)
            )
            k.put(fma(cos, ends[0], -(sin * ends[1])), target, f, count)
            k.put(fma(sin, ends[0], cos * ends[1]), target, k.add(f, half), count)

        k.vectors(half, body)
        return [target, source]

    k.vectors(size, begin)
    if sublayers:
        k.places[node] = k.loop_with(sublayers, [k.places[node], there], turn)[0]
