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
    Constant,
    Fold,
    Gather,
    Input,
    Operand,
    Outer,
    Pointwise,
    Product,
    Reduction,
    Rotate,
    RotateBack,
    RowSum,
    Running,
    Slice,
    StepProgram,
    Tile,
    Weight,
    in_order,
    operands,
)

__all__ = ["Loop", "Schedule", "Statement", "Write", "is_inline", "narrow_side", "render", "schedule"]


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


def is_inline(tile: Tile) -> bool:
    """Whether a tile can be evaluated inside a loop, without memory."""
    return isinstance(tile, Pointwise | Slice | Gather) or (isinstance(tile, Product) and tile.is_narrow)


def schedule(program: StepProgram, after: Callable[[Outer], bool] = lambda outer: True) -> Schedule:
    """Put a program in order; ``after`` says which wide outer products are left until after the loop."""
    wide = tuple(r for r in program.reductions if isinstance(r, Outer) and narrow_side(r) is None)
    products = tuple(r for r in wide if after(r))
    sums = [r for r in program.reductions if isinstance(r, RowSum) or (isinstance(r, Outer) and r not in wide)]
    order = in_order([*program.saved, *_roots(program)])
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
        tile = reduction.tile if isinstance(reduction, RowSum) else _wide(reduction)
        reads = list(_loads(tile, memory))
        if isinstance(reduction, Outer):
            reads += [(reduction.right if tile is reduction.left else reduction.left, False)]
        place(tile.features, reads).sums.append(reduction)
    statements += [outer for outer in wide if outer not in products]
    return Schedule(
        program, tuple(statements), tuple(t for t in order if t in memory and not isinstance(t, Input)), products
    )


def _wide(outer: Outer) -> Tile:
    return outer.left if narrow_side(outer) == "right" else outer.right


def _roots(program: StepProgram) -> list[Tile]:
    roots = [t for t in program.outputs.values() if t is not None]
    for reduction in program.reductions:
        roots += operands(reduction)  # type: ignore[arg-type]
    return roots


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
            memory.add(reduction.right if _wide(reduction) is reduction.left else reduction.left)
    # A costly value that loops of different size or depth would compute twice.
    depth: dict[Tile, int] = {}
    for tile in order:
        below = [depth[a] for a in operands(tile) if a in depth]
        depth[tile] = max(below, default=0) + (0 if is_inline(tile) else 1)
    readers: dict[Tile, set[tuple[int, int]]] = {}
    roots = [(t, depth[t]) for t in order if t in memory and is_inline(t)]
    roots += [(r.tile if isinstance(r, RowSum) else _wide(r), -1) for r in sums]
    for tile in order:
        if tile in memory and not is_inline(tile):
            roots += [(a, depth[tile] - 1) for a in operands(tile) if a in depth]
    for root, when in roots:
        for tile in _inline_part(root, memory):
            if isinstance(tile, Pointwise) and tile.op in COSTLY:
                readers.setdefault(tile, set()).add((depth[root] if when < 0 else when, root.features))
    return memory | {tile for tile, where in readers.items() if len(where) > 1}


def _inline_part(root: Tile, memory: set[Tile]) -> set[Tile]:
    seen: set[Tile] = set()
    todo = [root] if root not in memory else [a for a in operands(root) if not isinstance(a, Weight | Constant)]
    if root in memory and not is_inline(root):
        return seen
    while todo:
        tile = todo.pop()
        if tile in seen or tile in memory:
            continue
        seen.add(tile)
        todo += [a for a in operands(tile) if not isinstance(a, Weight | Constant)]
    return seen


def _loads(tile: Tile, memory: set[Tile], root: bool = False) -> set[tuple[Tile, bool]]:
    """What evaluating ``tile`` reads from memory, each with whether it is read at the very row that is written."""
    found: set[tuple[Tile, bool]] = set()
    todo: list[tuple[Tile, bool]] = []

    def visit(args: tuple[Operand, ...], same_row: bool) -> None:
        todo.extend((a, same_row) for a in args if not isinstance(a, Weight | Constant))

    if tile in memory and not root:
        return {(tile, True)}
    visit(operands(tile), not isinstance(tile, Slice | Gather | Product))
    features = tile.features
    while todo:
        node, same_row = todo.pop()
        same_row = same_row and node.features == features
        if node in memory:
            found.add((node, same_row))
        else:
            visit(operands(node), same_row and not isinstance(node, Slice | Gather | Product))
    return found


# -- as text -----------------------------------------------------------------------------------------------------------


