"""The tile program: what one step does to a block of samples.

A tile holds one value for every feature and every sample of a block: one row per feature, one lane per sample. A
program is a graph of tiles. Elementwise nodes cost nothing by themselves: they are evaluated inside the loop
that writes a row to memory. The others are statements of their own: products with a weight, plane rotations, sums.

    Input        what the time loop provides; its ``Slot`` says what it is: x, a state, a saved tile, a cotangent, ...
    Pointwise    an elementwise operator of tiles, weights (a scalar or one value per feature) and constants
    Slice, Cat   features of a tile; tiles put together
    Gather       features of a tile in any order, by a table that is known beforehand
    Product      tile · matrix, for a matrix among the weights
    Fold         the sum or the largest of each group of features
    Running      the running sum within each group of features
    Rotate       plane rotations (holdfast.linalg.givens), in place
    RotateBack   their gradient, from the output

What a backward pass sums over all steps and samples is a reduction: RowSum, Outer or AngleSum.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import TypeVar, Union

__all__ = [
    "COSTLY", "MASKS", "NARROW", "TILES", "AngleSum", "Cat", "Constant", "Fold", "Gather", "Input", "Kind", "Operand",
    "Outer", "Pointwise", "Product", "Reduction", "Rotate", "RotateBack", "RowSum", "Running", "Slice", "Slot",
    "StepProgram", "Tile", "Weight", "in_order", "operands", "reachable", "read_by", "with_operands",
]  # fmt: skip

# Elementwise operators whose result is a mask.
MASKS = {
    "gt", "ge", "lt", "le", "eq", "ne", "isnan", "nonzero", "logical_and", "logical_or", "logical_xor", "logical_not",
}  # fmt: skip

# Elementwise operators worth a place in memory when two loops need them.
COSTLY = {
    "sigmoid", "tanh", "exp", "exp2", "expm1", "log", "log2", "log1p", "erf", "sin", "cos", "pow", "softplus", "gelu",
    "gelu_tanh", "silu", "elu", "softplus_backward", "gelu_backward", "gelu_tanh_backward", "silu_backward",
    "elu_backward", "elu_backward_of_result",
}  # fmt: skip

NARROW = 8  # a product over at most this many features is evaluated in place instead of as a statement


class Kind(enum.StrEnum):
    """What a step takes or returns, with the letter under which it is printed."""

    SOURCE = "x"  # or the drive
    STATE = "s"  # an entry of the state before the step
    NEW = "n"  # the same after it
    SAVED = "k"  # a tile that forward keeps for backward
    COTANGENT = "g"  # the gradient that reaches a new state
    NOISE = "z"  # random numbers


@dataclasses.dataclass(frozen=True, order=True)
class Slot:
    """Which input or output: entry ``index`` of its kind."""

    kind: Kind
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind is Kind.SOURCE else f"{self.kind}{self.index}"


@dataclasses.dataclass(frozen=True)
class Weight:
    """Entry ``index`` of the weights that the kernel is called with."""

    index: int
    shape: tuple[int, ...]
    is_mask: bool = False


@dataclasses.dataclass(frozen=True)
class Constant:
    value: float | bool


@dataclasses.dataclass(frozen=True, eq=False)
class Input:
    slot: Slot
    features: int
    is_mask = False


@dataclasses.dataclass(frozen=True, eq=False)
class Pointwise:
    op: str
    args: tuple[Operand, ...]
    features: int
    is_mask: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Slice:
    tile: Tile
    start: int
    features: int

    @property
    def is_mask(self) -> bool:
        return self.tile.is_mask


@dataclasses.dataclass(frozen=True, eq=False)
class Cat:
    parts: tuple[Tile, ...]
    features: int
    is_mask = False


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """(features of ``tile``) → ``features``: row f is Σ_k matrix[k, f] tile[k]."""

    tile: Tile
    matrix: Weight
    features: int
    is_mask = False

    @property
    def is_narrow(self) -> bool:
        return self.tile.features <= NARROW


@dataclasses.dataclass(frozen=True, eq=False)
class Gather:
    """Feature f is feature ``table[f]`` of ``tile``."""

    tile: Tile
    table: tuple[int, ...]

    @property
    def features(self) -> int:
        return len(self.table)

    @property
    def is_mask(self) -> bool:
        return self.tile.is_mask


@dataclasses.dataclass(frozen=True, eq=False)
class Fold:
    """Feature g is ``op``, "add" or "maximum", of features g·size to (g+1)·size of ``tile``."""

    tile: Tile
    size: int
    op: str
    is_mask = False

    @property
    def features(self) -> int:
        return self.tile.features // self.size


@dataclasses.dataclass(frozen=True, eq=False)
class Running:
    """The sum of a feature and those before it in its group of ``size``."""

    tile: Tile
    size: int
    is_mask = False

    @property
    def features(self) -> int:
        return self.tile.features


@dataclasses.dataclass(frozen=True, eq=False)
class Rotate:
    tile: Tile
    angles: Weight
    permutations: Weight
    features: int
    is_mask = False


@dataclasses.dataclass(frozen=True, eq=False)
class RotateBack:
    """The gradient at the input of a rotation, from the one at its output and from the output itself."""

    grad: Tile
    output: Tile
    angles: Weight
    permutations: Weight
    features: int
    is_mask = False


Tile = Union[Input, Pointwise, Slice, Gather, Cat, Product, Fold, Running, Rotate, RotateBack]  # noqa: UP007 - forward references
TILES = (Input, Pointwise, Slice, Gather, Cat, Product, Fold, Running, Rotate, RotateBack)  # the same, for isinstance
Operand = Union[Tile, Weight, Constant]  # noqa: UP007
_OPERANDS = (*TILES, Weight, Constant)


@dataclasses.dataclass(frozen=True, eq=False)
class RowSum:
    """Σ over steps and samples of each row: (features,)."""

    tile: Tile


@dataclasses.dataclass(frozen=True, eq=False)
class Outer:
    """Σ over steps and samples of left ⊗ right: (left features, right features)."""

    left: Tile
    right: Tile


@dataclasses.dataclass(frozen=True, eq=False)
class AngleSum:
    """The angles' gradient that a ``RotateBack`` collects: the shape of the angles."""

    source: RotateBack


