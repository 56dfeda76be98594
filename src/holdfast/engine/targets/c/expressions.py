"""Tiles without memory as C expressions, inside the loop that writes or sums a row."""

from __future__ import annotations

import collections
from collections.abc import Hashable
from typing import TYPE_CHECKING

from holdfast.engine.program.graph import Unsupported
from holdfast.engine.program.tiles import Constant, Gather, Operand, Pointwise, Product, Slice, Tile, Weight
from holdfast.engine.targets.c.operators import OPERATORS, bare, power
from holdfast.engine.targets.c.text import number

if TYPE_CHECKING:
    from holdfast.engine.targets.c.emitter import Emitter

__all__ = ["Body", "shifted"]

LONG = 70  # an expression of more characters than this is cut in two


def shifted(row: str, offset: int) -> str:
    if not offset:
        return row
    return str(int(row) + offset) if row.isdigit() else f"{row} + {offset}"


class Body:
    """What happens at one row: ``lines`` of local variables, and the values made of them.

    A value that is used twice, or whose text is long, becomes a local variable. How often each is used is counted by
    writing the body once before: ``uses`` of that one.
    """

    def __init__(self, emitter: Emitter, before: Body | None = None):
        self.lines: list[str] = []
        self.uses: collections.Counter[Hashable] = collections.Counter()
        self._emitter, self._before = emitter, before
        self._memo: dict[Hashable, str] = {}

    def value(self, node: Operand, row: str, offset: int = 0, *, root: bool = False) -> str:
        """``node`` at feature ``row + offset``; a root is evaluated although it has memory."""
        e = self._emitter
        if isinstance(node, Constant):
            return str(int(node.value)) if isinstance(node.value, bool) else number(node.value)
        if isinstance(node, Weight):
            return e.weight_at(node, shifted(row, offset))
        if node.features == 1:
            row, offset = "0", 0
        key = (node, row, offset)
        self.uses[key] += 1
        if key in self._memo:
            return self._memo[key]
        is_leaf = node in e.places and not root
        if is_leaf:
            text = e.load(node, shifted(row, offset))
        elif isinstance(node, Slice):
            return self.value(node.tile, row, offset + node.start)
        elif isinstance(node, Gather):
            return self.value(node.tile, f"{e.order(node)}[{shifted(row, offset)}]")
        elif isinstance(node, Product):
            text = e.dot(node, shifted(row, offset))
        elif isinstance(node, Pointwise):
            text = self._pointwise(node, row, offset)
        else:
            raise AssertionError(f"{node} has no place in memory")
        often = self._before is not None and self._before.uses[key] > 1
        if not is_leaf and not root and (often or len(text) > LONG):
            text = self.local(text, is_mask=node.is_mask)
        self._memo[key] = text
        return text

    def local(self, text: str, *, is_mask: bool = False) -> str:
        """A local variable of this value."""
        name = f"{'m' if is_mask else 'v'}{len(self.lines)}"
        self.lines.append(f"const {'int' if is_mask else 'float'} {name} = {bare(text)};")
        return name

    def know(self, node: Tile, row: str, text: str) -> None:
        """From here on the value of ``node`` at ``row`` is in ``text``."""
        self._memo[(node, "0" if node.features == 1 else row, 0)] = text

    def _pointwise(self, node: Pointwise, row: str, offset: int) -> str:
        if node.op not in OPERATORS:
            raise Unsupported(f"operator {node.op} has no counterpart in C")
        args = [self.value(arg, row, offset) for arg in node.args]
        if node.op == "pow" and isinstance(node.args[1], Constant):
            return power(args[0], float(node.args[1].value), args[1])
        return OPERATORS[node.op](*args)
