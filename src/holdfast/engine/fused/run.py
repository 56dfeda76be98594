"""Running compiled steps: plans, blocks, threads, autograd. The last stage.

    scan_fused(cell, xs, state, ...)  →  outputs, last state

A plan is a cell's step traced and lowered; it holds as long as the cell's settings do. A call splits the batch into
blocks and runs one kernel a block, each on its own thread with no word between them until the end.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import threading
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from holdfast.cells import Cell
from holdfast.engine.fused import buffers
from holdfast.engine.fused.cache import library
from holdfast.engine.fused.emit import (
    Kernel,
    Shape,
    emit_backward,
    emit_forward,
    kept_rows,
    outer_size,
    panel_rows,
    summed_after,
)
from holdfast.engine.fused.graph import Unsupported
from holdfast.engine.fused.lower import Lowered, lower
from holdfast.engine.fused.program import (
    AngleSum,
    Input,
    Outer,
    Product,
    Rotate,
    RotateBack,
    RowSum,
    Tile,
    reachable,
)
from holdfast.engine.fused.schedule import Schedule, narrow_side, render, schedule
from holdfast.engine.fused.team import run_blocks, worker_count
from holdfast.engine.fused.trace import Traced, trace_step
from holdfast.engine.reference import plain_loop
from holdfast.types import State

__all__ = ["Plan", "fused_source", "plan_for", "scan_fused"]

FOLDED = 8  # inputs of at most this many features are projected inside the loop
CHUNK = 1 << 22  # bytes of drive that are made at a time when nothing of them is kept
NAMES = {torch.float32: "float32", torch.float64: "float64"}


def _remembered(method: Any) -> Any:
    """Remember a method's results in its object, so that they go when it goes."""

    @functools.wraps(method)
    def remembering(self: Any, *args: Any) -> Any:
        known = self.__dict__.setdefault("_known", {})
        if (method, args) not in known:
            known[method, args] = method(self, *args)
        return known[method, args]

    return remembering


@dataclasses.dataclass(eq=False)
class Plan:
    """A traced step and what has been made of it so far."""

    traced: Traced
    fold: bool
    dtype: torch.dtype

    @_remembered
    def lowered(self, source_grad: bool) -> Lowered:
        return lower(self.traced, source_grad=source_grad)

    @_remembered
    def forward(self, source_grad: bool) -> Schedule:
        return schedule(self.lowered(source_grad).forward)

    @_remembered
    def backward(self, source_grad: bool, shape: Shape) -> Schedule:
        program = self.lowered(source_grad).backward
        assert program is not None
        return schedule(program, functools.partial(summed_after, shape=shape))

    @_remembered
    def stored(self, source_grad: bool, shape: Shape) -> tuple[Tile, ...]:
        """Sides of the products after the loop that no tensor holds already."""
        plan = self.backward(source_grad, shape)
        sides = [side for outer in plan.products for side in (outer.left, outer.right)]
        held = [t for name, t in plan.program.inputs.items() if name in ("x", "s0")] + [plan.program.outputs["x"]]
        return tuple(dict.fromkeys(side for side in sides if side not in held))

    @_remembered
    def keep(self, source_grad: bool) -> frozenset[str]:
        """States and tiles that backward reads, so that forward must keep them for every step."""
        program = self.lowered(source_grad).backward
        inputs = {} if program is None else program.inputs
        return frozenset(
            {f"s{n[1:]}" for n in inputs if n[0] in "sn" and n[1:] != "0"} | {n for n in inputs if n[0] == "k"}
        )

    @_remembered
    def forward_kernel(self, shape: Shape, output: bool, gradient: bool, source_grad: bool) -> Native:
        keep = self.keep(source_grad) if gradient else frozenset()
        return Native(emit_forward(self.forward(source_grad), shape, output=output, keep=keep))

    @_remembered
    def backward_kernel(self, shape: Shape, output_grad: bool, source_grad: bool) -> Native:
        plan = self.backward(source_grad, shape)
        sizes, stored = self.traced.state_sizes, self.stored(source_grad, shape)
        return Native(emit_backward(plan, shape, state_sizes=sizes, output_grad=output_grad, stored=stored))


