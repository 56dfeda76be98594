"""One scan with lanes over features: the arguments of feature_kernel.py's kernels, and autograd around them."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.engine.program.schedule import Schedule, narrow_side, sides
from holdfast.engine.program.tiles import AngleSum, Kind, Outer, RowSum, Slice, Slot, reachable
from holdfast.engine.targets.cpu import buffers, pack
from holdfast.engine.targets.cpu.arguments import Argument, Part, Role
from holdfast.engine.targets.cpu.call import Call
from holdfast.engine.targets.cpu.emit import Kernel
from holdfast.engine.targets.cpu.pack import Grads, Tensors
from holdfast.engine.targets.cpu.step import packed_weights
from holdfast.engine.targets.cpu.step_kernel import padded
from holdfast.engine.targets.cpu.vec import WIDTH
from holdfast.types import State

__all__ = ["COUNTER", "FeatureCall", "readable", "roomy", "yield_address"]

COUNTER = 128  # bytes of memory that no other data share a line of the cache with


class FeatureCall(Call):
    """A scan whose threads go through the steps together, each with its part of the features."""

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        return roomy(shape, self.plan.dtype)

    def packing(self, values: Tensors) -> dict[Any, Tensor]:
        return packed_weights(self.plan.forward(self.source_grad), values, self.plan.dtype, self.shape.vectors)

    def forward(
        self, source: Tensor, state: Tensors, values: Tensors, output: Tensor | None, *, gradient: bool
    ) -> tuple[State, list[Tensor]]:
        plan, (steps, batch) = self.plan, source.shape[:2]
        schedule = plan.forward(self.source_grad)
        kernel = plan.forward_kernel(self.shape, output is not None, gradient, self.source_grad)
        given = _Arguments(self, schedule, steps, batch)
        last = [entry.new_empty(entry.shape) for entry in state]
        keep, kept, row = plan.keep(self.source_grad) if gradient else (), [], WIDTH[plan.dtype]
        for slot in keep:
            of_state = slot.kind is Kind.STATE
            size = state[slot.index].shape[1] if of_state else schedule.program.saved[slot.index].features
            kept.append(buffers.empty((steps, batch, padded(size, row)), plan.dtype))
        given.inputs(source, state)
        given.kept(keep, kept)
        if output is not None:
            given.over_time(Role.OUTPUT, 0, output)
        for i, final in enumerate(last):
            given.per_sample(Role.LAST, i, final)
        given.give(self.packing(values) if self.packed is None else self.packed)
        given.run(kernel)
        return tuple(last), kept

    def backward(
        self, source: Tensor, state: Tensors, values: Tensors, output: Tensor, kept: Tensors, grads: Grads
    ) -> tuple[Tensor | None, ...]:
        plan, (steps, batch), shape = self.plan, source.shape[:2], self.shape
        schedule, lowered = plan.backward(self.source_grad, shape), plan.lowered(self.source_grad)
        given = _Arguments(self, schedule, steps, batch)
        source, state = pack.rows(source), [pack.rows(entry) for entry in state]
        given.inputs(source, state)
        given.kept(plan.keep(self.source_grad), kept)
        given.over_time(Role.OUTPUT, 0, given.readable(output))
        first_grads = [entry.new_empty(entry.shape) for entry in state]
        for i, (grad, first_grad) in enumerate(zip(grads[1:], first_grads, strict=True)):
            last_grad = torch.zeros_like(state[i]) if grad is None else grad
            given.per_sample(Role.LAST_GRAD, i, given.readable(last_grad))
            given.per_sample(Role.FIRST_GRAD, i, first_grad)
        if grads[0] is not None:
            given.over_time(Role.OUTPUT_GRAD, 0, given.readable(grads[0]))
        of_source = Slot(Kind.SOURCE)
        time_of = {tile: source for slot, tile in schedule.program.inputs.items() if slot == of_source}
        written = [(Role.STORED, j, tile) for j, tile in enumerate(plan.stored(self.source_grad, shape))]
        for role, j, tile in [*written, (Role.SOURCE_GRAD, 0, schedule.program.outputs[of_source])]:
            if tile is not None:
                time_of[tile] = roomy((steps, batch, tile.features), plan.dtype)
                given.over_time(role, j, time_of[tile])
        sums = given.sums(schedule)
        given.give(packed_weights(schedule, values, plan.dtype, shape.vectors))
        given.run(plan.backward_kernel(shape, grads[0] is not None, self.source_grad))
        totals = [
            self._product_of(r, time_of, state[0], output) if r in schedule.products else _total(r, sums[i])
            for i, r in enumerate(schedule.program.reductions)
        ]
        with torch.no_grad():
            reads = (values[i] for i in lowered.finish_reads)
            source_grad = schedule.program.outputs[of_source]
            return source_grad and time_of[source_grad], *first_grads, *lowered.finish.run(*totals, *reads)


def roomy(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Like ``empty``, with a vector of room behind the last row, which a kernel may read."""
    count = math.prod(shape)
    return buffers.empty((count + WIDTH[dtype],), dtype)[:count].view(shape)


