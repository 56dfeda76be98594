"""One scan by Triton kernels: launches, and autograd around them.

    scan_triton(cell, xs, state, weights, ...)  →  outputs, last state

Everything but the launches is shared with the CPU's target (targets/cpu/call.py): the plan, the trial that compares a
new kernel with the plain loop, and the node of autograd.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, ClassVar

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.program.tiles import Kind, Outer, Slot
from holdfast.engine.targets.cpu.call import Call
from holdfast.engine.targets.cpu.pack import Grads, Tensors, rows
from holdfast.engine.targets.cpu.plan import Plan, plan_for
from holdfast.engine.targets.cpu.scan import scan_fused
from holdfast.engine.targets.triton import pack, replay, ways
from holdfast.engine.targets.triton.functions import IS_INTERPRETED
from holdfast.engine.targets.triton.plan import Stage, TritonPlan
from holdfast.engine.targets.triton.shape import Shape, Way
from holdfast.types import State

__all__ = ["TritonCall", "fused_source", "runs_on", "scan_triton"]


class TritonCall(Call):
    """One scan on a GPU."""

    plans: ClassVar[type[Plan]] = TritonPlan
    backend: ClassVar[str] = "triton"

    @staticmethod
    def shape_for(plan: TritonPlan, batch: int, lengths: Tensor | None) -> Shape:
        return ways.shape_for(plan, masked=lengths is not None)

    @property
    def device(self) -> torch.device:
        return self.cell.example_weight().device

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=self.plan.dtype, device=self.device)

    def packing(self, values: Tensors) -> dict[Any, Tensor]:
        return {}  # a launch packs what its kernel reads

    def forward(
        self, source: Tensor, state: Tensors, values: Tensors, output: Tensor | None, *, gradient: bool
    ) -> tuple[State, list[Tensor]]:
        if self.shape.way is not Way.STEPS:
            return self._forward(source, state, values, output, gradient=gradient)
        count, draws = len(state), len(self.noise)

        def run(lengths: Tensor | None, *tensors: Tensor) -> list[Tensor | None]:
            noise, (source, *rest) = tensors[:draws], tensors[draws:]
            call = dataclasses.replace(self, lengths=lengths, noise=noise)
            made = None if output is None else self.empty(tuple(output.shape))
            last, kept = call._forward(source, rest[:count], rest[count:], made, gradient=gradient)
            return [made, *last, *kept]

        key = ("forward", self.shape, self.reverse, self.source_grad, output is None, gradient)
        tensors = (self.lengths, *self.noise, source, *state, *values)
        made, *rest = replay.replayed(self.plan.records, key, run, tensors)
        if output is not None:
            output.copy_(made)  # type: ignore[arg-type]
        return tuple(rest[:count]), rest[count:]  # type: ignore[return-value]

    def backward(
        self, source: Tensor, state: Tensors, values: Tensors, output: Tensor, kept: Tensors, grads: Grads
    ) -> tuple[Tensor | None, ...]:
        if self.shape.way is not Way.STEPS:
            return self._backward(source, state, values, output, kept, grads)
        ends = [0, *itertools.accumulate((len(self.noise), len(grads), len(state), len(values)))]

        def run(lengths: Tensor | None, source: Tensor, output: Tensor, *tensors: Tensor) -> tuple[Tensor | None, ...]:
            noise, grads, state, values = (tensors[a:b] for a, b in itertools.pairwise(ends))
            call = dataclasses.replace(self, lengths=lengths, noise=noise)
            return call._backward(source, state, values, output, tensors[ends[-1] :], grads)

        key = ("backward", self.shape, self.reverse, self.source_grad)
        tensors = (self.lengths, source, output, *self.noise, *grads, *state, *values, *kept)
        return tuple(replay.replayed(self.plan.records, key, run, tensors))

    # -- one direction -----------------------------------------------------------------------------------------------

    def _forward(
        self, source: Tensor, state: Tensors, values: Tensors, output: Tensor | None, *, gradient: bool
    ) -> tuple[State, list[Tensor]]:
        plan, program = self.plan, self.plan.lowered(self.source_grad).forward
        stages = plan.forward_stages(self.shape, output is not None, gradient, self.source_grad)
        given, state = self._given(source), [rows(entry) for entry in state]
        last = [torch.empty_like(entry, memory_format=torch.contiguous_format) for entry in state]
        keep = plan.keep(self.source_grad) if gradient else ()
        size = source.shape[:2]
        kept = [self.empty((*size, plan.kept_size(slot, self.source_grad))) for slot in keep]
        self._add_kept(given, keep, kept)
        if output is not None:
            given.over_time("out", output)
        for i, (first, final) in enumerate(zip(state, last, strict=True)):
            given.per_sample(f"first{i}", first)
            given.per_sample(f"last{i}", final)
        given.weights([s.kernel for s in stages], [*program.saved, *program.roots], tuple(values))
        if self.shape.way is not Way.STEPS:
            given.run(stages[0].kernel)
            return tuple(last), kept
        current, spare = state, last
        for t in range(len(source)):
            for i, (old, new) in enumerate(zip(current, spare, strict=True)):
                given.per_sample(f"s{i}", old)
                given.per_sample(f"n{i}", new)
            self._step(given, stages, values, t)
            current, spare = spare, [torch.empty_like(entry) for entry in last] if t == 0 else current
        return tuple(current), kept

    def _backward(
        self, source: Tensor, state: Tensors, values: Tensors, output: Tensor, kept: Tensors, grads: Grads
    ) -> tuple[Tensor | None, ...]:
        plan, lowered = self.plan, self.plan.lowered(self.source_grad)
        program, size = lowered.backward, source.shape[:2]
        source, state = rows(source), [rows(entry) for entry in state]
        stages = plan.backward_stages(self.shape, grads[0] is not None, self.source_grad)
        given = self._given(source)
        first_grads = [torch.empty_like(entry, memory_format=torch.contiguous_format) for entry in state]
        last_grads = [
            torch.zeros_like(first) if grad is None else rows(grad)
            for grad, first in zip(grads[1:], first_grads, strict=True)
        ]
        for i, (first, last_grad, first_grad) in enumerate(zip(state, last_grads, first_grads, strict=True)):
            given.per_sample(f"first{i}", first)
            given.per_sample(f"last_grad{i}", last_grad)
            given.per_sample(f"first_grad{i}", first_grad)
        self._add_kept(given, plan.keep(self.source_grad), kept)
        given.over_time("out", output)
        if grads[0] is not None:
            given.over_time("out_grad", rows(grads[0]))
        of_source, source_grad = Slot(Kind.SOURCE), None
        time_of = {tile: source for slot, tile in program.inputs.items() if slot == of_source}
        for j, tile in enumerate(plan.stored_sides(self.source_grad)):
            time_of[tile] = self.empty((*size, tile.features))
            given.over_time(f"stored{j}", time_of[tile])
        if program.outputs[of_source] is not None:
            tile = program.outputs[of_source]
            source_grad = time_of[tile] = self.empty((*size, tile.features))
            given.over_time("x_grad", source_grad)
        given.weights([s.kernel for s in stages], program.roots, tuple(values))
        sums = given.sums(program, self.shape.lanes)
        if self.shape.way is not Way.STEPS:
            given.run(stages[0].kernel)
        else:
            first_grads = self._backward_steps(given, stages, state, values, output, last_grads, first_grads)
        totals = [
            self._product_of(r, time_of, state[0], output)
            if isinstance(r, Outer)
            else pack.total(r, sums[i], plan.dtype)
            for i, r in enumerate(program.reductions)
        ]
        with torch.no_grad():
            reads = (values[i] for i in lowered.finish_reads)
            return source_grad, *first_grads, *lowered.finish.run(*totals, *reads)

    # -- step by step ------------------------------------------------------------------------------------------------

    def _backward_steps(
        self,
        given: pack.Given,
        stages: tuple[Stage, ...],
        state: list[Tensor],
        values: Tensors,
        output: Tensor,
        last_grads: list[Tensor],
        first_grads: list[Tensor],
    ) -> list[Tensor]:
        """The steps from last to first; returns the gradients of the first states."""
        inputs = self.plan.lowered(self.source_grad).backward.inputs
        if Slot(Kind.STATE) in inputs:
            given.over_time("s0", self._old_states(state[0], output))
        current, spare = last_grads, first_grads
        for t in reversed(range(given.steps)):
            for i in range(1, len(state)):
                if Slot(Kind.STATE, i) in inputs:
                    given.per_sample(f"s{i}", given.at(f"s{i}_kept", t - 1) if t else state[i])
            for i, (old, new) in enumerate(zip(current, spare, strict=True)):
                given.per_sample(f"last_grad{i}", old)
                given.per_sample(f"first_grad{i}", new)
            self._step(given, stages, values, t)
            fresh = [torch.empty_like(entry) for entry in first_grads] if current is last_grads else current
            current, spare = spare, fresh
        return current

    def _step(self, given: pack.Given, stages: tuple[Stage, ...], values: Tensors, t: int) -> None:
        """The launches of one step: products by PyTorch, and a kernel for all else between them."""
        for stage in stages:
            for source, product, target in stage.products:
                made = self.empty((given.batch, product.features))
                torch.mm(given.at(source, t), values[product.matrix.index], out=made)
                given.per_sample(target, made)
            for tile, name in stage.writes.items():
                given.per_sample(name, self.empty((given.batch, tile.features)))
            given.run(stage.kernel, t)

    # -- parameters --------------------------------------------------------------------------------------------------

    def _given(self, source: Tensor) -> pack.Given:
        """What both directions read: source, noise and lengths."""
        steps, batch = source.shape[:2]
        given = pack.Given(steps, batch, self.lengths, self.device, reverse=self.reverse)
        given.over_time("x", rows(source))
        for i, tensor in enumerate(self.noise):
            if tensor is not None:
                given.over_time(f"z{i}", tensor)
        return given

    @staticmethod
    def _add_kept(given: pack.Given, keep: tuple[Slot, ...], kept: Tensors) -> None:
        for slot, tensor in zip(keep, kept, strict=True):
            given.over_time(f"k{slot.index}" if slot.kind is Kind.SAVED else f"s{slot.index}_kept", tensor)


scan_triton: Any = functools.partial(scan_fused, target=TritonCall)


def runs_on(device: torch.device) -> bool:
    """Whether kernels run there: on a GPU, or, where Triton's interpreter is in use, on the CPU."""
    return device.type == ("cpu" if IS_INTERPRETED else "cuda")


def fused_source(cell: Cell, batch: int | None = None) -> str:
    """Both directions of a scan as Triton source; see ``holdfast.fused_source``."""
    with torch.enable_grad():
        plan = plan_for(cell, tuple(cell.weights()), gradient=True, kind=TritonPlan)
    source_grad, shape = not plan.fold, Shape(plan.dtype, masked=False)
    forward = plan.forward_stages(shape, True, True, source_grad)
    backward = plan.backward_stages(shape, True, source_grad)
    return "\n\n".join(stage.kernel.text for stage in (*forward, *backward))