class Native:
    """A kernel as a Python callable: ``run(blocks)``, one dictionary of arguments a block."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self._library = library(kernel.text)
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._library.address("run"))
        self._share = self._library.address("share")

    def __call__(self, blocks: list[dict[str, int]], workers: int) -> None:
        size = math.ceil((self.kernel.work * 8 + 64) / 4096) * 4096  # of scratch memory, for each worker
        work = _workspace(workers * size)
        packed = []
        for b, block in enumerate(blocks):
            block["work"] = work + b % workers * size
            packed.append(np.array([block[name] for name in self.kernel.arguments], dtype=np.int64))
        run_blocks(self._run, self._share, packed, workers)


_local = threading.local()


def _workspace(size: int) -> int:
    """Scratch memory of the calling thread and those that work for it, aligned."""
    if getattr(_local, "work", None) is None or _local.work.nbytes < size + 64:
        _local.work = np.zeros(size + 64, dtype=np.uint8)
    return _local.work.ctypes.data + -_local.work.ctypes.data % 64


# -- plans -----------------------------------------------------------------------------------------------------------

_plans: weakref.WeakKeyDictionary[Cell, dict[Any, Plan | str]] = weakref.WeakKeyDictionary()
_plan_lock = threading.RLock()


def plan_for(cell: Cell, weights: tuple[Tensor, ...], *, gradient: bool) -> Plan:
    """The plan of this cell as it is now; raises ``Unsupported`` with the reason if there is none."""
    example = cell.example_weight()
    key = (_settings(cell), gradient, example.dtype, tuple((tuple(w.shape), w.dtype) for w in weights))
    with _plan_lock:
        known = _plans.setdefault(cell, {})
        if key not in known:
            known[key] = _made(cell, weights, gradient, example.dtype)
        plan = known[key]
    if isinstance(plan, str):
        raise Unsupported(plan)
    return plan


def _made(cell: Cell, weights: tuple[Tensor, ...], gradient: bool, dtype: torch.dtype) -> Plan | str:
    """The plan, or why there is none: not the exception, whose traceback would keep the cell alive."""
    if dtype not in NAMES:
        return f"its weights are of {dtype}"
    reason = ""
    for fold in (True, False) if cell.input_size <= FOLDED else (False,):
        with torch.no_grad():
            features = cell.input_size if fold else cell.drive(torch.zeros(1, cell.input_size, dtype=dtype)).shape[-1]
        try:
            plan = Plan(trace_step(cell, weights, features, fold=fold, gradient=gradient), fold, dtype)
            plan.lowered(True)
            return plan
        except Unsupported as error:
            reason = str(error)
    return reason


def _settings(module: torch.nn.Module) -> tuple[Any, ...]:
    """Everything about a module that a trace bakes in: plain values by value, other objects by identity."""
    found: list[Any] = []
    for name, value in module.__dict__.items():
        if name.startswith("_") and name not in ("_parameters", "_buffers"):
            continue
        if name in ("_parameters", "_buffers"):
            found.append(tuple((key, None if t is None else tuple(t.shape)) for key, t in value.items()))
        else:
            found.append((name, _frozen(value)))
    found += [(name, _settings(child)) for name, child in module._modules.items() if child is not None]
    return (type(module), *found)


def _frozen(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return type(value), value
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((_frozen(k), _frozen(v)) for k, v in value.items())
    return id(value)


def fused_source(cell: Cell) -> str:
    """Both directions of a cell's step as text; see ``holdfast.fused_source``."""
    plan = plan_for(cell, tuple(cell.weights()), gradient=True)
    source_grad, shape = not plan.fold, Shape(NAMES[plan.dtype], 32, masked=False)
    forward, backward = plan.forward(source_grad), plan.backward(source_grad, shape)
    return f"{render(forward, 'forward')}\n\n\n{render(backward, 'backward')}"


# -- a call ----------------------------------------------------------------------------------------------------------


def scan_fused(
    cell: Cell,
    xs: Tensor,
    state: State,
    *,
    lengths: Tensor | None = None,
    reverse: bool = False,
    need_output: bool = True,
) -> tuple[Tensor | None, State]:
    """``scan_reference`` by compiled loops. Raises ``Unsupported`` if the cell's step has no plan."""
    weights = tuple(cell.weights())
    own = [*cell.parameters()]
    gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (xs, *state, *weights, *own))
    plan = plan_for(cell, weights, gradient=gradient)
    tensors = dict(cell.named_parameters()) | dict(cell.named_buffers()) if plan.traced.own else {}
    read = plan.traced.prologue.run(*weights, *(tensors[name] for name in plan.traced.own))
    if gradient:
        source = xs if plan.fold else cell.drive(xs)
        call = _Call(plan, lengths, reverse, _shape(plan, xs.shape[1], lengths))
        output, *last = FusedScan.apply(call, source, *state, *read)
        return (output if need_output else None), tuple(last)
    return _without_gradient(cell, plan, xs, state, read, lengths, reverse, need_output)


