"""A native function under construction: what every kernel is written with.

    void run(arguments)    one parameter, which points at 64-bit integers: addresses and numbers

tile_builder.py adds the tiles of a scan, holdfast.engine.kernels.parts the loops that are written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from llvmlite import ir

from holdfast.engine.targets.cpu.team import add_share, count
from holdfast.engine.targets.cpu.vec import WIDTH, Value, Vec, vector_type

__all__ = ["I32", "I64", "Builder", "Int"]

I32, I64, POINTER = ir.IntType(32), ir.IntType(64), ir.PointerType()
Int = Value | int  # a 64-bit integer of LLVM, or a Python number that becomes one


class Builder:
    """A function and the instructions to write next.

    Args:
        name: of the LLVM module.
        align: bytes to which vectors in memory are aligned.
    """

    def __init__(self, name: str, dtype: torch.dtype, align: int):
        self.width, self._align, self.size = WIDTH[dtype], align, dtype.itemsize
        self.vector = vector_type(dtype, self.width)
        self.element = self.vector.element
        self.module = ir.Module(name)
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [POINTER]), "run")
        self.entry = ir.IRBuilder(self.function.append_basic_block("arguments"))
        self.builder = ir.IRBuilder(self.function.append_basic_block("begin"))
        self._begin = self.builder.block
        self.arguments: dict[Hashable, Value] = {}

    def text(self) -> str:
        """The whole as LLVM assembly; nothing can be written after."""
        self.builder.ret_void()
        self.entry.branch(self._begin)
        add_share(self.module, self.function)
        return str(self.module)

    def argument(self, key: Hashable, *, is_number: bool) -> Value:
        """An integer or a pointer; arguments lie in the order in which they are first asked for."""
        if key not in self.arguments:
            where = self.entry.gep(self.function.args[0], [self.const(len(self.arguments))], source_etype=I64)
            value = self.entry.load(where, typ=I64)
            self.arguments[key] = value if is_number else self.entry.inttoptr(value, POINTER)
        return self.arguments[key]

    # -- integers and addresses ----------------------------------------------------------------------------------------

    def const(self, number: Int) -> Value:
        return ir.Constant(I64, number) if isinstance(number, int) else number

    def add(self, a: Int, b: Int) -> Value:
        return self.builder.add(self.const(a), self.const(b))

    def sub(self, a: Int, b: Int) -> Value:
        return self.builder.sub(self.const(a), self.const(b))

    def mul(self, a: Int, b: Int) -> Value:
        return self.builder.mul(self.const(a), self.const(b))

    def least(self, a: Value, b: Value) -> Value:
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def at(self, pointer: Value, offset: Int) -> Value:
        return self.builder.gep(pointer, [self.const(offset)], source_etype=self.element)

    # -- numbers and vectors -------------------------------------------------------------------------------------------

    def vec(self, value: Value) -> Vec:
        return Vec(self.builder, value)

    def load(self, pointer: Value, offset: Int) -> Vec:
        return self.vec(self.builder.load(self.at(pointer, offset), typ=self.vector, align=self._align))

    def store(self, value: Vec, pointer: Value, offset: Int) -> None:
        self.builder.store(value.value, self.at(pointer, offset), align=self._align)

    def load_one(self, pointer: Value, offset: Int) -> Value:
        return self.builder.load(self.at(pointer, offset), typ=self.element)

    def load_integer(self, pointer: Value, offset: Int) -> Value:
        return self.builder.load(self.builder.gep(pointer, [self.const(offset)], source_etype=I64), typ=I64)

    def splat(self, value: Value, builder: ir.IRBuilder | None = None) -> Vec:
        """One number in every lane."""
        return self.vec(_splat(builder or self.builder, value, self.vector))

    def splat_i32(self, value: Value) -> Value:
        return _splat(self.builder, self.builder.trunc(value, I32), ir.VectorType(I32, self.width))

    def splat_at(self, pointer: Value, offset: Int) -> Vec:
        return self.splat(self.load_one(pointer, offset))

    def number(self, value: float) -> Vec:
        return self.vec(ir.Constant(self.vector, [float(value)] * self.width))

    def truth(self, value: bool) -> Vec:
        return self.vec(ir.Constant(ir.VectorType(ir.IntType(1), self.width), [int(value)] * self.width))

    def sum_of(self, vector: Vec) -> Value:
        parts = [self.builder.extract_element(vector.value, ir.Constant(I32, lane)) for lane in range(self.width)]
        while len(parts) > 1:
            parts = [self.builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def turned(self, block: list[Value]) -> list[Value]:
        """The transpose of a square of vectors, by exchanging halves, quarters, ... of pairs."""
        size = len(block)
        half = size // 2
        while half >= 1:
            pick_low = [i if not i & half else size + (i ^ half) for i in range(size)]
            pick_high = [i | half if not i & half else size + i for i in range(size)]
            for i in (i for i in range(size) if not i & half):
                a, b = block[i], block[i | half]
                block[i], block[i | half] = self._shuffle(a, b, pick_low), self._shuffle(a, b, pick_high)
            half //= 2
        return block

    def _shuffle(self, a: Value, b: Value, lanes: list[int]) -> Value:
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))

    # -- loops ---------------------------------------------------------------------------------------------------------

    def count(
        self,
        start: Int,
        stop: Int,
        step: Int,
        body: Callable[[Value, list[Value]], list[Value] | None],
        carried: list[Value] | None = None,
    ) -> list[Value]:
        """``for i in range(start, stop, step)``; see ``team.count``."""
        return count(self.builder, self.const(start), self.const(stop), self.const(step), body, carried)

    def loop(self, stop: Int, body: Callable[[Value], None], step: int = 1) -> None:
        """``for i in range(0, stop, step)`` where there is at least one turn, so that nothing is tested before it."""
        self.loop_with(stop, [], lambda i, _: body(i) or [], step)

    def loop_with(
        self, stop: Int, start: list[Value], body: Callable[[Value, list[Value]], list[Value]], step: int = 1
    ) -> list[Value]:
        """The same, with values carried from turn to turn; returns the last ones."""
        before, inside = self.builder.block, self.function.append_basic_block()
        self.builder.branch(inside)
        self.builder.position_at_end(inside)
        i, carried = self.builder.phi(I64), [self.builder.phi(value.type) for value in start]
        results = body(i, carried)
        following, end = self.add(i, step), self.builder.block
        phis = zip([i, *carried], [self.const(0), *start], [following, *results], strict=True)
        for phi, first, later in phis:
            phi.add_incoming(first, before)
            phi.add_incoming(later, end)
        after = self.function.append_basic_block()
        self.builder.cbranch(self.builder.icmp_signed("<", following, self.const(stop)), inside, after)
        self.builder.position_at_end(after)
        return results


def _splat(builder: ir.IRBuilder, value: Value, kind: ir.VectorType) -> Value:
    undefined, places = ir.Constant(kind, ir.Undefined), ir.VectorType(I32, kind.count)
    first = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(places, [0] * kind.count))
