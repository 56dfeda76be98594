"""Scores of many vectors in one compiled loop: the product with W never leaves the registers.

    a = W v                                                          (1) 4 vectors by 16 units at a time
    relu(a + c) = max(a, -c) + c,   relu(s - a) = s - min(a, s)      (2) α of v, and with s = W 1 + c of 1 - v
    α(v) = Σ_h w_h max(a_h, -c_h) + w·c + d                          (3) summed as (1) comes out
    α(1 - v) = w·s + d - Σ_h w_h min(a_h, s_h)                       (4)

PyTorch would write a, read it, write the maximum and read it again: three passes over memory that cost more than (1).
W is packed so that a panel of 16 units stays in the first cache while 32 vectors go by. The code comes from the fused
scan's compiler and runs on its threads. Source of α: S1, §5; holdfast/rrnn/scorer.py.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from llvmlite import ir
from torch import Tensor

from holdfast.engine.kernels.parts import PartsBuilder
from holdfast.engine.targets.cpu.vec import WIDTH, Value, Vec, fma, select

__all__ = ["CompiledScores"]

TILE, WIDE, CHUNK = 4, 2, 32  # vectors and registers of units in a tile; vectors that share a panel


class CompiledScores:
    """(3) and (4) for one W, c, w and d.

    Args:
        weight: W, (hidden, p); bias: c; weight_out: w; bias_out: d. On the CPU, float32 or float64.

    Example:
        >>> W, c, w, d = torch.randn(8, 5), torch.randn(8), torch.randn(8), torch.randn(())
        >>> v = torch.randn(3, 5)
        >>> of_v, of_flipped = CompiledScores(W, c, w, d)(v[None])
        >>> torch.allclose(torch.from_numpy(of_flipped[0]), torch.relu((1 - v) @ W.mT + c) @ w + d, atol=1e-5)
        True
    """

    def __init__(self, weight: Tensor, bias: Tensor, weight_out: Tensor, bias_out: Tensor):
        self.weight, self.bias, self.weight_out, self.bias_out = weight, bias, weight_out, bias_out
        hidden, size = weight.shape
        self.columns = WIDE * WIDTH[weight.dtype]
        self.fill = -hidden % self.columns
        # (blocks, p, columns): the units of a block side by side
        wide = torch.nn.functional.pad(weight, (0, 0, 0, self.fill)) if self.fill else weight
        self.panels = wide.reshape(-1, self.columns, size).mT.contiguous()
        self._edges()

    def _edges(self) -> None:
        flipped = self.weight.sum(dim=1) + self.bias
        self.edges = torch.stack((-self.bias, flipped, self.weight_out))  # -c, s and w
        self.plus, self.minus = (torch.stack((self.bias, flipped)) @ self.weight_out + self.bias_out).tolist()
        if self.fill:
            self.edges = torch.nn.functional.pad(self.edges, (0, self.fill))

    @staticmethod
    def takes(weight: Tensor, like: Tensor) -> bool:
        """Whether there is such a loop for this W and vectors like these: on the CPU, in float32 and float64.

        PyTorch reports vectors that do not fit.
        """
        fits = weight.shape[1] == like.shape[-1] and weight.dtype == like.dtype and weight.device == like.device
        return fits and weight.device.type == "cpu" and weight.dtype in WIDTH

    def folded(self, scale: Tensor, shift: Tensor) -> CompiledScores:
        """The scores of scale ⊙ v + shift, and of that of 1 - v, as a function of v."""
        other = copy.copy(self)
        other.weight, other.bias = self.weight * scale, self.bias + self.weight @ shift
        other.panels = self.panels * scale[:, None]
        other._edges()
        return other

    def __call__(self, v: Tensor) -> np.ndarray:
        """Scores (2, segments, rows) of vectors (segments, rows, p) and of 1 minus them; rows are contiguous."""
        segments, rows, size = v.shape
        chunks = segments * math.ceil(rows / CHUNK)
        results = np.empty((2, segments, rows), dtype=_NUMPY[v.dtype])
        below, above, out = (row.data_ptr() for row in self.edges)
        pointers = (v.data_ptr(), self.panels.data_ptr(), below, above, out, results.ctypes.data)
        numbers = (size, len(self.panels), rows, segments, v.stride(0))
        _compiled(v.dtype)(*pointers, *numbers, parts=chunks)
        results[0] += self.plus
        np.subtract(self.minus, results[1], out=results[1])
        return results


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


@functools.cache
def _compiled(dtype: torch.dtype) -> Callable[..., None]:
    return _Scores(dtype).compiled()


class _Scores(PartsBuilder):
    """A part is a chunk: all units for up to ``CHUNK`` vectors of a segment."""

    def __init__(self, dtype: torch.dtype):
        pointers = ("v", "panels", "below", "above", "out", "results")
        super().__init__(dtype, pointers, ("size", "blocks", "rows", "segments", "stride"))
        sums = self.entry.alloca(self.element, size=self.const(2 * CHUNK * self.width))
        # of (3), then of (4); through a number, since llvmlite holds stores to the type that was asked for
        self.sums = self.entry.inttoptr(self.entry.ptrtoint(sums, ir.IntType(64)), ir.PointerType())
        self.chunks = self.builder.udiv(self.add(self.given["rows"], CHUNK - 1), self.const(CHUNK))  # of a segment

    def parts(self) -> Value:
        return self.mul(self.chunks, self.given["segments"])

    def part(self, at: Value) -> None:
        given, rows = self.given, self.given["rows"]
        segment, chunk = self.builder.udiv(at, self.chunks), self.builder.urem(at, self.chunks)
        begin = self.mul(chunk, CHUNK)
        count = self.least(self.sub(rows, begin), self.const(CHUNK))
        vectors = self.at(given["v"], self.mul(segment, given["stride"]))

        def clear(i: Value, _: list[Value]) -> None:
            self.store(self.number(0.0), self.sums, self.mul(i, self.width))

        def panel(block: Value, _: list[Value]) -> None:
            columns = WIDE * self.width
            where = self.at(given["panels"], self.mul(self.mul(block, given["size"]), columns))
            first = self.mul(block, columns)
            places = [self.add(first, c * self.width) for c in range(WIDE)]
            edges = [[self.load(given[name], place) for place in places] for name in ("below", "above", "out")]
            self.count(0, count, TILE, lambda r, _: self._tile(where, vectors, begin, r, edges))

        def write(r: Value, _: list[Value]) -> None:
            place = self.add(self.mul(segment, rows), self.add(begin, r))
            for which in range(2):
                total = self.sum_of(self.load(self.sums, self._sum_at(r, which)))
                offset = self.mul(self.mul(which, given["segments"]), rows)
                self.builder.store(total, self.at(given["results"], self.add(offset, place)))

        self.count(0, 2 * CHUNK, 1, clear)
        self.count(0, given["blocks"], 1, panel)
        self.count(0, count, 1, write)

    def _sum_at(self, r: Value, which: int) -> Value:
        return self.mul(self.add(r, which * CHUNK), self.width)

    def _tile(self, panel: Value, vectors: Value, begin: Value, r: Value, edges: list[list[Vec]]) -> None:
        """(1) of ``TILE`` vectors and one panel, and what (3) and (4) sum; past the last vector, the last again."""
        size, last = self.given["size"], self.sub(self.given["rows"], 1)
        places = [self.least(self.add(self.add(begin, r), t), last) for t in range(TILE)]
        starts = [self.at(vectors, self.mul(place, size)) for place in places]

        def column(k: Value, totals: list[Value], together: int) -> list[Value]:
            for u in range(together):
                index = self.add(k, u)
                row = self.mul(index, WIDE * self.width)
                units = [self.load(panel, self.add(row, c * self.width)) for c in range(WIDE)]
                for t in range(TILE):
                    entry = self.splat_at(starts[t], index)
                    for c in range(WIDE):
                        totals[t * WIDE + c] = fma(entry, units[c], self.vec(totals[t * WIDE + c])).value
            return totals

        fours, totals = self.builder.and_(size, self.const(-4)), [self.number(0.0).value] * (TILE * WIDE)
        for start, stop, step in ((0, fours, 4), (fours, size, 1)):
            totals = self.count(start, stop, step, functools.partial(column, together=step), totals)
        below, above, out = edges
        for t in range(TILE):
            for which, edge in enumerate((below, above)):
                place = self._sum_at(self.add(r, t), which)
                total = self.load(self.sums, place)
                for c in range(WIDE):
                    a = self.vec(totals[t * WIDE + c])
                    # the edge only where it is beyond a: so NaN stays NaN
                    cut = select(edge[c] > a if which == 0 else edge[c] < a, edge[c], a)
                    total = fma(cut, out[c], total)
                self.store(total, self.sums, place)