def render(plan: Schedule, name: str) -> str:
    """The statements as code that a person can read; one name a value in memory."""
    names: dict[Tile, str] = {t: t.name for t in plan.program.inputs.values()}
    counters: dict[str, int] = {}
    for key, tile in plan.program.outputs.items():
        if tile is not None and tile not in names:
            names[tile] = f"{key}_new" if name == "forward" else f"grad_{key}"
    for tile in plan.memory:
        if tile not in names:
            kind = type(tile).__name__.lower()
            counters[kind] = counters.get(kind, -1) + 1
            names[tile] = f"{kind}{counters[kind]}"
    lines = [f"def {name}({', '.join(f'{t.name}[{t.features}]' for t in plan.program.inputs.values())}):"]
    for statement in plan.statements:
        match statement:
            case Loop(features=features, writes=writes, sums=sums):
                lines.append(f"    for f in range({features}):")
                for write in writes:
                    row = f"{write.offset} + f" if write.offset else "f"
                    text = _text(write.value, names, "f", root=write.target is write.value)
                    lines.append(f"        {names[write.target]}[{row}] = {text}")
                lines += [f"        {_sum_text(r, plan.program.reductions, names)}" for r in sums]
            case Product(tile=tile, matrix=matrix, features=features):
                size = f"({features}, {tile.features})"
                lines.append(f"    {names[statement]} = w{matrix.index}.T @ {_rows_text(tile, names)}  # {size}")
            case Outer(left=left, right=right):
                index = plan.program.reductions.index(statement)
                lines.append(f"    sum{index} += {names[left]} @ {names[right]}.T")
            case Fold(tile=tile, size=size, op=op):
                word, row = "sum" if op == "add" else "max", "f" if statement.features == 1 else f"{size} * g + f"
                body = f"{word}({_text(tile, names, row)} for f in range({size}))"
                each = "" if statement.features == 1 else f"for g in range({statement.features}): "
                lines.append(f"    {each}{names[statement]}{'[g]' if each else ''} = {body}")
            case Running(tile=tile, size=size):
                lines.append(f"    {names[statement]} = running_sum({_text(tile, names, ':')}, groups of {size})")
            case Rotate(tile=tile, angles=angles, permutations=permutations):
                arguments = f"w{angles.index}, w{permutations.index}"
                lines.append(f"    {names[statement]} = rotate({_text(tile, names, ':')}, {arguments})  # in place")
            case RotateBack(grad=grad, output=output, angles=angles):
                sides = f"{_text(grad, names, ':')}, {_text(output, names, ':')}"
                lines.append(
                    f"    {names[statement]} = rotate_back({sides}, w{angles.index})  # sums the angles' gradient"
                )
    for outer in plan.products:
        index = plan.program.reductions.index(outer)
        lines.append(f"    # after the loop, over all steps: sum{index} = {names[outer.left]} @ {names[outer.right]}.T")
    returned = ", ".join(f"{key}={names[t]}" for key, t in plan.program.outputs.items() if t is not None)
    lines.append(f"    return {returned}")
    return "\n".join(lines)


def _rows_text(tile: Tile, names: dict[Tile, str]) -> str:
    if isinstance(tile, Slice) and tile not in names:
        return f"{names[tile.tile]}[{tile.start} : {tile.start + tile.features}]"
    return names[tile]


def _short(table: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, table[:4]))}{', ...' if len(table) > 4 else ''}]"


def _sum_text(reduction: RowSum | Outer, all_reductions: tuple[Reduction, ...], names: dict[Tile, str]) -> str:
    index = all_reductions.index(reduction)
    if isinstance(reduction, RowSum):
        return f"sum{index}[f] += {_text(reduction.tile, names, 'f')}"
    wide = _wide(reduction)
    narrow = reduction.right if wide is reduction.left else reduction.left
    return f"sum{index}[f, :] += {_text(wide, names, 'f')} * {names[narrow]}[:]"


def _text(node: Operand, names: dict[Tile, str], row: str, root: bool = False) -> str:
    if isinstance(node, Constant):
        return repr(node.value)
    if isinstance(node, Weight):
        size = 1
        for n in node.shape:
            size *= n
        return f"w{node.index}" if size == 1 else f"w{node.index}[{row}]"
    if node in names and not root:
        return f"{names[node]}[{row if node.features > 1 or row == ':' else 0}]"
    match node:
        case Slice(tile=tile, start=start):
            return _text(tile, names, f"{start} + {row}" if start else row)
        case Product(tile=tile, matrix=matrix):
            return f"w{matrix.index}[:, {row}] @ {_rows_text(tile, names)}"
        case Gather(tile=tile, table=table):
            return _text(tile, names, f"{_short(table)}[{row}]")
        case Pointwise(op=op, args=args):
            texts = [_text(a, names, row) for a in args]
            sign = {
                "add": "+",
                "sub": "-",
                "mul": "*",
                "div": "/",
                "gt": ">",
                "lt": "<",
                "ge": ">=",
                "le": "<=",
                "eq": "==",
            }.get(op)
            return f"({texts[0]} {sign} {texts[1]})" if sign else f"{op}({', '.join(texts)})"
    raise AssertionError(node)