@functools.lru_cache(maxsize=512)
def _reads_behind(schedule: Schedule, width: int) -> bool:
    """Whether vectors of some tile begin between whole vectors of another."""
    seen = reachable([*schedule.memory, *schedule.program.roots])
    return any(isinstance(node, Slice) and node.start % width for node in seen)


def readable(tensor: Tensor, schedule: Schedule, dtype: torch.dtype) -> Tensor:
    """The tensor with features side by side and, where a kernel reads behind the last row, room there."""
    tensor, width = pack.rows(tensor), WIDTH[dtype]
    if tensor.shape[-1] % width == 0 and not _reads_behind(schedule, width):
        return tensor
    return roomy(tuple(tensor.shape), dtype).copy_(tensor)


class _Arguments:
    """The arguments of one kernel."""

    def __init__(self, call: FeatureCall, schedule: Schedule, steps: int, batch: int):
        self.call, self.schedule, self.dtype = call, schedule, call.plan.dtype
        self.width, self.batch = WIDTH[self.dtype], batch
        self._held: list[Any] = []
        self._values = {Argument(Role.STEPS): steps, Argument(Role.SAMPLES): batch}

    def readable(self, tensor: Tensor) -> Tensor:
        return readable(tensor, self.schedule, self.dtype)

    def inputs(self, source: Tensor, state: Tensors) -> None:
        """What both directions read: source, noise and first states."""
        self.over_time(Role.SOURCE, 0, self.readable(source))
        for i, noise in enumerate(self.call.noise):
            if noise is not None:
                self.over_time(Role.NOISE, i, self.readable(noise))
        for i, entry in enumerate(state):
            self.per_sample(Role.FIRST, i, self.readable(entry))

    def pointer(self, role: Role, index: int, tensor: Tensor) -> None:
        self._held.append(tensor)
        self._values[Argument(role, index)] = tensor.data_ptr()

    def per_sample(self, role: Role, index: int, tensor: Tensor) -> None:
        self.pointer(role, index, tensor)
        self._values[Argument(role, index, Part.ROW)] = tensor.stride(0)

    def over_time(self, role: Role, index: int, tensor: Tensor) -> None:
        step, row, _ = tensor.stride()
        self.pointer(role, index, tensor[-1] if self.call.reverse else tensor)
        self._values[Argument(role, index, Part.ROW)] = row
        self._values[Argument(role, index, Part.STEP)] = -step if self.call.reverse else step

    def kept(self, keep: tuple[Slot, ...], kept: Tensors) -> None:
        for slot, tensor in zip(keep, kept, strict=True):
            self.pointer(Role.SAVED if slot.kind is Kind.SAVED else Role.STATES, slot.index, tensor)

    def sums(self, schedule: Schedule) -> dict[int, Tensor]:
        """Zeros for each sum inside the loop; a row for each feature of the narrow side."""
        made = {}
        for i, reduction in enumerate(schedule.program.reductions):
            if reduction in schedule.products:
                continue
            assert not isinstance(reduction, AngleSum)
            wide, *narrow = (reduction.tile,) if isinstance(reduction, RowSum) else sides(reduction)
            count = narrow[0].features if narrow else 1
            made[i] = torch.zeros(count, padded(wide.features, self.width), dtype=self.dtype)
            self.pointer(Role.SUM, i, made[i])
            made[i] = made[i][:, : wide.features]
        return made

    def give(self, packed: dict[Argument, Tensor]) -> None:
        for argument, tensor in packed.items():
            self.pointer(argument.role, argument.index, tensor)

    def run(self, kernel: Kernel) -> None:
        """The counter of the team, a line of cache memory, lies before its scratch memory."""
        size, team = self.dtype.itemsize, self.call.shape.team
        counter = pack.workspace((kernel.work * self.batch + 2 * self.width) * size + COUNTER)
        if team > 1:
            ctypes.memset(counter, 0, COUNTER)
        self._values[Argument(Role.WORK)] = counter + COUNTER
        self._values[Argument(Role.COUNTER)] = counter
        self._values[Argument(Role.YIELD)] = yield_address()
        self._values[Argument(Role.TEAM)] = 1
        self._values[Argument(Role.WORKER)] = 0
        table = np.array([[self._values[a] for a in kernel.arguments]] * team, dtype=np.int64)
        table[:, 1] = range(team)
        kernel.compiled.together(table)


def _total(reduction: Any, sums: Tensor) -> Tensor:
    if isinstance(reduction, Outer):
        return sums if narrow_side(reduction) == "left" else sums.mT
    return sums[0]


@functools.cache
def yield_address() -> int:
    """The address of sched_yield; 0 where there is none, and no team either."""
    try:
        return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
    except (OSError, AttributeError, TypeError):
        return 0
