"""The loop of flow.py, in instructions.

x_t = x_{t-1} M + d_t      (1) a block of columns at a time, its sums in registers while M's rows go by

Rows go by downwards in one step and upwards in the next one: what of M is still in the first-level cache is then read
first. Of a matrix of 100 × 100 floats, which is larger than that cache, more than half is found there.
"""

from __future__ import annotations

import torch

from holdfast.engine.kernels.parts import PartsBuilder
from holdfast.engine.targets.cpu.builder import Int
from holdfast.engine.targets.cpu.vec import Value, fma

__all__ = ["FlowBuilder"]

REGISTERS = 14  # of sums: with a factor and a row of M, all that AVX2 has


class FlowBuilder(PartsBuilder):
    """(1) for rows t = 1 to ``count`` - 1 of ``flows`` flows, one part each; row 0 is there.

    Args:
        least: every number of columns is a multiple of this. The matrix has as many rows; those from ``used`` on are 0.
    """

    def __init__(self, dtype: torch.dtype, least: int):
        super().__init__(dtype, ("matrix", "rows", "drives"), ("stride", "apart", "count", "size", "used", "flows"))
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
        size, least = self.given["size"], self.least_columns
        wide = REGISTERS * self.width // least * least
        row, last = (self.at(rows, self.mul(time, size)) for time in (t, self.sub(t, 1)))
        drive = self.at(drives, self.mul(t, self.given["stride"]))
        upwards = self.builder.and_(t, self.const(1))
        sign = self.sub(1, self.mul(upwards, 2))
        first = self.mul(upwards, self.sub(self.given["used"], 1))
        even = self._parted(self._parted(size, self._parted(size, wide)), least)  # blocks of even sizes, in ``least``
        start: Int = 0
        for columns in range(wide, 0, -least):
            left = self.builder.srem(self.sub(size, start), self.const(columns))
            taken = self.builder.icmp_signed("<=", self.const(columns), self.mul(even, least))
            stop = self.builder.select(taken, self.sub(size, left), self.const(start))

            def block(column: Value, _: list[Value], count: int = columns // self.width) -> None:
                self._block(matrix, row, last, drive, column, count, first, sign)

            self.count(start, stop, columns, block)
            start = stop

    def _parted(self, number: Value, by: Int) -> Value:
        """⌈number / by⌉."""
        return self.builder.sdiv(self.add(number, self.sub(by, 1)), self.const(by))

    def _block(
        self,
        matrix: Value,
        row: Value,
        last: Value,
        drive: Value,
        column: Value,
        registers: int,
        first: Value,
        sign: Value,
    ) -> None:
        """Columns from ``column`` on: M's rows are ``first``, ``first`` + ``sign``, ..."""
        size, places = self.given["size"], [self.add(column, v * self.width) for v in range(registers)]

        def add(turn: Value, sums: list[Value]) -> list[Value]:
            j = self.add(first, self.mul(sign, turn))
            x, own = self.splat_at(last, j), self.at(matrix, self.mul(j, size))
            pairs = zip(places, sums, strict=True)
            return [fma(x, self.load(own, place), self.vec(total)).value for place, total in pairs]

        sums = self.count(0, self.given["used"], 1, add, [self.load(drive, place).value for place in places])
        for place, total in zip(places, sums, strict=True):
            self.store(self.vec(total), row, place)
