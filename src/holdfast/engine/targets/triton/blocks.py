"""A tile program as Triton statements: every value is a block in registers, (samples, features).

    blocks = Blocks(shape)
    blocks.places[tile] = ...            tiles that lie in memory, and how a part of their features is loaded
    name = blocks.value(tile)            the statements that compute it, and the name of the result

A block has a power of two of columns; those past the last feature hold anything, and whoever sums over features masks
them. A tile of one feature is a block of one column, which broadcasts.

Values are computed for a window of features at a time. A slice of a sum of products is then a sum of products with some
columns of the weights, and nothing is cut out of registers. A tile made of others side by side has no block of its own
unless somebody needs it whole; whoever stores it or multiplies it by a matrix does so part by part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from holdfast.engine.program import tiles
from holdfast.engine.program.tiles import Constant, Operand, Tile, Weight
from holdfast.engine.targets.triton.operators import OPERATORS, power_text
from holdfast.engine.targets.triton.shape import TYPES, Shape, Way, wide

__all__ = ["Blocks", "Window", "turn_key"]

Window = tuple[int, int]  # the first feature and how many
Load = Callable[[str, int], str]  # a block: the text of its columns' features, (1, n), and how many are inside


class Blocks:
    """Statements of one kernel: ``head`` runs before the time loop, ``body`` in every step."""

    def __init__(self, shape: Shape):
        self.shape = shape
        self.head: list[str] = []
        self.body: list[str] = []
        self.parameters: dict[str, str] = {}  # name to Triton's type
        self.tables: dict[tuple[int, ...], str] = {}
        self.places: dict[Tile, Load] = {}
        self.angle_sums: dict[Tile, int] = {}  # where the gradient of a rotation's angles is summed
        self._memo: dict[tuple[Operand, Window | None], str] = {}
        self._cuts: dict[Tile, frozenset[int]] = {}
        self._columns: set[int] = set()
        self._lefts: dict[tuple[Tile, Window], str] = {}  # left sides of streamed products
        self._matrices: dict[str, str] = {}  # by the text of their load
        self._names = 0

    # -- names -----------------------------------------------------------------------------------------------------

    @property
    def element(self) -> str:
        return TYPES[self.shape.dtype]

    def parameter(self, name: str, kind: str | None = None) -> str:
        """A parameter of the kernel; by default a pointer to numbers of the scan's type."""
        self.parameters[name] = kind or f"*{self.element}"
        return name

    def columns(self, features: int) -> str:
        """0, 1, ... along the columns of a block that holds so many features."""
        count = wide(features)
        if count not in self._columns:
            self._columns.add(count)
            self.head.append(f"c{count} = tl.arange(0, {count})[None, :]")
        return f"c{count}"

    def table(self, entries: Sequence[int]) -> str:
        """A pointer to whole numbers that are known beforehand."""
        key = tuple(entries)
        if key not in self.tables:
            self.tables[key] = self.parameter(f"table{len(self.tables)}", "*i32")
        return self.tables[key]

    def name(self, text: str, prefix: str = "v", lines: list[str] | None = None) -> str:
        """Give an expression a name."""
        self._names += 1
        made = f"{prefix}_{self._names}"
        (self.body if lines is None else lines).append(f"{made} = {text}")
        return made

    def set(self, tile: Tile, name: str) -> None:
        """A whole tile is in this variable."""
        self._memo[tile, (0, tile.features)] = name

    # -- windows ---------------------------------------------------------------------------------------------------

    def cuts(self, tile: Tile) -> frozenset[int]:
        """Features at which a tile is better split, because it is made of others side by side."""
        if tile in self._cuts or tile in self.places:
            return self._cuts.get(tile, frozenset())
        found: set[int] = set()
        match tile:
            case tiles.Cat(parts=parts):
                start = 0
                for part in parts:
                    found |= {start, *(start + cut for cut in self.cuts(part))}
                    start += part.features
            case tiles.Slice(tile=source, start=start):
                found = {cut - start for cut in self.cuts(source)}
            case tiles.Pointwise():
                found = {c for a in tiles.read_by(tile) if a.features == tile.features for c in self.cuts(a)}
        self._cuts[tile] = frozenset(cut for cut in found if 0 < cut < tile.features)
        return self._cuts[tile]

    def windows(self, tile: Tile) -> list[Window]:
        """A tile's features in pieces that each have a block."""
        bounds = [0, *sorted(self.cuts(tile)), tile.features]
        return [(start, end - start) for start, end in itertools.pairwise(bounds)]

    def value(self, tile: Tile, window: Window | None = None) -> str:
        """The name of the block that holds these features of a tile, all by default."""
        window = (0, tile.features) if window is None or tile.features == 1 else window
        if (tile, window) not in self._memo:
            self._memo[tile, window] = self._value(tile, window)
        return self._memo[tile, window]

    def _value(self, tile: Tile, window: Window) -> str:
        start, features = window
        if tile in self.places:
            return self.name(self.places[tile](self._shifted(self.columns(features), start), features))
        match tile:
            case tiles.Slice(tile=source, start=first):
                return self.value(source, (first + start, features))
            case tiles.Cat(parts=parts):
                return self._cat(parts, window)
            case tiles.Pointwise():
                return self._pointwise(tile, window)
            case tiles.Product():
                return self._product(tile, window)
            case tiles.Gather(tile=source, table=table):
                return self._gather(source, table[start : start + features])
        if window != (0, tile.features):
            return self._window_of(self.value(tile), tile.features, window)
        match tile:
            case tiles.Fold() | tiles.Running():
                return self._groups(tile)
            case tiles.Rotate(tile=source):
                arguments = self._turn_arguments(tile, "ahead")
                return self.name(f"rotate({self.value(source)}, {arguments})")
            case tiles.RotateBack(grad=grad) if tile not in self.angle_sums:
                return self.name(f"rotate({self.value(grad)}, {self._turn_arguments(tile, 'back')})")
            case tiles.RotateBack(grad=grad, output=output):
                grads, outputs = (self.name(f"tl.where(alive, {self.value(t)}, 0.0)") for t in (grad, output))
                return self.name(f"rotate_back({grads}, {outputs}, {self._turn_arguments(tile, 'back')})")
        raise AssertionError(f"{tile} has no value here")

    def inside(self, name: str, features: int) -> str:
        """A block with zeros past the last feature."""
        if wide(features) == features:
            return name
        return f"tl.where({self.columns(features)} < {features}, {name}, 0.0)"

    @staticmethod
    def _shifted(columns: str, start: int) -> str:
        return f"{start} + {columns}" if start else columns

    def _window_of(self, name: str, total: int, window: Window) -> str:
        """Some features of a block in registers."""
        start, features = window
        if features == 1:
            return self.name(f"column({name}, {start})") if total > 1 else name
        index = self._shifted(self.columns(features), start)
        if start + wide(features) > wide(total):
            index = f"tl.minimum({index}, {total - 1})"
        return self.name(f"picked({name}, {index})")

    def _cat(self, parts: Sequence[Tile], window: Window) -> str:
        """Features of tiles side by side: of one of them, or put together."""
        start, features = window
        first, pieces = 0, list[tuple[int, str, int, Window]]()
        for part in parts:
            low, high = max(start, first), min(start + features, first + part.features)
            if low < high:
                inner = (low - first, high - low)
                pieces.append((low - start, self.value(part, inner), high - start, inner))
            first += part.features
        if len(pieces) == 1:
            return pieces[0][1]
        columns, text = self.columns(features), "0.0"
        for low, name, high, inner in reversed(pieces):
            size = inner[1]
            index = f"tl.maximum(tl.minimum({columns} - {low}, {size - 1}), 0)"
            spread = self.name(f"picked({name}, {index})") if size > 1 else name
            text = f"tl.where({columns} < {high}, {spread}, {text})" if text != "0.0" else spread
        return self.name(text)

    # -- elementwise -------------------------------------------------------------------------------------------------

    def _pointwise(self, tile: tiles.Pointwise, window: Window) -> str:
        features = window[1]
        args = [a for a in tile.args if not isinstance(a, Weight | Constant)]
        vectors = [a for a in tile.args if isinstance(a, Weight) and math.prod(a.shape) > 1]
        text = OPERATORS[tile.op]
        if tile.op == "pow" and isinstance(tile.args[1], Constant):
            text = power_text(float(tile.args[1].value))
        in_words = not args or text.split("(")[0].isidentifier()  # our functions take blocks, not numbers
        operands = [self._operand(a, window, as_block=in_words) for a in tile.args]
        made = text.format(*operands)
        full = any(a.features > 1 for a in args) or (bool(args) and (bool(vectors) or features == 1))
        if not full:
            made = f"tl.broadcast_to({made}, ({self.shape.lanes}, {wide(features)}))"
        return self.name(made)

    def _operand(self, operand: Operand, window: Window, *, as_block: bool) -> str:
        match operand:
            case Constant(value=bool() as truth):
                return f"tl.full((1, 1), {int(truth)}, tl.int1)"
            case Constant(value=number):
                text = _number(float(number))
                return f"tl.full((1, 1), {text}, tl.float32)" if as_block else text
            case Weight():
                return self._weight(operand, window)
            case _:
                return self.value(operand, window)

    def _weight(self, weight: Weight, window: Window) -> str:
        """One number, or one per feature; kept through all steps where weights are held."""
        single = math.prod(weight.shape) == 1
        key = (weight, None if single else window)
        if key not in self._memo:
            pointer, (start, features) = self.parameter(f"w{weight.index}"), window
            if single:
                text = f"tl.load({pointer}).to(tl.float32)"
            else:
                columns = self.columns(features)
                guard = "" if wide(features) == features else f", mask={columns} < {features}, other=0.0"
                text = f"tl.load({pointer} + {self._shifted(columns, start)}{guard}).to(tl.float32)"
            kept = single or self.shape.way is Way.HELD
            made = self.name(text, "w", self.head if kept else self.body)
            self._memo[key] = self.name(f"{made} != 0", "w", self.head if kept else None) if weight.is_mask else made
        return self._memo[key]

    # -- products ----------------------------------------------------------------------------------------------------

    def _product(self, tile: tiles.Product, window: Window) -> str:
        """Multiply a tile by some columns of a matrix, part by part of the tile."""
        start, features = window
        pointer = self.parameter(f"m{tile.matrix.index}")
        stride = tile.matrix.shape[1]
        if features == 1:
            return self._column_product(tile, pointer, stride, start)
        if self.shape.lanes < 16:  # too few rows for a product of blocks, and only narrow ones are left here
            return self._written_out(tile, pointer, stride, window)
        if self.shape.way is Way.STREAMED and not tile.is_narrow:
            return self._streamed(tile, pointer, stride, window)
        total = None
        for first, depth in self.windows(tile.tile):
            matrix = self._matrix(pointer, stride, (first, depth), window)
            left = self._left(tile.tile, (first, depth))
            start = f"tl.zeros(({self.shape.lanes}, {wide(features)}), tl.float32)" if total is None else total
            total = self.name(f"product({left}, {matrix}, {start})", "p")
        assert total is not None
        return total

    def _written_out(self, tile: tiles.Product, pointer: str, stride: int, window: Window) -> str:
        """A narrow product, feature by feature of the tile."""
        (start, features), columns = window, self.columns(window[1])
        guard = "" if wide(features) == features else f", mask={columns} < {features}, other=0.0"
        texts = []
        for j in range(tile.tile.features):
            weights = f"tl.load({pointer} + {self._shifted(columns, j * stride + start)}{guard}).to(tl.float32)"
            texts.append(f"{self.value(tile.tile, (j, 1))} * {weights}")
        return self.name(" + ".join(texts))

    def _left(self, tile: Tile, window: Window) -> str:
        """The left side of a product: at least 16 columns, zeros past the last feature, in the scan's type."""
        depth = window[1]
        text = self.value(tile, window)
        alone = f"tl.where(tl.arange(0, 16)[None, :] == 0, {text}, 0.0)"
        text = alone if depth == 1 else self.inside(text, depth)
        return text if self.element == "fp32" else f"({text}).to(tl.bfloat16)"

    def _matrix(self, pointer: str, stride: int, rows: Window, columns: Window) -> str:
        """A part of a matrix, loaded before the time loop, or, where weights are not held, now."""
        (first, depth), (start, features) = rows, columns
        height, index = max(16, wide(depth)), self.columns(features)
        down = f"tl.arange(0, {height})[:, None]"
        guards = [f"({down} < {depth})"] if height != depth else []
        guards += [f"({index} < {features})"] if wide(features) != features else []
        guard = f", mask={' & '.join(guards)}, other=0.0" if guards else ""
        text = f"tl.load({pointer} + ({self._shifted(down, first)}) * {stride} + {self._shifted(index, start)}{guard})"
        if text not in self._matrices:
            self._matrices[text] = self.name(text, "m", self.head if self.shape.way is Way.HELD else None)
        return self._matrices[text]

    def _column_product(self, tile: tiles.Product, pointer: str, stride: int, start: int) -> str:
        """One column of a product: a sum over features."""
        texts = []
        for first, depth in self.windows(tile.tile):
            value, columns = self.value(tile.tile, (first, depth)), self.columns(depth)
            if depth == 1:
                texts.append(f"{value} * tl.load({pointer} + {first * stride + start}).to(tl.float32)")
                continue
            guard = "" if wide(depth) == depth else f", mask={columns} < {depth}, other=0.0"
            where = f"({self._shifted(columns, first)}) * {stride} + {start}"
            weights = self.name(f"tl.load({pointer} + {where}{guard}).to(tl.float32)", "m")
            texts.append(f"tl.sum({self.inside(value, depth)} * {weights}, axis=1, keep_dims=True)")
        return self.name(" + ".join(texts))

    def _streamed(self, tile: tiles.Product, pointer: str, stride: int, window: Window) -> str:
        """The product runs over the tile's features, ``depth`` at a time, and reads that many rows of the matrix.

        The part of the tile goes through shared memory (``picked``), whose barriers Triton sets. Memory that all
        threads see would need barriers for it, and ``tl.debug_barrier`` does not wait for it on every GPU.
        """
        (start, features), step, columns = window, self.shape.depth, self.columns(window[1])
        guard = f"({columns} < {features})" if wide(features) != features else ""
        total = self.name(f"tl.zeros(({self.shape.lanes}, {wide(features)}), tl.float32)", "p")
        for first, depth in self.windows(tile.tile):
            left = self._whole_left(tile.tile, (first, depth))
            rows = f"(k + tl.arange(0, {step})[:, None])"
            guards = ([guard] if guard else []) + ([f"({rows} < {depth})"] if depth % step else [])
            mask = f", mask={' & '.join(guards)}, other=0.0" if guards else ""
            matrix = f"{pointer} + ({self._shifted(rows, first)}) * {stride} + {self._shifted(columns, start)}"
            part = left if wide(max(depth, 2)) <= step else f"picked({left}, k + tl.arange(0, {step})[None, :])"
            self.body += [
                f"for k in range(0, {depth}, {step}):",
                f"    {total} = product({part}, tl.load({matrix}{mask}), {total})",
            ]
        return total

    def _whole_left(self, tile: Tile, window: Window) -> str:
        """The left side of a product under a name, the same for all columns of the matrix."""
        if (tile, window) not in self._lefts:
            self._lefts[tile, window] = self.name(self._left(tile, window))
        return self._lefts[tile, window]

    # -- features ----------------------------------------------------------------------------------------------------

    def _gather(self, source: Tile, table: tuple[int, ...]) -> str:
        features = len(table)
        if source.features == 1:
            return self.name(f"tl.broadcast_to({self.value(source)}, ({self.shape.lanes}, {wide(features)}))")
        if features == 1:
            return self.value(source, (table[0], 1))
        columns, pointer = self.columns(features), self.table(table)
        guard = "" if wide(features) == features else f", mask={columns} < {features}, other=0"
        index = self.name(f"tl.load({pointer} + {columns}{guard})", "i")
        if source in self.places:
            return self.name(self.places[source](index, features))
        return self.name(f"picked({self.value(source)}, {index})")

    def _groups(self, tile: tiles.Fold | tiles.Running) -> str:
        source, size = tile.tile, tile.size
        groups, name = source.features // size, self.value(source)
        sizes = f"{source.features}, {size}, {1 << (groups - 1).bit_length()}, {1 << (size - 1).bit_length()}"
        if isinstance(tile, tiles.Running):
            if source.features == 1:
                return name
            if groups == 1:
                return self.name(f"tl.cumsum({name}, axis=1)")
            return self.name(f"running({name}, {sizes})")
        function, filler = ("added", "0.0") if tile.op == "add" else ("largest", 'float("-inf")')
        if groups == 1:
            columns = self.columns(size)
            inside = name if wide(size) == size else f"tl.where({columns} < {size}, {name}, {filler})"
            return self.name(f"{function}({inside}, 1)")
        folded = self.name(f"{function}(grouped({name}, {sizes}, {filler}), 2)")
        return self._widened(folded, groups)

    def _widened(self, name: str, features: int) -> str:
        """A block whose columns are the next power of two, as wide as blocks are."""
        count = 1 << (features - 1).bit_length()
        if count == wide(features):
            return name
        return self.name(f"picked({name}, tl.minimum({self.columns(features)}, {count - 1}))")

    def _turn_arguments(self, tile: tiles.Rotate | tiles.RotateBack, way: str) -> str:
        key = turn_key(tile)
        names = [self.parameter(f"{kind}_{way}{key}", "*i32") for kind in ("first", "second")]
        names += [self.parameter(f"{kind}_{way}{key}", "*fp32") for kind in ("cosine", "sine")]
        if tile in self.angle_sums:
            pointer = self.parameter(f"sum{self.angle_sums[tile]}", "*fp32")
            names.append(f"{pointer} + program * {tile.angles.shape[0] * tile.features}")
        return ", ".join([*names, str(tile.angles.shape[0]), str(tile.features)])


def turn_key(tile: tiles.Rotate | tiles.RotateBack) -> str:
    """By what the tables of a rotation are named."""
    return f"_{tile.angles.index}_{tile.permutations.index}"


def _number(value: float) -> str:
    """A literal in float32: Triton would take a larger one for a double."""
    with np.errstate(over="ignore"):
        value = float(np.float32(value))
    return repr(value) if math.isfinite(value) else f'float("{value}")'
