"""A cell's step, ready to be written for one sample: traced with its drive, lowered and scheduled.

step_of(cell)  →  Step(schedule, weights, names, ...); ``Unsupported`` with the reason if it cannot be traced
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.program.graph import Graph, Node, Unsupported
from holdfast.engine.program.lower import lower
from holdfast.engine.program.schedule import Schedule, schedule
from holdfast.engine.program.tiles import Input, Kind, Slice, Slot
from holdfast.engine.program.trace import own_tensors, trace_step
from holdfast.engine.targets.c.text import in_comment, plain_name

__all__ = ["Step", "step_of"]


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """What a device runs at every step.

    Attributes:
        label: of the cell, for comments.
        schedule: of the forward program.
        weights: what the program reads, by index.
        names: theirs: of the parameter or buffer that each is made of.
        kept: entries of the state that become another entry as they are. They are set aside before anything is
            written, since that entry may move too.
    """

    label: str
    schedule: Schedule
    weights: tuple[Tensor, ...]
    names: tuple[str, ...]
    input_size: int
    state_sizes: tuple[int, ...]
    kept: dict[Slot, Slice]


def step_of(cell: Cell) -> Step:
    """One step of ``cell`` with its drive, for inference.

    Example:
        >>> from holdfast.cells import FastRNNCell
        >>> step = step_of(FastRNNCell(3, 5))
        >>> step.label, step.names[:2]
        ('FastRNNCell(3, 5)', ('weight_ih', 'bias'))
    """
    with torch.no_grad():
        weights = tuple(weight.detach() for weight in cell.weights())
        traced = trace_step(cell, weights, cell.input_size, fold=True, gradient=False)
        lowered = lower(traced, source_grad=False)
        if drawn := [noise.node for noise in lowered.noises if noise.is_read]:
            raise Unsupported(f"operator {drawn[0].target} draws random numbers")
        tensors = own_tensors(cell)
        given = [*weights, *(tensors[name] for name in lowered.own)]
        values = lowered.prologue.run(*given)
        named = {tensor.data_ptr(): name for name, tensor in tensors.items() if tensor.numel()}
        leaves = [named.get(weight.data_ptr(), f"weight{i}") for i, weight in enumerate(weights)] + list(lowered.own)
    label = in_comment(f"{type(cell).__name__}({cell.extra_repr()})")
    names = _names(lowered.prologue, leaves)
    kept = {
        slot: Slice(new, 0, new.features)  # an array of its own
        for slot, new in lowered.forward.outputs.items()
        if isinstance(new, Input) and new.slot.kind is Kind.STATE and new.slot != slot
    }
    return Step(label, schedule(lowered.forward), values, names, cell.input_size, tuple(cell.state_sizes), kept)


def _names(prologue: Graph, leaves: Sequence[str]) -> tuple[str, ...]:
    """The name of what each output is made of, if that is one tensor; else a number. No name twice."""
    made_of: dict[Node, set[str]] = {node: {leaf} for node, leaf in zip(prologue.inputs, leaves, strict=True)}
    for node in prologue.nodes:
        made_of[node] = {leaf for arg in node.inputs for leaf in made_of[arg]}
    names: list[str] = []
    for i, output in enumerate(prologue.outputs):
        sources = made_of[output] if output is not None else set()
        name = plain_name(next(iter(sources))) if len(sources) == 1 else f"weight{i}"
        names.append(name if name not in names else f"{name}_{i}")
    return tuple(names)
