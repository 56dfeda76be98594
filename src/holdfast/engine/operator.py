"""The scan as an operator of PyTorch, ``holdfast::scan``, for torch.compile and torch.export.

    scan(drive, state, weights, lengths, reverse, need_output, step)  →  [outputs, *last state]

Both see one node, whatever the number of steps. ``step`` is the cell's step as text (program/text.py), so that the
operator is a function of its arguments alone. The gradient is an operator too, ``holdfast::scan_backward``, which runs
the scan again: what forward keeps for backward has no fixed layout that a graph could know.

They are registered by hand because torch.library.custom_op imports torch._dynamo, more than a second, when called.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from holdfast.cells import Cell
from holdfast.engine.program.graph import Unsupported
from holdfast.engine.program.text import TextCell, written
from holdfast.engine.program.trace import own_tensors, trace_step
from holdfast.errors import ShapeError
from holdfast.types import State, Weights

__all__ = ["scan_operator"]

_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_LIBRARY.define(
    "scan(Tensor drive, Tensor[] state, Tensor[] weights, Tensor? lengths, bool reverse, bool need_output, str step)"
    " -> Tensor[]"
)
_LIBRARY.define(
    "scan_backward(Tensor[] grads, Tensor drive, Tensor[] state, Tensor[] weights, Tensor? lengths, bool reverse,"
    " bool need_output, str step) -> Tensor[]"
)


def scan_operator(
    cell: Cell,
    xs: Tensor,
    state: State,
    weights: Weights,
    *,
    lengths: Tensor | None,
    reverse: bool,
    need_output: bool,
) -> tuple[Tensor | None, State] | None:
    """A scan as one node of the graph that is being traced; None if the cell's step cannot be written down."""
    names, _, text = cell._described().partition("\n")  # type: ignore[operator]
    if not text:
        return None
    drive = cell.drive(xs)
    if torch.compiler.is_dynamo_compiling():
        cell.step(drive[0], state, weights)  # Note [What a compiled scan depends on]
    own = [_tensor(cell, name) for name in names.split(",")] if names else []
    result = torch.ops.holdfast.scan(drive, list(state), [*weights, *own], lengths, reverse, need_output, text)
    return (result[0], tuple(result[1:])) if need_output else (None, tuple(result))


# Note [What a compiled scan depends on]
# The text is a constant for torch.compile, which would not notice that a setting of the cell has changed, its
# nonlinearity say. So one step is traced as well. Its result is not used and its operators are removed, but whatever
# Python state the step reads is now guarded, and a change leads to a new text.


def _tensor(cell: Cell, name: str) -> Tensor:
    found: Any = cell
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _alone(function: Any) -> Any:
    """Keep torch.compile from compiling what an operator does: Note [Left alone by torch.compile], scan.py."""
    wrapped: list[Any] = []

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if not wrapped and "torch._dynamo" in sys.modules:
            wrapped.append(torch.compiler.disable(function))
        return (wrapped[0] if wrapped else function)(*arguments)

    return call


@contextlib.contextmanager
def _without_tracers() -> Iterator[None]:
    """What happens inside is not part of the graph that is being traced."""
    count = torch._C._len_torch_function_stack()
    modes = [torch._C._pop_torch_function_stack() for _ in range(count)]
    try:
        with _disable_current_modes():
            yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


@_alone
def _described(self: Cell) -> str:
    """The names of the cell's own tensors that its step reads, a line end, and the step as text; "" if there is none.

    It is recorded on tensors of its own, since those of the cell may be stand-ins without values.
    """
    from torch.nn.utils.stateless import _reparametrize_module

    real = {}
    with _without_tracers(), torch.inference_mode(False), torch.enable_grad():
        for name, tensor in own_tensors(self).items():
            shape = tuple(int(size) for size in tensor.shape)
            if tensor.is_floating_point() or tensor.is_complex():
                real[name] = torch.rand(shape, dtype=tensor.dtype).requires_grad_(tensor.requires_grad)
            else:
                real[name] = torch.zeros(shape, dtype=tensor.dtype)
        try:
            with _reparametrize_module(self, real):
                weights = tuple(self.weights())
                features = self.drive(torch.zeros(1, self.input_size, dtype=self.example_weight().dtype)).shape[-1]
                traced = trace_step(self, weights, features, fold=False, gradient=True)
                text, own = written(traced, type(self).__name__)
        except Unsupported:
            return ""
    return ",".join(own) + "\n" + text


_described._dynamo_marked_constant = True  # type: ignore[attr-defined] - torch.compiler.assume_constant_result
Cell._described = _described  # type: ignore[attr-defined] - torch.compile calls it on the cell itself if it is a method


# -- the operators ---------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _cell(text: str) -> TextCell:
    return TextCell.of(text)


