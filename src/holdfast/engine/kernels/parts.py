"""What the kernels that are written by hand share.

    run(arguments)     a kernel: addresses first, then numbers, and last which worker of how many is to work

A worker takes every ``workers``-th part of the work, from part ``worker`` on.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import numpy as np
import torch

from holdfast.engine.targets.cpu.builder import Builder
from holdfast.engine.targets.cpu.team import Compiled, worker_count
from holdfast.engine.targets.cpu.vec import Value

__all__ = ["PartsBuilder"]


class PartsBuilder(Builder, abc.ABC):
    """A kernel under construction; ``given`` has its arguments by name.

    Args:
        pointers, numbers: the names of its arguments, in their order.
    """

    def __init__(self, dtype: torch.dtype, pointers: tuple[str, ...], numbers: tuple[str, ...]):
        super().__init__("loop", dtype, align=dtype.itemsize)
        names = (*pointers, *numbers, "worker", "workers")
        self.given = {name: self.argument(name, is_number=name not in pointers) for name in names}

    @abc.abstractmethod
    def parts(self) -> Value:
        """How many parts the work has, from the arguments."""

    @abc.abstractmethod
    def part(self, at: Value) -> None:
        """Write one part."""

    def compiled(self) -> Callable[..., None]:
        """The kernel as a function of its arguments and of ``parts``, how many parts they make."""
        self.count(self.given["worker"], self.parts(), self.given["workers"], lambda at, _: self.part(at))
        kernel = Compiled(self.text())

        def run(*arguments: int, parts: int) -> None:
            workers = max(1, worker_count(parts))
            kernel(np.array([(*arguments, worker, workers) for worker in range(workers)], dtype=np.int64), workers)

        return run
