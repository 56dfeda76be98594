"""Loops over vectors, written by hand for the scan's compiler: what holdfast.engine.kernels shares.

    run(arguments)     a kernel: addresses first, then numbers, and last which worker of how many is to work
    Compiled(...)      the kernel as machine code, run by all workers

A kernel takes every ``workers``-th part of its work, from part ``worker`` on.
"""

from __future__ import annotations

import abc
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir

from holdfast.engine.targets.cpu.cache import library
from holdfast.engine.targets.cpu.team import add_share, count, run_blocks, worker_count
from holdfast.engine.targets.cpu.vec import Vec, vector_type

__all__ = ["LANES", "Compiled", "Kernel"]

I32, I64, POINTER = ir.IntType(32), ir.IntType(64), ir.PointerType()
LANES = {torch.float32: 8, torch.float64: 4}


class Compiled:
    """A kernel, to be called with its arguments and with how many parts its work has."""

    def __init__(self, kernel: Kernel):
        self._library = library(kernel.text())
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._library.address("run"))
        self._share = self._library.address("share")

    def __call__(self, *arguments: int, parts: int) -> None:
        workers = worker_count(parts) if parts > 1 else 1
        if workers == 1:
            self._run((ctypes.c_int64 * (len(arguments) + 2))(*arguments, 0, 1))
            return
        packed = [np.array((*arguments, worker, workers), dtype=np.int64) for worker in range(workers)]
        run_blocks(self._run, self._share, packed, workers)


class Kernel(abc.ABC):
    """A function under construction.

    Args:
        pointers, numbers: the names of its arguments, in their order.
    """

    def __init__(self, dtype: torch.dtype, pointers: tuple[str, ...], numbers: tuple[str, ...]):
        self.lanes = LANES[dtype]
        self.vector = vector_type(str(dtype).removeprefix("torch."), self.lanes)
        self.element = self.vector.element
        self.module = ir.Module("loop")
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [POINTER]), "run")
        self.builder = ir.IRBuilder(self.function.append_basic_block())
        self.given: dict[str, Any] = {}
        for place, name in enumerate((*pointers, *numbers, "worker", "workers")):
            where = self.builder.gep(self.function.args[0], [self.const(place)], source_etype=I64)
            value = self.builder.load(where, typ=I64)
            self.given[name] = self.builder.inttoptr(value, POINTER) if name in pointers else value

    @abc.abstractmethod
    def parts(self) -> Any:
        """How many parts the work has, from the arguments."""

    @abc.abstractmethod
    def part(self, at: Any) -> None:
        """Write one part."""

    def text(self) -> str:
        """The whole as LLVM assembly."""
        self.count(self.given["worker"], self.parts(), self.given["workers"], lambda at, _: self.part(at))
        self.builder.ret_void()
        add_share(self.module, self.function)
        return str(self.module)

    # -- instructions ------------------------------------------------------------------------------------------------

    def const(self, number: int) -> Any:
        return ir.Constant(I64, number)

    def at(self, pointer: Any, offset: Any) -> Any:
        return self.builder.gep(pointer, [offset], source_etype=self.element)

    def load(self, pointer: Any, offset: Any) -> Vec:
        where = self.at(pointer, offset)
        return Vec(self.builder, self.builder.load(where, typ=self.vector, align=32 // self.lanes))

    def store(self, value: Vec, pointer: Any, offset: Any) -> None:
        self.builder.store(value.value, self.at(pointer, offset), align=32 // self.lanes)

    def least(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def number(self, value: float) -> Vec:
        return Vec(self.builder, ir.Constant(self.vector, [value] * self.lanes))

    def splat(self, value: Any) -> Vec:
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(I32, 0))
        lanes = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return Vec(self.builder, self.builder.shuffle_vector(first, undefined, lanes))

    def sum_of(self, vector: Vec) -> Any:
        parts = [self.builder.extract_element(vector.value, ir.Constant(I32, lane)) for lane in range(self.lanes)]
        while len(parts) > 1:
            parts = [self.builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def count(
        self, start: Any, stop: Any, step: Any, body: Callable[[Any, list[Any]], Any], carried: list[Any] | None = None
    ) -> list[Any]:
        return count(self.builder, start, stop, step, body, carried)
