"""Scheduled tile programs to LLVM assembly, with lanes over features: what happens between steps.

    emit_forward(schedule, ...), emit_backward(schedule, ...)  →  Kernel(text, arguments, work)

As emit.py, for batches that do not fill the lanes of a vector and for weights that do not fit the caches: all threads
run through the steps together (feature_builder.py). All samples live through all steps.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.engine.program.schedule import Schedule
from holdfast.engine.program.tiles import Input, Kind, Slot, Tile
from holdfast.engine.targets.cpu.arguments import Argument, Role
from holdfast.engine.targets.cpu.builder import Int
from holdfast.engine.targets.cpu.emit import Kernel
from holdfast.engine.targets.cpu.feature_builder import FeatureBuilder, Rows
from holdfast.engine.targets.cpu.shape import FeatureShape
from holdfast.engine.targets.cpu.step_kernel import evaluate, padded
from holdfast.engine.targets.cpu.team import add_together
from holdfast.engine.targets.cpu.vec import Value

__all__ = ["emit_features_backward", "emit_features_forward"]

STREAMS = {Kind.SOURCE: Role.SOURCE, Kind.NOISE: Role.NOISE}


def emit_features_forward(schedule: Schedule, shape: FeatureShape, *, output: bool, keep: Collection[Slot]) -> Kernel:
    """All steps, first to last; ``output`` and ``keep`` as in emit.py."""
    inputs, saved = schedule.program.inputs, schedule.program.saved
    states = {slot: (inputs[slot], new) for slot, new in schedule.program.outputs.items() if new is not None}
    first = Slot(Kind.STATE)
    k = FeatureBuilder(schedule, shape, inputs[first].features)
    start = [_copied_in(k, Role.FIRST, slot.index, old.features) for slot, (old, _) in states.items()]
    spare = {slot: k.scratch_rows(new.features) for slot, (_, new) in states.items() if slot not in keep}
    k.wait()

    def step(t: Value, pointers: list[Value]) -> list[Value]:
        current = dict(zip(states, pointers, strict=False))
        target = dict(zip(spare, pointers[len(states) :], strict=True))
        k.rows = {states[slot][0]: _tile(k, pointer, states[slot][0]) for slot, pointer in current.items()}
        k.rows |= {tile: k.rows_of(STREAMS[s.kind], s.index, t) for s, tile in inputs.items() if s.kind in STREAMS}
        for tile in schedule.memory:
            if tile in saved and Slot(Kind.SAVED, saved.index(tile)) in keep:
                k.rows[tile] = k.kept_at(t, tile, Role.SAVED, saved.index(tile))
        places = {slot: _tile(k, pointer, states[slot][1]) for slot, pointer in target.items()}
        for slot, (_, new) in states.items():
            if slot in keep:
                places[slot] = k.kept_at(t, new, Role.STATES, slot.index)
        in_place = _put_in_place(k, {places[slot]: new for slot, (_, new) in states.items()})
        k.place_rest()
        k.write_statements()
        for slot, (_, new) in states.items():
            if places[slot] not in in_place:
                _copy(k, new, places[slot])
        if output:
            _copy(k, inputs[first], k.rows_of(Role.OUTPUT, 0, t), of=places[first])
        k.wait()
        return [places[slot].pointer for slot in states] + [current[slot] for slot in spare]

    last = k.loop_with(k.steps, [r.pointer for r in (*start, *spare.values())], step)
    for (slot, (old, _)), pointer in zip(states.items(), last, strict=False):
        _copy(k, old, k.rows_of(Role.LAST, slot.index), of=_tile(k, pointer, old))
    return _kernel(k)


def emit_features_backward(
    schedule: Schedule,
    shape: FeatureShape,
    *,
    state_sizes: tuple[int, ...],
    output_grad: bool,
    stored: tuple[Tile, ...],
) -> Kernel:
    """All steps, last to first; the arguments as in emit.py."""
    k = FeatureBuilder(schedule, shape, state_sizes[0])
    inputs, outputs, count = schedule.program.inputs, schedule.program.outputs, len(state_sizes)
    grads = [_copied_in(k, Role.LAST_GRAD, i, size) for i, size in enumerate(state_sizes)]
    others = [k.scratch_rows(size) for size in state_sizes]
    k.wait()

    def step(i: Value, pointers: list[Value]) -> list[Value]:
        t = k.sub(k.sub(k.steps, 1), i)
        current = [Rows(p, grads[j].stride) for j, p in enumerate(pointers[:count])]
        free = [Rows(p, grads[j].stride) for j, p in enumerate(pointers[count:])]
        k.rows = {}
        for slot, tile in inputs.items():
            k.rows[tile] = _input(k, slot, tile, t, current)
        if output_grad:
            cotangent = inputs.get(Slot(Kind.COTANGENT)) or Input(Slot(Kind.COTANGENT), state_sizes[0])
            _add(k, cotangent, current[0], k.rows_of(Role.OUTPUT_GRAD, 0, t))
        results = [outputs[Slot(Kind.STATE, j)] for j in range(count)]
        written = {k.rows_of(Role.STORED, j, t): tile for j, tile in enumerate(stored)}
        if (source := outputs[Slot(Kind.SOURCE)]) is not None:
            written[k.rows_of(Role.SOURCE_GRAD, 0, t)] = source
        wanted = {place: tile for place, tile in zip(free, results, strict=True) if tile}
        in_place = _put_in_place(k, wanted | written)
        k.place_rest()
        k.write_statements()
        for place, tile in (written | dict(zip(free, results, strict=True))).items():
            if place not in in_place:
                _copy(k, tile or Input(Slot(Kind.COTANGENT), state_sizes[free.index(place)]), place, zero=tile is None)
        k.wait()
        return [r.pointer for r in (*free, *current)]

    last = k.loop_with(k.steps, [r.pointer for r in (*grads, *others)], step)
    for j, size in enumerate(state_sizes):
        _copy(k, tile := Input(Slot(Kind.STATE, j), size), k.rows_of(Role.FIRST_GRAD, j), of=_tile(k, last[j], tile))
    return _kernel(k)


def _input(k: FeatureBuilder, slot: Slot, tile: Input, t: Value, grads: list[Rows]) -> Rows:
    """Where an input of a backward step lies."""
    match slot.kind:
        case Kind.COTANGENT:
            return grads[slot.index]
        case Kind.SAVED:
            return k.kept_at(t, tile, Role.SAVED, slot.index)
        case Kind.NEW:
            return k.rows_of(Role.OUTPUT, 0, t) if slot.index == 0 else k.kept_at(t, tile, Role.STATES, slot.index)
        case Kind.STATE:
            before, start = k.sub(t, 1), k.rows_of(Role.FIRST, slot.index)
            earlier = k.rows_of(Role.OUTPUT, 0, before)
            if slot.index:
                earlier = k.kept_at(before, tile, Role.STATES, slot.index)
            is_first = k.builder.icmp_signed("==", t, k.const(0))
            pairs = ((start.pointer, earlier.pointer), (start.stride, earlier.stride))
            return Rows(*(k.builder.select(is_first, k.const(a), k.const(b)) for a, b in pairs))
        case _:
            return k.rows_of(STREAMS[slot.kind], slot.index, t)


def _tile(k: FeatureBuilder, pointer: Value, tile: Tile) -> Rows:
    return Rows(pointer, padded(tile.features, k.width))


def _copied_in(k: FeatureBuilder, role: Role, index: int, features: int) -> Rows:
    rows, tile = k.scratch_rows(features), Input(Slot(Kind.STATE, index), features)
    _copy(k, tile, rows, of=k.rows_of(role, index))
    return rows


def _put_in_place(k: FeatureBuilder, wanted: dict[Rows, Tile]) -> list[Rows]:
    """As ``TileBuilder.put_in_place``."""
    taken = []
    for place, tile in wanted.items():
        if tile in k.schedule.memory and tile not in k.rows:
            k.rows[tile] = place
            taken.append(place)
    return taken


def _copy(k: FeatureBuilder, value: Tile, target: Rows, *, of: Rows | None = None, zero: bool = False) -> None:
    """This worker's part of a tile to another place."""
    if of is None and not zero:
        k.needs(value, k.unit(value.features))

    def sample() -> None:
        place = k.row_of(target, k.sample)
        source = None if of is None else k.row_of(of, k.sample)

        def body(f: Int, count: int) -> None:
            if zero:
                vector = k.number(0.0)
            else:
                vector = evaluate(k, value, k.const(f), {}) if source is None else k.load(source, f)
            k.put(vector, place, f, count)

        k.vectors(value.features, body)

    k.each_sample(sample)


def _add(k: FeatureBuilder, tile: Input, target: Rows, fresh: Rows) -> None:
    """What reaches a state from this step's output, added to what came from later steps."""

    def sample() -> None:
        place, other = k.row_of(target, k.sample), k.row_of(fresh, k.sample)
        k.vectors(tile.features, lambda f, count: k.put(k.load(place, f) + k.load(other, f), place, f, count))

    k.each_sample(sample)
    k.wrote(tile, k.unit(tile.features))


def _kernel(k: FeatureBuilder) -> Kernel:
    k.wait()
    add_together(k.module, k.function)
    return Kernel(k.text(), tuple(a for a in k.arguments if isinstance(a, Argument)), k.work)
