"""One scan by compiled loops: the last stage.

    scan_fused(cell, xs, state, weights, ...)  →  outputs, last state

A plan is found or made, a way is chosen (ways.py), and a kernel that has not been tried yet is compared with the plain
loop first (trial.py). A way that cannot do it, or does it wrongly, is given up for the next one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.program.graph import Unsupported
from holdfast.engine.program.trace import own_tensors
from holdfast.engine.targets.cpu import trial
from holdfast.engine.targets.cpu.call import Call, FusedScan
from holdfast.engine.targets.cpu.feature_call import FeatureCall
from holdfast.engine.targets.cpu.pack import Tensors
from holdfast.engine.targets.cpu.plan import FEW, failure, plan_for, refuse, unfold
from holdfast.engine.targets.cpu.shape import FeatureShape
from holdfast.engine.targets.cpu.ways import way_for, widest_input
from holdfast.types import State

__all__ = ["scan_fused"]

# Note [Borrowed parameters]
# torch.func.functional_call lends a cell other tensors for one call, and they are gone when a gradient is computed.
# What weights() and an unfolded drive() read is part of autograd's graph by then. What a step reads by itself would be
# looked up again if the gradient is tried or computed by the plain loop, so such a scan is not fused.

CHUNK = 1 << 24  # bytes of drive that are made at a time when nothing of them is kept


def scan_fused(
    cell: Cell,
    xs: Tensor,
    state: State,
    weights: tuple[Tensor, ...],
    *,
    lengths: Tensor | None = None,
    reverse: bool = False,
    need_output: bool = True,
    refused: Callable[[str], None] | None = None,
    target: Any = None,
) -> tuple[Tensor | None, State]:
    """``scan_reference`` by compiled loops; ``Unsupported`` with the reason if the cell's step has no plan.

    Args:
        weights: what ``cell.weights()`` returned.
        refused: called with the reason if a gradient has to be computed by the plain loop after all.
        target: the kind of ``Call`` that runs it; default: the CPU's.
    """
    gradient = torch.is_grad_enabled()
    gradient = gradient and any(t.requires_grad for t in (xs, *state, *weights, *cell.parameters()))
    widest = FEW if target else widest_input(cell, xs.shape[1], gradient=gradient)
    if gradient and not all(t.is_leaf for t in cell.parameters()):  # Note [Borrowed parameters]
        widest = 0
    while True:
        options: Any = {"gradient": gradient, "batch": xs.shape[1], "kind": (target or Call).plans, "widest": widest}
        plan = plan_for(cell, weights, **options)
        shape: Any = (target.shape_for if target else way_for)(plan, xs.shape[1], lengths)
        kind = target or (FeatureCall if isinstance(shape, FeatureShape) else Call)
        call = kind(cell, plan, lengths, reverse, shape, refused=refused)
        call.source_grad = not gradient or xs.requires_grad or not plan.fold
        tensors = own_tensors(cell) if plan.lowered(True).own else {}
        own = tuple(tensors[name] for name in plan.lowered(True).own)
        if gradient and not all(t.is_leaf for t in own):  # Note [Borrowed parameters]
            raise Unsupported("its step reads a parameter that is the result of a computation")
        try:
            trial.try_forward(call, xs, weights, own, output=gradient or need_output)
            if gradient and kind is FeatureCall:  # a way that has no backward kernel is not taken forwards either
                plan.backward_kernel(shape, need_output, call.source_grad)
        except Warning:  # the user has made them errors
            raise
        except Exception as error:  # a fault in the compiler must not stop a scan: the plain loop can do it
            known = isinstance(error, Unsupported | trial.Disagreement)
            reason = str(error) if known else failure(error)
            if not refuse(plan, shape, reason):
                unfold(cell, plan, weights, reason)
            continue
        if plan.lowered(True).noises and not all(t.is_contiguous() for t in (xs, *state)):
            raise Unsupported("it draws random numbers, and its input or state is not contiguous in memory")
        if not gradient:
            return _without_gradient(call, xs, state, weights, own, need_output)
        source = xs if plan.fold else cell.drive(xs)
        call.noise = call.drawn(len(xs), xs.shape[1])
        used = plan.lowered(call.source_grad).finish.outputs
        given = (t if grad is not None else t.detach() for t, grad in zip((*weights, *own), used, strict=True))
        output, *last = FusedScan.apply(call, source, *state, *given)
        return (output if need_output else None), tuple(last)


def _without_gradient(
    call: Call, xs: Tensor, state: State, weights: Tensors, own: Tensors, need_output: bool
) -> tuple[Tensor | None, State]:
    """Nothing is kept, so the drive is made for a stretch of steps at a time."""
    plan, cell, (steps, batch) = call.plan, call.cell, xs.shape[:2]
    values = call.make_ready(weights, own)
    output = call.empty((steps, batch, state[0].shape[1])) if need_output else None
    width = 1 if plan.fold else plan.traced.source_features * plan.dtype.itemsize
    even = plan.fold or steps * batch * width <= CHUNK or trial.drive_is_even(cell, plan)
    stretch = max(1, CHUNK // (batch * width)) if even and not plan.fold else steps
    whole = None if plan.fold or even else cell.drive(xs)
    if stretch >= steps:
        source = xs if plan.fold else cell.drive(xs) if whole is None else whole
        call.noise = call.drawn(steps, batch)
        return output, call.forward(source, state, values, output, gradient=False)[0]
    for start in range(0, steps, stretch):
        window = slice(
            steps - start - stretch if call.reverse else start, steps - start if call.reverse else start + stretch
        )
        window = slice(max(0, window.start), min(steps, window.stop))
        source = xs[window] if plan.fold else cell.drive(xs[window]) if whole is None else whole
        here = None if call.lengths is None else (call.lengths - window.start).clamp(0, window.stop - window.start)
        part = dataclasses.replace(call, lengths=here, noise=call.drawn(len(source), batch))
        state, _ = part.forward(source, state, values, None if output is None else output[window], gradient=False)
    return output, state
