"""A tile program put in order: which values live in memory, and which loop writes them. The third stage.

    schedule(program)  →  Schedule(statements, ...)

Elementwise nodes have no statement: a loop over features evaluates them where a row is written or summed. A value gets
memory if a statement other than a loop makes or reads it, if it leaves the step, or if it is costly and two loops
need it. Every other value lives in registers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from holdfast.engine.program.tiles import (
    COSTLY,
    NARROW,
    Cat,
    Fold,
    Gather,
    Input,
    Outer,
    Pointwise,
    Product,
    Rotate,
    RotateBack,
    RowSum,
    Running,
    Slice,
    StepProgram,
    Tile,
    in_order,
    read_by,
)

__all__ = ["Loop", "Schedule", "Statement", "Write", "is_inline", "narrow_side", "schedule", "sides"]


@dataclasses.dataclass(frozen=True, eq=False)
class Write:
    """Row f of ``value`` goes to row ``offset + f`` of the memory of ``target``."""

    value: Tile
    target: Tile
    offset: int = 0


@dataclasses.dataclass(eq=False)
class Loop:
    """One pass over ``features`` rows."""

    features: int
    writes: list[Write] = dataclasses.field(default_factory=list)
    sums: list[RowSum | Outer] = dataclasses.field(default_factory=list)


Statement = Loop | Product | Fold | Running | Rotate | RotateBack | Outer


@dataclasses.dataclass(frozen=True)
class Schedule:
    """``statements`` in order; ``memory``: tiles with a place of their own, inputs aside; ``products``: sums over time
    that are left to one product after the loop.
    """

    program: StepProgram
    statements: tuple[Statement, ...]
    memory: tuple[Tile, ...]
    products: tuple[Outer, ...]


def narrow_side(outer: Outer) -> str | None:
    """Which side of an outer product is narrow enough to be summed inside the loop over the other."""
    if outer.right.features <= NARROW:
        return "right"
    return "left" if outer.left.features <= NARROW else None


def sides(outer: Outer) -> tuple[Tile, Tile]:
    """The side that a loop runs over, and the narrow one."""
    return (outer.left, outer.right) if narrow_side(outer) == "right" else (outer.right, outer.left)


def is_inline(tile: Tile) -> bool:
    """Whether a tile can be evaluated inside a loop, without memory."""
    return isinstance(tile, Pointwise | Slice | Gather) or (isinstance(tile, Product) and tile.is_narrow)


def schedule(program: StepProgram, after: Callable[[Outer], bool] = lambda outer: True) -> Schedule:
    """Put a program in order; ``after`` says which wide outer products are left until after the loop."""
    wide = tuple(r for r in program.reductions if isinstance(r, Outer) and narrow_side(r) is None)
    products = tuple(r for r in wide if after(r))
    sums = [r for r in program.reductions if isinstance(r, RowSum) or (isinstance(r, Outer) and r not in wide)]
    order = in_order([*program.saved, *program.roots])
    memory = _memory(program, order, wide, sums)
    statements: list[Statement] = []
    done: dict[Tile, int] = {}  # the statement after which a tile is in memory

    def place(features: int, reads: Iterable[tuple[Tile, bool]]) -> Loop:
        """The earliest loop of this size that comes after whatever has to be loaded."""
        earliest = 0
        for tile, same_row in reads:
            if isinstance(tile, Input):
                continue
            made = statements[done[tile]]
            joins = same_row and isinstance(made, Loop) and made.features == features and not isinstance(tile, Cat)
            earliest = max(earliest, done[tile] + (0 if joins else 1))
        for statement in statements[earliest:]:
            if isinstance(statement, Loop) and statement.features == features:
                return statement
        statements.append(Loop(features))
        return statements[-1]  # type: ignore[return-value]

    for tile in order:
        if tile not in memory or isinstance(tile, Input):
            continue
        if isinstance(tile, Cat):
            last, offset = 0, 0
            for part in tile.parts:
                loop = place(part.features, _loads(part, memory))
                loop.writes.append(Write(part, tile, offset))
                last, offset = max(last, statements.index(loop)), offset + part.features
            done[tile] = last
        elif is_inline(tile):
            loop = place(tile.features, _loads(tile, memory, root=True))
            loop.writes.append(Write(tile, tile))
            done[tile] = statements.index(loop)
        else:
            statements.append(tile)  # type: ignore[arg-type]
            done[tile] = len(statements) - 1
    for reduction in sums:
        tile, *narrow = (reduction.tile,) if isinstance(reduction, RowSum) else sides(reduction)
        reads = [*_loads(tile, memory), *((side, False) for side in narrow)]
        place(tile.features, reads).sums.append(reduction)
    statements += [outer for outer in wide if outer not in products]
    return Schedule(
        program, tuple(statements), tuple(t for t in order if t in memory and not isinstance(t, Input)), products
    )


def _memory(program: StepProgram, order: list[Tile], products: tuple[Outer, ...], sums: list) -> set[Tile]:
    memory = {t for t in order if not is_inline(t)}
    memory |= {t for t in program.outputs.values() if t is not None} | set(program.saved)
    memory |= {side for outer in products for side in (outer.left, outer.right)}
    for tile in order:
        if isinstance(tile, Gather):
            memory.add(tile.tile)
        elif isinstance(tile, Product):
            source = tile.tile
            while isinstance(source, Slice) and source not in memory:  # rows of another tile's memory
                source = source.tile
            memory.add(source)
    for reduction in sums:
        if isinstance(reduction, Outer):
            memory.add(sides(reduction)[1])
    # A costly value that loops of different size or depth would compute twice.
    depth: dict[Tile, int] = {}
    for tile in order:
        depth[tile] = max((depth[a] for a in read_by(tile)), default=0) + (0 if is_inline(tile) else 1)
    readers: dict[Tile, set[tuple[int, int]]] = {}
    roots = [(t, depth[t]) for t in order if t in memory and is_inline(t)]
    roots += [(r.tile if isinstance(r, RowSum) else sides(r)[0], -1) for r in sums]
    for tile in order:
        if tile in memory and not is_inline(tile):
            roots += [(a, depth[tile] - 1) for a in read_by(tile)]
    for root, when in roots:
        for tile in _inline_part(root, memory):
            if isinstance(tile, Pointwise) and tile.op in COSTLY:
                readers.setdefault(tile, set()).add((depth[root] if when < 0 else when, root.features))
    return memory | {tile for tile, where in readers.items() if len(where) > 1}


def _inline_part(root: Tile, memory: set[Tile]) -> set[Tile]:
    seen: set[Tile] = set()
    todo = [root] if root not in memory else read_by(root) if is_inline(root) else []
    while todo:
        tile = todo.pop()
        if tile not in seen and tile not in memory:
            seen.add(tile)
            todo += read_by(tile)
    return seen


def _loads(tile: Tile, memory: set[Tile], root: bool = False) -> set[tuple[Tile, bool]]:
    """What evaluating ``tile`` reads from memory, each with whether it is read at the very row that is written."""
    found: set[tuple[Tile, bool]] = set()
    todo = [(tile, True)]
    while todo:
        node, same_row = todo.pop()
        same_row = same_row and node.features == tile.features
        if node in memory and not (root and node is tile):
            found.add((node, same_row))
        else:
            same_row = same_row and not isinstance(node, Slice | Gather | Product)
            todo += [(arg, same_row) for arg in read_by(node)]
    return found
