"""The loop of flow.py, in instructions.

x_t = x_{t-1} M + d_t      (1) a block of columns at a time, its sums in registers while M's rows go by
"""

from __future__ import annotations

from typing import Any

import torch

from holdfast.engine.targets.cpu.loops import Kernel
from holdfast.engine.targets.cpu.vec import Vec, fma

__all__ = ["FlowKernel"]

REGISTERS = 8  # of sums


class FlowKernel(Kernel):
    """(1) for rows t = 1 to ``count`` - 1; row 0 is there.

    Args:
        least: every number of columns is a multiple of this.
    """

    def __init__(self, dtype: torch.dtype, least: int):
        super().__init__(dtype, ("matrix", "rows", "drives"), ("stride", "count", "size"))
        self.least_columns = least

    def parts(self) -> Any:
        return self.const(1)

    def part(self, at: Any) -> None:
        self.count(self.const(1), self.given["count"], self.const(1), lambda t, _: self._row(t))

    def _row(self, t: Any) -> None:
        b, given = self.builder, self.given
        size, wide = given["size"], REGISTERS * self.lanes
        row, last = self.at(given["rows"], b.mul(t, size)), self.at(given["rows"], b.mul(b.sub(t, self.const(1)), size))
        drive = self.at(given["drives"], b.mul(t, given["stride"]))
        most = b.and_(size, self.const(-wide))
        for start, stop, columns in ((self.const(0), most, wide), (most, size, self.least_columns)):
            count = columns // self.lanes
            self.count(start, stop, self.const(columns), lambda c, _, n=count: self._block(row, last, drive, c, n))

    def _block(self, row: Any, last: Any, drive: Any, column: Any, registers: int) -> None:
        b, given = self.builder, self.given
        places = [b.add(column, self.const(v * self.lanes)) for v in range(registers)]

        def add(j: Any, sums: list[Any]) -> list[Any]:
            x = self.splat(b.load(self.at(last, j), typ=self.element))
            matrix = self.at(given["matrix"], b.mul(j, given["size"]))
            return [
                fma(x, self.load(matrix, place), Vec(b, total)).value for place, total in zip(places, sums, strict=True)
            ]

        start = [self.load(drive, place).value for place in places]
        sums = self.count(self.const(0), given["size"], self.const(1), add, start)
        for place, total in zip(places, sums, strict=True):
            self.store(Vec(b, total), row, place)
