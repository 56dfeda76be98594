"""All measures of one row, as numbers for the rules and as data for the pictures."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.cells import GRUCell, LSTMCell, step_form
from holdfast.cells.nonlinearity import name_of
from holdfast.diagnose.activity import (
    coverage,
    dead_units,
    drive_size,
    start_matters,
    stuck_units,
    unused_units,
    usefulness,
)
from holdfast.diagnose.fixed_points import fixed_points
from holdfast.diagnose.gates import gates_of
from holdfast.diagnose.jacobian import FlatStep, flat
from holdfast.diagnose.lyapunov import exponents_along
from holdfast.diagnose.pictures import heat_map, norms_over_time, plane
from holdfast.diagnose.proved import contraction, reach
from holdfast.diagnose.record import Row
from holdfast.diagnose.spectrum import jacobian_eigenvalues, recurrent_eigenvalues
from holdfast.errors import HoldfastError
from holdfast.layers import Recurrent
from holdfast.rrnn import count_trees
from holdfast.rrnn.layer import TreeLayer
from holdfast.spline import partition_code, regions_through_time

__all__ = ["LIMITS", "measure_row", "trees_of"]


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much of the data the costly measures use: sequences, steps, exponents, Jacobians, starts."""

    gradients: int = 8
    jacobians: int = 2
    steps: int = 300
    exponents: int = 16
    spectra: int = 6
    starts: int = 24


LIMITS = Limits()


