"""The statements of a schedule as lines of C, one function for each kind."""

from __future__ import annotations

import functools

from holdfast.engine.program.schedule import Loop, Statement
from holdfast.engine.program.tiles import Fold, Product, Rotate, Running
from holdfast.engine.targets.c.emitter import Emitter
from holdfast.engine.targets.c.expressions import Body, shifted
from holdfast.engine.targets.c.operators import bare

__all__ = ["write_statements"]


def write_statements(e: Emitter) -> None:
    """Every statement, then the new states that are not in their place yet."""
    program = e.step.schedule.program
    e.now = -1
    for tile in e.step.kept.values():
        e.lines += _copy(e.touch(tile), e.touch(tile.tile), tile.features)
    for statement in e.step.schedule.statements:
        e.now += 1
        e.lines += _statement(statement, e)
    e.now += 1
    for slot, new in program.outputs.items():
        tile = e.step.kept.get(slot, new)
        assert tile is not None
        if tile is not program.inputs[slot] and e.layout.in_place.get(tile) != slot.index:
            e.lines += _copy(f"s{slot.index}", e.touch(tile), tile.features)


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
    groups = node.tile.features // node.size
    total, start = ("sum", "0.0f") if op == "add" else ("largest", "-INFINITY")

    def group(_: Body, g: str) -> list[str]:
        first = "" if groups == 1 else f"{node.size} * {g}"

        def each(body: Body, f: str) -> list[str]:
            row = f"{first} + {f}" if first else f
            value = body.value(node.tile, row)
            ends = [f"sum += {bare(value)};" if op == "add" else f"largest = {{p}}_maximum(largest, {bare(value)});"]
            return [*ends, f"{e.touch(node)}[{row}] = sum;"] if isinstance(node, Running) else ends

        lines = [f"float {total} = {start};", *e.loop("f", node.size, each)]
        return lines if isinstance(node, Running) else [*lines, f"{e.touch(node)}[{g}] = {total};"]

    lines = e.loop("g", groups, group)
    return ["{", *(f"    {line}" for line in lines), "}"] if groups == 1 else lines


@_statement.register
def _(node: Rotate, e: Emitter) -> list[str]:
    target = e.touch(node)
    starts, turn = e.rotate(node, target)
    laid = e.loop("f", node.features, lambda body, f: [f"{target}[{starts}[{f}]] = {bare(body.value(node.tile, f))};"])
    return [*laid, turn]
