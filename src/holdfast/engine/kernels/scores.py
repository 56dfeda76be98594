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
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from torch import Tensor

from holdfast.engine.targets.cpu.loops import LANES, Compiled, Kernel
from holdfast.engine.targets.cpu.vec import Vec, fma, select

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
        self.columns = WIDE * LANES[weight.dtype]
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
        return fits and weight.device.type == "cpu" and weight.dtype in LANES

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
def _compiled(dtype: torch.dtype) -> Compiled:
    return Compiled(_Scores(dtype))


class _Scores(Kernel):
    """A part is a chunk: all units for up to ``CHUNK`` vectors of a segment."""

    def __init__(self, dtype: torch.dtype):
        pointers = ("v", "panels", "below", "above", "out", "results")
        super().__init__(dtype, pointers, ("size", "blocks", "rows", "segments", "stride"))
        b = self.builder
        sums = b.alloca(self.element, size=self.const(2 * CHUNK * self.lanes))
        # of (3), then of (4); through a number, since llvmlite holds stores to the type that was asked for
        self.sums = b.inttoptr(b.ptrtoint(sums, ir.IntType(64)), ir.PointerType())
        self.chunks = b.udiv(b.add(self.given["rows"], self.const(CHUNK - 1)), self.const(CHUNK))  # of a segment

    def parts(self) -> Any:
        return self.builder.mul(self.chunks, self.given["segments"])

    def part(self, at: Any) -> None:
        b, given, rows = self.builder, self.given, self.given["rows"]
        segment, chunk = b.udiv(at, self.chunks), b.urem(at, self.chunks)
        begin = b.mul(chunk, self.const(CHUNK))
        count = self.least(b.sub(rows, begin), self.const(CHUNK))
        vectors = self.at(given["v"], b.mul(segment, given["stride"]))
        zero, one = self.const(0), self.const(1)

        def clear(i: Any, _: list[Any]) -> None:
            self.store(self.number(0.0), self.sums, b.mul(i, self.const(self.lanes)))

        def panel(block: Any, _: list[Any]) -> None:
            columns = WIDE * self.lanes
            where = self.at(given["panels"], b.mul(b.mul(block, given["size"]), self.const(columns)))
            first = b.mul(block, self.const(columns))
            places = [b.add(first, self.const(c * self.lanes)) for c in range(WIDE)]
            edges = [[self.load(given[name], place) for place in places] for name in ("below", "above", "out")]
            self.count(zero, count, self.const(TILE), lambda r, _: self._tile(where, vectors, begin, r, edges))

        def write(r: Any, _: list[Any]) -> None:
            place = b.add(b.mul(segment, rows), b.add(begin, r))
            for which in range(2):
                total = self.sum_of(self.load(self.sums, self._sum_at(r, which)))
                offset = b.mul(b.mul(self.const(which), given["segments"]), rows)
                b.store(total, self.at(given["results"], b.add(offset, place)))

        self.count(zero, self.const(2 * CHUNK), one, clear)
        self.count(zero, given["blocks"], one, panel)
        self.count(zero, count, one, write)

    def _sum_at(self, r: Any, which: int) -> Any:
        return self.builder.mul(self.builder.add(r, self.const(which * CHUNK)), self.const(self.lanes))

    def _tile(self, panel: Any, vectors: Any, begin: Any, r: Any, edges: list[list[Vec]]) -> None:
        """(1) of ``TILE`` vectors and one panel, and what (3) and (4) sum; past the last vector, the last again."""
        b = self.builder
        size, last = self.given["size"], b.sub(self.given["rows"], self.const(1))
        places = [self.least(b.add(b.add(begin, r), self.const(t)), last) for t in range(TILE)]
        starts = [self.at(vectors, b.mul(place, size)) for place in places]

        def column(k: Any, totals: list[Any], together: int) -> list[Any]:
            for u in range(together):
                index = b.add(k, self.const(u))
                row = b.mul(index, self.const(WIDE * self.lanes))
                units = [self.load(panel, b.add(row, self.const(c * self.lanes))) for c in range(WIDE)]
                for t in range(TILE):
                    entry = self.splat(b.load(self.at(starts[t], index), typ=self.element))
                    for c in range(WIDE):
                        totals[t * WIDE + c] = fma(entry, units[c], Vec(b, totals[t * WIDE + c])).value
            return totals

        fours, totals = b.and_(size, self.const(-4)), [self.number(0.0).value] * (TILE * WIDE)
        for start, stop, step in ((self.const(0), fours, 4), (fours, size, 1)):
            totals = self.count(start, stop, self.const(step), functools.partial(column, together=step), totals)
        below, above, out = edges
        for t in range(TILE):
            for which, edge in enumerate((below, above)):
                place = self._sum_at(b.add(r, self.const(t)), which)
                total = self.load(self.sums, place)
                for c in range(WIDE):
                    a = Vec(b, totals[t * WIDE + c])
                    # the edge only where it is beyond a: so NaN stays NaN
                    cut = select(edge[c] > a if which == 0 else edge[c] < a, edge[c], a)
                    total = fma(cut, out[c], total)
                self.store(total, self.sums, place)
