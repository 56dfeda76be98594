"""``scan``: the one way through time, and the only place that chooses how."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.reference import scan_reference
from holdfast.errors import DeviceError, DTypeError, SettingError, ShapeError
from holdfast.types import Sequence, State

__all__ = ["scan"]

BACKENDS = ("auto", "reference")


def scan(
    cell: Cell,
    xs: Sequence,
    state: State | Tensor | None = None,
    *,
    lengths: Tensor | None = None,
    reverse: bool = False,
    need_output: bool = True,
    backend: str = "auto",
) -> tuple[Tensor | None, State]:
    """Drive ``cell`` through all steps of ``xs``.

    Law: the backends agree in values and in gradients, to rounding. A scan computes in the number type of the cell's
    weights; autocast is off inside.

    Args:
        cell: any ``Cell``.
        xs: (time, batch, input).
        state: where to start, a tensor (batch, size) for each entry of the cell's state; default zeros.
        lengths: (batch,) whole numbers: a sample's steps from there on do not count; its state stands still and its
            output is zero. Default: all steps count.
        reverse: from the last step to the first; outputs stay at their steps.
        need_output: if false, the outputs are not kept: ``None`` comes in their place, and without gradients memory
            does not grow with time.
        backend: "reference", the plain loop, or "auto", which is the same until there is a faster one.

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
    cell.check_input(xs, ("time", "batch", "input_size"), who)
    if len(xs) == 0 or xs.shape[1] == 0:
        raise ShapeError(f"{who} expects at least one step and one sample, got xs of shape {tuple(xs.shape)}.")
    if state is None:
        state = cell.initial_state(xs.shape[1])
    state = (state,) if isinstance(state, Tensor) else state
    cell.check_state(state, xs.shape[1], who)
    state = tuple(state)
    if lengths is not None:
        lengths = _checked_lengths(lengths, xs, who)
    has_autocast = torch.amp.is_autocast_available(xs.device.type)  # the meta device has none
    with torch.autocast(xs.device.type, enabled=False) if has_autocast else contextlib.nullcontext():
        return scan_reference(cell, xs, state, lengths=lengths, reverse=reverse, need_output=need_output)


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
    if lengths.min() < 0 or lengths.max() > steps:
        raise ShapeError(f"{who} has {steps} steps, but lengths from {int(lengths.min())} to {int(lengths.max())}.")
    return lengths
