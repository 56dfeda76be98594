"""The statements of a schedule as lines of C, one function for each kind."""

from __future__ import annotations

import functools

from holdfast.engine.program.schedule import Loop, Statement
from holdfast.engine.program.tiles import Fold, Input, Kind, Product, Rotate, Running, Slice, Slot, Tile
from holdfast.engine.targets.c.emitter import Emitter
from holdfast.engine.targets.c.expressions import Body, shifted
from holdfast.engine.targets.c.operators import bare

__all__ = ["write_statements"]


def write_statements(e: Emitter) -> None:
    """Every statement, then the new states that are not in their place yet."""
    schedule = e.step.schedule
    moved = {
        slot: new
        for slot, new in schedule.program.outputs.items()
        if isinstance(new, Input) and new.slot.kind is Kind.STATE and new.slot != slot
    }
    e.now = -1
    kept = {slot: _set_aside(e, slot, old) for slot, old in moved.items()}
    for e.now, statement in enumerate(schedule.statements):  # noqa: B020
        e.lines += _statement(statement, e)
    e.now = len(schedule.statements)
    for slot, new in schedule.program.outputs.items():
        tile = kept.get(slot, new)
        if tile is not schedule.program.inputs[slot] and e.layout.in_place.get(tile) != slot.index:
            e.lines += _copy(f"s{slot.index}", e.touch(tile), tile.features)


def _set_aside(e: Emitter, slot: Slot, old: Input) -> Tile:
    """An entry of the state that moves to another one: copied first, since that one may move too."""
    kept = Slice(old, 0, old.features)  # an array of its own
    e.arrays.append(kept)
    e.places[kept] = f"kept{slot.index}"
    e.lines += _copy(e.touch(kept), e.touch(old), old.features)
    return kept


def _copy(target: str, source: str, count: int) -> list[str]:
    if count == 1:
        return [f"{target}[0] = {source}[0];"]
    return [f"for (int f = 0; f < {count}; f++)", f"    {target}[f] = {source}[f];"]


@functools.singledispatch
def _statement(statement: Statement, e: Emitter) -> list[str]:
    raise AssertionError(statement)


@_statement.register
def _(loop: Loop, e: Emitter) -> list[str]:
    """All values of a row are known before any of them is stored."""

    def write(body: Body, row: str) -> list[str]:
        texts = []
        for one in loop.writes:
            is_root = one.target is one.value
            text = body.value(one.value, row, root=is_root)
            if one.value.is_mask:
                text = f"({text} ? 1.0f : 0.0f)"
            if len(loop.writes) > 1 and not text.isidentifier():
                text = body.local(text)
            if is_root:
                e.made_by_loop[one.value] = e.now
                body.know(one.value, row, text)
            texts.append(text)
        return [
            f"{e.touch(one.target)}[{shifted(row, one.offset)}] = {bare(text)};"
            for one, text in zip(loop.writes, texts, strict=True)
        ]

    return e.loop("f", loop.features, write)


@_statement.register
def _(node: Product, e: Emitter) -> list[str]:
    (table, scale), source, columns = e.matrix(node), e.source(node.tile), node.tile.features
    if scale is None:
        return [f"{{p}}_multiply({e.touch(node)}, {table}, {source}, {node.features}, {columns});"]
    return [f"{{p}}_multiply_int8({e.touch(node)}, {table}, {scale}, {source}, {node.features}, {columns});"]


@_statement.register
def _(node: Fold | Running, e: Emitter) -> list[str]:
    """Groups of features one after another; a running sum writes every row, a fold the last one."""
    op = node.op if isinstance(node, Fold) else "add"
    groups, start = node.tile.features // node.size, "0.0f" if op == "add" else "-INFINITY"

    def group(_: Body, g: str) -> list[str]:
        first = "" if groups == 1 else f"{node.size} * {g}"

        def each(body: Body, f: str) -> list[str]:
            row = f"{first} + {f}" if first else f
            value = body.value(node.tile, row)
            ends = [f"sum += {bare(value)};" if op == "add" else f"sum = {{p}}_maximum(sum, {bare(value)});"]
            return [*ends, f"{e.touch(node)}[{row}] = sum;"] if isinstance(node, Running) else ends

        lines = [f"float sum = {start};", *e.loop("f", node.size, each)]
        return lines if isinstance(node, Running) else [*lines, f"{e.touch(node)}[{g}] = sum;"]

    lines = e.loop("g", groups, group)
    return ["{", *(f"    {line}" for line in lines), "}"] if groups == 1 else lines


@_statement.register
def _(node: Rotate, e: Emitter) -> list[str]:
    starts, pairs, turns, kind, count = e.turns(node)
    target = e.touch(node)
    laid = e.loop(
        "f", node.features, lambda body, f: [f"{target}[{starts}[{f}]] = {bare(body.value(node.tile, f))};"]
    )
    return [*laid, f"{{p}}_rotate_{kind.name}({target}, {pairs}, {turns}, {count});"]
