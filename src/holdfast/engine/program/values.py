"""What a node of a step's graph becomes when it is lowered: Rows, Static, Total or a Constant; see lower.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from holdfast.engine.program.graph import Node, Unsupported
from holdfast.engine.program.tiles import Tile
from holdfast.engine.program.trace import Batch

__all__ = ["Axes", "Pair", "Rows", "Static", "Total", "axes_of", "broadcast", "flat"]

Axes = tuple[tuple[int | None, ...], ...]  # None is the batch; an axis may hold it together with features


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """A tile whose features, in order, are the tensor's entries for one sample.

    ``axes``: for each axis of the tensor what it is made of, whole numbers and None for the batch. (batch, 6) has
    ((None,), (6,)); (2 · batch, 3), a view of (batch, 2, 3), has ((None, 2), (3,)).
    """

    tile: Tile
    axes: Axes

    @property
    def sizes(self) -> list[int]:
        """The whole numbers among the axes, in order."""
        return [n for axis in self.axes for n in axis if n is not None]

    def table(self) -> np.ndarray:
        """The tile's features in the tensor's shape, with 1 for the batch; only where no axis is mixed."""
        if any(len(axis) != 1 for axis in self.axes):
            raise Unsupported("an operator on an axis that holds samples and features")
        return np.arange(self.tile.features).reshape([1 if n is None else n for (n,) in self.axes])


@dataclasses.dataclass(frozen=True, eq=False)
class Static:
    """A node of ``prologue``."""

    node: Node

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A complex value: two Rows, Statics or numbers."""

    real: Any
    imag: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Total:
    """A node of ``finish``."""

    node: Node


def flat(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        for v in value:
            yield from flat(v)
    else:
        yield value


def axes_of(shape: Sequence[Any]) -> Axes:
    """The axes of a shape in which the batch has an axis of its own."""
    if sum(isinstance(n, Batch) for n in shape) != 1 or Batch() not in shape:
        raise Unsupported(f"a value of shape {tuple(shape)}")
    return tuple((None,) if isinstance(n, Batch) else (n,) for n in shape)


def broadcast(given: list[Axes], shape: Sequence[Any] | None) -> Axes:
    """The axes of an elementwise result."""
    if not given:
        if shape is None:
            raise Unsupported("an operator on numbers alone")
        return axes_of(shape)
    rank = len(shape) if shape is not None else max(map(len, given))
    axes: list[tuple[int | None, ...]] = []
    for d in range(rank):
        here = [a[d - rank] for a in given if len(a) >= rank - d]
        mixed = [axis for axis in here if None in axis]
        if mixed:
            if any(axis != mixed[0] and axis != (1,) for axis in here):
                raise Unsupported("an operator between different samples")
            axes.append(mixed[0])
        else:
            sizes = [axis[0] or 1 for axis in here]
            wanted = shape[d] if shape is not None and not isinstance(shape[d], Batch) else 1
            axes.append((max([wanted, *sizes]),))
    if sum(None in axis for axis in axes) != 1:
        raise Unsupported("an operator between different samples")
    return tuple(axes)
