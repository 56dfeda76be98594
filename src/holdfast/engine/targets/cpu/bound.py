"""Scans of few samples, bound once to their weights and to the memory of their state: for streams.

    bind_scan(cell, state)  →  run(xs): the outputs of all steps, and the state moves on in place; or None

As step.py, for many steps in one foreign call: weights are packed and addresses written down once, and a call writes
down the places of its input and output alone. None if the batch fills the lanes of the other way, or the cell has no
kernel: ``scan`` does it then, and says why if that is due.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.program.trace import own_tensors
from holdfast.engine.targets.cpu import trial
from holdfast.engine.targets.cpu.arguments import Argument, Part, Role
from holdfast.engine.targets.cpu.feature_call import COUNTER, FeatureCall, readable, roomy, yield_address
from holdfast.engine.targets.cpu.plan import plan_for
from holdfast.engine.targets.cpu.shape import FeatureShape
from holdfast.engine.targets.cpu.ways import way_for
from holdfast.types import State

__all__ = ["bind_scan"]


def bind_scan(cell: Cell, state: State) -> Callable[[Tensor], Tensor] | None:
    """A function of (time, batch, input) that returns (time, batch, hidden).

    Args:
        cell: whose weights are read now, and not again.
        state: rows from ``step.step_rows``; each call reads the state there, and writes the new one.
    """
    try:
        return _bound(cell, state)
    except Warning:  # the user has made them errors
        raise
    except Exception:  # Unsupported, a trial that failed, a fault of the compiler: scan meets it again and says so
        return None


@torch.no_grad()
def _bound(cell: Cell, state: State) -> Callable[[Tensor], Tensor] | None:
    batch, dtype = len(state[0]), state[0].dtype
    weights = tuple(cell.weights())
    plan = plan_for(cell, weights, gradient=False, batch=batch)
    shape, lowered, schedule = way_for(plan, batch, None), plan.lowered(True), plan.forward(True)
    if not isinstance(shape, FeatureShape) or lowered.noises:
        return None
    call = FeatureCall(cell, plan, None, False, shape)
    tensors = own_tensors(cell)
    own = tuple(tensors[name] for name in lowered.own)
    random = torch.randn(trial.STEPS, batch, cell.input_size, dtype=dtype, generator=torch.Generator().manual_seed(0))
    trial.try_forward(call, random, weights, own, output=True)
    packed = call.packing(call.values(weights, own))
    kernel = plan.forward_kernel(shape, True, False, True)

    room = (kernel.work * batch + 2 * shape.width) * dtype.itemsize
    memory = np.zeros(COUNTER + room + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    numbers = {
        Argument(Role.SAMPLES): batch,
        Argument(Role.COUNTER): memory.ctypes.data + start,
        Argument(Role.WORK): memory.ctypes.data + start + COUNTER,
        Argument(Role.YIELD): yield_address(),
    }
    for i, entry in enumerate(state):
        for role in (Role.FIRST, Role.LAST):
            numbers[Argument(role, i)] = entry.data_ptr()
            numbers[Argument(role, i, Part.ROW)] = entry.stride(0)
    numbers |= {argument: tensor.data_ptr() for argument, tensor in packed.items()}
    table = np.array([[numbers.get(a, 0) for a in kernel.arguments]] * shape.team, dtype=np.int64)
    table[:, 0], table[:, 1] = 1, range(shape.team)  # the team's size, as far as is known, and who is who
    place = {argument: column for column, argument in enumerate(kernel.arguments)}
    parts = [[place.get(Argument(r, 0, p)) for p in Part] for r in (Role.SOURCE, Role.OUTPUT)]
    counter, steps = memory[start : start + COUNTER], place[Argument(Role.STEPS)]
    run_together, drive, size = kernel.compiled.together, None if plan.fold else cell.drive, state[0].shape[1]

    def run(xs: Tensor) -> Tensor:
        source = readable(xs if drive is None else drive(xs), schedule, dtype)
        output = roomy((len(xs), batch, size), dtype)
        for columns, tensor in zip(parts, (source, output), strict=True):
            step, row, _ = tensor.stride()
            for column, number in zip(columns, (tensor.data_ptr(), row, step), strict=True):
                if column is not None:
                    table[:, column] = number
        table[:, steps] = len(xs)
        if shape.team > 1:
            counter[:] = 0
        run_together(table)
        return output

    run.held = packed, memory, state  # type: ignore[attr-defined] - alive as long as the function
    return run
