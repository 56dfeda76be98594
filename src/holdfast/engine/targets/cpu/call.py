"""One scan by compiled loops with lanes over samples: blocks, threads, autograd.

A call splits the batch into blocks and runs a kernel on each, on threads that do not wait for each other until the
end. A backward kernel that has not been tried yet is compared with the plain loop first (trial.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.cells import Cell
from holdfast.engine.program.graph import Unsupported, mapped
from holdfast.engine.program.tiles import Input, Kind, Outer, Slot, Tile
from holdfast.engine.program.trace import Batch
from holdfast.engine.reference import plain_loop
from holdfast.engine.targets.cpu import buffers, pack, trial
from holdfast.engine.targets.cpu.arguments import Role
from holdfast.engine.targets.cpu.kept import Kept
from holdfast.engine.targets.cpu.pack import Grads, Tensors
from holdfast.engine.targets.cpu.plan import Plan, failure, refuse, settings_now, unfold
from holdfast.errors import FusedError
from holdfast.types import State

__all__ = ["Call", "FusedScan"]


SHAPES = 2  # layouts of a plan's weights that are kept


class FusedScan(torch.autograd.Function):
    """The compiled scan as one node of autograd."""

    @staticmethod
    def forward(ctx: Any, call: Call, source: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        count, weights = len(call.plan.traced.state_sizes), call.plan.traced.weights
        state, given, own = tensors[:count], tensors[count : count + weights], tensors[count + weights :]
        output = call.empty((*source.shape[:2], state[0].shape[1]))
        values = call.values(given, own)
        last, kept = call.forward(source, state, values, output, gradient=True)
        ctx.call, ctx.values = call, len(values)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(source, *tensors, output, *values, *kept)
        return output, *last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        source, *rest = ctx.saved_tensors
        count = len(call.plan.traced.state_sizes)
        inputs = len(ctx.needs_input_grad) - 2
        tensors, output = rest[:inputs], rest[inputs]
        values, kept = rest[inputs + 1 : inputs + 1 + ctx.values], rest[inputs + 1 + ctx.values :]
        needs = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a second derivative is wanted: go back through the plain loop
            return None, *call.plain_backward(needs, source, tensors, grads, create_graph=True)
        try:
            trial.try_backward(call, source, tensors, output_grad=grads[0] is not None)
        except Exception as error:  # as in scan_fused
            call.give_up(error, tensors)
            return None, *call.plain_backward(needs, source, tensors, grads, create_graph=False)
        return None, *call.backward(source, tensors[:count], values, output, kept, grads)


class _Given(TorchDispatchMode):
    """Random operators get these numbers instead of new ones, one after another."""

    def __init__(self, numbers: list[Tensor | None]):
        super().__init__()
        self._numbers = iter(numbers)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        given = next(self._numbers)
        if func._schema.is_mutable:
            result = args[0]
        else:
            like = {} if given is None else {"dtype": given.dtype, "device": given.device}
            result = torch.empty(args[0] if isinstance(args[0], list) else args[0].shape, **like)
        return result if given is None else result.copy_(given.reshape(result.shape))


@dataclasses.dataclass(eq=False)
class Call:
    """One scan: its blocks and its arguments. ``shape`` is settled here: backward reads what forward laid out, whatever
    the number of threads has become meanwhile. Another target replaces ``forward``, ``backward``, ``empty`` and what is
    in the class.
    """

    plans: ClassVar[type[Plan]] = Plan
    backend: ClassVar[str] = "fused"
    cell: Cell
    plan: Any  # one of ``plans``
    lengths: Tensor | None
    reverse: bool
    shape: Any  # how its kernels are laid out
    source_grad: bool = True
    noise: tuple[Tensor | None, ...] = ()  # (time, batch, features) for each draw of a step
    refused: Callable[[str], None] | None = None
    packed: dict[Any, Tensor] | None = None  # what ``packing`` returned, where it is ready

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        return buffers.empty(shape, self.plan.dtype)

    def values(self, weights: Tensors, own: Tensors) -> tuple[Tensor, ...]:
        """The weights that kernels read."""
        with torch.no_grad():
            return self.plan.lowered(self.source_grad).prologue.run(*(w.detach() for w in (*weights, *own)))

    def packing(self, values: Tensors) -> dict[Any, Tensor]:
        """The weights as a forward kernel reads them."""
        return pack.packed_weights(self.plan.forward(self.source_grad), values, self.shape)

    def make_ready(self, weights: Tensors, own: Tensors) -> tuple[Tensor, ...]:
        """``values`` for a scan without gradients, and ``packed`` filled in: from the last such scan, if the weights
        are the same (kept.py).
        """

        def make(tensors: Tensors) -> tuple[tuple[Tensor, ...], dict[Any, Tensor]]:
            values = self.values(tensors, ())
            return values, self.packing(values)

        given, key = (*weights, *own), (self.shape, self.source_grad)
        kept = self.plan.kept.get(key)
        if kept is None or not kept.holds_for(given):
            kept = Kept.of(given, make)
            if kept is None:
                values, self.packed = make(given)
                return values
            self.plan.kept.pop(key, None)
            while len(self.plan.kept) >= SHAPES:
                del self.plan.kept[next(iter(self.plan.kept))]
            self.plan.kept[key] = kept
        self.packed = kept.packed
        return kept.values

    def drawn(self, steps: int, batch: int) -> tuple[Tensor | None, ...]:
        """The random numbers of all steps, drawn in the order of the plain loop; None for those that nobody reads."""
        noises = self.plan.lowered(self.source_grad).noises
        if not noises:
            return ()
        kept = [self.empty((steps, batch, n.tile.features)) if n.is_read else None for n in noises]
        device = self.cell.example_weight().device

        def sized(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(map(sized, value))
            return value.times * batch if isinstance(value, Batch) else value

        for t in reversed(range(steps)) if self.reverse else range(steps):
            for noise, place in zip(noises, kept, strict=True):
                args, kwargs = mapped(
                    (noise.node.args, noise.node.kwargs),
                    lambda n: torch.empty(sized(n.shape), dtype=self.plan.dtype, device=device),
                )
                drawn = noise.node.target(*sized(args), **kwargs)
                if place is not None:
                    place[t] = drawn.reshape(batch, -1)
        return tuple(kept)

    def forward(
        self, source: Tensor, state: Tensors, values: Tensors, output: Tensor | None, *, gradient: bool
    ) -> tuple[State, list[Tensor]]:
        plan, steps, shape = self.plan, len(source), self.shape
        schedule = plan.forward(self.source_grad)
        kernel = plan.forward_kernel(shape, output is not None, gradient, self.source_grad)
        arguments = self._arguments(source, state := [pack.rows(entry) for entry in state])
        last = [torch.empty_like(entry) for entry in state]
        keep = plan.keep(self.source_grad) if gradient else ()
        kept = []
        for slot in keep:
            of_state = slot.kind is Kind.STATE
            size = state[slot.index].shape[1] if of_state else schedule.program.saved[slot.index].features
            kept.append(buffers.empty((arguments.blocks, steps, shape.kept_rows(size), shape.lanes), plan.dtype))
        self._kept(arguments, keep, kept)
        if output is not None:
            arguments.over_time(Role.OUTPUT, output)
        for i, final in enumerate(last):
            arguments.per_sample(Role.LAST, i, final)
        arguments.give(self.packing(values) if self.packed is None else self.packed)
        arguments.run(kernel)
        return tuple(last), kept

    def backward(
        self, source: Tensor, state: Tensors, values: Tensors, output: Tensor, kept: Tensors, grads: Grads
    ) -> tuple[Tensor | None, ...]:
        plan, (steps, batch), shape = self.plan, source.shape[:2], self.shape
        schedule, lowered = plan.backward(self.source_grad, shape), plan.lowered(self.source_grad)
        arguments = self._arguments(source := pack.rows(source), state := [pack.rows(entry) for entry in state])
        first_grads = [torch.empty_like(entry) for entry in state]
        for i, (grad, first_grad) in enumerate(zip(grads[1:], first_grads, strict=True)):
            arguments.per_sample(Role.LAST_GRAD, i, torch.zeros_like(state[i]) if grad is None else pack.rows(grad))
            arguments.per_sample(Role.FIRST_GRAD, i, first_grad)
        self._kept(arguments, plan.keep(self.source_grad), kept)
        arguments.over_time(Role.OUTPUT, output)
        if grads[0] is not None:
            arguments.over_time(Role.OUTPUT_GRAD, pack.rows(grads[0]))
        of_source = Slot(Kind.SOURCE)
        time_of = {tile: source for slot, tile in schedule.program.inputs.items() if slot == of_source}
        written = [(Role.STORED, j, tile) for j, tile in enumerate(plan.stored(self.source_grad, shape))]
        for role, j, tile in [*written, (Role.SOURCE_GRAD, 0, schedule.program.outputs[of_source])]:
            if tile is not None:
                time_of[tile] = buffers.empty((steps, batch, tile.features), plan.dtype)
                arguments.over_time(role, time_of[tile], j)
        arguments.give(pack.packed_weights(schedule, values, shape))
        sums = arguments.sums(schedule)
        arguments.run(plan.backward_kernel(shape, grads[0] is not None, self.source_grad))
        totals = [
            self._product_of(r, time_of, state[0], output) if r in schedule.products else pack.total(r, sums[i])
            for i, r in enumerate(schedule.program.reductions)
        ]
        with torch.no_grad():
            reads = (values[i] for i in lowered.finish_reads)
            source_grad = schedule.program.outputs[of_source]
            return source_grad and time_of[source_grad], *first_grads, *lowered.finish.run(*totals, *reads)

    def plain_backward(
        self, needs: Sequence[bool], source: Tensor, tensors: Tensors, grads: Grads, *, create_graph: bool
    ) -> list[Tensor | None]:
        """The same gradients from the plain loop, with a graph of their own."""
        if settings_now(self.cell) != self.plan.settings:
            raise FusedError(
                f"The settings of {type(self.cell).__name__} changed after the scan, and its step has to run again "
                'for this gradient. Change them after the backward pass, or pass backend="reference".'
            )
        count, total = len(self.plan.traced.state_sizes), self.plan.traced.weights
        with torch.enable_grad():
            if not create_graph:
                inputs = [t.detach().requires_grad_(need) for t, need in zip((source, *tensors), needs, strict=True)]
                inputs[1 + count + total :] = tensors[count + total :]  # the cell's own, which its step reads by itself
            else:
                inputs = [source, *tensors]
            weights = tuple(inputs[1 + count : 1 + count + total])
            output, last = self.plain(inputs[0], tuple(inputs[1 : 1 + count]), weights)
            pairs = zip((output, *last), grads, strict=True)
            pairs = [(value, g) for value, g in pairs if g is not None and value.requires_grad]
            wanted = [i for i, need in enumerate(needs) if need]
            result: list[Tensor | None] = [None] * len(inputs)
            if pairs and wanted:
                found = torch.autograd.grad(
                    [v for v, _ in pairs],
                    [inputs[i] for i in wanted],
                    [g for _, g in pairs],
                    create_graph=create_graph,
                    allow_unused=True,
                )
                for i, grad in zip(wanted, found, strict=True):
                    result[i] = grad
        return result

    def plain(self, source: Tensor, state: State, weights: tuple[Tensor, ...]) -> tuple[Tensor, State]:
        """This scan by the plain loop; its random numbers are those that were drawn, if they were."""
        cell, steps = self.cell, len(source)
        drives = cell.drive(source) if self.plan.fold else source
        times = iter(reversed(range(steps)) if self.reverse else range(steps))

        def step(drive: Tensor, state: State) -> State:
            t = next(times)
            with _Given([None if z is None else z[t] for z in self.noise]) if self.noise else contextlib.nullcontext():
                return cell.step(drive, state, weights)

        output, last = plain_loop(step, drives, state, lengths=self.lengths, reverse=self.reverse, need_output=True)
        assert output is not None
        return output, last

    def give_up(self, error: Exception, tensors: Tensors) -> None:
        """A gradient that could not be computed or did not agree: the plain loop does it, and does so from now on."""
        count, total = len(self.plan.traced.state_sizes), self.plan.traced.weights
        reason = str(error) if isinstance(error, Unsupported | trial.Disagreement) else failure(error)
        if refuse(self.plan, self.shape, reason):
            return
        unfold(self.cell, self.plan, tuple(tensors[count : count + total]), reason)
        if self.refused is None:
            name = type(self.cell).__name__
            raise FusedError(
                f"the gradient of a scan of {name} cannot run on the {self.backend} backend: {reason}."
            ) from error
        self.refused(reason)

    # -- arguments ---------------------------------------------------------------------------------------------------

    def _arguments(self, source: Tensor, state: list[Tensor]) -> pack.Arguments:
        """What both directions read: source, noise and first states."""
        steps, batch = source.shape[:2]
        arguments = pack.Arguments(self.shape, steps, batch, self.lengths, reverse=self.reverse)
        arguments.over_time(Role.SOURCE, pack.rows(source))
        for i, tensor in enumerate(self.noise):
            if tensor is not None:
                arguments.over_time(Role.NOISE, tensor, i)
        for i, entry in enumerate(state):
            arguments.per_sample(Role.FIRST, i, entry)
        return arguments

    @staticmethod
    def _kept(arguments: pack.Arguments, keep: tuple[Slot, ...], kept: Tensors) -> None:
        for slot, tensor in zip(keep, kept, strict=True):
            role = Role.SAVED if slot.kind is Kind.SAVED else Role.STATES
            arguments.pointer(role, slot.index, tensor, per_block=tensor.stride(0))

    def _product_of(self, outer: Outer, time_of: dict[Tile, Tensor], first: Tensor, output: Tensor) -> Tensor:
        """Σ over steps and samples of left ⊗ right, as one product; an old state is the output of the step before."""
        left, right = outer.left, outer.right
        if self._is_old(left) and self._is_old(right):
            both = self._old_states(first, output)
            return pack.product(both, both)
        if self._is_old(left):
            return self._product_of(Outer(right, left), time_of, first, output).mT
        if not self._is_old(right):
            return pack.product(time_of[left], time_of[right])
        if self.lengths is not None and self.reverse:
            return pack.product(time_of[left], self._old_states(first, output))
        grad = time_of[left]
        later, earlier = (grad[:-1], output[1:]) if self.reverse else (grad[1:], output[:-1])
        total = pack.product(grad[-1:] if self.reverse else grad[:1], first.unsqueeze(0))
        return (
            total.addmm_(later.reshape(-1, grad.shape[2]).mT, earlier.reshape(-1, output.shape[2]))
            if len(later)
            else total
        )

    @staticmethod
    def _is_old(tile: Tile) -> bool:
        return isinstance(tile, Input) and tile.slot == Slot(Kind.STATE)

    def _old_states(self, first: Tensor, output: Tensor) -> Tensor:
        shifted = [output[1:], first.unsqueeze(0)] if self.reverse else [first.unsqueeze(0), output[:-1]]
        old = torch.cat(shifted)
        if self.lengths is not None and self.reverse:  # a sample enters at its last step, from its first state
            entry = (torch.arange(len(old), device=old.device).unsqueeze(1) == self.lengths - 1).unsqueeze(2)
            old = torch.where(entry, first, old)
        return old
