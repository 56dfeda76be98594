"""The plain loop: the definition of a scan. Any device, any cell, differentiable as often as its step is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.errors import ShapeError
from holdfast.types import State, TimeFirst

__all__ = ["plain_loop", "scan_reference"]


def scan_reference(
    cell: Cell,
    xs: TimeFirst,
    state: State,
    weights: tuple[Tensor, ...] | None = None,
    *,
    lengths: Tensor | None = None,
    reverse: bool = False,
    need_output: bool = True,
) -> tuple[Tensor | None, State]:
    """Every output, (time, batch, hidden), of ``cell`` driven by ``xs``, (time, batch, input), and the last state.

    A sample of length n is driven by its first n inputs: at later steps its state stands still and its output is zero.
    ``weights``: what ``cell.weights()`` returned, if it was called already.
    """
    given = tuple(cell.weights()) if weights is None else weights  # built once, not at every step

    def step(drive: Tensor, state: State) -> State:
        new = cell.step(drive, state, given)
        if not isinstance(new, tuple | list) or len(new) != len(state):
            came = f"{len(new)} entries" if isinstance(new, tuple | list) else f"a {type(new).__name__}"
            raise ShapeError(
                f"{type(cell).__name__}.step must return a tuple of {len(state)} new states, one for each entry of "
                f"state_sizes, got {came}; for a single state return (h,)."
            )
        return tuple(new)

    return plain_loop(step, cell.drive(xs), state, lengths=lengths, reverse=reverse, need_output=need_output)


def plain_loop(
    step: Callable[[Tensor, State], State],
    drives: Tensor,
    state: State,
    *,
    lengths: Tensor | None,
    reverse: bool,
    need_output: bool,
) -> tuple[Tensor | None, State]:
    """``step`` after step: the loop that ``scan_reference`` is."""
    outputs, each = [], drives.unbind(0)  # drives[t] would have a gradient as long as all of them, at every step
    for t in reversed(range(len(each))) if reverse else range(len(each)):
        new_state = step(each[t], state)
        output = new_state[0]
        if lengths is not None:
            alive = (t < lengths).unsqueeze(1)  # (batch, 1)
            new_state = tuple(torch.where(alive, new, old) for new, old in zip(new_state, state, strict=True))
            output = torch.where(alive, output, 0.0)
        state = new_state
        if need_output:
            outputs.append(output)
    return (torch.stack(outputs[::-1] if reverse else outputs) if need_output else None), tuple(state)