def _run(
    drive: Tensor,
    state: list[Tensor],
    weights: list[Tensor],
    lengths: Tensor | None,
    reverse: bool,
    need_output: bool,
    step: str,
) -> list[Tensor]:
    from holdfast.engine.scan import scan_weights

    if lengths is not None and (int(lengths.min()) < 0 or int(lengths.max()) > len(drive)):
        raise ShapeError(
            f"holdfast::scan has {len(drive)} steps, but lengths from {int(lengths.min())} to {int(lengths.max())}."
        )
    options = {"lengths": lengths, "reverse": reverse, "need_output": need_output}
    with torch.autocast(drive.device.type, enabled=False):
        drive = drive.to(state[0].dtype)  # an exported program may run under autocast
        output, last = scan_weights(_cell(step), drive, tuple(state), tuple(weights), **options)
    return list(last) if output is None else [output, *last]


@contextlib.contextmanager
def _autograd_inside() -> Iterator[None]:
    """Inside an operator PyTorch has autograd switched off; the compiler's first look at a step and the plain loop
    need it.
    """
    keys = [torch._C.DispatchKey.AutogradCPU, torch._C.DispatchKey.AutogradCUDA, torch._C.DispatchKey.AutogradOther]
    keys += [torch._C.DispatchKey.ADInplaceOrView]
    off = [key for key in keys if torch._C._dispatch_tls_is_dispatch_key_excluded(key)]
    for key in off:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        for key in off:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, True)


@_alone
def _forward(*arguments: Any) -> list[Tensor]:
    with _autograd_inside(), torch.no_grad():
        return _unshared(_run(*arguments), arguments)


@_alone
def _backward(
    grads: list[Tensor], drive: Tensor, state: list[Tensor], weights: list[Tensor], *rest: Any
) -> list[Tensor]:
    """The gradients of drive, state and weights, those of whole numbers left out."""
    with _autograd_inside(), torch.enable_grad():
        inputs = [t.detach() for t in (drive, *state, *weights)]
        leaves = [t.requires_grad_() for t in inputs if t.is_floating_point()]
        count = 1 + len(state)
        results = _run(inputs[0], inputs[1:count], inputs[count:], *rest)
        pairs = [(result, grad) for result, grad in zip(results, grads, strict=True) if result.requires_grad]
        found = torch.autograd.grad([r for r, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
    zeroed = [torch.zeros_like(t) if g is None else g for g, t in zip(found, leaves, strict=True)]
    return _unshared([g.contiguous() for g in zeroed], grads)


def _unshared(results: list[Tensor], given: Any) -> list[Tensor]:
    """An operator's outputs must not share memory with its arguments or with each other."""
    seen = {
        t.untyped_storage().data_ptr()
        for entry in given
        for t in (entry if isinstance(entry, list) else [entry])
        if isinstance(t, Tensor)
    }
    fresh = []
    for result in results:
        memory = result.untyped_storage().data_ptr()
        fresh.append(result.clone() if memory in seen else result.detach())
        seen.add(memory)
    return fresh


def _forward_fake(
    drive: Tensor, state: list[Tensor], weights: Any, lengths: Any, reverse: Any, need_output: bool, step: Any
) -> list[Tensor]:
    last = [entry.new_empty(entry.shape) for entry in state]
    steps, batch = drive.shape[:2]
    return [state[0].new_empty((steps, batch, state[0].shape[1])), *last] if need_output else last


def _backward_fake(grads: Any, drive: Tensor, state: list[Tensor], weights: list[Tensor], *rest: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in (drive, *state, *weights) if t.is_floating_point()]


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    drive, state, weights, lengths, *ctx.rest = inputs
    ctx.count, ctx.has_lengths = len(state), lengths is not None
    ctx.save_for_backward(drive, *state, *weights, *([] if lengths is None else [lengths]))


def _pulled_back(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    tensors = list(ctx.saved_tensors)
    lengths = tensors.pop() if ctx.has_lengths else None
    drive, state, weights = tensors[0], tensors[1 : 1 + ctx.count], tensors[1 + ctx.count :]
    found = iter(torch.ops.holdfast.scan_backward(list(grads), drive, state, weights, lengths, *ctx.rest))
    every = [next(found) if t.is_floating_point() else None for t in tensors]
    return every[0], every[1 : 1 + ctx.count], every[1 + ctx.count :], None, None, None, None


for _name, _real, _fake in (("scan", _forward, _forward_fake), ("scan_backward", _backward, _backward_fake)):
    _LIBRARY.impl(_name, _real, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _fake, "Meta")
torch.library.register_autograd("holdfast::scan", _pulled_back, setup_context=_setup, lib=_LIBRARY)
