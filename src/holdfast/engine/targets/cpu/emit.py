"""Scheduled tile programs to LLVM assembly: the fourth stage.

    emit_forward(plan, ...), emit_backward(plan, ...)  →  Kernel(text, arguments)

A kernel runs all steps for one block of samples. Its single parameter points at 64-bit integers: addresses, strides (in
elements) and counts, in the order of ``Kernel.arguments``. Tiles are feature-major, ``lanes`` samples wide, so every
operation is on whole vectors; tensors outside have one row a sample and are turned on the way in and out, a square of
vectors at a time.

Two variants: a plain one, for blocks whose samples all live through all steps; and a masked one, where sample b lives
in steps first[b] ≤ t < last[b]: outside of them its state stands still, its output is zero and it adds to no sum. A
block with fewer samples than lanes is a masked one whose spare lanes never live.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from holdfast.engine.program.schedule import Loop, Schedule, Write, narrow_side
from holdfast.engine.program.tiles import (
    TILES,
    AngleSum,
    Constant,
    Fold,
    Gather,
    Input,
    Operand,
    Outer,
    Pointwise,
    Product,
    Rotate,
    RotateBack,
    RowSum,
    Running,
    Slice,
    Tile,
    Weight,
)
from holdfast.engine.targets.cpu import elementary
from holdfast.engine.targets.cpu.operators import OPERATORS
from holdfast.engine.targets.cpu.team import add_share
from holdfast.engine.targets.cpu.vec import Vec, fma, select, vector_type

__all__ = ["Kernel", "Shape", "emit_backward", "emit_forward", "kept_rows", "outer_size", "panel_rows", "summed_after"]

I32, I64 = ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()


@dataclasses.dataclass(frozen=True)
class Shape:
    """How a kernel is laid out: number type, samples a block, and the variant."""

    dtype: str
    lanes: int
    masked: bool

    @property
    def vector(self) -> int:
        """Numbers in a vector of 256 bits; a CPU with shorter ones uses several."""
        return 8 if self.dtype == "float32" else 4

    @property
    def item(self) -> int:
        return 4 if self.dtype == "float32" else 8


@dataclasses.dataclass(frozen=True)
class Kernel:
    """``text``: LLVM assembly of a function ``run``; ``arguments``: what the entries of its parameter are; ``work``:
    how many elements of scratch memory it needs.
    """

    text: str
    arguments: tuple[str, ...]
    work: int


def panel_rows(shape: Shape) -> int:
    """Rows of a product that are summed together: with two vectors of lanes they make twelve accumulators, which leaves
    room for a weight and the lanes in sixteen registers.
    """
    return 12 if shape.lanes == shape.vector else 6


def outer_size(outer: Outer, shape: Shape) -> tuple[int, int]:
    """Rows and columns of the memory that an outer product is summed in: whole panels, whole pairs of vectors."""
    wide = 2 * shape.vector
    return kept_rows(outer.left.features, shape), math.ceil(outer.right.features / wide) * wide


def summed_after(outer: Outer, shape: Shape) -> bool:
    """Whether an outer product is better left until after the loop: each step reads and writes the whole sum, which
    pays for many lanes, or for a sum that stays in the second cache.
    """
    few = shape.lanes < 4 * shape.vector
    return few and outer.left.features * outer.right.features * shape.item > 1 << 18


def emit_forward(plan: Schedule, shape: Shape, *, output: bool, keep: frozenset[str]) -> Kernel:
    """All steps, first to last.

    Args:
        output: whether the first state of every step is written.
        keep: of "s1", "s2", ... the states, and of "k0", ... the saved tiles, that are kept for backward.
    """
    k = _Kernel(plan, shape)
    inputs, outputs = plan.program.inputs, plan.program.outputs
    states = [name for name in outputs if name.startswith("s")]
    for name in states:
        k.tile_slot(inputs[name])
        k.load_tile(k.slots[inputs[name]], k.arg(f"{name}_first"), k.arg(f"{name}_first_row"), inputs[name].features)
    spare = {name: k.scratch(outputs[name].features) for name in states if name not in keep}  # type: ignore[union-attr]
    streams = {name: k.tile_slot(tile) for name, tile in inputs.items() if name[0] in "xz"}
    saved = {tile: f"k{i}" for i, tile in enumerate(plan.program.saved)}
    start = [k.slots[inputs[name]] for name in states] + list(spare.values())

    def step(t: Any, pointers: list[Any]) -> list[Any]:
        current, other = pointers[: len(states)], pointers[len(states) :]
        for name, pointer in zip(states, current, strict=True):
            k.slots[inputs[name]] = pointer
        free = dict(zip(spare, other, strict=True))
        k.load_streams(streams, t)
        k.begin_step(t)
        new = {}
        for name in states:
            tile = outputs[name]
            kept = name in keep
            new[name] = k.at(k.arg(f"{name}_all"), k.mul(t, k.const(k.size(tile)))) if kept else free[name]  # type: ignore[arg-type]
        for tile in plan.memory:
            if tile in saved and saved[tile] in keep:
                k.slots[tile] = k.at(k.arg(saved[tile]), k.mul(t, k.const(k.size(tile))))
        in_place = k.put_in_place({outputs[name]: new[name] for name in states})  # type: ignore[misc]
        for tile in plan.memory:
            if tile not in k.slots:
                k.slots[tile] = k.scratch(tile.features)
        k.statements()
        for name in states:
            if shape.masked or new[name] not in in_place:
                k.copy_state(outputs[name], inputs[name], new[name])  # type: ignore[arg-type]
        if output:
            where = k.at(k.arg("out"), k.mul(t, k.arg("out_step")))
            k.store_tile(new["s0"], where, k.arg("out_row"), inputs["s0"].features, zero_dead=True)
        return [new[name] for name in states] + [current[states.index(name)] for name in spare]

    last = k.time_loop(step, start, backwards=False)
    for name, pointer in zip(states, last[: len(states)], strict=True):
        k.store_tile(pointer, k.arg(f"{name}_last"), k.arg(f"{name}_last_row"), inputs[name].features)
    return k.finish()


def emit_backward(
    plan: Schedule, shape: Shape, *, state_sizes: tuple[int, ...], output_grad: bool, stored: tuple[Tile, ...]
) -> Kernel:
    """All steps, last to first.

    Args:
        state_sizes: features of each entry of the state.
        output_grad: whether the first state of every step has a gradient of its own.
        stored: tiles that are written for every step, for the products after the loop: arguments "t0", "t1", ...
    """
    k = _Kernel(plan, shape)
    inputs, outputs = plan.program.inputs, plan.program.outputs
    states = [name for name in outputs if name.startswith("s")]
    features = dict(zip(states, state_sizes, strict=True))
    grads = [k.scratch(features[name]) for name in states]
    others = [k.scratch(features[name]) for name in states]
    for name, pointer in zip(states, grads, strict=True):
        k.load_tile(pointer, k.arg(f"{name}_last_grad"), k.arg(f"{name}_last_grad_row"), features[name])
    fresh = k.scratch(features["s0"]) if output_grad else None
    starts = {}
    for name in states:
        if name in inputs:
            starts[name] = k.scratch(features[name])
            k.load_tile(starts[name], k.arg(f"{name}_first"), k.arg(f"{name}_first_row"), features[name])
    streams = {name: k.tile_slot(tile) for name, tile in inputs.items() if name[0] in "xz"}
    old, new = (k.scratch(features["s0"]), k.scratch(features["s0"])) if {"s0", "n0"} & inputs.keys() else (None, None)
    if "n0" in inputs:
        where = k.at(k.arg("out"), k.mul(k.sub(k.steps, k.const(1)), k.arg("out_step")))
        k.load_tile(new, where, k.arg("out_row"), features["s0"])
    begin = [*grads, *others, *([old, new] if old is not None else [])]

    def step(t: Any, pointers: list[Any]) -> list[Any]:
        count = len(states)
        current, free = pointers[:count], pointers[count : 2 * count]
        k.begin_step(t)
        k.load_streams(streams, t)
        before = k.sub(t, k.const(1))
        first = k.builder.icmp_signed("==", t, k.const(0))
        turn: list[Any] = []
        if old is not None:
            old_now, new_now = pointers[2 * count :]
            if "s0" in inputs or "n0" in inputs:
                source = k.builder.select(
                    first, k.arg("s0_first"), k.at(k.arg("out"), k.mul(before, k.arg("out_step")))
                )
                row = k.builder.select(first, k.arg("s0_first_row"), k.arg("out_row"))
                k.load_tile(old_now, source, row, features["s0"])
                if shape.masked and "s0" in inputs:
                    k.revive(old_now, starts["s0"], before, features["s0"])
            if "s0" in inputs:
                k.slots[inputs["s0"]] = old_now
            if "n0" in inputs:
                k.slots[inputs["n0"]] = new_now
            turn = [new_now, old_now]  # this step's old state is the new state of the step before
        for name in states[1:]:
            if name in inputs:
                earlier = k.at(k.arg(f"{name}_all"), k.mul(before, k.const(k.size(inputs[name]))))
                k.slots[inputs[name]] = k.builder.select(first, starts[name], earlier)
            now = f"n{name[1:]}"
            if now in inputs:
                k.slots[inputs[now]] = k.at(k.arg(f"{name}_all"), k.mul(t, k.const(k.size(inputs[now]))))
        for key, tile in inputs.items():
            if key.startswith("k"):
                k.slots[tile] = k.at(k.arg(key), k.mul(t, k.const(k.size(tile))))
        for i, name in enumerate(states):
            grad = inputs.get(f"g{i}")
            if i == 0 and output_grad:
                k.load_tile(
                    fresh,
                    k.at(k.arg("out_grad"), k.mul(t, k.arg("out_grad_step"))),
                    k.arg("out_grad_row"),
                    features[name],
                )
            k.total_grad(current[i], fresh if i == 0 else None, free[i], features[name])
            if grad is not None:
                k.slots[grad] = free[i] if shape.masked else current[i]
        places = {outputs[name]: free[i] for i, name in enumerate(states) if outputs[name] is not None}
        in_place = [] if shape.masked else k.put_in_place(places)  # type: ignore[arg-type]
        for tile in plan.memory:
            if tile not in k.slots:
                k.slots[tile] = k.scratch(tile.features)
        k.statements()
        if outputs["x"] is not None:
            where = k.at(k.arg("x_grad"), k.mul(t, k.arg("x_grad_step")))
            k.store_tile(k.slots[outputs["x"]], where, k.arg("x_grad_row"), outputs["x"].features, zero_dead=True)
        for j, tile in enumerate(stored):
            where = k.at(k.arg(f"t{j}"), k.mul(t, k.arg(f"t{j}_step")))
            k.store_tile(k.slots[tile], where, k.arg(f"t{j}_row"), tile.features, zero_dead=True)
        for i, name in enumerate(states):
            if free[i] not in in_place:
                k.pass_grad(outputs[name], current[i], free[i], features[name])
        if shape.masked:
            return [*current, *free, *turn]
        return [*free, *current, *turn]

    last = k.time_loop(step, begin, backwards=True)
    for name, pointer in zip(states, last[: len(states)], strict=True):
        k.store_tile(pointer, k.arg(f"{name}_first_grad"), k.arg(f"{name}_first_grad_row"), features[name])
    return k.finish()


class _Kernel:
    """The function under construction."""

    def __init__(self, plan: Schedule, shape: Shape):
        self.plan, self.shape = plan, shape
        self.vector = vector_type(shape.dtype, shape.vector)
        self.element = self.vector.element
        self.groups = shape.lanes // shape.vector
        self.module = ir.Module("scan")
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [POINTER]), "run")
        self.entry = ir.IRBuilder(self.function.append_basic_block("arguments"))
        self.builder = ir.IRBuilder(self.function.append_basic_block("begin"))
        self._begin = self.builder.block
        self.names: list[str] = []
        self._arguments: dict[str, Any] = {}
        self._scalars: dict[Weight, Vec] = {}
        self.slots: dict[Tile, Any] = {}
        self._tables: dict[Gather, Any] = {}
        self.work = 0
        self.steps = self.arg("steps")
        self._alive: list[Vec] = []

    def finish(self) -> Kernel:
        self.builder.ret_void()
        self.entry.branch(self._begin)
        add_share(self.module, self.function)
        return Kernel(str(self.module), tuple(self.names), self.work)

    # -- arguments, memory, control ---------------------------------------------------------------------------------

    def arg(self, name: str) -> Any:
        """An argument by name: a pointer, or, for strides and counts, an integer."""
        if name not in self._arguments:
            where = self.entry.gep(self.function.args[0], [ir.Constant(I64, len(self.names))], source_etype=I64)
            value = self.entry.load(where, typ=I64)
            self.names.append(name)
            number = name.endswith(("_row", "_step")) or name in ("steps", "samples")
            self._arguments[name] = value if number else self.entry.inttoptr(value, POINTER)
        return self._arguments[name]

    def scratch(self, features: int) -> Any:
        """A tile of scratch memory; products write whole panels, so there is room for one more."""
        offset, rows = self.work, features + panel_rows(self.shape) - 1
        per_line = 64 // self.shape.item
        self.work += math.ceil(rows * self.shape.lanes / per_line) * per_line
        return self.entry.gep(self.arg("work"), [ir.Constant(I64, offset)], source_etype=self.element)

    def tile_slot(self, tile: Tile) -> Any:
        self.slots[tile] = self.scratch(tile.features)
        return self.slots[tile]

    def size(self, tile: Tile) -> int:
        """Elements of one step's copy of a kept tile: rows up to whole panels, so that a product may write it."""
        return kept_rows(tile.features, self.shape) * self.shape.lanes

    def const(self, number: int) -> Any:
        return ir.Constant(I64, number)

    def mul(self, a: Any, b: Any) -> Any:
        return self.builder.mul(a, b)

    def sub(self, a: Any, b: Any) -> Any:
        return self.builder.sub(a, b)

    def at(self, pointer: Any, offset: Any) -> Any:
        return self.builder.gep(pointer, [offset], source_etype=self.element)

    def loop(self, count: Any, body: Callable[[Any], None], step: int = 1) -> None:
        """``for i in range(0, count, step)``; count is at least one step."""
        self.loop_with(count, [], lambda i, _: body(i) or [], step)

    def loop_with(
        self, count: Any, start: list[Any], body: Callable[[Any, list[Any]], list[Any]], step: int = 1
    ) -> list[Any]:
        """The same, with values carried from turn to turn; returns the last ones."""
        count = self.const(count) if isinstance(count, int) else count
        before = self.builder.block
        inside = self.function.append_basic_block()
        self.builder.branch(inside)
        self.builder.position_at_end(inside)
        i = self.builder.phi(I64)
        i.add_incoming(self.const(0), before)
        carried = [self.builder.phi(value.type) for value in start]
        for phi, value in zip(carried, start, strict=True):
            phi.add_incoming(value, before)
        results = body(i, carried)
        following = self.builder.add(i, self.const(step))
        end = self.builder.block
        i.add_incoming(following, end)
        for phi, value in zip(carried, results, strict=True):
            phi.add_incoming(value, end)
        after = self.function.append_basic_block()
        self.builder.cbranch(self.builder.icmp_signed("<", following, count), inside, after)
        self.builder.position_at_end(after)
        return results

    def time_loop(self, step: Callable[[Any, list[Any]], list[Any]], start: list[Any], *, backwards: bool) -> list[Any]:
        def body(i: Any, carried: list[Any]) -> list[Any]:
            return step(self.sub(self.sub(self.steps, self.const(1)), i) if backwards else i, carried)

        return self.loop_with(self.steps, start, body)

    # -- vectors ----------------------------------------------------------------------------------------------------

    def vec(self, value: Any) -> Vec:
        return Vec(self.builder, value)

    def load(self, pointer: Any, offset: Any) -> Vec:
        where = self.at(pointer, offset)
        return self.vec(self.builder.load(where, typ=self.vector, align=self.shape.item * self.shape.vector))

    def store(self, value: Vec, pointer: Any, offset: Any) -> None:
        self.builder.store(value.value, self.at(pointer, offset), align=self.shape.item * self.shape.vector)

    def splat(self, value: Any, builder: ir.IRBuilder | None = None) -> Vec:
        builder = builder or self.builder
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = builder.insert_element(undefined, value, ir.Constant(I32, 0))
        lanes = ir.Constant(ir.VectorType(I32, self.shape.vector), [0] * self.shape.vector)
        return Vec(self.builder, builder.shuffle_vector(first, undefined, lanes))

    def number(self, value: float) -> Vec:
        return self.vec(ir.Constant(self.vector, [float(value)] * self.shape.vector))

    def truth(self, value: bool) -> Vec:
        kind = ir.VectorType(ir.IntType(1), self.shape.vector)
        return self.vec(ir.Constant(kind, [int(value)] * self.shape.vector))

    # -- who is alive -------------------------------------------------------------------------------------------------

    def begin_step(self, t: Any) -> None:
        self._alive = self.alive_at(t) if self.shape.masked else []

    def alive_at(self, t: Any) -> list[Vec]:
        """One mask a vector group: whether first ≤ t < last."""
        kind = ir.VectorType(I32, self.shape.vector)
        time = self.builder.trunc(t, I32)
        undefined = ir.Constant(kind, ir.Undefined)
        one = self.builder.insert_element(undefined, time, ir.Constant(I32, 0))
        now = self.builder.shuffle_vector(one, undefined, ir.Constant(kind, [0] * self.shape.vector))
        masks = []
        for v in range(self.groups):
            ends = []
            for name in ("first", "last"):
                where = self.builder.gep(self.arg(name), [self.const(v * self.shape.vector)], source_etype=I32)
                ends.append(self.builder.load(where, typ=kind, align=4))
            after = self.builder.icmp_signed("<=", ends[0], now)
            before = self.builder.icmp_signed("<", now, ends[1])
            masks.append(self.vec(self.builder.and_(after, before)))
        return masks

    def if_alive(self, v: int, yes: Vec, no: Any) -> Vec:
        return select(self._alive[v], yes, no) if self.shape.masked else yes

    # -- in and out: one row a sample outside, one row a feature inside ------------------------------------------------

    def _rows(self, pointer: Any, stride: Any, group: Any, every_lane: bool = False) -> list[Any]:
        """Pointers to the samples of a vector group; spare lanes look at the last sample, or have a row too."""
        rows = []
        for j in range(self.shape.vector):
            index = self.builder.add(self.mul(group, self.const(self.shape.vector)), self.const(j))
            if self.shape.masked and not every_lane:
                end = self.sub(self.arg("samples"), self.const(1))
                index = self.builder.select(self.builder.icmp_signed("<", index, end), index, end)
            rows.append(self.at(pointer, self.mul(index, stride)))
        return rows

    def load_tile(self, tile: Any, pointer: Any, stride: Any, features: int) -> None:
        size, lanes = self.shape.vector, self.shape.lanes
        whole = features // size * size

        def group(g: Any) -> None:
            rows = self._rows(pointer, stride, g)
            column = self.mul(g, self.const(size))

            def square(f: Any) -> None:
                block = [self.builder.load(self.at(row, f), typ=self.vector, align=self.shape.item) for row in rows]
                for j, value in enumerate(self._turned(block)):
                    offset = self.builder.add(self.mul(self.builder.add(f, self.const(j)), self.const(lanes)), column)
                    self.store(self.vec(value), tile, offset)

            if whole:
                self.loop(whole, square, step=size)
            for f in range(whole, features):
                value = ir.Constant(self.vector, ir.Undefined)
                for j, row in enumerate(rows):
                    item = self.builder.load(self.at(row, self.const(f)), typ=self.element)
                    value = self.builder.insert_element(value, item, ir.Constant(I32, j))
                self.store(self.vec(value), tile, self.builder.add(self.const(f * lanes), column))

        self.loop(self.groups, group)

    def load_streams(self, streams: dict[str, Any], t: Any) -> None:
        """What comes from outside at every step: x and random numbers."""
        inputs = self.plan.program.inputs
        for name, slot in streams.items():
            where = self.at(self.arg(name), self.mul(t, self.arg(f"{name}_step")))
            self.load_tile(slot, where, self.arg(f"{name}_row"), inputs[name].features)

    def store_tile(
        self, tile: Any, pointer: Any, stride: Any, features: int, zero_dead: bool = False, every_lane: bool = False
    ) -> None:
        """Write a tile to its samples' rows, none for spare lanes; with ``zero_dead``, zeros for samples not alive."""
        size, lanes = self.shape.vector, self.shape.lanes
        whole = features // size * size
        masks = None
        if zero_dead and self.shape.masked:  # the group is a variable, so masks go through memory
            masks = self.scratch(1)
            for v in range(self.groups):
                self.store(select(self._alive[v], self.number(1.0), 0.0), masks, self.const(v * size))

        def group(g: Any) -> None:
            rows = self._rows(pointer, stride, g, every_lane)
            column = self.mul(g, self.const(size))
            alive = None if masks is None else self.load(masks, column) != 0.0

            def write(row: int, value: Any, f: Any) -> None:
                if not self.shape.masked or every_lane:
                    self.builder.store(value, self.at(rows[row], f), align=self.shape.item)
                    return
                index = self.builder.add(column, self.const(row))
                with self.builder.if_then(self.builder.icmp_signed("<", index, self.arg("samples"))):
                    self.builder.store(value, self.at(rows[row], f), align=self.shape.item)

            def square(f: Any) -> None:
                block = []
                for j in range(size):
                    offset = self.builder.add(self.mul(self.builder.add(f, self.const(j)), self.const(lanes)), column)
                    value = self.load(tile, offset)
                    block.append((value if alive is None else select(alive, value, 0.0)).value)
                for j, value in enumerate(self._turned(block)):
                    write(j, value, f)

            if whole:
                self.loop(whole, square, step=size)
            for f in range(whole, features):
                value = self.load(tile, self.builder.add(self.const(f * lanes), column))
                value = value if alive is None else select(alive, value, 0.0)
                for j in range(size):
                    write(j, self.builder.extract_element(value.value, ir.Constant(I32, j)), self.const(f))

        self.loop(self.groups, group)

    def _turned(self, block: list[Any]) -> list[Any]:
        """The transpose of a square of vectors, by exchanging halves, quarters, ... of pairs."""
        size = len(block)
        half = size // 2
        while half >= 1:
            low = [i for i in range(size) if not i & half]
            pick_low = [i if not i & half else size + (i ^ half) for i in range(size)]
            pick_high = [i | half if not i & half else size + i for i in range(size)]
            for i in low:
                a, b = block[i], block[i | half]
                block[i] = self._shuffle(a, b, pick_low)
                block[i | half] = self._shuffle(a, b, pick_high)
            half //= 2
        return block

    def _shuffle(self, a: Any, b: Any, lanes: list[int]) -> Any:
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))

    # -- expressions --------------------------------------------------------------------------------------------------

    def evaluate(
        self, node: Operand, row: Any, v: int, memo: dict[Any, Vec], offset: int = 0, root: bool = False
    ) -> Vec:
        """``node`` at feature ``row + offset`` and vector group ``v``; what is evaluated once is not again."""
        if isinstance(node, Constant):
            return self.truth(node.value) if isinstance(node.value, bool) else self.number(node.value)
        if isinstance(node, Weight):
            return self._weight(node, row, offset, memo)
        if node.features == 1 and not root:
            row, offset = self.const(0), 0
        key = self._key(node, row, offset, v)
        if key in memo and not root:
            return memo[key]
        if node in self.slots and not root:
            index = self.builder.add(row, self.const(offset)) if offset else row
            result = self.load(
                self.slots[node],
                self.builder.add(self.mul(index, self.const(self.shape.lanes)), self.const(v * self.shape.vector)),
            )
        elif isinstance(node, Slice):
            result = self.evaluate(node.tile, row, v, memo, offset + node.start)
        elif isinstance(node, Gather):
            result = self.evaluate(node.tile, self._gathered(node, row, offset, memo), v, memo)
        elif isinstance(node, Product):
            result = self._narrow_product(node, row, v, memo, offset)
        elif isinstance(node, Pointwise):
            result = self._pointwise(node, row, v, memo, offset)
        else:
            raise AssertionError(f"{node} has no place in memory")
        memo[key] = result
        return result

    @staticmethod
    def _key(node: Operand, row: Any, offset: int, *more: Any) -> tuple[Any, ...]:
        """What a value in a loop depends on: the node, the row and the offset, and the lanes or the column."""
        if isinstance(node, TILES) and node.features == 1:
            return (node, 0, 0, *more)
        return (node, f"#{row.constant}" if isinstance(row, ir.Constant) else id(row), offset, *more)

    def _gathered(self, node: Gather, row: Any, offset: int, memo: dict[Any, Any]) -> Any:
        """The row that a gather's table has for this one."""
        key = self._key(node, row, offset, "row")
        if key not in memo:
            if node not in self._tables:
                kind = ir.ArrayType(I32, len(node.table))
                table = ir.GlobalVariable(self.module, kind, f"table{len(self._tables)}")
                table.initializer = ir.Constant(kind, node.table)  # type: ignore[assignment]
                table.global_constant, table.linkage = True, "internal"
                self._tables[node] = table
            index = self.builder.add(row, self.const(offset)) if offset else row
            where = self.builder.gep(self._tables[node], [self.const(0), index])
            memo[key] = self.builder.sext(self.builder.load(where, typ=I32), I64)
        return memo[key]

    def _pointwise(self, node: Pointwise, row: Any, v: int, memo: dict[Any, Vec], offset: int) -> Vec:
        if node.op == "pow" and isinstance(node.args[1], Constant):
            return elementary.pow_scalar(self.evaluate(node.args[0], row, v, memo, offset), float(node.args[1].value))
        return OPERATORS[node.op](*(self.evaluate(arg, row, v, memo, offset) for arg in node.args))

    def _weight(self, weight: Weight, row: Any, offset: int, memo: dict[Any, Vec]) -> Vec:
        if math.prod(weight.shape) == 1:
            if weight not in self._scalars:  # before the loop over time
                value = self.entry.load(self.arg(f"w{weight.index}"), typ=self.element)
                self._scalars[weight] = self.splat(value, self.entry)
            value = self._scalars[weight]
        else:
            key = self._key(weight, row, offset)
            if key not in memo:
                index = self.builder.add(row, self.const(offset)) if offset else row
                where = self.at(self.arg(f"w{weight.index}"), index)
                memo[key] = self.splat(self.builder.load(where, typ=self.element))
            value = memo[key]
        return value != 0.0 if weight.is_mask else value

    def _narrow_product(self, node: Product, row: Any, v: int, memo: dict[Any, Vec], offset: int) -> Vec:
        """Σ_k matrix[k, f] tile[k]: the matrix lies transposed, a row of it a feature."""
        width, source = node.tile.features, self._source(node.tile)
        index = self.mul(self.builder.add(row, self.const(offset)), self.const(width))
        total: Vec | None = None
        for k in range(width):
            key = self._key(node, row, offset, "weight", k)
            if key not in memo:
                where = self.at(self.arg(f"m{node.matrix.index}"), self.builder.add(index, self.const(k)))
                memo[key] = self.splat(self.builder.load(where, typ=self.element))
            other = self.load(source, self.const(k * self.shape.lanes + v * self.shape.vector))
            total = memo[key] * other if total is None else fma(memo[key], other, total)
        assert total is not None
        return total

    # -- statements ---------------------------------------------------------------------------------------------------

    def statements(self) -> None:
        for statement in self.plan.statements:
            match statement:
                case Loop():
                    self._loop_statement(statement)
                case Product():
                    self._product(statement)
                case Fold():
                    self._fold(statement)
                case Running():
                    self._running(statement)
                case Rotate():
                    self._rotate(statement)
                case RotateBack():
                    self._rotate_back(statement)
                case Outer():
                    self._outer(statement)

    def _tile_offset(self, row: Any, v: int) -> Any:
        return self.builder.add(self.mul(row, self.const(self.shape.lanes)), self.const(v * self.shape.vector))

    def _loop_statement(self, loop: Loop) -> None:
        def body(f: Any) -> None:
            memo: dict[Any, Vec] = {}
            values: list[tuple[Write, int, Vec]] = []
            for v in range(self.groups):
                for write in loop.writes:
                    value = self.evaluate(write.value, f, v, memo, root=write.target is write.value)
                    if write.target is write.value:
                        memo[self._key(write.value, f, 0, v)] = value
                    values.append((write, v, value))
                for reduction in loop.sums:
                    wide = reduction.tile if isinstance(reduction, RowSum) else self._wide(reduction)
                    self.evaluate(wide, f, v, memo)
            for write, v, value in values:
                row = self.builder.add(f, self.const(write.offset)) if write.offset else f
                self.store(value, self.slots[write.target], self._tile_offset(row, v))
            for reduction in loop.sums:
                self._add_to_sum(reduction, f, memo)

        self.loop(loop.features, body)

    @staticmethod
    def _wide(outer: Outer) -> Tile:
        return outer.left if narrow_side(outer) == "right" else outer.right

    def _add_to_sum(self, reduction: RowSum | Outer, f: Any, memo: dict[Any, Vec]) -> None:
        target = self.arg(f"r{self.plan.program.reductions.index(reduction)}")
        size = self.shape.vector
        wide = reduction.tile if isinstance(reduction, RowSum) else self._wide(reduction)
        values = [self.if_alive(v, self.evaluate(wide, f, v, memo), 0.0) for v in range(self.groups)]
        if isinstance(reduction, RowSum):
            where = self.mul(f, self.const(size))
            self.store(functools.reduce(lambda a, b: a + b, values, self.load(target, where)), target, where)
            return
        narrow = reduction.right if wide is reduction.left else reduction.left
        for j in range(narrow.features):
            where = self.mul(
                self.builder.add(self.mul(f, self.const(narrow.features)), self.const(j)), self.const(size)
            )
            total = self.load(target, where)
            for v, value in enumerate(values):
                other = self.load(self.slots[narrow], self.const(j * self.shape.lanes + v * size))
                total = fma(value, self.if_alive(v, other, 0.0), total)
            self.store(total, target, where)

    def _product(self, node: Product) -> None:
        """A panel of rows and two vectors of lanes at a time, in registers; the matrix lies as (panel, k, row)."""
        rows, depth = panel_rows(self.shape), node.tile.features
        panels, wide = math.ceil(node.features / rows), min(2, self.groups)
        matrix, tile, result = self.arg(f"p{node.matrix.index}"), self._source(node.tile), self.slots[node]
        unroll = next(n for n in (4, 2, 1) if depth % n == 0)

        def panel(p: Any, groups: range) -> None:
            start = self.mul(p, self.const(depth * rows))
            zeros = [self.number(0.0).value] * (rows * wide)

            def column(k: Any, totals: list[Any]) -> list[Any]:
                totals = [self.vec(t) for t in totals]
                for u in range(unroll):
                    index = self.builder.add(k, self.const(u))
                    lanes = [self.load(tile, self._tile_offset(index, v)) for v in groups]
                    for r in range(rows):
                        row = self.builder.add(self.mul(index, self.const(rows)), self.const(r))
                        where = self.builder.add(start, row)
                        weight = self.splat(self.builder.load(self.at(matrix, where), typ=self.element))
                        for v in range(wide):
                            totals[r * wide + v] = fma(weight, lanes[v], totals[r * wide + v])
                return [t.value for t in totals]

            totals = self.loop_with(depth, zeros, column, step=unroll)
            for r in range(rows):
                row = self.builder.add(self.mul(p, self.const(rows)), self.const(r))
                for i, v in enumerate(groups):
                    self.store(self.vec(totals[r * wide + i]), result, self._tile_offset(row, v))

        def every_group(p: Any) -> None:
            for first in range(0, self.groups, wide):  # the panel stays in the first cache for the second pair
                panel(p, range(first, first + wide))

        self.loop(panels, every_group)

    def _outer(self, node: Outer) -> None:
        """Add left ⊗ right to its sum: a panel of rows and two vectors of columns at a time, lane by lane."""
        rows, size, lanes = panel_rows(self.shape), self.shape.vector, self.shape.lanes
        height, width = outer_size(node, self.shape)
        target = self.arg(f"r{self.plan.program.reductions.index(node)}")
        left = self._living(self.slots[node.left], node.left.features)
        turned = self.scratch(width)  # (lane, column)
        right = self._living(self.slots[node.right], node.right.features)
        self.store_tile(right, turned, self.const(width), node.right.features, every_lane=True)
        unroll = next(n for n in (4, 2, 1) if lanes % n == 0)

        def block(j: Any) -> None:
            def panel(p: Any) -> None:
                first = self.mul(p, self.const(rows))
                places = []
                for r in range(rows):
                    start = self.builder.add(self.mul(self.builder.add(first, self.const(r)), self.const(width)), j)
                    places += [self.builder.add(start, self.const(v * size)) for v in range(2)]

                def lane(k: Any, totals: list[Any]) -> list[Any]:
                    totals = [self.vec(t) for t in totals]
                    for u in range(unroll):
                        index = self.builder.add(k, self.const(u))
                        start = self.builder.add(self.mul(index, self.const(width)), j)
                        columns = [self.load(turned, self.builder.add(start, self.const(v * size))) for v in range(2)]
                        for r in range(rows):
                            row = self.mul(self.builder.add(first, self.const(r)), self.const(lanes))
                            where = self.at(left, self.builder.add(row, index))
                            weight = self.splat(self.builder.load(where, typ=self.element))
                            for v in range(2):
                                totals[2 * r + v] = fma(weight, columns[v], totals[2 * r + v])
                    return [t.value for t in totals]

                totals = self.loop_with(lanes, [self.load(target, place).value for place in places], lane, step=unroll)
                for place, total in zip(places, totals, strict=True):
                    self.store(self.vec(total), target, place)

            self.loop(height // rows, panel)

        self.loop(width, block, step=2 * size)

    def _living(self, tile: Any, features: int) -> Any:
        """The tile, or in a masked kernel a copy of it with zeros for samples that are not alive."""
        if not self.shape.masked:
            return tile
        copy = self.scratch(features)

        def body(f: Any) -> None:
            for v in range(self.groups):
                offset = self._tile_offset(f, v)
                self.store(self.if_alive(v, self.load(tile, offset), 0.0), copy, offset)

        self.loop(features, body)
        return copy

    def _source(self, tile: Tile) -> Any:
        """Where the rows of a tile lie that is in memory, or that is a slice of one."""
        if tile in self.slots:
            return self.slots[tile]
        assert isinstance(tile, Slice)
        return self.at(self._source(tile.tile), self.const(tile.start * self.shape.lanes))

    def _fold(self, node: Fold) -> None:
        start = [self.number(0.0 if node.op == "add" else -math.inf).value] * self.groups

        def group(g: Any) -> None:
            first = self.mul(g, self.const(node.size))

            def body(f: Any, totals: list[Any]) -> list[Any]:
                memo: dict[Any, Vec] = {}
                row = self.builder.add(first, f)
                new = [self.evaluate(node.tile, row, v, memo) for v in range(self.groups)]
                return [OPERATORS[node.op](self.vec(t), value).value for t, value in zip(totals, new, strict=True)]

            totals = self.loop_with(node.size, start, body)
            for v, total in enumerate(totals):
                self.store(self.vec(total), self.slots[node], self._tile_offset(g, v))

        self.loop(node.features, group)

    def _running(self, node: Running) -> None:
        start = [self.number(0.0).value] * self.groups

        def group(g: Any) -> None:
            first = self.mul(g, self.const(node.size))

            def body(f: Any, totals: list[Any]) -> list[Any]:
                memo: dict[Any, Vec] = {}
                row = self.builder.add(first, f)
                new = [self.vec(t) + self.evaluate(node.tile, row, v, memo) for v, t in enumerate(totals)]
                for v, total in enumerate(new):
                    self.store(total, self.slots[node], self._tile_offset(row, v))
                return [total.value for total in new]

            self.loop_with(node.size, start, body)

        self.loop(node.features // node.size, group)

    # Note [Rotations in place]
    # Permutations cost nothing: a row stays where it is, and the table of pairs says which two rows turn together. Rows
    # are laid out so that after the last sublayer row p is feature p; ``starts`` says in which row feature f begins.

    def _table(self, node: Rotate | RotateBack, pair: Any) -> tuple[list[Any], Vec, Vec]:
        index, two = node.angles.index, self.mul(pair, self.const(2))
        rows = []
        for j in range(2):
            where = self.builder.gep(
                self.arg(f"pairs{index}"), [self.builder.add(two, self.const(j))], source_etype=I64
            )
            rows.append(self.builder.load(where, typ=I64))
        turns = self.arg(f"turns{index}")
        cos, sin = (
            self.splat(self.builder.load(self.at(turns, self.builder.add(two, self.const(j))), typ=self.element))
            for j in range(2)
        )
        return rows, cos, sin

    def _start_row(self, node: Rotate | RotateBack, f: Any) -> Any:
        where = self.builder.gep(self.arg(f"starts{node.angles.index}"), [f], source_etype=I64)
        return self.builder.load(where, typ=I64)

    def _pair_offset(self, row: Any, v: int) -> Any:
        return self.builder.add(row, self.const(v * self.shape.vector))

    def _rotate(self, node: Rotate) -> None:
        target, pairs = self.slots[node], math.prod(node.angles.shape)

        def start(f: Any) -> None:
            memo: dict[Any, Vec] = {}
            row = self._start_row(node, f)
            for v in range(self.groups):
                self.store(self.evaluate(node.tile, f, v, memo), target, self._pair_offset(row, v))

        def turn(pair: Any) -> None:
            rows, cos, sin = self._table(node, pair)
            ends = [[self.load(target, self._pair_offset(row, v)) for v in range(self.groups)] for row in rows]
            for v, (a, b) in enumerate(zip(*ends, strict=True)):
                self.store(fma(cos, a, -(sin * b)), target, self._pair_offset(rows[0], v))
                self.store(fma(sin, a, cos * b), target, self._pair_offset(rows[1], v))

        self.loop(node.features, start)
        self.loop(pairs, turn)

    def _rotate_back(self, node: RotateBack) -> None:
        outputs, grads, pairs = self.scratch(node.features), self.scratch(node.features), math.prod(node.angles.shape)
        reductions = self.plan.program.reductions
        index = next((i for i, r in enumerate(reductions) if isinstance(r, AngleSum) and r.source is node), None)

        def start(f: Any) -> None:
            memo: dict[Any, Vec] = {}
            for v in range(self.groups):
                grad = self.if_alive(v, self.evaluate(node.grad, f, v, memo), 0.0)
                self.store(grad, grads, self._tile_offset(f, v))
                if index is not None:
                    self.store(self.evaluate(node.output, f, v, memo), outputs, self._tile_offset(f, v))

        def turn(i: Any) -> None:
            pair = self.sub(self.const(pairs - 1), i)
            rows, cos, sin = self._table(node, pair)
            g = [[self.load(grads, self._pair_offset(row, v)) for v in range(self.groups)] for row in rows]
            if index is not None:
                y = [[self.load(outputs, self._pair_offset(row, v)) for v in range(self.groups)] for row in rows]
                where, target = self.mul(pair, self.const(self.shape.vector)), self.arg(f"r{index}")
                total = self.load(target, where)
                for v in range(self.groups):  # dθ = Σ (g_b y_a - g_a y_b)
                    total = fma(g[1][v], y[0][v], total)
                    total = fma(-g[0][v], y[1][v], total)
                self.store(total, target, where)
                self._turn_back(outputs, rows, cos, sin, y)
            self._turn_back(grads, rows, cos, sin, g)

        def end(f: Any) -> None:
            row = self._start_row(node, f)
            for v in range(self.groups):
                self.store(self.load(grads, self._pair_offset(row, v)), self.slots[node], self._tile_offset(f, v))

        self.loop(node.features, start)
        self.loop(pairs, turn)
        self.loop(node.features, end)

    def _turn_back(self, tile: Any, rows: list[Any], cos: Vec, sin: Vec, ends: list[list[Vec]]) -> None:
        for v, (a, b) in enumerate(zip(*ends, strict=True)):
            self.store(fma(cos, a, sin * b), tile, self._pair_offset(rows[0], v))
            self.store(fma(cos, b, -(sin * a)), tile, self._pair_offset(rows[1], v))

    # -- states and gradients between steps -------------------------------------------------------------------------

    def put_in_place(self, places: dict[Tile, Any]) -> list[Any]:
        """Let statements write a result straight to where it is wanted. Not for an input passed on, nor for a tile that
        has its place already (it is kept, or is another result too): those are copied.
        """
        taken = []
        for tile, place in places.items():
            if tile in self.plan.memory and tile not in self.slots:
                self.slots[tile] = place
                taken.append(place)
        return taken

    def copy_state(self, value: Tile, before: Input, target: Any) -> None:
        """The new state to its place, or, for a sample that is not alive, the old one."""

        def body(f: Any) -> None:
            memo: dict[Any, Vec] = {}
            for v in range(self.groups):
                new = self.evaluate(value, f, v, memo)
                if self.shape.masked:
                    new = self.if_alive(v, new, self.load(self.slots[before], self._tile_offset(f, v)))
                self.store(new, target, self._tile_offset(f, v))

        self.loop(value.features, body)

    def revive(self, tile: Any, start: Any, t: Any, features: int) -> None:
        """Where a sample was not alive at ``t``, its state is still the first one."""
        masks = self.alive_at(t)

        def body(f: Any) -> None:
            for v in range(self.groups):
                offset = self._tile_offset(f, v)
                self.store(select(masks[v], self.load(tile, offset), self.load(start, offset)), tile, offset)

        self.loop(features, body)

    def total_grad(self, carried: Any, fresh: Any | None, target: Any, features: int) -> None:
        """What reaches the new state: from later steps and from this step's output; nothing for a sample not alive."""
        if fresh is None and not self.shape.masked:
            return

        def body(f: Any) -> None:
            for v in range(self.groups):
                offset = self._tile_offset(f, v)
                total = self.load(carried, offset)
                if fresh is not None:
                    total = total + self.load(fresh, offset)
                if self.shape.masked:
                    self.store(self.if_alive(v, total, 0.0), target, offset)
                else:
                    self.store(total, carried, offset)

        self.loop(features, body)

    def pass_grad(self, value: Tile | None, carried: Any, target: Any, features: int) -> None:
        """The old state's gradient, for the step before; a sample that is not alive passes on what came."""

        def body(f: Any) -> None:
            memo: dict[Any, Vec] = {}
            for v in range(self.groups):
                offset = self._tile_offset(f, v)
                grad = self.number(0.0) if value is None else self.evaluate(value, f, v, memo)
                if self.shape.masked:
                    self.store(self.if_alive(v, grad, self.load(carried, offset)), carried, offset)
                else:
                    self.store(grad, target, offset)

        self.loop(features, body)


def kept_rows(features: int, shape: Shape) -> int:
    """Rows that a kept tile takes: whole panels of a product."""
    rows = panel_rows(shape)
    return math.ceil(features / rows) * rows
