"""Scores of many vectors in one compiled loop: the product with W never leaves the registers.

    a = W v                                                          (1) 4 vectors by 16 units at a time
    relu(a + c) = max(a, -c) + c,   relu(s - a) = s - min(a, s)      (2) α of v, and with s = W 1 + c of 1 - v
    α(v) = Σ_h w_h max(a_h, -c_h) + w·c + d                          (3) summed as (1) comes out
    α(1 - v) = w·s + d - Σ_h w_h min(a_h, s_h)                       (4)

PyTorch would write a, read it, write the maximum and read it again: three passes over memory that cost more than (1).
W is packed so that a panel of 16 units stays in the first cache while 32 vectors go by. The code comes from the fused
scan's compiler and runs on its threads. Source of α: S1, §5; scorer.py.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from torch import Tensor

from holdfast.engine.fused.cache import library
from holdfast.engine.fused.team import add_share, run_blocks, worker_count
from holdfast.engine.fused.vec import Vec, fma, select, vector_type

__all__ = ["CompiledScores"]

I32, I64, POINTER = ir.IntType(32), ir.IntType(64), ir.PointerType()
TILE, WIDE, CHUNK = 4, 2, 32  # vectors and registers of units in a tile; vectors that share a panel
LANES = {torch.float32: 8, torch.float64: 4}
POINTERS = ("v", "panels", "below", "above", "out", "results")
NUMBERS = ("size", "blocks", "rows", "segments", "stride", "first", "workers")


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
        self.panels = wide.view(-1, self.columns, size).mT.contiguous()
        self.run, self.share = _compiled(weight.dtype)
        self._edges()

    def _edges(self) -> None:
        flipped = self.weight.sum(dim=1) + self.bias
        self.edges = torch.stack((-self.bias, flipped, self.weight_out))  # -c, s and w
        self.plus, self.minus = (torch.stack((self.bias, flipped)) @ self.weight_out + self.bias_out).tolist()
        if self.fill:
            self.edges = torch.nn.functional.pad(self.edges, (0, self.fill))

    @staticmethod
    def takes(weight: Tensor) -> bool:
        """Whether there is such a loop: on the CPU, in float32 and float64."""
        return weight.device.type == "cpu" and weight.dtype in LANES

    def folded(self, scale: Tensor, shift: Tensor) -> CompiledScores:
        """The scores of scale ⊙ v + shift, and of that of 1 - v, as a function of v."""
        other = copy.copy(self)
        other.weight, other.bias = self.weight * scale, self.bias + self.weight @ shift
        other.panels = self.panels * scale[:, None]
        other._edges()
        return other

    def __call__(self, v: Tensor) -> np.ndarray:
        """Scores (2, segments, rows) of vectors (segments, rows, p) and of 1 minus them; rows lie side by side."""
        segments, rows, size = v.shape
        chunks = segments * math.ceil(rows / CHUNK)
        results = np.empty((2, segments, rows), dtype=_NUMPY[v.dtype])
        workers = worker_count(chunks)
        below, above, out = (row.data_ptr() for row in self.edges)
        pointers = (v.data_ptr(), self.panels.data_ptr(), below, above, out, results.ctypes.data)
        numbers = (size, len(self.panels), rows, segments, v.stride(0))
        arguments = [np.array((*pointers, *numbers, worker, workers), dtype=np.int64) for worker in range(workers)]
        run_blocks(self.run, self.share, arguments, workers)
        results[0] += self.plus
        np.subtract(self.minus, results[1], out=results[1])
        return results


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


@functools.cache
def _compiled(dtype: torch.dtype) -> tuple[Any, int]:
    code = library(_Kernel(dtype).text())
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address("run"))
    run.library = code  # type: ignore[attr-defined]  # its code lives as long as the function
    return run, code.address("share")


class _Kernel:
    """``run``: every ``workers``-th chunk of all segments, from chunk ``first`` on."""

    def __init__(self, dtype: torch.dtype):
        self.lanes = LANES[dtype]
        self.vector = vector_type(str(dtype).removeprefix("torch."), self.lanes)
        self.element = self.vector.element
        self.module = ir.Module("scores")
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [POINTER]), "run")
        self.builder = ir.IRBuilder(self.function.append_basic_block())
        self.sums = self.builder.alloca(self.vector, size=self.const(2 * CHUNK))  # of (3), then of (4)
        self.given = {name: self._argument(place, name) for place, name in enumerate((*POINTERS, *NUMBERS))}

    def _argument(self, place: int, name: str) -> Any:
        at = self.builder.gep(self.function.args[0], [self.const(place)], source_etype=I64)
        value = self.builder.load(at, typ=I64)
        return value if name in NUMBERS else self.builder.inttoptr(value, POINTER)

    def text(self) -> str:
        b, given = self.builder, self.given
        chunks = b.udiv(b.add(given["rows"], self.const(CHUNK - 1)), self.const(CHUNK))  # of a segment
        total = b.mul(chunks, given["segments"])
        self.count(
            given["first"], total, given["workers"], lambda at, _: self._chunk(b.udiv(at, chunks), b.urem(at, chunks))
        )
        b.ret_void()
        add_share(self.module, self.function)
        return str(self.module)

    def _chunk(self, segment: Any, chunk: Any) -> list[Any]:
        """All units for up to ``CHUNK`` vectors of a segment."""
        b, given = self.builder, self.given
        rows = given["rows"]
        begin = b.mul(chunk, self.const(CHUNK))
        count = self._least(b.sub(rows, begin), self.const(CHUNK))
        vectors = self.at(given["v"], b.mul(segment, given["stride"]))
        zero = ir.Constant(self.vector, [0.0] * self.lanes)
        self.count(self.const(0), self.const(2 * CHUNK), self.const(1), lambda i, _: self.store(zero, self.sums, i))

        def panel(block: Any, _: list[Any]) -> None:
            columns = WIDE * self.lanes
            where = self.at(given["panels"], b.mul(b.mul(block, given["size"]), self.const(columns)))
            first = b.mul(block, self.const(columns))
            places = [b.add(first, self.const(c * self.lanes)) for c in range(WIDE)]
            edges = [[self.load(given[name], place) for place in places] for name in ("below", "above", "out")]
            self.count(self.const(0), count, self.const(TILE), lambda r, _: self._tile(where, vectors, begin, r, edges))

        self.count(self.const(0), given["blocks"], self.const(1), panel)

        def write(r: Any, _: list[Any]) -> None:
            place = b.add(b.mul(segment, rows), b.add(begin, r))
            for which in range(2):
                total = self._sum_of(self._load_sum(b.add(r, self.const(which * CHUNK))))
                offset = b.mul(b.mul(self.const(which), given["segments"]), rows)
                b.store(total, self.at(given["results"], b.add(offset, place)))

        self.count(self.const(0), count, self.const(1), write)
        return []

    def _tile(self, panel: Any, vectors: Any, begin: Any, r: Any, edges: list[list[Vec]]) -> None:
        """(1) of ``TILE`` vectors and one panel, and what (3) and (4) sum; past the last vector, the last again."""
        b = self.builder
        size, last = self.given["size"], b.sub(self.given["rows"], self.const(1))
        places = [self._least(b.add(b.add(begin, r), self.const(t)), last) for t in range(TILE)]
        starts = [self.at(vectors, b.mul(place, size)) for place in places]

        def column(k: Any, totals: list[Any], together: int) -> list[Any]:
            for u in range(together):
                index = b.add(k, self.const(u))
                row = b.mul(index, self.const(WIDE * self.lanes))
                units = [self.load(panel, b.add(row, self.const(c * self.lanes))) for c in range(WIDE)]
                for t in range(TILE):
                    entry = self._splat(b.load(self.at(starts[t], index), typ=self.element))
                    for c in range(WIDE):
                        totals[t * WIDE + c] = fma(entry, units[c], Vec(b, totals[t * WIDE + c])).value
            return totals

        zero = ir.Constant(self.vector, [0.0] * self.lanes)
        fours, totals = b.and_(size, self.const(-4)), [zero] * (TILE * WIDE)
        for start, stop, step in ((self.const(0), fours, 4), (fours, size, 1)):
            totals = self.count(start, stop, self.const(step), functools.partial(column, together=step), totals)
        below, above, out = edges
        for t in range(TILE):
            for which, edge in enumerate((below, above)):
                place = b.add(b.add(r, self.const(t)), self.const(which * CHUNK))
                total = self._load_sum(place)
                for c in range(WIDE):
                    a = Vec(b, totals[t * WIDE + c])
                    # the edge only where it is beyond a: so NaN stays NaN
                    cut = select(edge[c] > a if which == 0 else edge[c] < a, edge[c], a)
                    total = fma(cut, out[c], total)
                self.store(total.value, self.sums, place)

    # -- instructions ------------------------------------------------------------------------------------------------

    def const(self, number: int) -> Any:
        return ir.Constant(I64, number)

    def at(self, pointer: Any, offset: Any) -> Any:
        return self.builder.gep(pointer, [offset], source_etype=self.element)

    def load(self, pointer: Any, offset: Any) -> Vec:
        bytes_ = 32 // self.lanes
        return Vec(self.builder, self.builder.load(self.at(pointer, offset), typ=self.vector, align=bytes_))

    def store(self, value: Any, pointer: Any, place: Any) -> None:
        self.builder.store(value, self.builder.gep(pointer, [place], source_etype=self.vector))

    def _load_sum(self, place: Any) -> Vec:
        where = self.builder.gep(self.sums, [place], source_etype=self.vector)
        return Vec(self.builder, self.builder.load(where, typ=self.vector))

    def _least(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def _splat(self, value: Any) -> Vec:
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(I32, 0))
        lanes = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return Vec(self.builder, self.builder.shuffle_vector(first, undefined, lanes))

    def _sum_of(self, vector: Vec) -> Any:
        parts = [self.builder.extract_element(vector.value, ir.Constant(I32, lane)) for lane in range(self.lanes)]
        while len(parts) > 1:
            parts = [self.builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def count(
        self,
        start: Any,
        stop: Any,
        step: Any,
        body: Callable[[Any, list[Any]], list[Any] | None],
        carried: list[Any] | None = None,
    ) -> list[Any]:
        """``for i in range(start, stop, step)``, with values carried from turn to turn; returns the last ones."""
        b, carried = self.builder, carried or []
        before, test = b.block, self.function.append_basic_block()
        inside, after = self.function.append_basic_block(), self.function.append_basic_block()
        b.branch(test)
        b.position_at_end(test)
        i, held = b.phi(I64), [b.phi(value.type) for value in carried]
        i.add_incoming(start, before)
        for phi, value in zip(held, carried, strict=True):
            phi.add_incoming(value, before)
        b.cbranch(b.icmp_signed("<", i, stop), inside, after)
        b.position_at_end(inside)
        results = body(i, list(held)) or []
        i.add_incoming(b.add(i, step), b.block)
        for phi, value in zip(held, results, strict=True):
            phi.add_incoming(value, b.block)
        b.branch(test)
        b.position_at_end(after)
        return held
