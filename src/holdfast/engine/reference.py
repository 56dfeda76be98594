"""The plain loop: the definition of a scan. Any device, any cell, differentiable as often as its step is."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.types import Sequence, State

__all__ = ["scan_reference"]


def scan_reference(
    cell: Cell,
    xs: Sequence,
    state: State,
    *,
    lengths: Tensor | None = None,
    reverse: bool = False,
    need_output: bool = True,
) -> tuple[Tensor | None, State]:
    """Every output, (time, batch, hidden), of ``cell`` driven by ``xs``, (time, batch, input), and the last state.

    A sample of length n is driven by its first n inputs: at later steps its state stands still and its output is zero.
    """
    weights = cell.weights()  # a constrained weight is built once, not once a step
    drives, outputs = cell.drive(xs), []
    for t in reversed(range(len(xs))) if reverse else range(len(xs)):
        new_state = cell.step(drives[t], state, weights)
        output = new_state[0]
        if lengths is not None:
            alive = (t < lengths).unsqueeze(1)  # (batch, 1)
            new_state = tuple(torch.where(alive, new, old) for new, old in zip(new_state, state, strict=True))
            output = torch.where(alive, output, 0.0)
        state = new_state
        if need_output:
            outputs.append(output)
    return (torch.stack(outputs[::-1] if reverse else outputs) if need_output else None), tuple(state)
