"""A trial before trust: a new kernel's results beside the plain loop's, on real values, before anybody sees them.

    try_forward(call, xs, ...), try_backward(call, source, ...)  →  None, or ``Disagreement`` with the tensor named

A trial is a scan of three steps at two batch sizes, run by the kernel and by the plain loop: once on the caller's own
inputs, once on random ones, with random states, lengths where the kernel has them, and random cotangents. It happens
once for each kernel.

What rounding can do is measured, not guessed: the plain loop runs a second time with its inputs changed in their last
digits. A value near a jump may still fall on either side of it, so a trial fails only when two of three comparisons do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.program.trace import gpus_in_use, gradients
from holdfast.engine.targets.cpu.pack import Tensors

if TYPE_CHECKING:
    from holdfast.engine.targets.cpu.call import Call
    from holdfast.engine.targets.cpu.plan import Plan

__all__ = ["Disagreement", "distance", "drive_is_even", "try_backward", "try_forward"]

STEPS = 3
TOLERANCE = {
    torch.bfloat16: 3e-2,
    torch.float32: 1e-4,
    torch.float64: 1e-10,
}  # of a tensor's largest entry: sums in another order
AMPLIFIED = 200.0  # times what a change in the last digits does


class Disagreement(Exception):
    """A compiled scan is not the plain one; the message names the tensor and says by how much."""


def try_forward(call: Call, xs: Tensor, weights: Tensors, own: Tensors, *, output: bool) -> None:
    """Compare the values of a forward kernel, unless that was done."""
    key = ("forward", call.shape, output, call.source_grad, call.reverse, _special(call, xs.shape[1]))
    if key not in call.plan.tried:

        def source(x: Tensor) -> Tensor:
            return x if call.plan.fold else call.cell.drive(x).detach()

        _try(call, xs, source, weights, own, key, output=output, output_grad=None)


def try_backward(call: Call, source: Tensor, tensors: Tensors, *, output_grad: bool) -> None:
    """Compare the gradients of a backward kernel, unless that was done."""
    key = ("backward", call.shape, output_grad, call.source_grad, call.reverse, _special(call, source.shape[1]))
    if key not in call.plan.tried:
        start = len(call.plan.traced.state_sizes)
        end = start + call.plan.traced.weights
        _try(call, source, lambda x: x, tensors[start:end], tensors[end:], key, output=True, output_grad=output_grad)


def drive_is_even(cell: Cell, plan: Plan) -> bool:
    """Whether ``drive`` treats every step alike and draws no random numbers, so that it may be called in pieces."""
    if "even drive" not in plan.tried and "uneven drive" not in plan.tried:
        generator = torch.Generator().manual_seed(0)
        xs = torch.randn(4, 3, cell.input_size, dtype=plan.dtype, generator=generator).to(cell.example_weight().device)
        with torch.no_grad(), torch.random.fork_rng(devices=gpus_in_use()):
            before = torch.get_rng_state()
            whole = cell.drive(xs)
            calm = torch.equal(torch.get_rng_state(), before)
            pieces = torch.cat([cell.drive(xs[:1]), cell.drive(xs[1:])])
        even = calm and torch.allclose(whole, pieces, rtol=TOLERANCE[plan.dtype], equal_nan=True)
        plan.tried.add("even drive" if even else "uneven drive")
    return "even drive" in plan.tried


def _special(call: Call, batch: int) -> int | None:
    """The batch size, if the step's trace at that size was not the plan's: then the trial must be at that very size."""
    return None if call.plan.batches.get(batch) is None else batch


def _try(
    call: Call,
    real: Tensor,
    source: Callable[[Tensor], Tensor],
    weights: Tensors,
    own: Tensors,
    key: tuple[Any, ...],
    **options: Any,
) -> None:
    plan, shape, special = call.plan, call.shape, key[-1]
    sizes = shape.trial_sizes if special is None else (special, special)
    found: list[str] = []
    with torch.random.fork_rng(devices=gpus_in_use()):
        for attempt, size in enumerate((*sizes, sizes[1])):
            if attempt == 2 and not found:
                break
            generator = torch.Generator().manual_seed(attempt)
            if attempt == 0:  # the caller's own values
                steps, samples = torch.arange(STEPS) % len(real), torch.arange(size) % real.shape[1]
                x = real.detach()[steps.to(real.device)][:, samples.to(real.device)]
            else:
                x = torch.randn(STEPS, size, real.shape[2], dtype=plan.dtype, generator=generator).to(real.device)
            ends = shape.masked and attempt > 0
            difference = _difference(call, source(x), size, weights, own, generator, ends=ends, **options)
            if difference is not None:
                found.append(difference)
            if len(found) == 2:
                if special is not None:
                    raise Disagreement(str(plan.batches[special]))
                raise Disagreement(
                    f"the compiled loop does not agree with the plain one: {found[-1]}; please report it"
                )
    plan.tried.add(key)


def _difference(
    call: Call,
    source: Tensor,
    batch: int,
    weights: Tensors,
    own: Tensors,
    generator: torch.Generator,
    *,
    ends: bool,
    output: bool,
    output_grad: bool | None,
) -> str | None:
    plan, sizes = call.plan, call.plan.traced.state_sizes
    backward = output_grad is not None

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=plan.dtype, generator=generator).to(source.device)

    state = tuple(0.5 * random(batch, n) for n in sizes)
    lengths = torch.randint(0, STEPS + 1, (batch,), generator=generator).to(source.device) if ends else None
    seed = int(torch.randint(1 << 31, (), generator=generator))
    torch.manual_seed(seed)
    mine = dataclasses.replace(call, lengths=lengths)
    mine.noise = mine.drawn(STEPS, batch)
    grads = [random(STEPS, batch, sizes[0]) if output_grad else None, *(random(batch, n) for n in sizes)]
    with torch.no_grad():
        values = mine.values(weights, own)
        outputs = call.empty((STEPS, batch, sizes[0])) if output else None
        last, kept = mine.forward(source, state, values, outputs, gradient=plan.traced.gradient)
        fused: tuple[Tensor | None, ...] = (outputs, *last)
        if backward and outputs is not None:
            fused = mine.backward(source, state, values, outputs, kept, grads)

    def plain(source: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        torch.manual_seed(seed)
        again = dataclasses.replace(mine, noise=())
        if not backward:
            result, final = again.plain(source, state, tuple(w.detach() for w in weights))
            return (result.detach() if output else None), *(entry.detach() for entry in final)
        inputs = [t.detach().clone() for t in (source, *state, *weights)]
        with torch.enable_grad():
            for t in inputs:
                if t.is_floating_point():
                    t.requires_grad_()
            result, final = again.plain(inputs[0], tuple(inputs[1 : 1 + len(sizes)]), tuple(inputs[1 + len(sizes) :]))
            pairs = [(v, g) for v, g in zip((result, *final), grads, strict=True) if g is not None and v.requires_grad]
            leaves = [t if t.requires_grad else None for t in (*inputs, *own)]
            wanted, found = [t for t in leaves if t is not None], iter(())
            if pairs and wanted:
                results, seeds = zip(*pairs, strict=True)
                found = iter(gradients(results, seeds, tuple(wanted)))
        return tuple(None if t is None else next(found, None) for t in leaves)

    digits = 4 * torch.finfo(plan.dtype).eps
    reference = plain(source, state)
    nearby = plain(
        source * (1 + digits * random(*source.shape)), tuple(s * (1 + digits * random(*s.shape)) for s in state)
    )
    names = ["the output", *(f"state {i}" for i in range(len(sizes)))]
    if backward:
        states = [f"the gradient of state {i}" for i in range(len(sizes))]
        given = [f"the gradient of weights()[{i}]" for i in range(len(weights))]
        owned = [f"the gradient of {name}" for name in plan.lowered(True).own]
        names = ["the gradient of the input", *states, *given, *owned]
        if not call.source_grad:
            reference, nearby = (None, *reference[1:]), (None, *nearby[1:])
    for name, one, other, close in zip(names, fused, reference, nearby, strict=True):
        gap = distance(one, other, close, TOLERANCE[plan.dtype], lenient=ends)
        if gap is not None:
            return f"{name} differs by {gap:.2g}"
    return None


def distance(
    one: Tensor | None, other: Tensor | None, close: Tensor | None, tolerance: float, *, lenient: bool
) -> float | None:
    """How far ``one`` is from ``other`` if that is more than rounding, else None; no tensor means zeros.

    ``lenient``: ``other`` may be infinite or NaN where ``one`` is not. The plain loop runs steps after a sample's end
    too and multiplies their derivative by zero, which is NaN if that is infinite. A kernel leaves them out.
    """
    if one is None and other is None:
        return None
    like = one if one is not None else other
    assert like is not None
    one, other, close = (torch.zeros_like(like) if t is None else t.detach() for t in (one, other, close))
    steady = (other.isfinite() == close.isfinite()).all()
    both = one.isfinite() & other.isfinite() & close.isfinite()
    apart = other.isfinite() & ~one.isfinite() if lenient else other.isfinite() != one.isfinite()
    if steady and apart.any():
        return float("inf")
    if not both.any():
        return None
    error = (one - other)[both].abs().max().item()
    scale, moved = other[both].abs().max().item(), (other - close)[both].abs().max().item()
    return error if error > tolerance * scale + AMPLIFIED * moved + torch.finfo(one.dtype).tiny else None
