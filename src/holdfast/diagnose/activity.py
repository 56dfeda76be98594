"""What the units of one row do: how large states and gradients are, which units are stuck, dead or unused.

    coverage = share of steps t with ‖δ_t‖ ≥ 10⁻⁴ max_s ‖δ_s‖                              (1) mean over sequences
    stuck    = share of units that are saturated at 95% of all steps                       (2) the worst gate
    dead     = share of ReLU units that are 0 at every step of every sequence              (3)
    unused   = share of units j with r_j < 10⁻⁴ max r,  r_j = std(h_j) · rms(δ_j)          (4) dead ones aside
    drive    = rms over t of W x_t                                                         (5) without bias
    start    = ‖h_T(h_0) - h_T(h_0')‖ / ‖h_T(x) - h_T(x')‖                                 (6) means over pairs

(4) is to first order how much the loss would change if the unit were replaced by its mean. In (6), h_0' is a state that
another sequence ends with, or its negative, whichever changes more: above 1, another start changes the end more than
another input does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.diagnose.gates import EDGE, Gate
from holdfast.diagnose.record import Row
from holdfast.engine import scan
from holdfast.types import State

__all__ = ["coverage", "dead_units", "drive_size", "start_matters", "stuck_units", "unused_units", "usefulness"]

_FELT, _MOSTLY = 1e-4, 0.95


def coverage(row: Row) -> float | None:
    """(1); None if no gradient arrives."""
    norms = sum(grad.square().sum(dim=-1) for grad in row.grads)
    assert isinstance(norms, Tensor)
    norms = norms.sqrt()[1:]  # (time, batch)
    top = norms.amax(dim=0)
    if not (top > 0).any() or not norms.isfinite().all():
        return None
    return float((norms >= _FELT * top)[:, top > 0].double().mean())


def stuck_units(gate: Gate) -> Tensor:
    """(2), unit by unit: (units,) bool. Near 1 a gate that keeps the state is doing its work, and is not counted."""
    if gate.kind not in ("sigmoid", "tanh"):
        return torch.zeros(gate.values.shape[-1], dtype=torch.bool)
    saturated = gate.values < EDGE if gate.keeps else gate.saturated()
    assert saturated is not None
    return saturated.double().mean(dim=(0, 1)) >= _MOSTLY


def dead_units(gate: Gate) -> Tensor:
    """(3), unit by unit: (units,) bool."""
    return (gate.values == 0).all(dim=0).all(dim=0) & (gate.kind == "relu")


def usefulness(row: Row) -> Tensor:
    """R of (4), (units,): of the output, or of the larger of the two parts of an LSTM."""
    parts = [
        state[1:].double().std(dim=(0, 1), correction=0) * grad[1:].double().square().mean(dim=(0, 1)).sqrt()
        for state, grad in zip(row.states, row.grads, strict=True)
        if state.shape[-1] == row.states[0].shape[-1]
    ]
    return torch.stack(parts).amax(dim=0)


def unused_units(row: Row, dead: Tensor) -> Tensor:
    """(4), unit by unit: (units,) bool."""
    r = usefulness(row)
    if not (r.max() > 0):
        return torch.zeros_like(dead)
    return (r < 1e-4 * r.max()) & ~dead


@torch.no_grad()
def drive_size(row: Row) -> float | None:
    """(5); None if the input is zero throughout."""
    if not (row.xs != 0).any():
        return None
    drive = row.cell.drive(row.xs) - row.cell.drive(torch.zeros_like(row.xs[:1, :1]))
    return float(drive.double().square().mean().sqrt())


@torch.no_grad()
def start_matters(row: Row) -> float | None:
    """(6); None for a single sequence."""
    ends = tuple(state[-1] for state in row.states)
    if ends[0].shape[0] < 2:
        return None
    by_start = 0.0
    for sign in (1, -1):
        _, other = scan(row.cell, row.xs, tuple(sign * end.roll(1, 0) for end in ends), backend=row.backend)
        by_start = max(by_start, _apart(ends, other))
    floor = 1e-6 * _apart(ends, tuple(torch.zeros_like(end) for end in ends))  # all ends are the same
    return by_start / (_apart(ends, tuple(end.roll(1, 0) for end in ends)) + floor + 1e-300)


def _apart(a: State, b: State) -> float:
    """The mean distance of two states."""
    return float(torch.cat([x.double() - y.double() for x, y in zip(a, b, strict=True)], dim=-1).norm(dim=-1).mean())
