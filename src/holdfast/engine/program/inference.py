"""A cell's step for a target that runs it elsewhere: traced once, lowered forwards, with the numbers of its weights.

    step_of(cell)  →  Step(program, weights), or ``Unsupported`` with the reason

What leaves this machine cannot be traced again when the batch size changes. So the step is recorded at several sizes.
Where it is another program at one of them, as PyTorch's own products are for one sample, it is run at both sizes on the
same samples, and refused unless the results agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.program.graph import Graph, Node, Unsupported
from holdfast.engine.program.lower import lower
from holdfast.engine.program.tiles import StepProgram
from holdfast.engine.program.trace import (
    SIZES,
    Traced,
    differs,
    own_tensors,
    random_state_kept,
    record_step,
    trace_step,
)

__all__ = ["Step", "step_of", "trace_for_all"]

BATCHES = 1, 2, 3, 8, 64, 1024  # sizes that are tried besides those of a trace


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One step from x and the states to the new states, and what its ``Weight``s are, by index.

    ``names``: those of the parameters or buffers that weights are made of; a number for one made of several.
    """

    program: StepProgram
    weights: tuple[Tensor, ...]
    names: tuple[str, ...]


@torch.no_grad()
def step_of(cell: Cell, batches: tuple[int, ...] = BATCHES) -> Step:
    """The step of ``cell``, its drive included, as a tile program without a gradient.

    Example:
        >>> from holdfast import RNNCell
        >>> [tuple(weight.shape) for weight in step_of(RNNCell(3, 5)).weights]
        [(3, 5), (5,), (5, 5)]
    """
    weights = tuple(cell.weights())
    traced = trace_for_all(cell, weights, batches)
    lowered, own = lower(traced, source_grad=False), own_tensors(cell)
    numbers = lowered.prologue.run(*weights, *(own[name] for name in lowered.own))
    named = {tensor.data_ptr(): name for name, tensor in own.items() if tensor.numel()}
    leaves = [named.get(weight.data_ptr(), f"weight{i}") for i, weight in enumerate(weights)] + list(lowered.own)
    return Step(lowered.forward, tuple(number.detach() for number in numbers), _names(lowered.prologue, leaves))


@torch.no_grad()
def trace_for_all(cell: Cell, weights: tuple[Tensor, ...], batches: tuple[int, ...] = BATCHES) -> Traced:
    """The trace of a step with its drive, after seeing that it holds for all of these batch sizes.

    Example:
        >>> from holdfast import RNNCell
        >>> cell = RNNCell(3, 5)
        >>> trace_for_all(cell, cell.weights()).state_sizes
        (5,)
    """
    traced = trace_step(cell, weights, cell.input_size, fold=True, gradient=False)
    for batch in batches:
        with random_state_kept():
            again = record_step(cell, weights, cell.input_size, fold=True, gradient=False, batch=batch)
        if (difference := differs(traced, again, batch)) is not None and not _agrees(cell, weights, batch):
            raise Unsupported(difference)
    return traced


def _names(prologue: Graph, leaves: Sequence[str]) -> tuple[str, ...]:
    """The name of what each output is made of, if that is one tensor."""
    made_of: dict[Node, set[str]] = {node: {leaf} for node, leaf in zip(prologue.inputs, leaves, strict=True)}
    for node in prologue.nodes:
        made_of[node] = {leaf for arg in node.inputs for leaf in made_of[arg]}
    sources = [made_of[output] if output is not None else set() for output in prologue.outputs]
    return tuple(next(iter(one)) if len(one) == 1 else f"weight{i}" for i, one in enumerate(sources))


def _agrees(cell: Cell, weights: tuple[Tensor, ...], batch: int) -> bool:
    """Whether samples have the same new states in batches of this size as in those of a trace."""
    dtype, generator, most = cell.example_weight().dtype, torch.Generator().manual_seed(0), max(batch, SIZES[0])
    sizes = cell.input_size, *cell.state_sizes
    x, *state = (3 * torch.randn(most, size, dtype=dtype, generator=generator) for size in sizes)

    def stepped(size: int) -> list[Tensor]:
        parts = [cell.step(cell.drive(xs), tuple(old), weights) for xs, *old in _batches([x, *state], size)]
        return [torch.cat(entries)[:most] for entries in zip(*parts, strict=True)]

    pairs = zip(stepped(batch), stepped(SIZES[0]), strict=True)
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True) for one, other in pairs)


def _batches(rows: list[Tensor], size: int) -> list[tuple[Tensor, ...]]:
    """Batches of exactly ``size`` samples; the last one is filled up with the first samples."""
    count = len(rows[0])
    index = torch.arange(-(-count // size) * size) % count
    return list(zip(*(entry[index].split(size) for entry in rows), strict=True))
