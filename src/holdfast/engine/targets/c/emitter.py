"""What the statements of a step are written with: arrays, weights as tables, and loops."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from holdfast.engine.program.tiles import Gather, Product, Rotate, Slice, Tile, Weight
from holdfast.engine.program.turns import turn_tables
from holdfast.engine.targets.c.expressions import Body
from holdfast.engine.targets.c.memory import Layout, Touch
from holdfast.engine.targets.c.step import Step
from holdfast.engine.targets.c.text import Table, counted, index_type, number, times

__all__ = ["Angles8", "Emitter", "Quantised"]

ROUND = 256  # angles of 8 bits: so many make a whole turn


@dataclasses.dataclass(frozen=True, eq=False)
class Quantised:
    """A matrix in int8: row r is ``values[r]`` times ``scale[r]``.

    Example:
        >>> Quantised(np.array([[127, -2]], np.int8), np.array([0.5], np.float32)).matrix().tolist()
        [[63.5, -1.0]]
    """

    values: np.ndarray
    scale: np.ndarray

    def matrix(self) -> np.ndarray:
        """The numbers that it stands for."""
        return self.values.astype(np.float32) * self.scale.astype(np.float32)[:, None]


@dataclasses.dataclass(frozen=True, eq=False)
class Angles8:
    """Angles of rotations in 8 bits, 256 to a turn: the rotations stay orthogonal, whatever the rounding.

    Example:
        >>> Angles8(np.array([64], np.uint8)).angles().tolist()  # a quarter
        [1.5707963705062866]
    """

    values: np.ndarray

    def angles(self) -> np.ndarray:
        """The angles that they stand for."""
        return (self.values * (2 * np.pi / ROUND)).astype(np.float32)


Rounded = Mapping[int, Quantised | Angles8]


class Emitter:
    """The lines of one step so far, the tables that they read, and who touched which array.

    Args:
        step: what is written.
        name: of the function, and the prefix of its tables.
        rounded: matrices in int8 and angles in 8 bits, by the index of the weight.
        layout: what a draft led to; an empty one for the draft.
    """

    def __init__(self, step: Step, name: str, rounded: Rounded, layout: Layout):
        self.step, self.name, self.layout, self._rounded = step, name, layout, rounded
        self.lines: list[str] = []
        self.tables: dict[str, Table] = {}
        self.now = 0  # the statement that is being written
        self.touched: dict[Tile, list[Touch]] = collections.defaultdict(list)
        self.made_by_loop: dict[Tile, int] = {}
        self._own_row = ""
        program = step.schedule.program
        self.places: dict[Tile, str] = {tile: str(slot) for slot, tile in program.inputs.items()}
        outputs = {tile: slot.index for slot, tile in program.outputs.items()}
        counters: collections.Counter[str] = collections.Counter()
        for slot, tile in step.kept.items():
            self.places[tile] = f"kept{slot.index}"
        self.arrays = [tile for tile in step.schedule.memory if tile not in self.places]
        for tile in self.arrays:
            if tile in layout.in_place:
                self.places[tile] = f"s{layout.in_place[tile]}"
            elif tile in outputs:
                self.places[tile] = f"new{outputs[tile]}"
            else:
                kind = type(tile).__name__.lower()
                self.places[tile] = f"{kind}{counters[kind]}"
                counters[kind] += 1
        self.arrays += step.kept.values()

    # -- arrays -------------------------------------------------------------------------------------------------------

    def touch(self, tile: Tile, own_row: bool = False) -> str:
        """The array of a tile, noted as used by this statement."""
        self.touched[tile].append(Touch(self.now, own_row))
        return self.places[tile]

    def load(self, tile: Tile, row: str) -> str:
        """An entry of an array."""
        text = f"{self.touch(tile, row == self._own_row)}[{row}]"
        return f"({text} != 0.0f)" if tile.is_mask else text

    def source(self, tile: Tile) -> str:
        """Where the features of a tile lie side by side."""
        start = 0
        while isinstance(tile, Slice) and tile not in self.places:
            tile, start = tile.tile, start + tile.start
        place = self.touch(tile)
        return f"{place} + {start}" if start else place

    # -- weights ------------------------------------------------------------------------------------------------------

    def _table(self, name: str, values: np.ndarray, comment: str) -> str:
        name = f"{self.name}_{name}"
        while name in self.tables and not np.array_equal(self.tables[name].values, values):
            name += "_again"  # the same weight in another order or type
        self.tables.setdefault(name, Table(name, values, comment))
        return name

    def weight_at(self, weight: Weight, row: str) -> str:
        """An entry of a weight; a weight of one number is written out."""
        name, values = self.step.names[weight.index], self.step.weights[weight.index]
        if math.prod(weight.shape) == 1:
            value = values.reshape(()).item()
            return str(int(value)) if weight.is_mask else number(value)
        if weight.is_mask:
            return f"({self._table(name, _array(values, np.uint8), f'{name}, {values.numel()} flags')}[{row}] != 0)"
        return f"{self._table(name, _array(values), f'{name}, {values.numel()} numbers')}[{row}]"

    def matrix(self, node: Product) -> tuple[str, str | None]:
        """The table of a product's matrix, one row for each result, and that of its scales if it is in int8."""
        name = self.step.names[node.matrix.index]
        comment = f"{name}, {counted(node.features, 'row')} of {node.tile.features}"
        known = self._rounded.get(node.matrix.index)
        if not isinstance(known, Quantised):
            matrix = self.step.weights[node.matrix.index].mT
            return self._table(name, _array(matrix), comment), None
        scale = self._table(f"{name}_scale", known.scale.astype(np.float32), f"{name}, the scale of each row")
        return self._table(f"{name}_int8", known.values, f"{comment}, in int8"), scale

    def dot(self, node: Product, row: str) -> str:
        """Entry ``row`` of a product."""
        (table, scale), width, source = self.matrix(node), node.tile.features, self.source(node.tile)
        where = table if row == "0" else f"{table} + {times(width, row)}"
        if scale is None:
            return f"{{p}}_dot({where}, {source}, {width})"
        return f"({scale}[{row}] * {{p}}_dot_int8({where}, {source}, {width}))"

    def order(self, node: Gather) -> str:
        """The table of a gather."""
        values = np.array(node.table)
        values = values.astype(index_type(int(values.max(initial=0)) + 1))
        known = [t for t in self.tables.values() if "_order" in t.name]
        for table in known:
            if np.array_equal(table.values, values):
                return table.name
        return self._table(f"order{len(known)}", values, "entries in another order")

    def rotate(self, node: Rotate, target: str) -> tuple[str, str]:
        """The table of where features start, and the call that turns them."""
        angles, permutations = (self.step.weights[w.index] for w in (node.angles, node.permutations))
        name, kind, count = self.step.names[node.angles.index], index_type(max(node.features, 2)), angles.numel()
        pairs, starts = (_array(table, kind.type) for table in turn_tables(permutations))
        start = self._table(f"{name}_starts", starts, f"{name}, where each feature starts")
        pair = self._table(f"{name}_pairs", pairs, f"{name}, {count} pairs that turn")
        known = self._rounded.get(node.angles.index)
        if isinstance(known, Angles8):
            steps = np.ascontiguousarray(known.values[::-1])
            angle = self._table(f"{name}_angles", steps, f"{name}, the angle of each, {ROUND} to a turn")
            values = np.sin(2 * np.pi * np.arange(ROUND + ROUND // 4) / ROUND).astype(np.float32)
            sines = self.tables.setdefault("sines", Table("{p}_sines", values, "sin(2 pi k / 256), k = 0 to 319")).name
            return start, f"{{p}}_rotate_{kind.name}_steps({target}, {pair}, {angle}, {sines}, {count});"
        turns = np.stack([angles.cos().numpy(), angles.sin().numpy()], axis=-1)[::-1]
        turn = self._table(f"{name}_turns", turns.astype(np.float32), f"{name}, the cosine and sine of each")
        return start, f"{{p}}_rotate_{kind.name}({target}, {pair}, {turn}, {count});"

    # -- lines --------------------------------------------------------------------------------------------------------

    def loop(self, letter: str, count: int, write: Callable[[Body, str], list[str]]) -> list[str]:
        """A loop. ``write(body, row)`` evaluates in ``body`` and returns what follows; called twice, see ``Body``."""
        row = "0" if count == 1 else letter
        outer, self._own_row = self._own_row, row
        draft = Body(self)
        write(draft, row)
        body = Body(self, draft)
        ends = write(body, row)
        self._own_row = outer
        inside = [*body.lines, *ends]
        if count == 1:
            return ["{", *(f"    {line}" for line in inside), "}"] if body.lines else inside
        head = f"for (int {letter} = 0; {letter} < {count}; {letter}++) {{"
        return [head, *(f"    {line}" for line in inside), "}"]


def _array(values: Tensor, kind: type = np.float32) -> np.ndarray:
    return np.ascontiguousarray(values.detach().cpu().numpy().astype(kind))
