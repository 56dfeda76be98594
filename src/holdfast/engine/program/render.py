"""A schedule as text, for ``holdfast.fused_source``."""

from __future__ import annotations

import math

from holdfast.engine.program import tiles
from holdfast.engine.program.schedule import Loop, Schedule, sides

__all__ = ["render"]

Names = dict[tiles.Tile, str]
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "=="}


def render(schedule: Schedule, name: str) -> str:
    """The statements as code that a person can read; one name per value in memory."""
    program = schedule.program
    names: Names = {tile: str(slot) for slot, tile in program.inputs.items()}
    counters: dict[str, int] = {}
    for slot, tile in program.outputs.items():
        if tile is not None and tile not in names:
            names[tile] = f"{slot}_new" if name == "forward" else f"grad_{slot}"
    for tile in schedule.memory:
        if tile not in names:
            kind = type(tile).__name__.lower()
            counters[kind] = counters.get(kind, -1) + 1
            names[tile] = f"{kind}{counters[kind]}"
    lines = [f"def {name}({', '.join(f'{slot}[{tile.features}]' for slot, tile in program.inputs.items())}):"]
    for statement in schedule.statements:
        match statement:
            case Loop(features=features, writes=writes, sums=sums):
                lines.append(f"    for f in range({features}):")
                for write in writes:
                    row = f"{write.offset} + f" if write.offset else "f"
                    text = _text(write.value, names, "f", root=write.target is write.value)
                    lines.append(f"        {names[write.target]}[{row}] = {text}")
                lines += [f"        {_sum_text(r, program.reductions.index(r), names)}" for r in sums]
            case tiles.Product(tile=tile, matrix=matrix, features=features):
                size = f"({features}, {tile.features})"
                lines.append(f"    {names[statement]} = w{matrix.index}.T @ {_rows_text(tile, names)}  # {size}")
            case tiles.Outer(left=left, right=right):
                index = program.reductions.index(statement)
                lines.append(f"    sum{index} += {names[left]} @ {names[right]}.T")
            case tiles.Fold(tile=tile, size=size, op=op):
                word, row = "sum" if op == "add" else "max", "f" if statement.features == 1 else f"{size} * g + f"
                body = f"{word}({_text(tile, names, row)} for f in range({size}))"
                each = "" if statement.features == 1 else f"for g in range({statement.features}): "
                lines.append(f"    {each}{names[statement]}{'[g]' if each else ''} = {body}")
            case tiles.Running(tile=tile, size=size):
                lines.append(f"    {names[statement]} = running_sum({_text(tile, names, ':')}, groups of {size})")
            case tiles.Rotate(tile=tile, angles=angles, permutations=permutations):
                arguments = f"w{angles.index}, w{permutations.index}"
                lines.append(f"    {names[statement]} = rotate({_text(tile, names, ':')}, {arguments})  # in place")
            case tiles.RotateBack(grad=grad, output=output, angles=angles):
                sides = f"{_text(grad, names, ':')}, {_text(output, names, ':')}"
                lines.append(
                    f"    {names[statement]} = rotate_back({sides}, w{angles.index})  # sums the angles' gradient"
                )
    for outer in schedule.products:
        index = program.reductions.index(outer)
        lines.append(f"    # after the loop, over all steps: sum{index} = {names[outer.left]} @ {names[outer.right]}.T")
    returned = ", ".join(f"{slot}={names[t]}" for slot, t in program.outputs.items() if t is not None)
    lines.append(f"    return {returned}")
    return "\n".join(lines)


def _rows_text(tile: tiles.Tile, names: Names) -> str:
    if isinstance(tile, tiles.Slice) and tile not in names:
        return f"{names[tile.tile]}[{tile.start} : {tile.start + tile.features}]"
    return names[tile]


def _short(table: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, table[:4]))}{', ...' if len(table) > 4 else ''}]"


def _sum_text(reduction: tiles.RowSum | tiles.Outer, index: int, names: Names) -> str:
    if isinstance(reduction, tiles.RowSum):
        return f"sum{index}[f] += {_text(reduction.tile, names, 'f')}"
    wide, narrow = sides(reduction)
    return f"sum{index}[f, :] += {_text(wide, names, 'f')} * {names[narrow]}[:]"


def _text(node: tiles.Operand, names: Names, row: str, root: bool = False) -> str:
    if isinstance(node, tiles.Constant):
        return repr(node.value)
    if isinstance(node, tiles.Weight):
        return f"w{node.index}" if math.prod(node.shape) == 1 else f"w{node.index}[{row}]"
    if node in names and not root:
        return f"{names[node]}[{row if node.features > 1 or row == ':' else 0}]"
    match node:
        case tiles.Slice(tile=tile, start=start):
            return _text(tile, names, f"{start} + {row}" if start else row)
        case tiles.Product(tile=tile, matrix=matrix):
            return f"w{matrix.index}[:, {row}] @ {_rows_text(tile, names)}"
        case tiles.Gather(tile=tile, table=table):
            return _text(tile, names, f"{_short(table)}[{row}]")
        case tiles.Pointwise(op=op, args=args):
            texts = [_text(a, names, row) for a in args]
            return f"({f' {SIGNS[op]} '.join(texts)})" if op in SIGNS else f"{op}({', '.join(texts)})"
    raise AssertionError(node)
