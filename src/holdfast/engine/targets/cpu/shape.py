"""How a kernel of a scan is laid out: number type, samples per block, and the variant."""

from __future__ import annotations

import dataclasses
import math

import torch

from holdfast.engine.program.tiles import Outer
from holdfast.engine.targets.cpu.machine import second_cache
from holdfast.engine.targets.cpu.vec import WIDTH

__all__ = ["FeatureShape", "Shape"]


@dataclasses.dataclass(frozen=True)
class Shape:
    """``lanes``: samples per block. ``masked``: whether samples live through some of the steps only (emit.py)."""

    dtype: torch.dtype
    lanes: int
    masked: bool

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return WIDTH[self.dtype]

    @property
    def trial_sizes(self) -> tuple[int, int]:
        """Batch sizes of a trial."""
        return (self.lanes // 2 + 1, self.lanes + 3) if self.masked else (self.lanes, 2 * self.lanes)

    @property
    def panel(self) -> int:
        """Rows of a product that are summed together: with two vectors of lanes they make twelve accumulators, which
        leaves room for a weight and the lanes in sixteen registers.
        """
        return 12 if self.lanes == self.width else 6

    def kept_rows(self, features: int) -> int:
        """Rows that a kept tile takes: whole panels, so that a product may write it."""
        return math.ceil(features / self.panel) * self.panel

    def outer_size(self, outer: Outer) -> tuple[int, int]:
        """Rows and columns of the memory that an outer product is summed in: whole panels, whole pairs of vectors."""
        wide = 2 * self.width
        return self.kept_rows(outer.left.features), math.ceil(outer.right.features / wide) * wide

    def summed_after(self, outer: Outer) -> bool:
        """Whether an outer product is better left until after the loop: each step reads and writes the whole sum, which
        pays for a sum that stays in the second cache, and with few lanes for one that leaves room there.
        """
        room = second_cache() // (4 if self.lanes < 4 * self.width else 1)
        return outer.left.features * outer.right.features * self.dtype.itemsize > room


@dataclasses.dataclass(frozen=True)
class FeatureShape:
    """Lanes over features (feature_builder.py). ``rows``, ``vectors``: samples and vectors of features of a product
    that are summed together, in registers. ``team``: threads that run through the steps together.
    """

    dtype: torch.dtype
    rows: int
    vectors: int
    team: int
    masked: bool = False  # never: a scan with lengths takes the other way

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return WIDTH[self.dtype]

    @property
    def trial_sizes(self) -> tuple[int, int]:
        """Batch sizes of a trial."""
        return self.rows, self.rows + 1

    def largest_part(self, features: int) -> int:
        """Vectors of the worker that has most of them: whole panels, and for the last worker what is left over."""
        whole, rest = divmod(math.ceil(features / self.width), self.vectors)
        return (whole - whole * (self.team - 1) // self.team) * self.vectors + rest

    def summed_after(self, outer: Outer) -> bool:
        """Whether a wide outer product is left until after the loop: always, as one product of all steps."""
        return True