def _without_gradient(
    cell: Cell,
    plan: Plan,
    xs: Tensor,
    state: State,
    weights: tuple[Tensor, ...],
    lengths: Tensor | None,
    reverse: bool,
    need_output: bool,
) -> tuple[Tensor | None, State]:
    """Nothing is kept, so the drive is made for a stretch of steps at a time."""
    steps, batch = xs.shape[:2]
    output = buffers.empty((steps, batch, state[0].shape[1]), plan.dtype) if need_output else None
    width = 1 if plan.fold else plan.traced.source_features * plan.dtype.itemsize
    stretch = steps if plan.fold else max(1, CHUNK // (batch * width))
    shape = _shape(plan, batch, lengths)
    for start in range(0, steps, stretch):
        window = slice(steps - start - stretch if reverse else start, steps - start if reverse else start + stretch)
        window = slice(max(0, window.start), min(steps, window.stop))
        source = xs[window] if plan.fold else cell.drive(xs[window])
        here = None if lengths is None else (lengths - window.start).clamp(0, window.stop - window.start)
        call = _Call(plan, here, reverse, shape)
        state, _ = call.forward(source, state, weights, None if output is None else output[window], gradient=False)
    return output, state


class FusedScan(torch.autograd.Function):
    """The compiled scan as one node of autograd."""

    @staticmethod
    def forward(ctx: Any, call: _Call, source: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        count = len(call.plan.traced.state_sizes)
        state, weights = tensors[:count], tensors[count:]
        output = buffers.empty((*source.shape[:2], state[0].shape[1]), call.plan.dtype)
        call.source_grad = ctx.needs_input_grad[1]
        last, kept = call.forward(source, state, weights, output, gradient=True)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(source, *tensors, output, *kept)
        return output, *last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        call = ctx.call
        source, *rest = ctx.saved_tensors
        count, total = len(call.plan.traced.state_sizes), len(call.plan.traced.weights)
        state, weights = rest[:count], rest[count : count + total]
        output, *kept = rest[count + total :]
        if torch.is_grad_enabled():  # a second derivative is wanted: go back through the plain loop
            return None, *call.plain_backward(ctx.needs_input_grad[1:], source, state, weights, grads)
        return None, *call.backward(source, state, weights, output, kept, grads)


@dataclasses.dataclass(eq=False)
class _Call:
    """One scan: its blocks and its arguments. ``shape`` is settled here: backward reads what forward laid out, whatever
    the number of threads has become meanwhile.
    """

    plan: Plan
    lengths: Tensor | None
    reverse: bool
    shape: Shape
    source_grad: bool = True

    def forward(
        self, source: Tensor, state: Any, weights: Any, output: Tensor | None, *, gradient: bool
    ) -> tuple[State, list[Tensor]]:
        plan, (steps, batch) = self.plan, source.shape[:2]
        source, state = _rows(source), [_rows(entry) for entry in state]
        last = [torch.empty_like(entry) for entry in state]
        shape = self.shape
        schedule_ = plan.forward(self.source_grad)
        kernel = plan.forward_kernel(shape, output is not None, gradient, self.source_grad)
        keep = sorted(plan.keep(self.source_grad)) if gradient else []
        widths = {f"s{i}": n for i, n in enumerate(plan.traced.state_sizes)}
        widths |= {f"k{i}": t.features for i, t in enumerate(schedule_.program.saved)}
        blocks = math.ceil(batch / shape.lanes)
        kept = [buffers.empty((blocks, steps, kept_rows(widths[n], shape), shape.lanes), plan.dtype) for n in keep]
        held, shared = self._weights(schedule_, shape, weights)
        arguments = []
        for b in range(blocks):
            a = self._block(b, shape, steps, batch, held) | shared
            a |= self._tensor("x", source, b, shape)
            if output is not None:
                a |= self._tensor("out", output, b, shape)
            for i, (first, final) in enumerate(zip(state, last, strict=True)):
                a |= _state_argument(f"s{i}_first", first, b, shape) | _state_argument(f"s{i}_last", final, b, shape)
            a |= {(n if n[0] == "k" else f"{n}_all"): t[b].data_ptr() for n, t in zip(keep, kept, strict=True)}
            arguments.append(a)
        kernel(arguments, worker_count(blocks))
        del held
        return tuple(last), kept

    def backward(
        self, source: Tensor, state: Any, weights: Any, output: Tensor, kept: Any, grads: Any
    ) -> tuple[Tensor | None, ...]:
        plan, (steps, batch), shape = self.plan, source.shape[:2], self.shape
        schedule_, lowered = plan.backward(self.source_grad, shape), plan.lowered(self.source_grad)
        assert lowered.derived is not None
        assert lowered.finish is not None
        weights = [*weights, *lowered.derived.run(*weights)]
        source, state = _rows(source), [_rows(entry) for entry in state]
        output_grad = None if grads[0] is None else _rows(grads[0])
        last_grads = [torch.zeros_like(s) if g is None else _rows(g) for g, s in zip(grads[1:], state, strict=True)]
        first_grads = [torch.empty_like(entry) for entry in state]
        stored = plan.stored(self.source_grad, shape)
        times = [buffers.empty((steps, batch, tile.features), plan.dtype) for tile in stored]
        x_tile = schedule_.program.outputs["x"]
        x_grad = None if x_tile is None else buffers.empty((steps, batch, x_tile.features), plan.dtype)
        blocks = math.ceil(batch / shape.lanes)
        workers = worker_count(blocks)
        sums = self._sums(schedule_, workers, shape)
        kernel = plan.backward_kernel(shape, output_grad is not None, self.source_grad)
        held, shared = self._weights(schedule_, shape, weights)
        keep = sorted(plan.keep(self.source_grad))
        arguments = []
        for b in range(blocks):
            a = self._block(b, shape, steps, batch, held) | shared
            a |= self._tensor("x", source, b, shape) | self._tensor("out", output, b, shape)
            for name, tensor in (
                ("out_grad", output_grad),
                ("x_grad", x_grad),
                *((f"t{j}", t) for j, t in enumerate(times)),
            ):
                if tensor is not None:
                    a |= self._tensor(name, tensor, b, shape)
            for i, entry in enumerate(state):
                a |= _state_argument(f"s{i}_first", entry, b, shape)
                a |= _state_argument(f"s{i}_last_grad", last_grads[i], b, shape)
                a |= _state_argument(f"s{i}_first_grad", first_grads[i], b, shape)
            a |= {(n if n[0] == "k" else f"{n}_all"): t[b].data_ptr() for n, t in zip(keep, kept, strict=True)}
            a |= {f"r{i}": t[b % workers].data_ptr() for i, t in sums.items()}  # blocks of one thread share a sum
            arguments.append(a)
        kernel(arguments, workers)
        del held
        time_of = dict(zip(stored, times, strict=True))
        time_of |= {t: source for n, t in schedule_.program.inputs.items() if n == "x"}
        if x_tile is not None and x_grad is not None:
            time_of[x_tile] = x_grad
        totals = [
            self._product_of(r, time_of, state[0], output) if r in schedule_.products else _total(r, sums[i])
            for i, r in enumerate(schedule_.program.reductions)
        ]
        return x_grad, *first_grads, *lowered.finish.run(*totals)

    def plain_backward(self, needs: Any, source: Tensor, state: Any, weights: Any, grads: Any) -> list[Tensor | None]:
        """The same gradients from the plain loop, with a graph of their own."""
        inputs = [source, *state, *weights]

        def step(drive: Tensor, state: State) -> State:
            return self.plan.traced.forward.run(drive, *state, *weights)

        options = {"lengths": self.lengths, "reverse": self.reverse, "need_output": True}
        output, last = plain_loop(step, source, tuple(state), **options)
        assert output is not None
        pairs = [
            (value, g) for value, g in zip((output, *last), grads, strict=True) if g is not None and value.requires_grad
        ]
        wanted = [i for i, need in enumerate(needs) if need]
        found = torch.autograd.grad(
            [v for v, _ in pairs],
            [inputs[i] for i in wanted],
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
        result: list[Tensor | None] = [None] * len(inputs)
        for i, grad in zip(wanted, found, strict=True):
            result[i] = grad
        return result

    # -- arguments ---------------------------------------------------------------------------------------------------

    def _block(self, b: int, shape: Shape, steps: int, batch: int, held: list[Any]) -> dict[str, int]:
        samples = min(shape.lanes, batch - b * shape.lanes)
        arguments = {"steps": steps, "samples": samples}
        if shape.masked:
            lives = torch.zeros(2, shape.lanes, dtype=torch.int32)
            here = slice(b * shape.lanes, b * shape.lanes + samples)
            length = torch.full((samples,), steps) if self.lengths is None else self.lengths[here]
            lives[0, :samples] = steps - length if self.reverse else 0
            lives[1, :samples] = steps if self.reverse else length
            held.append(lives)
            arguments |= {"first": lives[0].data_ptr(), "last": lives[1].data_ptr()}
        return arguments

    def _tensor(self, name: str, tensor: Tensor, b: int, shape: Shape) -> dict[str, int]:
        """A tensor (time, batch, features): its first step in the scan's direction, and its strides."""
        step, row, _ = tensor.stride()
        address = tensor.data_ptr() + tensor.element_size() * row * b * shape.lanes
        if self.reverse:
            address += tensor.element_size() * step * (len(tensor) - 1)
            step = -step
        return {name: address, f"{name}_step": step, f"{name}_row": row}

    def _weights(self, plan: Schedule, shape: Shape, weights: Any) -> tuple[list[Any], dict[str, int]]:
        """Weights in the order that kernels read them, and their addresses."""
        held: list[Any] = []
        arguments: dict[str, int] = {}

        def put(name: str, tensor: Tensor) -> None:
            held.append(tensor)
            arguments[name] = tensor.data_ptr()

        products, turns = _users(plan)
        for product in products:
            matrix = weights[product.matrix.index].detach()
            if product.is_narrow:
                put(f"m{product.matrix.index}", matrix.mT.contiguous())
            else:
                put(f"p{product.matrix.index}", _panels(matrix, panel_rows(shape)))
        for turn in turns:
            angles, permutations = weights[turn.angles.index].detach(), weights[turn.permutations.index]
            pairs, starts = _pairs(permutations)
            put(f"pairs{turn.angles.index}", pairs * shape.lanes)
            put(f"starts{turn.angles.index}", starts * shape.lanes)
            put(f"turns{turn.angles.index}", torch.stack([angles.cos(), angles.sin()], dim=-1).flip(0).contiguous())
        for i, weight in enumerate(weights):
            if weight.is_floating_point() and (weight.dim() == 0 or weight.numel() == weight.shape[-1]):
                put(f"w{i}", weight.detach().contiguous())
        return held, arguments

    def _sums(self, plan: Schedule, workers: int, shape: Shape) -> dict[int, Tensor]:
        """Zeros for each sum inside the loop: (worker, shape of the sum, vector); a matrix for a wide outer product."""
        sums = {}
        for i, reduction in enumerate(plan.program.reductions):
            if reduction in plan.products:
                continue
            match reduction:
                case RowSum(tile=tile):
                    size: tuple[int, ...] = (tile.features, shape.vector)
                case Outer() if narrow_side(reduction) is None:
                    size = outer_size(reduction, shape)
                case Outer(left=left, right=right):
                    pair = (left.features, right.features)
                    size = (*(pair if narrow_side(reduction) == "right" else pair[::-1]), shape.vector)
                case AngleSum(source=source):
                    size = (*source.angles.shape, shape.vector)
            # whole cache lines a worker, so that threads do not write to the same one
            count = math.ceil(math.prod(size) / 16) * 16
            flat = torch.zeros(workers * count + 16, dtype=self.plan.dtype)
            start = -flat.data_ptr() % 64 // flat.element_size()
            sums[i] = flat[start:][: workers * count].view(workers, count)[:, : math.prod(size)].unflatten(1, size)
        return sums

    def _product_of(self, outer: Outer, time_of: dict[Tile, Tensor], first: Tensor, output: Tensor) -> Tensor:
        """Σ over steps and samples of left ⊗ right, as one product; an old state is the output of the step before."""
        left, right = outer.left, outer.right
        if self._is_old(left) and self._is_old(right):
            both = self._old_states(first, output)
            return _product(both, both)
        if self._is_old(left):
            return self._product_of(Outer(right, left), time_of, first, output).mT
        if not self._is_old(right):
            return _product(time_of[left], time_of[right])
        if self.lengths is not None and self.reverse:
            return _product(time_of[left], self._old_states(first, output))
        grad = time_of[left]
        later, earlier = (grad[:-1], output[1:]) if self.reverse else (grad[1:], output[:-1])
        total = _product(grad[-1:] if self.reverse else grad[:1], first.unsqueeze(0))
        return (
            total.addmm_(later.reshape(-1, grad.shape[2]).mT, earlier.reshape(-1, output.shape[2]))
            if len(later)
            else total
        )

    @staticmethod
    def _is_old(tile: Tile) -> bool:
        return isinstance(tile, Input) and tile.name == "s0"

    def _old_states(self, first: Tensor, output: Tensor) -> Tensor:
        shifted = [output[1:], first.unsqueeze(0)] if self.reverse else [first.unsqueeze(0), output[:-1]]
        old = torch.cat(shifted)
        if self.lengths is not None and self.reverse:  # a sample enters at its last step, from its first state
            entry = (torch.arange(len(old)).unsqueeze(1) == self.lengths - 1).unsqueeze(2)
            old = torch.where(entry, first, old)
        return old


def _shape(plan: Plan, batch: int, lengths: Tensor | None) -> Shape:
    """As many lanes as a thread's share of the batch fills."""
    name = NAMES[plan.dtype]
    vector = Shape(name, 8, False).vector
    share = math.ceil(batch / torch.get_num_threads())
    lanes = next((vector * n for n in (1, 2, 4) if share <= vector * n), vector * 4)
    return Shape(name, lanes, masked=lengths is not None or batch % lanes != 0)


def _product(left: Tensor, right: Tensor) -> Tensor:
    return left.reshape(-1, left.shape[2]).mT @ right.reshape(-1, right.shape[2])


def _total(reduction: Any, sums: Tensor) -> Tensor:
    """The lanes' and workers' sums added up, in the shape that the reduction has in PyTorch."""
    if isinstance(reduction, Outer) and narrow_side(reduction) is None:
        return sums.sum(dim=0)[: reduction.left.features, : reduction.right.features]
    total = sums.sum(dim=(0, -1))
    if isinstance(reduction, AngleSum):
        return total.flip(0)
    return total.mT if isinstance(reduction, Outer) and narrow_side(reduction) == "left" else total


def _rows(tensor: Tensor) -> Tensor:
    """The tensor with features side by side in memory, as kernels read them."""
    if tensor.stride(-1) == 1 or tensor.shape[-1] == 1:
        return tensor.detach()
    return tensor.detach().contiguous()


def _state_argument(name: str, tensor: Tensor, b: int, shape: Shape) -> dict[str, int]:
    row = tensor.stride(0)
    return {name: tensor.data_ptr() + tensor.element_size() * row * b * shape.lanes, f"{name}_row": row}


@functools.lru_cache(maxsize=512)
def _users(plan: Schedule) -> tuple[list[Product], list[Rotate | RotateBack]]:
    """The products and rotations of a program, those inside loops included."""
    outputs = [tile for tile in plan.program.outputs.values() if tile is not None]
    seen = reachable([*outputs, *plan.memory, *plan.program.reductions])
    products = {
        n.matrix.index if not n.is_narrow else ("narrow", n.matrix.index): n for n in seen if isinstance(n, Product)
    }
    turns = {n.angles.index: n for n in seen if isinstance(n, Rotate | RotateBack)}
    return list(products.values()), list(turns.values())


def _panels(matrix: Tensor, rows: int) -> Tensor:
    """(k, features) as (panel, k, row): what a panel of rows of the product reads, in the order it reads it."""
    depth, features = matrix.shape
    panels = math.ceil(features / rows)
    padded = torch.nn.functional.pad(matrix, (0, panels * rows - features))
    return padded.view(depth, panels, rows).permute(1, 0, 2).contiguous()


_pair_tables = WeakIdKeyDictionary()  # permutations to (version, pairs, starts)


def _pairs(permutations: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows turn together, in order, and where each feature starts. Note [Rotations in place], emit.py."""
    known = _pair_tables.get(permutations)
    if known is None or known[0] != permutations._version:
        sublayers, size = permutations.shape
        rows, table = torch.arange(size), []
        for j in range(sublayers):  # from the last sublayer to turn to the first
            table.append(rows.view(2, size // 2).mT)
            before = torch.empty_like(rows)
            before[permutations[j]] = rows
            rows = before
        pairs = torch.stack(table[::-1]).contiguous() if table else torch.empty(0, size // 2, 2, dtype=torch.int64)
        known = (permutations._version, pairs, rows)
        _pair_tables[permutations] = known
    return known[1], known[2]
