"""A kernel of a scan under construction: its arguments, the memory of its tiles, and tiles in and out of tensors.

A tile is feature-major: row f holds feature f of all samples of the block, ``lanes`` wide, as ``groups`` vectors. A
tensor outside has one row per sample. It is transposed on the way in and out, a square of vectors at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from holdfast.engine.program.schedule import Schedule
from holdfast.engine.program.tiles import Gather, Input, Reduction, Slice, Tile, Weight
from holdfast.engine.targets.cpu.arguments import Argument, Part, Role
from holdfast.engine.targets.cpu.builder import I32, Builder, Int
from holdfast.engine.targets.cpu.shape import Shape
from holdfast.engine.targets.cpu.vec import Value, Vec, select

__all__ = ["TileBuilder"]


class TileBuilder(Builder):
    """``places``: where each tile lies that is in memory."""

    def __init__(self, schedule: Schedule, shape: Shape):
        super().__init__("scan", shape.dtype, align=shape.dtype.itemsize * shape.width)
        self.schedule, self.shape, self.lanes, self.groups = schedule, shape, shape.lanes, shape.lanes // shape.width
        self.places: dict[Tile, Value] = {}
        self.tables: dict[Gather, Value] = {}
        self.scalars: dict[Weight, Vec] = {}
        self.work = 0  # elements of scratch memory
        self.steps = self.arg(Role.STEPS)
        self._alive: list[Vec] = []

    # -- arguments and memory ------------------------------------------------------------------------------------------

    def arg(self, role: Role, index: int = 0, part: Part = Part.ADDRESS) -> Value:
        argument = Argument(role, index, part)
        return self.argument(argument, is_number=argument.is_number)

    def rows(self, role: Role, index: int = 0) -> tuple[Value, Value]:
        """A tensor (batch, features): where it starts, and how far its rows are apart."""
        return self.arg(role, index), self.arg(role, index, Part.ROW)

    def rows_at(self, t: Value, role: Role, index: int = 0) -> tuple[Value, Value]:
        """The same of step t of a tensor (time, batch, features)."""
        start = self.at(self.arg(role, index), self.mul(t, self.arg(role, index, Part.STEP)))
        return start, self.arg(role, index, Part.ROW)

    def tile_at(self, t: Value, tile: Tile, role: Role, index: int) -> Value:
        """Where step t of a tile lies that is kept for every step."""
        return self.at(self.arg(role, index), self.mul(t, self.shape.kept_rows(tile.features) * self.lanes))

    def sum_place(self, reduction: Reduction) -> Value:
        return self.arg(Role.SUM, self.schedule.program.reductions.index(reduction))

    def scratch(self, features: int) -> Value:
        """A tile of scratch memory; products write whole panels, so there is room for one more."""
        offset, rows = self.work, features + self.shape.panel - 1
        per_line = 64 // self.shape.dtype.itemsize
        self.work += math.ceil(rows * self.lanes / per_line) * per_line
        return self.entry.gep(self.arg(Role.WORK), [self.const(offset)], source_etype=self.element)

    def place(self, tile: Tile) -> Value:
        """Scratch memory for a tile."""
        self.places[tile] = self.scratch(tile.features)
        return self.places[tile]

    def place_rest(self) -> None:
        """Scratch memory for the tiles that have no place yet."""
        for tile in self.schedule.memory:
            if tile not in self.places:
                self.place(tile)

    def put_in_place(self, wanted: dict[Tile, Value]) -> list[Value]:
        """Let statements write a result straight to where it is wanted. Not for an input passed on, nor for a tile that
        has its place already (it is kept, or is another result too): those are copied.
        """
        taken = []
        for tile, place in wanted.items():
            if tile in self.schedule.memory and tile not in self.places:
                self.places[tile] = place
                taken.append(place)
        return taken

    def source(self, tile: Tile) -> Value:
        """Where the rows of a tile lie that is in memory, or that is a slice of one."""
        if tile in self.places:
            return self.places[tile]
        assert isinstance(tile, Slice)
        return self.at(self.source(tile.tile), tile.start * self.lanes)

    def offset(self, row: Int, v: int) -> Value:
        """Vector ``v`` of a row of a tile."""
        return self.add(self.mul(row, self.lanes), v * self.width)

    def each_vector(self, features: int, body: Callable[[Value, int, Value], None]) -> None:
        """``body(row, v, offset)`` for every vector of a tile."""

        def row(f: Value) -> None:
            for v in range(self.groups):
                body(f, v, self.offset(f, v))

        self.loop(features, row)

    def time_loop(
        self, step: Callable[[Value, list[Value]], list[Value]], start: list[Value], *, backwards: bool
    ) -> list[Value]:
        def body(i: Value, carried: list[Value]) -> list[Value]:
            return step(self.sub(self.sub(self.steps, 1), i) if backwards else i, carried)

        return self.loop_with(self.steps, start, body)

    # -- who is alive --------------------------------------------------------------------------------------------------

    def begin_step(self, t: Value) -> None:
        self._alive = self.alive_at(t) if self.shape.masked else []

    def alive_at(self, t: Value) -> list[Vec]:
        """One mask per vector of lanes: whether birth ≤ t < death."""
        now, kind, masks = self.splat_i32(t), ir.VectorType(I32, self.width), []
        for v in range(self.groups):
            ends = []
            for role in (Role.BIRTH, Role.DEATH):
                where = self.builder.gep(self.arg(role), [self.const(v * self.width)], source_etype=I32)
                ends.append(self.builder.load(where, typ=kind, align=4))
            after = self.builder.icmp_signed("<=", ends[0], now)
            before = self.builder.icmp_signed("<", now, ends[1])
            masks.append(self.vec(self.builder.and_(after, before)))
        return masks

    def if_alive(self, v: int, yes: Vec, no: Vec | float) -> Vec:
        return select(self._alive[v], yes, no) if self.shape.masked else yes

    def living(self, tile: Value, features: int) -> Value:
        """The tile, or in a masked kernel a copy of it with zeros for samples that are not alive."""
        if not self.shape.masked:
            return tile
        copy = self.scratch(features)

        def body(_: Value, v: int, offset: Value) -> None:
            self.store(self.if_alive(v, self.load(tile, offset), 0.0), copy, offset)

        self.each_vector(features, body)
        return copy

    # -- in and out ----------------------------------------------------------------------------------------------------

    def load_tile(self, tile: Value, pointer: Value, stride: Value, features: int) -> None:
        whole = features // self.width * self.width

        def group(g: Value) -> None:
            rows = self._rows_of(pointer, stride, g)
            column = self.mul(g, self.width)

            def square(f: Value) -> None:
                size = self.shape.dtype.itemsize
                block = [self.builder.load(self.at(row, f), typ=self.vector, align=size) for row in rows]
                for j, value in enumerate(self.turned(block)):
                    self.store(self.vec(value), tile, self.add(self.mul(self.add(f, j), self.lanes), column))

            if whole:
                self.loop(whole, square, step=self.width)
            for f in range(whole, features):
                value = ir.Constant(self.vector, ir.Undefined)
                for j, row in enumerate(rows):
                    value = self.builder.insert_element(value, self.load_one(row, f), ir.Constant(I32, j))
                self.store(self.vec(value), tile, self.add(f * self.lanes, column))

        self.loop(self.groups, group)

    def load_streams(self, streams: dict[tuple[Role, int], Input], t: Value) -> None:
        """What comes from outside at every step: x and random numbers."""
        for key, tile in streams.items():
            self.load_tile(self.places[tile], *self.rows_at(t, *key), tile.features)

    def store_tile(
        self,
        tile: Value,
        pointer: Value,
        stride: Value,
        features: int,
        zero_dead: bool = False,
        every_lane: bool = False,
    ) -> None:
        """Write a tile to its samples' rows, none for spare lanes; with ``zero_dead``, zeros for samples not alive."""
        whole, align = features // self.width * self.width, self.shape.dtype.itemsize
        masks = None
        if zero_dead and self.shape.masked:  # the group is a variable, so masks go through memory
            masks = self.scratch(1)
            for v in range(self.groups):
                self.store(select(self._alive[v], self.number(1.0), 0.0), masks, v * self.width)

        def group(g: Value) -> None:
            rows = self._rows_of(pointer, stride, g, every_lane)
            column = self.mul(g, self.width)
            alive = None if masks is None else self.load(masks, column) != 0.0

            def read(offset: Value) -> Value:
                value = self.load(tile, offset)
                return (value if alive is None else select(alive, value, 0.0)).value

            def write(row: int, value: Value, f: Int) -> None:
                if not self.shape.masked or every_lane:
                    self.builder.store(value, self.at(rows[row], f), align=align)
                    return
                index = self.add(column, row)
                with self.builder.if_then(self.builder.icmp_signed("<", index, self.arg(Role.SAMPLES))):
                    self.builder.store(value, self.at(rows[row], f), align=align)

            def square(f: Value) -> None:
                places = (self.add(f, j) for j in range(self.width))
                block = [read(self.add(self.mul(place, self.lanes), column)) for place in places]
                for j, value in enumerate(self.turned(block)):
                    write(j, value, f)

            if whole:
                self.loop(whole, square, step=self.width)
            for f in range(whole, features):
                value = read(self.add(f * self.lanes, column))
                for j in range(self.width):
                    write(j, self.builder.extract_element(value, ir.Constant(I32, j)), f)

        self.loop(self.groups, group)

    def _rows_of(self, pointer: Value, stride: Value, group: Value, every_lane: bool = False) -> list[Value]:
        """Pointers to the samples of a vector group; spare lanes look at the last sample, or have a row too."""
        rows = []
        for j in range(self.width):
            index = self.add(self.mul(group, self.width), j)
            if self.shape.masked and not every_lane:
                index = self.least(index, self.sub(self.arg(Role.SAMPLES), 1))
            rows.append(self.at(pointer, self.mul(index, stride)))
        return rows
