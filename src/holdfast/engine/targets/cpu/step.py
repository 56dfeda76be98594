"""One compiled step, bound once to its weights and to the memory of its input and state.

    bind_step(cell, source, state)  →  run(): one step, in place

Weights are packed in the order in which the kernel reads them, every address is written down once, and a step is one
foreign call. A new kernel is compared with ``cell.step`` on random inputs before it is believed.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.program.graph import Unsupported
from holdfast.engine.program.schedule import Schedule
from holdfast.engine.program.tiles import Rotate
from holdfast.engine.program.trace import own_tensors, random_state_kept, trace_step
from holdfast.engine.targets.cpu import trial
from holdfast.engine.targets.cpu.arguments import Argument, Part, Role
from holdfast.engine.targets.cpu.cache import library
from holdfast.engine.targets.cpu.emit import Kernel
from holdfast.engine.targets.cpu.pack import users
from holdfast.engine.targets.cpu.panels import panels
from holdfast.engine.targets.cpu.plan import Plan, failure
from holdfast.engine.targets.cpu.step_kernel import PANEL, emit_step, padded
from holdfast.engine.targets.cpu.vec import WIDTH
from holdfast.types import State

__all__ = ["bind_step", "packed_weights", "step_rows"]

SHORT = 1 << 20  # multiply-adds up to which a step keeps Python's lock: releasing it costs more than it gives


def step_rows(batch: int, features: int, dtype: torch.dtype) -> Tensor:
    """Zeros, (batch, features), with the padding behind each row that a compiled step reads."""
    row = padded(features, WIDTH[dtype])
    flat = torch.zeros(batch * row + 64, dtype=dtype)
    flat = flat[-flat.data_ptr() % 64 // flat.element_size() :]
    return flat[: batch * row].view(batch, row)[:, :features]


def bind_step(cell: Cell, source: Tensor, state: State) -> Callable[[], None]:
    """A function that drives ``state`` by ``source`` once; ``Unsupported`` with the reason if there is none.

    Args:
        cell: whose weights are read now, and not again.
        source, state: rows from ``step_rows``; each call reads x and the state there, and writes the new state.
    """
    dtype, batch = source.dtype, len(source)
    if dtype not in WIDTH or any(w.is_floating_point() and w.dtype != dtype for w in own_tensors(cell).values()):
        raise Unsupported(f"its weights are not all of {dtype}")
    try:
        with torch.no_grad():
            weights = tuple(cell.weights())
            plan = Plan(trace_step(cell, weights, cell.input_size, fold=True, gradient=False), True, dtype)
            lowered, schedule = plan.lowered(True), plan.forward(True)
            if lowered.noises:
                raise Unsupported("it draws random numbers")
            kernel = emit_step(schedule, dtype)
            own = own_tensors(cell)
            values = lowered.prologue.run(*(w.detach() for w in (*weights, *(own[name] for name in lowered.own))))
            packed = packed_weights(schedule, values, dtype, PANEL)
            special = plan.same_at(cell, weights, batch)  # a trace that differs may still compute the same
            try:
                _try(cell, weights, kernel, packed, (1, 2, 3) if special is None else (batch,) * 3)
            except trial.Disagreement as difference:
                raise Unsupported(special or str(difference)) from None
            return _bound(kernel, packed, source, state)
    except (Unsupported, Warning):
        raise
    except Exception as error:  # a fault in the compiler must not stop a stream: the cell itself can do it
        raise Unsupported(failure(error)) from error


def _bound(kernel: Kernel, packed: dict[Argument, Tensor], source: Tensor, state: State) -> Callable[[], None]:
    """The kernel with all its arguments."""
    held = dict(packed)
    work = np.zeros(kernel.work + 64, dtype=np.float64)
    held[Argument(Role.SOURCE)] = source
    held |= {Argument(Role.FIRST, i): entry for i, entry in enumerate(state)}
    numbers = {Argument(Role.SAMPLES): len(source), Argument(Role.WORK): work.ctypes.data}
    numbers |= {argument._replace(part=Part.ROW): rows.stride(0) for argument, rows in held.items()}
    numbers |= {argument: tensor.data_ptr() for argument, tensor in held.items()}
    table = np.array([numbers[argument] for argument in kernel.arguments], dtype=np.int64)
    code = library(kernel.text)
    size = len(source) * sum(tensor.numel() for tensor in packed.values())
    prototype = ctypes.PYFUNCTYPE if size <= SHORT else ctypes.CFUNCTYPE
    function = prototype(None, ctypes.c_void_p)(code.address("run"))
    run = functools.partial(function, ctypes.c_void_p(table.ctypes.data))
    run.held = code, held, work, table  # type: ignore[attr-defined] - alive as long as the function
    return run


# -- weights ---------------------------------------------------------------------------------------------------------


def packed_weights(
    schedule: Schedule, values: Sequence[Tensor], dtype: torch.dtype, panel: int
) -> dict[Argument, Tensor]:
    """The weights in the order that a kernel reads them; ``panel``: vectors of features to a panel."""
    width, found = WIDTH[dtype], dict[Argument, Tensor]()
    singles, narrow, wide, turns = users(schedule)
    for index in singles:
        found[Argument(Role.WEIGHT, index)] = _rows(values[index].to(dtype).reshape(1, -1), width)
    for index in narrow:
        found[Argument(Role.NARROW, index)] = _rows(values[index], width)
    for index in wide:
        found[Argument(Role.PANELS, index)] = panels(values[index], panel * width, narrow_last=True).view(1, -1)
    for turn in turns:
        assert isinstance(turn, Rotate)
        index, angles = turn.angles.index, values[turn.angles.index].flip(0)  # the last sublayer turns first
        found[Argument(Role.PAIRS, index)] = _rows(values[turn.permutations.index].flip(0), width)
        found[Argument(Role.TURNS, index)] = _rows(
            torch.stack([angles.cos(), angles.sin()], dim=1).flatten(0, 1), width
        )
    return found


def _rows(matrix: Tensor, width: int) -> Tensor:
    room = padded(matrix.shape[1], width) - matrix.shape[1]
    return torch.nn.functional.pad(matrix, (0, room)).contiguous() if room else matrix.contiguous()


# -- a trial before trust --------------------------------------------------------------------------------------------


def _try(
    cell: Cell,
    weights: tuple[Tensor, ...],
    kernel: Kernel,
    packed: dict[Argument, Tensor],
    batches: tuple[int, ...],
) -> None:
    """Three steps of the kernel beside the cell's own, on random values; see trial.py."""
    found, dtype = list[str](), cell.example_weight().dtype
    for attempt, batch in enumerate(batches):
        if attempt == 2 and not found:
            return
        generator = torch.Generator().manual_seed(attempt)

        def random(*shape: int, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(*shape, dtype=dtype, generator=generator)

        digits = 4 * torch.finfo(dtype).eps
        source = step_rows(batch, cell.input_size, dtype)
        state = tuple(step_rows(batch, size, dtype) for size in cell.state_sizes)
        for entry in state:
            entry.copy_(0.5 * random(*entry.shape))
        plain, nearby = (tuple(entry * (1 + d * random(*entry.shape)) for entry in state) for d in (0.0, digits))
        run = _bound(kernel, packed, source, state)
        for _ in range(trial.STEPS):
            source.copy_(random(*source.shape))
            run()
            with random_state_kept():
                plain = tuple(cell.step(cell.drive(source), plain, weights))
                close = source * (1 + digits * random(*source.shape))
                nearby = tuple(cell.step(cell.drive(close), nearby, weights))
        for i, (one, other, close) in enumerate(zip(state, plain, nearby, strict=True)):
            distance = trial.distance(one, other, close, trial.TOLERANCE[dtype], lenient=False)
            if distance is not None:
                found.append(f"state {i} differs by {distance:.2g}")
                break
        if len(found) == 2:
            raise trial.Disagreement(
                f"the compiled step does not agree with the plain one: {found[-1]}; please report it"
            )
