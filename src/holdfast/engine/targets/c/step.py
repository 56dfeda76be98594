"""A cell's step, ready to be written for one sample: traced with its drive, lowered and scheduled.

step_of(cell)  →  Step(schedule, weights, names, ...); ``Unsupported`` with the reason if it cannot be traced
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.program import inference
from holdfast.engine.program.graph import Unsupported
from holdfast.engine.program.schedule import Schedule, schedule
from holdfast.engine.program.tiles import Input, Kind, Slice, Slot
from holdfast.engine.targets.c.text import in_comment, plain_name

__all__ = ["Step", "step_of"]


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """What a device runs at every step.

    Attributes:
        label: of the cell, for comments.
        schedule: of the forward program.
        weights: what the program reads, by index.
        names: theirs, none of them twice.
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
    """One step of ``cell`` with its drive, for one sample.

    Example:
        >>> from holdfast.cells import FastRNNCell
        >>> step = step_of(FastRNNCell(3, 5))
        >>> step.label, step.names[:2]
        ('FastRNNCell(3, 5)', ('weight_ih', 'bias'))
    """
    step = inference.step_of(cell, batches=(1,))
    if any(slot.kind is Kind.NOISE for slot in step.program.inputs):
        raise Unsupported("its step draws random numbers")
    names: list[str] = []
    for i, name in enumerate(map(plain_name, step.names)):
        names.append(name if name not in names else f"{name}_{i}")
    kept = {
        slot: Slice(new, 0, new.features)  # an array of its own
        for slot, new in step.program.outputs.items()
        if isinstance(new, Input) and new.slot.kind is Kind.STATE and new.slot != slot
    }
    label = in_comment(f"{type(cell).__name__}({cell.extra_repr()})")
    sizes = cell.input_size, tuple(cell.state_sizes)
    return Step(label, schedule(step.program), step.weights, tuple(names), *sizes, kept)
