"""``scan``: the one way through time, and the only place that chooses how."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from holdfast.cells import Cell
from holdfast.engine.operator import scan_operator
from holdfast.engine.parallel import scan_parallel
from holdfast.engine.reference import scan_reference
from holdfast.errors import (
    DeviceError,
    DTypeError,
    FusedError,
    FusedFallbackWarning,
    MissingExtraError,
    SettingError,
    ShapeError,
)
from holdfast.types import State, TimeFirst

__all__ = ["compiler", "fused_source", "in_weights_type", "scan", "scan_weights"]

BACKENDS = ("auto", "reference", "fused", "parallel", "triton")
TARGETS = ("cpu", "triton")
_warned: set[tuple[type, str]] = set()
_told: set[str] = set()  # types of devices of which ``auto`` has spoken


def scan(
    cell: Cell,
    xs: TimeFirst,
    state: State | Tensor | None = None,
    *,
    lengths: Tensor | None = None,
    reverse: bool = False,
    need_output: bool = True,
    backend: str = "auto",
) -> tuple[Tensor | None, State]:
    """Drive ``cell`` through all steps of ``xs``.

    Law: the backends agree in values and in gradients, to rounding. A scan computes in the number type of the cell's
    weights; autocast is off inside. On the CPU a fused scan of bfloat16 weights computes in float32 and rounds what
    leaves it, so it is closer to the exact result than the plain loop, which rounds after every operator.

    Args:
        cell: any ``Cell``.
        xs: (time, batch, input).
        state: where to start, a tensor (batch, size) for each entry of the cell's state; default zeros.
        lengths: (batch,) whole numbers: a sample's steps from there on do not count; its state stays and its
            output is zero. Default: all steps count.
        reverse: from the last step to the first; outputs stay at their steps.
        need_output: if false, the outputs are not kept: ``None`` comes in their place, and without gradients memory
            does not grow with time.
        backend: "reference" (the plain loop), "fused" (one compiled loop on the CPU), "triton" (kernels for a GPU;
            must be asked for), "parallel" (all steps at once, for cells that are linear in the state: minGRU, minLSTM)
            or "auto", which on the CPU is fused for every cell that it can compile, else reference. Under
            torch.compile and torch.export, "auto" and "fused" are one operator, ``holdfast::scan``, and "reference" is
            unrolled.

    Returns:
        outputs, (time, batch, hidden), and the last state, a tuple.

    Example:
        >>> from holdfast import RNNCell
        >>> outputs, (h,) = scan(RNNCell(3, 5), torch.zeros(7, 2, 3))
        >>> outputs.shape, h.shape
        (torch.Size([7, 2, 5]), torch.Size([2, 5]))
    """
    who = f"scan of {type(cell).__name__}"
    if backend not in BACKENDS:
        raise SettingError(f"scan knows the backends {', '.join(BACKENDS)}; got {backend!r}.")
    xs = in_weights_type(cell, xs)
    cell.check_input(xs, ("time", "batch", "input_size"), who)
    if xs.shape[0] == 0 or xs.shape[1] == 0:  # len(xs) would be a constant of an exported program
        raise ShapeError(f"{who} expects at least one step and one sample, got xs of shape {tuple(xs.shape)}.")
    if state is None:
        state = cell.initial_state(xs.shape[1])
    given = in_weights_type(cell, (state,) if isinstance(state, Tensor) else state)
    cell.check_state(given, xs.shape[1], who)
    state = tuple(given)
    if lengths is not None:
        lengths = _checked_lengths(lengths, xs, who)
    kind = xs.device.type
    cast = kind != "meta" and torch.is_autocast_enabled(kind)
    with torch.autocast(kind, enabled=False) if cast else contextlib.nullcontext():
        weights = tuple(cell.weights())  # a constrained weight is built once, not at every step
        options = {"lengths": lengths, "reverse": reverse, "need_output": need_output}
        if not torch.compiler.is_compiling() or backend in ("triton", "parallel"):
            return scan_weights(cell, xs, state, weights, backend=backend, **options)
        done = None if backend == "reference" else scan_operator(cell, xs, state, weights, **options)
        return scan_reference(cell, xs, state, weights, **options) if done is None else done


def scan_weights(
    cell: Cell,
    xs: Tensor,
    state: State,
    weights: tuple[Tensor, ...],
    *,
    lengths: Tensor | None,
    reverse: bool,
    need_output: bool,
    backend: str = "auto",
) -> tuple[Tensor | None, State]:
    """``scan`` of checked arguments, with what ``cell.weights()`` returned."""
    if backend == "parallel":
        return scan_parallel(cell, xs, state, lengths=lengths, reverse=reverse, need_output=need_output)
    if backend != "reference":
        done = _fused(cell, xs, state, weights, lengths, reverse, need_output, backend=backend)
        if done is not None:
            return done
    return scan_reference(cell, xs, state, weights, lengths=lengths, reverse=reverse, need_output=need_output)


def in_weights_type(cell: Cell, given: Any) -> Any:
    """Under autocast a floating tensor, or a tuple of them, as a scan of ``cell`` takes it; elsewhere as it is."""
    if isinstance(given, (tuple, list)):
        return type(given)(in_weights_type(cell, entry) for entry in given)
    if not isinstance(given, Tensor) or (kind := given.device.type) == "meta":  # no autocast there
        return given
    cast = torch.is_autocast_enabled(kind) and given.is_floating_point()
    return given.to(cell.example_weight().dtype) if cast else given


def fused_source(cell: Cell, target: str = "cpu", *, batch: int | None = None) -> str:
    """What the fused backend makes of a cell's step, as code to read.

    Every value in memory has a name; ``w0``, ``w1``, ... are the weights; ``f`` runs over features, and every line is
    done for a block of samples, or for a vector of features, at once. Values without a name live in registers.

    Args:
        target: "cpu", or "triton" for the source of the GPU kernels; the latter needs the extra ``gpu``.
        batch: how many samples a scan would have. The first line then says which way it would take on the CPU.

    Example:
        >>> from holdfast import RNNCell
        >>> print(fused_source(RNNCell(2, 16, nonlinearity="relu")))
        def forward(x[2], s0[16]):
            product0 = w2.T @ s0  # (16, 16)
            for f in range(16):
                s0_new[f] = relu(((w0[:, f] @ x + w1[f]) + product0[f]))
            return s0=s0_new
        ...
    """
    if target not in TARGETS:
        raise SettingError(f"fused_source knows the targets {', '.join(TARGETS)}; got {target!r}.")
    backend = "fused" if target == "cpu" else "triton"
    made_by = compiler() if target == "cpu" else _triton()
    if isinstance(made_by, str):
        raise FusedError(f"{type(cell).__name__} cannot run on the {backend} backend: {made_by}.")
    try:
        return made_by.fused_source(cell, batch)
    except made_by.Unsupported as reason:
        raise FusedError(f"{type(cell).__name__} cannot run on the {backend} backend: {reason}.") from None


# Note [Left alone by torch.compile]
# torch.compile must neither look into the fused scan nor compile the functions it calls. torch.compiler.disable does
# that, but importing what it needs, the whole of torch._dynamo, takes more than a second, for people who may never
# compile. So the outer function carries the mark by hand, and is wrapped once torch._dynamo is there anyway.


_wrapped: list[Any] = []


def _fused(*args: Any, **kwargs: Any) -> tuple[Tensor | None, State] | None:
    if not _wrapped and "torch._dynamo" in sys.modules:
        _wrapped.append(torch.compiler.disable(_fused_or_none))
    return (_wrapped[0] if _wrapped else _fused_or_none)(*args, **kwargs)


_fused._torchdynamo_disable = True  # type: ignore[attr-defined]


def _fused_or_none(
    cell: Cell,
    xs: Tensor,
    state: State,
    weights: tuple[Tensor, ...],
    lengths: Tensor | None,
    reverse: bool,
    need_output: bool,
    *,
    backend: str,
) -> tuple[Tensor | None, State] | None:
    """The compiled scan; None if the call is for ``reference``, or (after a warning) if the cell cannot be fused."""
    must, on_gpu = backend != "auto", backend == "triton"
    name, reason, expected = type(cell).__name__, _obstacle(xs, state, on_gpu=on_gpu), True
    if reason is None:
        expected = False
        made_by = _triton() if on_gpu else compiler()
        if isinstance(made_by, str):
            reason = made_by
        else:
            try:
                narrow = not on_gpu and xs.dtype == made_by.NARROW
                return (made_by.scan_narrow if narrow else made_by.scan_fused)(
                    cell,
                    xs,
                    state,
                    weights,
                    lengths=lengths,
                    reverse=reverse,
                    need_output=need_output,
                    refused=None if must else functools.partial(_warn, type(cell), "The gradient of a "),
                )
            except made_by.Unsupported as error:
                reason = str(error)
    if must:
        raise FusedError(
            f'scan of {name} cannot run on the {backend} backend: {reason}. Use backend="reference" or "auto".'
        )
    if not expected:
        _warn(type(cell), "", reason)
    elif message := gpu_notice(xs.device.type):
        warnings.warn(message, FusedFallbackWarning, stacklevel=4)
    return None


def gpu_notice(device: str) -> str | None:
    """What ``auto`` says about a scan on a device of this type: on a GPU once, that there are kernels to ask for."""
    if device != "cuda" or device in _told:
        return None
    _told.add(device)
    return (
        'scan with backend="auto" runs on the slower reference backend on a GPU. Pass backend="triton" for compiled '
        "kernels, which have not been timed on real hardware; each is compared with the plain loop before it is used. "
        'Pass backend="reference" to silence this warning.'
    )


@functools.cache
def compiler() -> Any:
    """The fused backend, or why it is not there; tried once, since a failing import costs milliseconds each time."""
    try:
        from holdfast.engine.targets import cpu as fused
    except ImportError as error:
        return f"{error.name} is not installed" if error.name else str(error)
    return fused


@functools.cache
def _triton() -> Any:
    """The backend for GPUs."""
    try:
        from holdfast.engine.targets import triton
    except ImportError as error:
        raise MissingExtraError(
            f"backend=\"triton\" needs {error.name or 'triton'}, which is not installed: pip install 'holdfast[gpu]'."
        ) from error
    return triton


def _warn(kind: type, what: str, reason: str) -> None:
    """Say once why a cell runs on the plain loop."""
    if (kind, reason) not in _warned:
        _warned.add((kind, reason))
        warnings.warn(
            f"{what}scan of {kind.__name__} runs on the slower reference backend: {reason}. "
            'The result is the same; pass backend="reference" to silence this warning.',
            FusedFallbackWarning,
            stacklevel=5,
        )


def _obstacle(xs: Tensor, state: State, *, on_gpu: bool) -> str | None:
    """Why this call, whatever the cell, is for ``reference``: no warning is due then."""
    if on_gpu and not _triton().runs_on(xs.device):
        return (
            f'it runs on a GPU, and xs is on {xs.device}; move the cell and xs there with .to("cuda"), or set '
            "TRITON_INTERPRET=1 before Python starts, which runs the kernels on the CPU, slowly"
        )
    if not on_gpu and xs.device.type != "cpu":
        return f"it runs on the CPU, and xs is on {xs.device}"
    if peek_interpreter_stack() is not None:
        return "torch.func transforms go through the plain loop"
    if _get_current_dispatch_mode() is not None or torch._C._is_tracing():
        return "a tracer is at work"
    if forward_ad._current_level >= 0:
        return "forward-mode derivatives go through the plain loop"
    if any(type(t) not in (Tensor, torch.nn.Parameter) for t in (xs, *state)):
        return f"xs is a {type(xs).__name__}"
    return None


def _checked_lengths(lengths: Tensor, xs: Tensor, who: str) -> Tensor:
    steps, batch = xs.shape[:2]
    if not isinstance(lengths, Tensor):
        raise DTypeError(
            f"{who} expects lengths to be a tensor, got {type(lengths).__name__}; use torch.tensor(lengths)."
        )
    if tuple(lengths.shape) != (batch,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ShapeError(
            f"{who} expects lengths of shape ({batch},), whole numbers, got {tuple(lengths.shape)} of {lengths.dtype}."
        )
    if lengths.device != xs.device:
        raise DeviceError(f"{who} has xs on {xs.device}, but lengths on {lengths.device}; move one with .to(device).")
    if torch.compiler.is_compiling():
        return lengths  # their values are not known yet: the operator looks at them
    if lengths.min() < 0 or lengths.max() > steps:
        raise ShapeError(f"{who} has {steps} steps, but lengths from {int(lengths.min())} to {int(lengths.max())}.")
    return lengths
