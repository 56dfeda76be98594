"""A kernel on threads: one share of the blocks per thread, and no synchronisation until the end.

PyTorch's threads, where there are any, are the best ones to use: after an operator they wait for the next by spinning,
for milliseconds, and threads of our own would have to share the cores with them. So where PyTorch brings GNU's OpenMP,
its team is called; elsewhere Python threads do the work.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import ir

from holdfast.engine.targets.cpu.cache import library
from holdfast.engine.targets.cpu.vec import Value

__all__ = ["Compiled", "add_share", "add_together", "count", "team_size", "worker_count"]

I64, POINTER = ir.IntType(64), ir.PointerType()
_lock = threading.Lock()


def worker_count(blocks: int) -> int:
    """Threads that work for this number of blocks; block b belongs to worker b modulo this."""
    return min(torch.get_num_threads(), blocks)


def team_size() -> int:
    """Threads that can run one scan together: they wait for each other, so they must all be there."""
    return torch.get_num_threads() if _openmp() is not None else 1


def add_together(module: ir.Module, kernel: ir.Function) -> None:
    """Add ``together``, what each thread of a team runs whose members wait for each other, to a kernel's module.

    Its parameter points at the addresses of omp_get_thread_num and of omp_get_num_threads, and then at one address of
    arguments per thread. The first argument is the size of the team, which may be smaller than was asked for.
    """
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), "together")
    builder = ir.IRBuilder(function.append_basic_block())
    number = ir.FunctionType(ir.IntType(32), []).as_pointer()

    def entry(index: Value) -> Value:
        return builder.load(builder.gep(function.args[0], [index], source_etype=I64), typ=I64)

    own, team = (
        builder.zext(builder.call(builder.inttoptr(entry(ir.Constant(I64, i)), number), []), I64) for i in range(2)
    )
    arguments = builder.inttoptr(entry(builder.add(own, ir.Constant(I64, 2))), POINTER)
    builder.store(team, arguments)
    builder.call(kernel, [arguments])
    builder.ret_void()


def add_share(module: ir.Module, kernel: ir.Function) -> None:
    """Add ``share``, what each thread of a team runs, to a kernel's module.

    Its parameter points at: the number of blocks, the number of workers, the addresses of omp_get_thread_num and of
    omp_get_num_threads, and then one address of arguments per block. A team may be smaller than was asked for, so a
    thread takes on whole workers, whose scratch memory and sums are their own.
    """
    number = ir.FunctionType(ir.IntType(32), [])
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), "share")
    builder = ir.IRBuilder(function.append_basic_block())

    def entry(index: Value | int) -> Value:
        index = ir.Constant(I64, index) if isinstance(index, int) else index
        return builder.load(builder.gep(function.args[0], [index], source_etype=I64), typ=I64)

    def ask(address: Value) -> Value:
        return builder.zext(builder.call(builder.inttoptr(address, number.as_pointer()), []), I64)

    blocks, workers = entry(0), entry(1)
    own, team = ask(entry(2)), ask(entry(3))

    def one_block(block: Value, _: list[Value]) -> None:
        arguments = entry(builder.add(block, ir.Constant(I64, 4)))
        builder.call(kernel, [builder.inttoptr(arguments, POINTER)])

    count(builder, own, workers, team, lambda worker, _: count(builder, worker, blocks, workers, one_block))
    builder.ret_void()


def count(
    builder: ir.IRBuilder,
    start: Value,
    stop: Value,
    step: Value,
    body: Callable[[Value, list[Value]], list[Value] | None],
    carried: list[Value] | None = None,
) -> list[Value]:
    """Write ``for i in range(start, stop, step)``; ``body(i, carried)`` returns what is carried on, if anything is.

    Returns what was carried last.
    """
    before, test = builder.block, builder.append_basic_block()
    inside, after = builder.append_basic_block(), builder.append_basic_block()
    builder.branch(test)
    builder.position_at_end(test)
    i, held = builder.phi(I64), [builder.phi(value.type) for value in carried or ()]
    i.add_incoming(start, before)
    for phi, value in zip(held, carried or (), strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", i, stop), inside, after)
    builder.position_at_end(inside)
    results = body(i, list(held))
    i.add_incoming(builder.add(i, step), builder.block)
    for phi, value in zip(held, results or (), strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(test)
    builder.position_at_end(after)
    return held


class Compiled:
    """A kernel as machine code, from its LLVM assembly."""

    def __init__(self, text: str):
        self._library = library(text)
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._library.address("run"))
        self._share = self._library.address("share")

    def __call__(self, arguments: np.ndarray, workers: int) -> None:
        """Run every block: a row of ``arguments``, (blocks, arguments) of 64-bit integers."""
        first = arguments.__array_interface__["data"][0]
        if len(arguments) == 1:
            self._run(first)
            return
        addresses = [first + block * arguments.strides[0] for block in range(len(arguments))]
        team = _openmp() if workers > 1 else None
        if team is not None:
            parallel, number, size = team
            packed = np.array([len(addresses), workers, number, size, *addresses], dtype=np.int64)
            parallel(self._share, packed.ctypes.data, workers, 0)
            return

        def work(worker: int) -> None:
            for address in addresses[worker::workers]:
                self._run(address)

        waiting = [_threads().submit(work, worker) for worker in range(1, workers)]
        work(0)
        for future in waiting:
            future.result()

    def together(self, arguments: np.ndarray) -> None:
        """Run one scan on as many threads as ``arguments`` has rows; their first entry is the size of the team."""
        first = arguments.__array_interface__["data"][0]
        if len(arguments) == 1:
            self._run(first)
            return
        team = _openmp()
        assert team is not None
        parallel, number, size = team
        rows = (first + worker * arguments.strides[0] for worker in range(len(arguments)))
        packed = np.array([number, size, *rows], dtype=np.int64)
        parallel(self._library.address("together"), packed.ctypes.data, len(arguments), 0)


@functools.cache
def _openmp() -> tuple[Any, int, int] | None:
    """GOMP_parallel of the OpenMP that PyTorch itself uses, and two functions' addresses; None where there is none."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*")):
        try:
            library = ctypes.CDLL(str(path))
            parallel = library.GOMP_parallel
            functions = library.omp_get_thread_num, library.omp_get_num_threads
        except (OSError, AttributeError):
            continue
        parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        parallel.restype = None
        number, size = (ctypes.cast(f, ctypes.c_void_p).value for f in functions)
        if number is not None and size is not None:
            return parallel, number, size
    return None


_pool: tuple[int, ThreadPoolExecutor] | None = None  # a forked child has the object but not its threads: hence the pid


def _threads() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None or _pool[0] != os.getpid():
            _pool = (os.getpid(), ThreadPoolExecutor(thread_name_prefix="holdfast"))
        return _pool[1]
