"""Tensors as a kernel's arguments: addresses and strides, weights in the order that kernels read them, sums.

arguments = Arguments(shape, steps, batch, reverse=...)
arguments.over_time(Role.SOURCE, xs), ...        fill it in
arguments.run(kernel)                            run the kernel on every block of samples
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from holdfast.engine.program import tiles
from holdfast.engine.program.schedule import Schedule, narrow_side, sides
from holdfast.engine.program.turns import turn_tables
from holdfast.engine.targets.cpu.arguments import Argument, Part, Role
from holdfast.engine.targets.cpu.emit import Kernel
from holdfast.engine.targets.cpu.panels import panels
from holdfast.engine.targets.cpu.shape import Shape
from holdfast.engine.targets.cpu.team import worker_count

__all__ = ["Arguments", "Grads", "Tensors", "packed_weights", "product", "rows", "total", "users", "workspace"]

Tensors = Sequence[Tensor]
Grads = Sequence[Tensor | None]


def rows(tensor: Tensor) -> Tensor:
    """The tensor with features side by side in memory, as kernels read them."""
    if tensor.stride(-1) == 1 or tensor.shape[-1] == 1:
        return tensor.detach()
    return tensor.detach().contiguous()


def product(left: Tensor, right: Tensor) -> Tensor:
    """Σ over steps and samples of left ⊗ right."""
    return left.reshape(-1, left.shape[2]).mT @ right.reshape(-1, right.shape[2])


class Arguments:
    """The arguments of one kernel for all blocks of a scan.

    Block b belongs to worker b modulo ``workers``. Its argument is value + b · per_block + worker · per_worker.
    """

    def __init__(self, shape: Shape, steps: int, batch: int, lengths: Tensor | None, *, reverse: bool):
        self.shape, self.batch, self.reverse = shape, batch, reverse
        self.blocks = math.ceil(batch / shape.lanes)
        self.workers = worker_count(self.blocks)
        self._held: list[Tensor] = []  # alive until the kernel has run
        self._values: dict[Argument, tuple[int, int, int]] = {
            Argument(Role.STEPS): (steps, 0, 0),
            Argument(Role.SAMPLES): (batch, -shape.lanes, 0),  # at most ``lanes``: see ``run``
        }
        if shape.masked:
            lives = torch.zeros(2, self.blocks * shape.lanes, dtype=torch.int32)
            length = steps if lengths is None else lengths
            lives[0, :batch] = steps - length if reverse else 0
            lives[1, :batch] = steps if reverse else length
            for role, row in zip((Role.BIRTH, Role.DEATH), lives, strict=True):
                self.pointer(role, 0, row, per_block=shape.lanes)

    def pointer(self, role: Role, index: int, tensor: Tensor, *, per_block: int = 0, per_worker: int = 0) -> None:
        """``per_block``, ``per_worker``: elements."""
        size = tensor.element_size()
        self._held.append(tensor)
        self._values[Argument(role, index)] = (tensor.data_ptr(), size * per_block, size * per_worker)

    def per_sample(self, role: Role, index: int, tensor: Tensor) -> None:
        """A tensor (batch, features)."""
        row = tensor.stride(0)
        self.pointer(role, index, tensor, per_block=row * self.shape.lanes)
        self._values[Argument(role, index, Part.ROW)] = (row, 0, 0)

    def over_time(self, role: Role, tensor: Tensor, index: int = 0) -> None:
        """A tensor (time, batch, features), from its first step in the scan's direction on."""
        step, row, _ = tensor.stride()
        self.pointer(role, index, tensor[-1] if self.reverse else tensor, per_block=row * self.shape.lanes)
        self._values[Argument(role, index, Part.ROW)] = (row, 0, 0)
        self._values[Argument(role, index, Part.STEP)] = (-step if self.reverse else step, 0, 0)

    def give(self, packed: dict[Argument, Tensor]) -> None:
        """Weights in the order that kernels read them."""
        for argument, tensor in packed.items():
            self.pointer(argument.role, argument.index, tensor)

    def sums(self, schedule: Schedule) -> dict[int, Tensor]:
        """Zeros for each sum inside the loop: (worker, shape of the sum, vector); a matrix for a wide outer product."""
        sizes, width = dict[int, tuple[int, ...]](), self.shape.width
        for i, reduction in enumerate(schedule.program.reductions):
            if reduction in schedule.products:
                continue
            match reduction:
                case tiles.RowSum(tile=tile):
                    sizes[i] = (tile.features, width)
                case tiles.Outer() if narrow_side(reduction) is None:
                    sizes[i] = self.shape.outer_size(reduction)
                case tiles.Outer():
                    sizes[i] = (*(side.features for side in sides(reduction)), width)
                case tiles.AngleSum(source=source):
                    sizes[i] = (*source.angles.shape, width)
        # whole cache lines for each worker, so that threads do not write to the same one
        counts = {i: math.ceil(math.prod(size) / 16) * 16 for i, size in sizes.items()}
        flat = torch.zeros(self.workers * sum(counts.values()) + 16, dtype=self.shape.dtype)
        start, item, made = -flat.data_ptr() % 64 // flat.element_size(), flat.element_size(), dict[int, Tensor]()
        self._held.append(flat)
        for i, size in sizes.items():
            strides = [math.prod(size[axis + 1 :]) for axis in range(len(size))]
            made[i] = flat.as_strided((self.workers, *size), (counts[i], *strides), start)
            self._values[Argument(Role.SUM, i)] = (flat.data_ptr() + start * item, 0, item * counts[i])
            start += self.workers * counts[i]
        return made

    def run(self, kernel: Kernel) -> None:
        size = math.ceil((kernel.work * 8 + 64) / 4096) * 4096  # of scratch memory, for each worker
        self._values[Argument(Role.WORK)] = (workspace(self.workers * size), 0, size)
        given = [self._values[a] for a in kernel.arguments]
        if self.blocks == 1:
            table = np.array([[value for value, _, _ in given]], dtype=np.int64)
        else:
            values, per_block, per_worker = np.array(given, dtype=np.int64).T
            blocks = np.arange(self.blocks)[:, None]
            table = values + blocks * per_block + blocks % self.workers * per_worker
        if self.shape.masked:
            samples = kernel.arguments.index(Argument(Role.SAMPLES))
            np.minimum(table[:, samples], self.shape.lanes, out=table[:, samples])
        kernel.compiled(table, self.workers)


