"""Which way a scan takes through time on a GPU: the first one whose kernels need no registers in memory.

    shape_for(plan, masked=...)  →  Shape; the compiler's own report decides (resources.py)

The ways in order: weights held on the chip, weights streamed, and launches for every step, in which PyTorch does the
products. A way is taken if Triton compiles both directions of it without a spill and with the shared memory that the
GPU has. The last one is taken in any case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from holdfast.engine.program.tiles import Product, StepProgram, in_order
from holdfast.engine.targets.triton import resources
from holdfast.engine.targets.triton.emit import Kernel
from holdfast.engine.targets.triton.functions import IS_INTERPRETED
from holdfast.engine.targets.triton.plan import TritonPlan
from holdfast.engine.targets.triton.shape import Shape, Way

__all__ = ["candidates", "kernels", "settled", "shape_for"]

HELD_MOST = 8 << 10  # numbers in all matrices of a step, above which compiling a kernel that holds them is not tried


def shape_for(plan: TritonPlan, *, masked: bool) -> Shape:
    """How a scan of this plan is laid out on this machine's GPU; the interpreter takes the first way there is."""
    if masked not in plan.shapes:
        first = next(candidates(plan, masked=masked))
        plan.shapes[masked] = first if IS_INTERPRETED else settled(plan, resources.target_here(), masked=masked)
    return plan.shapes[masked]


def settled(plan: TritonPlan, target: resources.GPUTarget, *, masked: bool = False) -> Shape:
    """The first candidate that fits, for any GPU that Triton compiles for."""
    shape = None
    for shape in candidates(plan, masked=masked):
        if fits(resources.resources(tuple(kernels(plan, shape)), target), target):
            break
    assert shape is not None
    return shape


def candidates(plan: TritonPlan, *, masked: bool) -> Iterator[Shape]:
    """Shapes from the one that promises most to the one that always works."""
    lowered = plan.lowered(not plan.fold)
    size = max(_numbers(p) for p in (lowered.forward, lowered.backward) if p is not None)
    if size <= HELD_MOST:
        yield from (Shape(plan.dtype, masked, Way.HELD, warps=warps) for warps in (4, 8))
    yield from (Shape(plan.dtype, masked, Way.STREAMED, warps=warps) for warps in (4, 8))
    yield from (Shape(plan.dtype, masked, Way.STEPS, lanes, warps=8) for lanes in (16, 4, 1))


def fits(uses: list[resources.Resources] | None, target: resources.GPUTarget) -> bool:
    """Whether kernels compile, keep everything in registers, and have enough shared memory."""
    most = resources.largest_shared(target)
    return uses is not None and all(use.spills == 0 and use.shared <= most for use in uses)


def kernels(plan: TritonPlan, shape: Shape) -> Iterator[Kernel]:
    """The kernels of a scan with all outputs, forward and, if the plan has one, backward."""
    gradient, source_grad = plan.traced.gradient, not plan.fold
    stages = plan.forward_stages(shape, True, gradient, source_grad)
    if gradient:
        stages += plan.backward_stages(shape, True, source_grad)
    yield from (stage.kernel for stage in stages)


def _numbers(program: StepProgram) -> int:
    """Entries of all matrices that a step multiplies by."""
    products = {t.matrix for t in in_order([*program.saved, *program.roots]) if isinstance(t, Product)}
    return sum(math.prod(matrix.shape) for matrix in products)
