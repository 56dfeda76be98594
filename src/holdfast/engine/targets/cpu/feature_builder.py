"""A scan's kernel with lanes over features, under construction: rows of samples, shared by a team of threads.

A tile is a matrix in memory, one row per sample, as tensors outside are, so nothing is transposed. What is inside a
step is written by step_kernel.py, sample after sample; this file adds products of several samples and the team.

Every worker makes its own part of the features of a tile, for all samples. A worker that reads what another one has
made waits for all of them first (``wait``); what it reads is known when the kernel is written, so an elementwise loop
after a product waits for nobody. Parts are whole panels of a product. Where a tile is several times as wide as the
state, gates beside each other, each gate is divided as the state is (``unit``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from llvmlite import ir

from holdfast.engine.program.graph import Unsupported
from holdfast.engine.program.schedule import Loop, Schedule, Statement, sides
from holdfast.engine.program.tiles import (
    Constant,
    Fold,
    Gather,
    Operand,
    Pointwise,
    Product,
    Rotate,
    RowSum,
    Running,
    Slice,
    Tile,
    Weight,
)
from holdfast.engine.targets.cpu import step_kernel
from holdfast.engine.targets.cpu.arguments import Part, Role
from holdfast.engine.targets.cpu.builder import I32, I64, Int
from holdfast.engine.targets.cpu.expressions import Memo
from holdfast.engine.targets.cpu.shape import FeatureShape
from holdfast.engine.targets.cpu.step_kernel import StepBuilder, evaluate, padded
from holdfast.engine.targets.cpu.vec import Value, Vec, fma

__all__ = ["FeatureBuilder", "Rows"]

SPINS = 4096  # looks at the counter before a waiting thread offers its core to others
CHAINS = 8  # sums that are under way together: two multiply-adds per cycle take four cycles each


@dataclasses.dataclass(frozen=True)
class Rows:
    """A tile of all samples: where it starts, and how far its rows are apart."""

    pointer: Value
    stride: Int


class FeatureBuilder(StepBuilder):
    """``rows``: where each tile lies; ``places``: its row of the sample that is written about."""

    def __init__(self, schedule: Schedule, shape: FeatureShape, main: int):
        super().__init__(schedule, shape.dtype)
        self.shape, self.main = shape, main
        self.team, self.worker = self.arg(Role.TEAM), self.arg(Role.WORKER)  # the first two: see team.py
        self.samples, self.steps = self.arg(Role.SAMPLES), self.arg(Role.STEPS)
        self.rows: dict[Tile, Rows] = {}
        self._fresh: dict[Tile, int] = {}  # tiles written since all were waited for, with their unit; 0: by sample
        self.sample: Value = self.const(0)

    # -- memory --------------------------------------------------------------------------------------------------------

    def rows_of(self, role: Role, index: int = 0, t: Value | None = None) -> Rows:
        """A tensor (batch, features), or step t of one (time, batch, features)."""
        start = self.arg(role, index)
        if t is not None:
            start = self.at(start, self.mul(t, self.arg(role, index, Part.STEP)))
        return Rows(start, self.arg(role, index, Part.ROW))

    def kept_at(self, t: Value, tile: Tile, role: Role, index: int) -> Rows:
        """Step t of a tile that is kept for every step."""
        row = padded(tile.features, self.width)
        return Rows(self.at(self.arg(role, index), self.mul(self.mul(t, self.samples), row)), row)

    def scratch_rows(self, features: int) -> Rows:
        offset, row = self.work, padded(features, self.width)
        self.work += row
        start = self.entry.mul(self.samples, self.const(offset))
        return Rows(self.entry.gep(self.arg(Role.WORK), [start], source_etype=self.element), row)

    def scratch(self, features: int) -> Value:
        rows = self.scratch_rows(features)
        return self.at(rows.pointer, self.mul(self.sample, rows.stride))

    def place_rest(self) -> None:
        for tile in self.schedule.memory:
            if tile not in self.rows:
                self.rows[tile] = self.scratch_rows(tile.features)

    def put(self, value: Vec, pointer: Value, offset: Int, count: int) -> None:
        """The first ``count`` lanes to memory, and nothing behind them: another worker's row may be there."""
        if count == self.width:
            self.store(value, pointer, offset)
            return
        kind = "f64" if value.is_double else "f32"
        name, mask = f"llvm.masked.store.v{self.width}{kind}.p0", ir.VectorType(ir.IntType(1), self.width)
        if name not in self.module.globals:
            types = [self.vector, ir.PointerType(), I32, mask]
            ir.Function(self.module, ir.FunctionType(ir.VoidType(), types), name)
        lanes = ir.Constant(mask, [int(i < count) for i in range(self.width)])
        align = ir.Constant(I32, self.shape.dtype.itemsize)
        self.builder.call(self.module.globals[name], [value.value, self.at(pointer, offset), align, lanes])

    # -- samples and parts ---------------------------------------------------------------------------------------------

    def each_sample(self, body: Callable[[], None], *, shared: bool = False) -> None:
        """``body`` for every sample, with its rows in ``places``; ``shared``: a worker takes some of the samples."""

        def sample(i: Value, _: list[Value]) -> None:
            self.sample = i
            self.places = {tile: self.row_of(rows, i) for tile, rows in self.rows.items()}
            body()

        start, step = (self.worker, self.team) if shared else (self.const(0), self.const(1))
        self.count(start, self.samples, step, sample)

    def row_of(self, rows: Rows, sample: Value) -> Value:
        return self.at(rows.pointer, self.mul(sample, rows.stride))

    def unit(self, features: int) -> int:
        """The features that are divided between workers together."""
        panel = self.shape.vectors * self.width
        return self.main if self.main % panel == 0 and features % self.main == 0 else features

    def panels(self, features: int, body: Callable[[Value, int], None]) -> None:
        """``body(first vector, vectors)`` for every panel of this worker's part; the last worker has what is left."""
        unit = self.unit(features)
        whole, rest = divmod(math.ceil(unit / self.width), self.shape.vectors)
        times = features // unit
        if whole:
            first, last = (self.part(whole, self.add(self.worker, end)) for end in range(2))

            def group(g: Value, _: list[Value]) -> None:
                start = self.mul(g, whole)

                def panel(p: Value, _: list[Value]) -> None:
                    body(self.mul(self.add(start, p), self.shape.vectors), self.shape.vectors)

                self.count(first, last, 1, panel)

            self.count(0, times, 1, group)
        if rest:
            assert times == 1
            is_last = self.builder.icmp_signed("==", self.worker, self.sub(self.team, 1))
            with self.builder.if_then(is_last):
                body(self.const(whole * self.shape.vectors), rest)

    def part(self, panels: int, worker: Value) -> Value:
        return self.builder.sdiv(self.mul(worker, panels), self.team)

    def vectors(self, features: int, body: Callable[[Value, int], None]) -> None:
        """This worker's vectors of a tile."""
        whole, partial = divmod(features, self.width)

        def panel(first: Value, wide: int) -> None:
            end = self.add(first, wide)
            stop = self.least(end, self.const(whole)) if partial else end
            self.count(
                self.mul(first, self.width), self.mul(stop, self.width), self.width, lambda f, _: body(f, self.width)
            )
            if partial:
                with self.builder.if_then(self.builder.icmp_signed(">", end, self.const(whole))):
                    body(self.const(whole * self.width), partial)

        self.panels(features, panel)

    def all_vectors(self, features: int, body: Callable[[Value, int], None]) -> None:
        super().vectors(features, body)

    # -- the team ------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Until all workers are here: each adds one to a counter, which only grows, and looks at it until all have."""
        self._fresh = {}
        counter = self.arg(Role.COUNTER)
        with self.builder.if_then(self.builder.icmp_signed(">", self.team, self.const(1))):
            before = self.builder.atomic_rmw("add", counter, self.const(1), "acq_rel")
            turn = self.builder.sdiv(before, self.team)
            goal = self.mul(self.add(turn, 1), self.team)
            start = self.builder.block
            look, again, offer, after = (self.builder.append_basic_block() for _ in range(4))
            self.builder.branch(look)
            self.builder.position_at_end(look)
            spins = self.builder.phi(I64)
            spins.add_incoming(self.const(0), start)
            now = self.builder.load_atomic(counter, "acquire", 8, typ=I64)
            self.builder.cbranch(self.builder.icmp_signed(">=", now, goal), after, again)
            self.builder.position_at_end(again)
            more = self.add(spins, 1)
            spins.add_incoming(more, again)
            patient = self.builder.icmp_signed("<", more, self.const(SPINS))
            self.builder.cbranch(patient, look, offer)
            self.builder.position_at_end(offer)
            kind = ir.FunctionType(I32, []).as_pointer()
            self.builder.call(self.builder.inttoptr(self.arg(Role.YIELD), kind), [])
            spins.add_incoming(self.const(0), self.builder.block)
            self.builder.branch(look)
            self.builder.position_at_end(after)

    def wrote(self, tile: Tile, unit: int) -> None:
        self._fresh[tile] = unit

    def need(self, tile: Tile, unit: int, at_same_row: bool) -> None:
        """Wait if a tile may have been written by another worker than the one that reads it now."""
        if tile in self._fresh and not (at_same_row and unit and self._fresh[tile] == unit):
            self.wait()

    # -- statements ----------------------------------------------------------------------------------------------------

    def write_statements(self) -> None:
        for statement in self.schedule.statements:
            self.write(statement)

    def write(self, statement: Statement) -> None:
        match statement:
            case Loop():
                self._loop(statement)
            case Product():
                self._product(statement)
            case Fold() | Running() | Rotate():
                self.needs(statement.tile, 0)
                self.each_sample(lambda: self._by_sample(statement), shared=True)
                self.wrote(statement, 0)
            case _:
                raise Unsupported(f"its step has a {type(statement).__name__}")

    def _by_sample(self, statement: Fold | Running | Rotate) -> None:
        place = self.places[statement]
        step_kernel.write_statement(statement, _Whole(self))
        if self.places[statement] is not place:  # a rotation ends in either of two places
            self.super_copied(self.places[statement], place, statement.features)

    def super_copied(self, source: Value, target: Value, features: int) -> None:
        self.all_vectors(features, lambda f, count: self.put(self.load(source, f), target, f, count))

    def needs(self, value: Tile, unit: int, shift: int = 0, root: bool = False) -> None:
        """Wait for whatever evaluating ``value`` reads, in the part of ``unit`` (0: anywhere)."""
        todo: list[tuple[Operand, int, bool]] = [(value, shift, bool(unit))]
        seen: set[tuple[Operand, int, bool]] = set()
        while todo:
            entry = todo.pop()
            if entry in seen:
                continue
            seen.add(entry)
            node, moved, same = entry
            if isinstance(node, Weight | Constant):
                continue
            same = same and node.features % unit == 0 if unit else False
            if node in self.rows and not (root and node is value):
                self.need(node, unit, same and moved % unit == 0)
            elif isinstance(node, Slice):
                todo.append((node.tile, moved + node.start, same or (bool(unit) and moved % unit == 0)))
            elif isinstance(node, Gather | Product):
                todo.append((node.tile, 0, False))
            elif isinstance(node, Pointwise):
                todo += [(arg, moved, same) for arg in node.args]
            else:
                raise AssertionError(node)

    def _loop(self, loop: Loop) -> None:
        unit = self.unit(loop.features)
        for write in loop.writes:
            self.needs(write.value, unit, root=write.target is write.value)
        for reduction in loop.sums:
            wide, *narrow = (reduction.tile,) if isinstance(reduction, RowSum) else sides(reduction)
            self.needs(wide, unit)
            for side in narrow:
                self.needs(side, 0)
        self.each_sample(lambda: step_kernel.write_statement(loop, self, self._sums if loop.sums else None))
        for write in loop.writes:
            self.wrote(write.target, unit if write.offset % unit == 0 and write.target.features % unit == 0 else 0)

    def _sums(self, loop: Loop, f: Value, count: int, memo: Memo) -> None:
        """Add a vector of each sum over time and samples."""
        for reduction in loop.sums:
            target = self.arg(Role.SUM, self.schedule.program.reductions.index(reduction))
            if isinstance(reduction, RowSum):
                self.put(self.load(target, f) + evaluate(self, reduction.tile, f, memo), target, f, count)
                continue
            wide, narrow = sides(reduction)
            value, row = evaluate(self, wide, f, memo), padded(wide.features, self.width)
            for j in range(narrow.features):
                where = self.add(f, j * row)
                other = self.splat_at(self.source(narrow), j)
                self.put(fma(value, other, self.load(target, where)), target, where, count)

    def _product(self, node: Product) -> None:
        """A panel of vectors for a few samples at a time, in registers; the matrix lies as (panel, k, feature)."""
        depth, height = node.tile.features, self.shape.rows
        tile, offset = node.tile, 0
        while tile not in self.rows:
            assert isinstance(tile, Slice)
            tile, offset = tile.tile, offset + tile.start
        self.need(tile, 0, at_same_row=False)
        matrix, source, result = self.arg(Role.PANELS, node.matrix.index), self.rows[tile], self.rows[node]
        partial = node.features % self.width
        last = math.ceil(node.features / self.width) - 1

        def panel(first: Value, wide: int) -> None:
            parts = max(1, CHAINS // (wide * height))
            unroll = max(2, parts)
            start = self.mul(first, self.width * depth)

            def samples(i: Value, _: list[Value]) -> None:
                i = self.least(i, self.sub(self.samples, height))  # the last block may do some samples again
                inputs = [self.at(self.row_of(source, self.add(i, r)), offset) for r in range(height)]

                def column(index: Value, u: int, sums: list[Vec]) -> None:
                    here = self.add(start, self.mul(self.add(index, u), wide * self.width))
                    weights = [self.load(matrix, self.add(here, v * self.width)) for v in range(wide)]
                    for r in range(height):
                        other = self.splat_at(inputs[r], self.add(index, u))
                        for v in range(wide):
                            place = (u % parts * height + r) * wide + v
                            sums[place] = fma(weights[v], other, sums[place])

                def columns(index: Value, totals: list[Value]) -> list[Value]:
                    sums = [self.vec(t) for t in totals]
                    for u in range(unroll):
                        column(index, u, sums)
                    return [t.value for t in sums]

                totals, whole = [self.number(0.0).value] * (parts * height * wide), depth // unroll * unroll
                if whole:
                    totals = self.loop_with(whole, totals, columns, step=unroll)
                sums = [self.vec(t) for t in totals]
                for u in range(depth - whole):
                    column(self.const(whole), u, sums)
                for r in range(height):
                    target = self.row_of(result, self.add(i, r))
                    for v in range(wide):
                        total = sums[r * wide + v]
                        for p in range(1, parts):
                            total = total + sums[(p * height + r) * wide + v]
                        self._put_of(total, target, self.add(first, v), v == wide - 1 and partial, last)

            self.count(0, self.samples, height, samples)

        self.panels(node.features, panel)
        self.wrote(node, self.unit(node.features))

    def _put_of(self, total: Vec, target: Value, vector: Value, partial: int, last: int) -> None:
        """Vector ``vector`` of a row; ``partial``: so many features if it is the last one."""
        where = self.mul(vector, self.width)
        if not partial:
            self.store(total, target, where)
            return
        with self.builder.if_else(self.builder.icmp_signed("==", vector, self.const(last))) as (then, other):
            with then:
                self.put(total, target, where, partial)
            with other:
                self.store(total, target, where)


class _Whole:
    """A builder whose loops go through all features of a sample: for statements whose samples are divided."""

    def __init__(self, k: FeatureBuilder):
        self._k = k

    def __getattr__(self, name: str) -> object:
        return getattr(self._k, name)

    def vectors(self, features: int, body: Callable[[Value, int], None]) -> None:
        self._k.all_vectors(features, body)
