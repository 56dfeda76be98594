"""The loop of flow.py, in instructions.

x_t = x_{t-1} M + d_t      (1) a block of columns at a time, its sums in registers while M's rows go by
"""

from __future__ import annotations

import torch

from holdfast.engine.kernels.parts import PartsBuilder
from holdfast.engine.targets.cpu.vec import Value, fma

__all__ = ["FlowBuilder"]

REGISTERS = 8  # of sums


class FlowBuilder(PartsBuilder):
    """(1) for rows t = 1 to ``count`` - 1 of ``flows`` flows, one part each; row 0 is there.

    Args:
        least: every number of columns is a multiple of this.
    """

    def __init__(self, dtype: torch.dtype, least: int):
        super().__init__(dtype, ("matrix", "rows", "drives"), ("stride", "apart", "count", "size", "flows"))
        self.least_columns = least

    def parts(self) -> Value:
        return self.given["flows"]

    def part(self, at: Value) -> None:
        given, size = self.given, self.given["size"]
        matrix = self.at(given["matrix"], self.mul(at, self.mul(size, size)))
        rows = self.at(given["rows"], self.mul(at, self.mul(given["count"], size)))
        drives = self.at(given["drives"], self.mul(at, given["apart"]))
        self.count(1, given["count"], 1, lambda t, _: self._row(t, matrix, rows, drives))

    def _row(self, t: Value, matrix: Value, rows: Value, drives: Value) -> None:
        size, wide = self.given["size"], REGISTERS * self.width
        row, last = (self.at(rows, self.mul(time, size)) for time in (t, self.sub(t, 1)))
        drive = self.at(drives, self.mul(t, self.given["stride"]))
        most = self.builder.and_(size, self.const(-wide))
        for start, stop, columns in ((0, most, wide), (most, size, self.least_columns)):
            count = columns // self.width
            self.count(start, stop, columns, lambda c, _, n=count: self._block(matrix, row, last, drive, c, n))

    def _block(self, matrix: Value, row: Value, last: Value, drive: Value, column: Value, registers: int) -> None:
        size, places = self.given["size"], [self.add(column, v * self.width) for v in range(registers)]

        def add(j: Value, sums: list[Value]) -> list[Value]:
            x, own = self.splat_at(last, j), self.at(matrix, self.mul(j, size))
            pairs = zip(places, sums, strict=True)
            return [fma(x, self.load(own, place), self.vec(total)).value for place, total in pairs]

        sums = self.count(0, size, 1, add, [self.load(drive, place).value for place in places])
        for place, total in zip(places, sums, strict=True):
            self.store(self.vec(total), row, place)