def packed_weights(schedule: Schedule, weights: Tensors, shape: Shape) -> dict[Argument, Tensor]:
    """Weights in the order that kernels read them."""
    singles, narrow, wide, turns = users(schedule)
    found = {}
    for index in singles:
        found[Argument(Role.WEIGHT, index)] = weights[index].detach().to(shape.dtype).contiguous()
    for index in narrow:
        found[Argument(Role.NARROW, index)] = weights[index].detach().mT.contiguous()
    for index in wide:
        found[Argument(Role.PANELS, index)] = panels(weights[index], shape.panel)
    for turn in turns:
        index, angles = turn.angles.index, weights[turn.angles.index].detach()
        pairs, starts = _pairs(weights[turn.permutations.index])
        found[Argument(Role.PAIRS, index)] = pairs * shape.lanes
        found[Argument(Role.STARTS, index)] = starts * shape.lanes
        found[Argument(Role.TURNS, index)] = torch.stack([angles.cos(), angles.sin()], dim=-1).flip(0).contiguous()
    return found


_local = threading.local()


def workspace(size: int) -> int:
    """Scratch memory of the calling thread and those that work for it, aligned."""
    if getattr(_local, "size", -1) < size:
        _local.work = np.zeros(size + 64, dtype=np.uint8)
        address = _local.work.ctypes.data
        _local.size, _local.address = size, address + -address % 64
    return _local.address


@functools.lru_cache(maxsize=512)
def users(schedule: Schedule) -> tuple[list[int], list[int], list[int], list[tiles.Rotate | tiles.RotateBack]]:
    """Weights read entry by entry, matrices of narrow products, of wide ones, and rotations."""
    seen = tiles.reachable([*schedule.memory, *schedule.program.roots])
    matrices = [n for n in seen if isinstance(n, tiles.Product)]
    turns = {n.angles.index: n for n in seen if isinstance(n, tiles.Rotate | tiles.RotateBack)}
    singles = {
        arg.index
        for n in seen
        if not isinstance(n, tiles.Product | tiles.Rotate | tiles.RotateBack)
        for arg in tiles.operands(n)
        if isinstance(arg, tiles.Weight)
    }
    narrow = {n.matrix.index for n in matrices if n.is_narrow}
    wide = {n.matrix.index for n in matrices if not n.is_narrow}
    return sorted(singles), sorted(narrow), sorted(wide), list(turns.values())


_pair_tables = WeakIdKeyDictionary()  # permutations to (version, pairs, starts)


def _pairs(permutations: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows turn together, in order, and where each feature starts; kept while the permutations are the same."""
    known = _pair_tables.get(permutations)
    version = None if permutations.is_inference() else permutations._version
    if known is None or version is None or known[0] != version:
        known = (version, *turn_tables(permutations))
        _pair_tables[permutations] = known
    return known[1], known[2]


def total(reduction: tiles.Reduction, parts: Tensor) -> Tensor:
    """The lanes' and workers' sums added up, in the shape that the reduction has in PyTorch."""
    if isinstance(reduction, tiles.Outer) and narrow_side(reduction) is None:
        return parts.sum(dim=0)[: reduction.left.features, : reduction.right.features]
    whole = parts.sum(dim=(0, -1))
    if isinstance(reduction, tiles.AngleSum):
        return whole.flip(0)
    return whole.mT if isinstance(reduction, tiles.Outer) and narrow_side(reduction) == "left" else whole
