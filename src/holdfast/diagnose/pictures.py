"""The data of the pictures of one row, small enough for a page: lines of at most 500 points, maps of 120 columns."""

from __future__ import annotations

import base64
import itertools
from typing import Any

import torch
from torch import Tensor

from holdfast.diagnose.gates import Gate
from holdfast.diagnose.record import Row

__all__ = ["binned", "heat_map", "norms_over_time", "plane"]

_POINTS, _COLUMNS, _UNITS = 500, 120, 256


def norms_over_time(row: Row, shown: list[int]) -> dict[str, Any]:
    """Lengths of states and of gradients at each step: mean, the range of 80% of the sequences, and some of them."""
    every = max(1, -(-len(row.hs) // _POINTS))
    picked = torch.arange(0, len(row.hs), every)
    result: dict[str, Any] = {"steps": (picked + 1).tolist()}
    for name, parts in (("state", row.states), ("gradient", row.grads)):
        squares = torch.stack([part[1:].double().square().sum(dim=-1) for part in parts]).sum(dim=0)
        lengths = squares.sqrt()[picked]
        low, high = lengths.quantile(torch.tensor([0.1, 0.9], dtype=torch.float64), dim=1)
        lines = {"mean": lengths.mean(dim=1), "low": low, "high": high, "samples": [lengths[:, b] for b in shown]}
        result[name] = lines
    return result


def heat_map(gate: Gate, shown: list[int]) -> dict[str, Any]:
    """A gate over time and units: the mean over sequences, and some of them, one byte per value."""
    units = gate.values.shape[-1]
    kept = torch.arange(0, units, max(1, -(-units // _UNITS)))
    values = gate.values[..., kept]
    low, high = (0.0, 1.0) if gate.kind == "sigmoid" else (-1.0, 1.0) if gate.kind == "tanh" else (
        float(values.min()), float(values.max()))  # fmt: skip
    saturated = gate.saturated()
    maps = [values.double().mean(dim=1), *(values[:, b].double() for b in shown)]
    edges = _edges(len(values))
    return {
        "name": gate.name,
        "kind": gate.kind,
        "units": kept.tolist(),
        "steps": [begin + 1 for begin in edges[:-1]],
        "low": low,
        "high": high,
        "maps": [_bytes(binned(one), low, high) for one in maps],
        "saturated": None if saturated is None else saturated[..., kept].double().mean(dim=(0, 1)).tolist(),
    }


def binned(values: Tensor) -> Tensor:
    """(time, ...) to at most 120 means over time."""
    edges = _edges(len(values))
    return torch.stack([values[a:b].mean(dim=0) for a, b in itertools.pairwise(edges)])


def plane(row: Row, shown: list[int], points: list[tuple[float, ...]]) -> dict[str, Any]:
    """The states in the plane of their two largest principal components, with fixed points in it."""
    flat = torch.cat([state[1:] for state in row.states], dim=-1).double()  # (time, batch, size)
    middle = flat.mean(dim=(0, 1))
    centred = (flat - middle).flatten(0, 1)
    if centred.shape[1] < 2 or not centred.any():
        return {"none": "The state has a single dimension, or does not move."}
    some = centred[:: max(1, len(centred) // 4000)]
    values, vectors = torch.linalg.eigh(some.mT @ some / len(some))
    axes = vectors[:, -2:].flip(1)
    every = max(1, -(-len(flat) // (_POINTS // 2)))
    total = float(values.clamp_min(0).sum())
    return {
        "paths": [((flat[::every, b] - middle) @ axes) for b in shown],
        "places": [((torch.tensor(point, dtype=torch.float64) - middle) @ axes).tolist() for point in points],
        "share": [float(value) / total for value in values[-2:].flip(0)],
    }


def _edges(steps: int) -> list[int]:
    columns = min(steps, _COLUMNS)
    return [round(i * steps / columns) for i in range(columns + 1)]


def _bytes(values: Tensor, low: float, high: float) -> str:
    """(columns, units) as base64 of one byte per value, unit by unit."""
    span = max(high - low, 1e-12)
    whole = ((values - low) / span * 255).round().clamp(0, 255).to(torch.uint8)
    return base64.b64encode(whole.mT.contiguous().numpy().tobytes()).decode()
