"""Fixed points and slow points of a step with its input held at the mean, and how it moves near them.

    q(s) = ½ ‖F(s) - s‖²,   x = x̄                                            (1) zero at a fixed point
    s ← s - (J - I)⁻¹ (F(s) - s)                                             (2) Newton, from where q is small
    J = Σ λ_k ...,   τ_k = -1 / log |λ_k|                                    (3) modes and their time constants

From states that real sequences visit, Adam lowers q in one batch; it finds unstable points too. Then (2) makes them
exact. A point that (2) does not reach is slow if q has a minimum there and its speed ‖F(s) - s‖ is far below that of
the sequences. Points that are the same are counted once.

Source: Sussillo & Barak (2013), Opening the black box.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.diagnose.jacobian import FlatStep

__all__ = ["FixedPoint", "fixed_points"]

_SLOW = 0.05  # of the median speed of the sequences


@dataclasses.dataclass(frozen=True)
class FixedPoint:
    """A fixed point or a slow point.

    Args:
        state: s, the entries of the state side by side.
        speed: ‖F(s) - s‖.
        kind: "fixed" or "slow".
        stable: whether all |λ| < 1.
        modes: the eigenvalues of J as (real, imaginary), largest modulus first, at most eight.
        found: how many starts ended here.

    Example:
        >>> point = FixedPoint((0.0,), 0.0, "fixed", True, ((0.5, 0.0),), 3)
        >>> [round(tau, 3) for tau in point.time_constants]
        [1.443]
    """

    state: tuple[float, ...]
    speed: float
    kind: str
    stable: bool
    modes: tuple[tuple[float, float], ...]
    found: int

    @property
    def time_constants(self) -> tuple[float, ...]:
        """τ of (3) in steps; infinite for |λ| = 1, and negative for a mode that grows."""
        sizes = [math.hypot(*mode) for mode in self.modes]
        return tuple(0.0 if size == 0 else math.inf if size == 1 else -1 / math.log(size) for size in sizes)


def fixed_points(
    cell: Cell, x: Tensor, starts: Tensor, *, iterations: int = 300, speed: float | None = None, most: int = 6
) -> tuple[FixedPoint, ...]:
    """The points where ``cell``, with its input held at ``x``, stands still or nearly so; those met most often first.

    Args:
        cell: any.
        x: (input,).
        starts: (starts, size of the state) where to begin; for an LSTM h and c side by side.
        iterations: of Adam.
        speed: the usual ‖F(s) - s‖; without it only exact fixed points are returned.
        most: points to return.

    Example:
        >>> from holdfast import LinearCell
        >>> cell = LinearCell(1, 1)
        >>> with torch.no_grad():
        ...     _ = cell.weight_hh.fill_(0.5), cell.weight_ih.fill_(1.0), cell.bias.fill_(0.0)
        >>> (point,) = fixed_points(cell, torch.ones(1), torch.randn(5, 1))  # s = 0.5 s + 1
        >>> round(point.state[0], 9), point.stable, point.found
        (2.0, True, 5)
    """
    step = FlatStep(cell)
    starts = starts.detach().double()
    drive = step.drive(x.detach().double().unsqueeze(0)).detach()
    scale = float(starts.square().mean().sqrt()) + 1e-3
    s = starts.clone().requires_grad_()
    optimiser = torch.optim.Adam([s], lr=0.1 * scale)
    many = drive.expand(len(s), -1)
    with torch.enable_grad():
        for i in range(iterations):
            optimiser.param_groups[0]["lr"] = 0.1 * scale * (1 - i / iterations) ** 2 + 1e-4 * scale
            (s.grad,) = torch.autograd.grad((step.after(many, s) - s).square().sum() / 2, s)
            optimiser.step()
    return _refined(step, x, drive, s.detach(), speed, most, scale)


@torch.no_grad()
def _refined(
    step: FlatStep, x: Tensor, drive: Tensor, ends: Tensor, speed: float | None, most: int, scale: float
) -> tuple[FixedPoint, ...]:
    """(2) and (3) for each group of ends that are close together."""
    tolerance = 1e-9 * (1 + scale) * math.sqrt(step.size)
    reach = scale * math.sqrt(step.size)  # Newton may move this far; further away is another place
    points: list[FixedPoint] = []
    rows = x.double().unsqueeze(0)
    groups = sorted(_groups(ends, 1e-2 * reach), key=len, reverse=True)
    for group in groups[: 2 * most]:
        speeds = (step.after(drive.expand(len(group), -1), ends[group]) - ends[group]).norm(dim=1)
        s = begin = ends[group[int(speeds.argmin())]].unsqueeze(0)
        for _ in range(12):
            residual = step.after(drive, s) - s
            if not residual.isfinite().all() or residual.norm() <= tolerance or (s - begin).norm() > reach:
                break
            J = step.jacobian(rows, s)[0]
            eye = torch.eye(step.size, dtype=torch.float64)
            s = s - torch.linalg.lstsq(J - eye, residual[0]).solution if _singular(J - eye) else s - torch.linalg.solve(
                J - eye, residual[0]
            )  # fmt: skip
        residual = (step.after(drive, s) - s).norm()
        exact = bool(residual <= tolerance) and bool((s - begin).norm() <= reach)
        if not exact:
            s, residual = begin, speeds.min()
            if speed is None or not residual <= _SLOW * speed:
                continue
        same = [i for i, point in enumerate(points) if (torch.tensor(point.state) - s[0]).norm() < 1e-3 * reach]
        if same:
            points[same[0]] = dataclasses.replace(points[same[0]], found=points[same[0]].found + len(group))
            continue
        values = torch.linalg.eigvals(step.jacobian(rows, s)[0])
        values = values[values.abs().argsort(descending=True)]
        points.append(
            FixedPoint(
                tuple(s[0].tolist()),
                float(residual),
                "fixed" if exact else "slow",
                bool(values[0].abs() < 1),
                tuple((value.real, value.imag) for value in values[:8].tolist()),
                len(group),
            )
        )
        if len(points) == most:
            break
    return tuple(sorted(points, key=lambda point: (point.kind != "fixed", -point.found)))


def _singular(matrix: Tensor) -> bool:
    return bool(torch.linalg.cond(matrix) > 1e12) if len(matrix) <= 64 else False


def _groups(ends: Tensor, radius: float) -> list[list[int]]:
    """Indices of ends that lie within ``radius`` of the first of their group."""
    groups: list[list[int]] = []
    for i, end in enumerate(ends):
        if not end.isfinite().all():
            continue
        for group in groups:
            if (ends[group[0]] - end).norm() <= radius:
                group.append(i)
                break
        else:
            groups.append([i])
    return groups
