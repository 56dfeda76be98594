"""Scheduled tile programs to LLVM assembly: the fourth stage.

    emit_forward(schedule, ...), emit_backward(schedule, ...)  →  Kernel(text, arguments, work)

A kernel runs all steps for one block of samples. Every operation is on whole vectors (tile_builder.py); statements.py
and expressions.py write what happens inside a step, this file what happens between steps.

Two variants: a plain one, for blocks whose samples all live through all steps; and a masked one, where sample b lives
in steps birth[b] ≤ t < death[b]: outside of them its state stands still, its output is zero and it adds to no sum. A
block with fewer samples than lanes is a masked one whose spare lanes never live.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection

from holdfast.engine.program.schedule import Schedule
from holdfast.engine.program.tiles import Input, Kind, Slot, Tile
from holdfast.engine.targets.cpu.arguments import Argument, Role
from holdfast.engine.targets.cpu.expressions import Memo, evaluate
from holdfast.engine.targets.cpu.shape import Shape
from holdfast.engine.targets.cpu.statements import write_statements
from holdfast.engine.targets.cpu.team import Compiled
from holdfast.engine.targets.cpu.tile_builder import TileBuilder
from holdfast.engine.targets.cpu.vec import Value, Vec, select

__all__ = ["Kernel", "emit_backward", "emit_forward"]


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """``text``: LLVM assembly of a function ``run``; ``arguments``: what the entries of its parameter are; ``work``:
    how many elements of scratch memory it needs.
    """

    text: str
    arguments: tuple[Argument, ...]
    work: int

    @functools.cached_property
    def compiled(self) -> Compiled:
        return Compiled(self.text)


def emit_forward(schedule: Schedule, shape: Shape, *, output: bool, keep: Collection[Slot]) -> Kernel:
    """All steps, first to last.

    Args:
        output: whether the first state of every step is written.
        keep: the states and the saved tiles that are kept for backward.
    """
    k = TileBuilder(schedule, shape)
    inputs, saved = schedule.program.inputs, schedule.program.saved
    states = {slot: (inputs[slot], new) for slot, new in schedule.program.outputs.items() if new is not None}
    for slot, (old, _) in states.items():
        k.load_tile(k.place(old), *k.rows(Role.FIRST, slot.index), old.features)
    spare = {slot: k.scratch(new.features) for slot, (_, new) in states.items() if slot not in keep}
    streams = _streams(k)

    def step(t: Value, pointers: list[Value]) -> list[Value]:
        current = dict(zip(states, pointers, strict=False))
        target = dict(zip(spare, pointers[len(states) :], strict=True))
        k.places.update((states[slot][0], pointer) for slot, pointer in current.items())
        k.load_streams(streams, t)
        k.begin_step(t)
        for slot, (_, new) in states.items():
            if slot in keep:
                target[slot] = k.tile_at(t, new, Role.STATES, slot.index)
        for tile in schedule.memory:
            if tile in saved and Slot(Kind.SAVED, saved.index(tile)) in keep:
                k.places[tile] = k.tile_at(t, tile, Role.SAVED, saved.index(tile))
        in_place = k.put_in_place({new: target[slot] for slot, (_, new) in states.items()})
        k.place_rest()
        write_statements(k)
        for slot, (old, new) in states.items():
            if shape.masked or target[slot] not in in_place:
                _copy_state(k, new, old, target[slot])
        if output:
            first = Slot(Kind.STATE)
            k.store_tile(target[first], *k.rows_at(t, Role.OUTPUT), inputs[first].features, zero_dead=True)
        return [target[slot] for slot in states] + [current[slot] for slot in spare]

    start = [k.places[old] for old, _ in states.values()] + list(spare.values())
    last = k.time_loop(step, start, backwards=False)
    for (slot, (old, _)), pointer in zip(states.items(), last, strict=False):
        k.store_tile(pointer, *k.rows(Role.LAST, slot.index), old.features)
    return _kernel(k)


def emit_backward(
    schedule: Schedule, shape: Shape, *, state_sizes: tuple[int, ...], output_grad: bool, stored: tuple[Tile, ...]
) -> Kernel:
    """All steps, last to first.

    Args:
        state_sizes: features of each entry of the state.
        output_grad: whether the first state of every step has a gradient of its own.
        stored: tiles that are written for every step, for the products after the loop.
    """
    k = TileBuilder(schedule, shape)
    inputs, outputs = schedule.program.inputs, schedule.program.outputs
    states, count = range(len(state_sizes)), len(state_sizes)
    grads, others = ([k.scratch(size) for size in state_sizes] for _ in range(2))
    for i, pointer in enumerate(grads):
        k.load_tile(pointer, *k.rows(Role.LAST_GRAD, i), state_sizes[i])
    fresh = k.scratch(state_sizes[0]) if output_grad else None
    starts = {}
    for i in states:
        if Slot(Kind.STATE, i) in inputs:
            starts[i] = k.scratch(state_sizes[i])
            k.load_tile(starts[i], *k.rows(Role.FIRST, i), state_sizes[i])
    streams = _streams(k)
    old, new = inputs.get(Slot(Kind.STATE)), inputs.get(Slot(Kind.NEW))
    first_states = [k.scratch(state_sizes[0]) for _ in range(2)] if old or new else []  # before the step and after
    if new:
        k.load_tile(first_states[1], *k.rows_at(k.sub(k.steps, 1), Role.OUTPUT), new.features)

    def step(t: Value, pointers: list[Value]) -> list[Value]:
        current, free, first_states = pointers[:count], pointers[count : 2 * count], pointers[2 * count :]
        k.begin_step(t)
        k.load_streams(streams, t)
        before = k.sub(t, 1)
        is_first = k.builder.icmp_signed("==", t, k.const(0))
        if first_states:
            (start, start_row), (earlier, row) = k.rows(Role.FIRST), k.rows_at(before, Role.OUTPUT)
            place = k.builder.select(is_first, start, earlier)
            k.load_tile(first_states[0], place, k.builder.select(is_first, start_row, row), state_sizes[0])
            if shape.masked and old:
                _revive(k, first_states[0], starts[0], before, state_sizes[0])
            k.places.update((tile, place) for tile, place in zip((old, new), first_states, strict=True) if tile)
        for i in states[1:]:
            for kind, when in ((Kind.STATE, before), (Kind.NEW, t)):
                tile = inputs.get(Slot(kind, i))
                if tile:
                    place = k.tile_at(when, tile, Role.STATES, i)
                    k.places[tile] = place if kind is Kind.NEW else k.builder.select(is_first, starts[i], place)
        for slot, tile in inputs.items():
            if slot.kind is Kind.SAVED:
                k.places[tile] = k.tile_at(t, tile, Role.SAVED, slot.index)
        for i, size in enumerate(state_sizes):
            if i == 0 and fresh is not None:
                k.load_tile(fresh, *k.rows_at(t, Role.OUTPUT_GRAD), size)
            _total_grad(k, current[i], fresh if i == 0 else None, free[i], size)
            cotangent = inputs.get(Slot(Kind.COTANGENT, i))
            if cotangent:
                k.places[cotangent] = free[i] if shape.masked else current[i]
        results = [outputs[Slot(Kind.STATE, i)] for i in states]
        wanted = {tile: place for tile, place in zip(results, free, strict=True) if tile}
        in_place = [] if shape.masked else k.put_in_place(wanted)
        k.place_rest()
        write_statements(k)
        written = [(Role.SOURCE_GRAD, 0, outputs[Slot(Kind.SOURCE)])]
        written += [(Role.STORED, j, tile) for j, tile in enumerate(stored)]
        for role, j, tile in written:
            if tile:
                k.store_tile(k.places[tile], *k.rows_at(t, role, j), tile.features, zero_dead=True)
        for i, size in enumerate(state_sizes):
            if free[i] not in in_place:
                _pass_grad(k, results[i], current[i], free[i], size)
        # this step's old state is the new state of the step before
        return [*((*current, *free) if shape.masked else (*free, *current)), *reversed(first_states)]

    last = k.time_loop(step, [*grads, *others, *first_states], backwards=True)
    for i, size in enumerate(state_sizes):
        k.store_tile(last[i], *k.rows(Role.FIRST_GRAD, i), size)
    return _kernel(k)


def _kernel(k: TileBuilder) -> Kernel:
    text = k.text()
    return Kernel(text, tuple(a for a in k.arguments if isinstance(a, Argument)), k.work)


def _streams(k: TileBuilder) -> dict[tuple[Role, int], Input]:
    """Inputs that come from outside at every step, with their arguments; they get a place here."""
    roles = {Kind.SOURCE: Role.SOURCE, Kind.NOISE: Role.NOISE}
    found = {(roles[s.kind], s.index): tile for s, tile in k.schedule.program.inputs.items() if s.kind in roles}
    for tile in found.values():
        k.place(tile)
    return found


def _copy_state(k: TileBuilder, value: Tile, before: Input, target: Value) -> None:
    """The new state to its place, or, for a sample that is not alive, the old one."""

    def body(f: Value) -> None:
        memo: Memo = {}
        for v in range(k.groups):
            new = evaluate(k, value, f, v, memo)
            if k.shape.masked:
                new = k.if_alive(v, new, k.load(k.places[before], k.offset(f, v)))
            k.store(new, target, k.offset(f, v))

    k.loop(value.features, body)


def _revive(k: TileBuilder, tile: Value, start: Value, t: Value, features: int) -> None:
    """Where a sample was not alive at ``t``, its state is still the first one."""
    masks = k.alive_at(t)

    def body(_: Value, v: int, offset: Value) -> None:
        k.store(select(masks[v], k.load(tile, offset), k.load(start, offset)), tile, offset)

    k.each_vector(features, body)


def _total_grad(k: TileBuilder, carried: Value, fresh: Value | None, target: Value, features: int) -> None:
    """What reaches the new state: from later steps and from this step's output; nothing for a sample not alive."""
    if fresh is None and not k.shape.masked:
        return

    def body(_: Value, v: int, offset: Value) -> None:
        total = k.load(carried, offset)
        if fresh is not None:
            total = total + k.load(fresh, offset)
        k.store(k.if_alive(v, total, 0.0), target if k.shape.masked else carried, offset)

    k.each_vector(features, body)


def _pass_grad(k: TileBuilder, value: Tile | None, carried: Value, target: Value, features: int) -> None:
    """The old state's gradient, for the step before; a sample that is not alive passes on what came."""

    def body(f: Value) -> None:
        memo: Memo = {}
        for v in range(k.groups):
            offset = k.offset(f, v)
            grad: Vec = k.number(0.0) if value is None else evaluate(k, value, f, v, memo)
            if k.shape.masked:
                k.store(k.if_alive(v, grad, k.load(carried, offset)), carried, offset)
            else:
                k.store(grad, target, offset)

    k.loop(features, body)