def measure_row(row: Row, shown: list[int], stage: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The measures and pictures of a row.

    Args:
        row: with finite states.
        shown: sequences for pictures.
        stage: told what is being measured.
    """
    measures: dict[str, Any] = {"row": row.name, "kind": _kind(row), "steps": len(row.hs), "units": row.hs.shape[-1]}
    pictures: dict[str, Any] = {"norms": norms_over_time(row, shown)}
    stage("gates")
    gates = gates_of(row.cell, row.xs, row.states)
    pictures["gates"] = [heat_map(gate, shown) for gate in gates]
    stuck = {gate.name: float(stuck_units(gate).double().mean()) for gate in gates}
    measures["stuck_gate"] = max(stuck, key=lambda name: stuck[name]) if stuck else ""
    measures["stuck"] = stuck.get(measures["stuck_gate"])
    dead = torch.stack([dead_units(gate) for gate in gates if gate.values.shape[-1] == row.hs.shape[-1]]
                       or [torch.zeros(row.hs.shape[-1], dtype=torch.bool)]).any(dim=0)  # fmt: skip
    measures["dead"] = float(dead.double().mean())
    unused = unused_units(row, dead)
    measures["unused"] = float(unused.double().mean())
    measures["used"] = int((~unused & ~dead).sum())
    measures["coverage"] = coverage(row)
    measures["drive"] = drive_size(row)
    measures["start"] = start_matters(row)
    pictures["units"] = {
        "effect": usefulness(row),
        "activity": row.hs.double().std(dim=(0, 1), correction=0),
    }
    stage("gradients by distance")
    pictures["reach"] = _tried(lambda: reach(row, row.xs[:, : LIMITS.gradients]))
    measures |= _of_reach(pictures["reach"])
    stage("contraction")
    pictures["contraction"] = _tried(lambda: contraction(row, row.xs[:, : LIMITS.gradients]))
    measures["rate"] = pictures["contraction"].get("rate")
    measures["observed_rate"] = pictures["contraction"].get("observed")
    _linearised(row, shown, measures, pictures, stage)
    pictures["regions"] = _tried(lambda: _regions(row))
    return measures, pictures


def _linearised(
    row: Row, shown: list[int], measures: dict[str, Any], pictures: dict[str, Any], stage: Callable[[str], None]
) -> None:
    """What needs Jacobians."""
    step = FlatStep(row.cell)
    last = slice(max(0, len(row.xs) - LIMITS.steps), None)  # the end of a sequence, where the start is forgotten
    few = slice(0, LIMITS.jacobians)
    xs, states = row.xs[last, few], tuple(state[-len(row.xs[last]) - 1 :, few] for state in row.states)
    stage("Lyapunov exponents")
    found = _tried(lambda: {"exponents": exponents_along(step, xs, states, LIMITS.exponents), "steps": len(xs)})
    pictures["lyapunov"] = found
    if "exponents" in found:
        measures["lyapunov"] = float(found["exponents"][:, 0].mean())
    stage("eigenvalues")
    times = sorted({int(t) for t in torch.linspace(0, len(row.xs) - 1, LIMITS.spectra)})

    def spectra() -> dict[str, Any]:
        matrices = {name: _pairs(values) for name, values in recurrent_eigenvalues(row.cell).items()}
        along = jacobian_eigenvalues(step, row.xs, row.states, times)
        values = [{"step": t + 1, "values": _pairs(one)} for t, one in zip(times, along, strict=True)]
        return {"matrices": matrices, "jacobians": values}

    pictures["spectrum"] = _tried(spectra)
    stage("fixed points")
    all_states = flat(row.states)[1:]
    visited = all_states.flatten(0, 1)
    picked = visited[torch.randperm(len(visited))[: LIMITS.starts]]
    speed = float((all_states[1:] - all_states[:-1]).norm(dim=-1).median()) if len(all_states) > 1 else None
    mean = row.xs.double().mean(dim=(0, 1))

    def points() -> dict[str, Any]:
        found = fixed_points(row.cell, mean, picked, speed=speed)
        listed = [
            {"kind": it.kind, "stable": it.stable, "speed": it.speed, "found": it.found, "modes": it.modes,
             "time_constants": it.time_constants}
            for it in found
        ]  # fmt: skip
        return {"points": listed, "starts": len(picked), **plane(row, shown, [it.state for it in found])}

    pictures["points"] = _tried(points)


def _of_reach(found: dict[str, Any]) -> dict[str, Any]:
    """The numbers that rules need of the gradient by distance."""
    if "mean" not in found:
        return {}
    mean = [math.inf if math.isnan(value) else value for value in found["mean"]]  # the last step reaches all distances
    near, top = max(mean[: max(1, min(5, len(mean) // 4))]), max(mean)
    if not top > 0 or not math.isfinite(top):
        return {"growth": math.inf if not math.isfinite(top) else None}
    felt = [distance for distance, value in enumerate(mean) if value >= 1e-3 * top]
    return {"growth": top / near if near > 0 else math.inf, "memory": felt[-1]}


def _regions(row: Row) -> dict[str, Any]:
    form = step_form(row.cell)
    if form is None or name_of(form.phi) in ("tanh", "sigmoid", "softplus", "smooth_relu", "gelu"):
        return {"none": f"{type(row.cell).__name__} is smooth: only cells with ReLU and the like have partitions."}
    code = partition_code(row.layer(), row.xs)
    return {"counts": regions_through_time(code).tolist(), "sequences": row.xs.shape[1]}


def trees_of(layer: Recurrent, xs: Tensor) -> dict[str, Any]:
    """The most common trees of an RRNN over a few steps; the search is slow, so these are few."""
    if not isinstance(layer, TreeLayer):
        return {"none": "Trees are for RRNN layers."}
    short = xs[:40, :2]
    with torch.no_grad():
        trace = layer.trace(short.transpose(0, 1) if layer.batch_first else short)
    counts = count_trees([trace.records[0]])
    total = sum(counts.values())
    common = [{"tree": str(tree), "share": count / total} for tree, count in counts.most_common(8)]
    return {"trees": common, "total": total, "different": len(counts)}


def _kind(row: Row) -> str:
    if isinstance(row.cell, LSTMCell | GRUCell):
        return "lstm" if isinstance(row.cell, LSTMCell) else "gru"
    return "form" if step_form(row.cell) is not None else "any"


def _pairs(values: Tensor) -> list[list[float]]:
    return torch.view_as_real(values).tolist()


def _tried(measured: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A measure, or why there is none for this cell."""
    reason = ""
    singular = torch.linalg.LinAlgError  # pyright: ignore[reportPrivateImportUsage]
    with contextlib.suppress(NotImplementedError, singular):
        try:
            return measured()
        except HoldfastError as error:
            reason = str(error)
    return {"none": reason or "This cell's step cannot be differentiated twice, or a decomposition did not converge."}
