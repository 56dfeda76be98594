"""How a kernel of a scan is laid out on a GPU: number type, samples per program, and the way through time."""

from __future__ import annotations

import dataclasses
import enum

import torch

__all__ = ["TYPES", "Shape", "Way", "wide"]

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}  # sums are in float32 for both


class Way(enum.StrEnum):
    """How the steps of a scan become launches."""

    HELD = "held"  # one launch; weights are loaded before the time loop and stay on the chip
    STREAMED = "streamed"  # one launch; every step reads its weights again, tile by tile along the summed axis
    STEPS = "steps"  # launches for every step; PyTorch does the products, one kernel the rest


@dataclasses.dataclass(frozen=True)
class Shape:
    """``lanes``: samples per program. ``masked``: whether samples live through some of the steps only.

    ``warps``: as Triton counts them. ``depth``: features that a streamed product sums at a time.
    """

    dtype: torch.dtype
    masked: bool
    way: Way = Way.HELD
    lanes: int = 16  # a product of blocks has at least 16 rows
    warps: int = 4
    depth: int = 16

    @property
    def trial_sizes(self) -> tuple[int, int]:
        """Batch sizes of a trial."""
        return (self.lanes // 2 + 1, self.lanes + 3) if self.masked else (self.lanes, 2 * self.lanes)


def wide(features: int) -> int:
    """Columns of the block that holds so many features: one, or a power of two that a product can take."""
    return 1 if features == 1 else max(16, 1 << (features - 1).bit_length())
