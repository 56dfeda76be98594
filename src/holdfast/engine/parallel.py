"""The parallel scan of cells that are linear in the state: all steps at once, in log₂ T rounds.

    h_t = a_t ⊙ h_{t-1} + b_t                                                  (1) cells/diagonal.py
    (a_2k, b_2k) ∘ (a_2k-1, b_2k-1):  half as many steps                       (2) pairs; solved by the same method
    h_2k+1 = a_2k+1 ⊙ h_2k + b_2k+1                                            (3) the states between

The work is about twice that of the plain loop, in few large operations. benchmarks/parallel.py compares the two.
Source: Blelloch (1990); for these cells: Feng et al. (2024), §2.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.cells.diagonal import DiagonalCell
from holdfast.errors import FusedError
from holdfast.types import State

__all__ = ["prefix_states", "scan_parallel"]


def scan_parallel(
    cell: Cell, xs: Tensor, state: State, *, lengths: Tensor | None, reverse: bool, need_output: bool
) -> tuple[Tensor | None, State]:
    """``scan`` of a ``DiagonalCell``, of checked arguments."""
    if not isinstance(cell, DiagonalCell):
        raise FusedError(
            f"scan of {type(cell).__name__} cannot run on the parallel backend: it needs a step that is linear in the "
            'state (MinGRUCell, MinLSTMCell or a DiagonalCell of your own). Use backend="auto".'
        )
    a, b = cell.coefficients(cell.drive(xs))
    alive = None
    if lengths is not None:  # a step that does not count leaves the state alone
        alive = (torch.arange(len(xs), device=xs.device).unsqueeze(1) < lengths).unsqueeze(2)  # (time, batch, 1)
        a, b = torch.where(alive, a, 1.0), torch.where(alive, b, 0.0)
    if reverse:
        a, b = a.flip(0), b.flip(0)
    hs = prefix_states(a, torch.cat((a[:1] * state[0] + b[:1], b[1:])))
    last = (hs[-1],)
    if not need_output:
        return None, last
    hs = hs.flip(0) if reverse else hs
    return (hs if alive is None else torch.where(alive, hs, 0.0)), last


def prefix_states(a: Tensor, b: Tensor) -> Tensor:
    """All h_t of (1) from h_0 = 0, (time, ...).

    Law: the result is that of the loop, up to the order of roundings.

    Example:
        >>> prefix_states(torch.full((4,), 0.5), torch.ones(4))
        tensor([1.0000, 1.5000, 1.7500, 1.8750])
    """
    if len(a) == 1:
        return b
    pairs = len(a) // 2
    a_1, a_2, b_1, b_2 = a[: 2 * pairs : 2], a[1::2], b[: 2 * pairs : 2], b[1::2]
    later = prefix_states(a_1 * a_2, a_2 * b_1 + b_2)  # (2): after steps 2, 4, ...
    rest = a[2::2] * later[: len(a[2::2])] + b[2::2]  # (3): after steps 3, 5, ...
    earlier = torch.cat((b[:1], rest))
    woven = torch.stack((earlier[:pairs], later), dim=1).flatten(0, 1)
    return woven if len(earlier) == pairs else torch.cat((woven, earlier[-1:]))