Reduction = RowSum | Outer | AngleSum
_Node = TypeVar("_Node", bound=Operand | Reduction)


@dataclasses.dataclass(frozen=True, eq=False)
class StepProgram:
    """One direction of one step.

    ``outputs``: by the state that a tile is the next value of, or by what it is the gradient of; None is a gradient
    known to be zero. ``reductions``: what is summed over time. ``saved``: what is kept for backward.
    """

    inputs: dict[Slot, Input]
    outputs: dict[Slot, Tile | None]
    reductions: tuple[Reduction, ...] = ()
    saved: tuple[Tile, ...] = ()

    @property
    def roots(self) -> list[Tile]:
        """The tiles that leave the step or are summed."""
        leaving = [tile for tile in self.outputs.values() if tile is not None]
        return leaving + [tile for reduction in self.reductions for tile in read_by(reduction)]


def operands(node: Operand | Reduction) -> tuple[Operand, ...]:
    """The tiles, weights and constants that a node or a reduction reads directly."""
    found: list[Operand] = []
    for value in vars(node).values():
        values = value if isinstance(value, tuple) else (value,)
        if values and isinstance(values[0], _OPERANDS):
            found += values
    return tuple(found)


def read_by(node: Operand | Reduction) -> list[Tile]:
    """The tiles among its operands."""
    return [arg for arg in operands(node) if not isinstance(arg, Weight | Constant)]


def with_operands(node: _Node, new: Mapping[Operand, Operand]) -> _Node:
    """A node or a reduction that reads other tiles instead."""
    if not any(arg in new and new[arg] is not arg for arg in operands(node)):
        return node
    changed = {}
    for name, value in vars(node).items():
        if isinstance(value, TILES):
            changed[name] = new.get(value, value)
        elif isinstance(value, tuple):
            changed[name] = tuple(new.get(entry, entry) for entry in value)
    return dataclasses.replace(node, **changed)


def reachable(roots: Iterable[Operand | Reduction]) -> set[Operand | Reduction]:
    """The roots and all that they are made of."""
    seen: set[Operand | Reduction] = set()
    todo = list(roots)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += operands(node)
    return seen


def in_order(roots: Iterable[Tile]) -> list[Tile]:
    """The roots and all tiles that they are made of, each after what it reads."""
    order: list[Tile] = []
    seen: set[Tile] = set()
    stack: list[tuple[Tile, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        tile, ready = stack.pop()
        if ready:
            order.append(tile)
        elif tile not in seen:
            seen.add(tile)
            stack.append((tile, True))
            stack += [(arg, False) for arg in reversed(read_by(tile))]
    return order
