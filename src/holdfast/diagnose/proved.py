"""What is proved about a row, beside what is measured: contraction, premises, and a bound on gradients by distance.

    ‖∂⟨v, h_{t+i}⟩ / ∂x_t‖ ≤ c λ^i L_x,   ‖v‖ = 1                                  (1) Euclidean: c = 1
    in the largest-entry norm c = √n, n the size of the output                         LSTM, GRU

λ and L_x are those of ``stability.step_bounds``; √n turns the largest entry into a length.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from holdfast.diagnose.record import Row
from holdfast.errors import NoBoundError, SettingError
from holdfast.stability import certificate, gradient_reach, observed_contraction, step_bounds

__all__ = ["contraction", "reach"]


def contraction(row: Row, xs: Tensor) -> dict[str, Any]:
    """The measured and the proved rate, and the premises of the proof."""
    layer = row.layer()
    bound = float(row.xs.double().norm(dim=-1).max())
    try:
        proved = certificate(layer, row.xs)
    except (NoBoundError, SettingError) as error:
        return {"none": str(error)}
    observed = observed_contraction(layer, xs, input_bound=bound) if len(xs) > 1 else None
    return {
        "observed": observed,
        "rate": proved.rate,
        "stable": proved.stable,
        "norm": proved.stack.layers[-1].norm,
        "premises": [[it.name, it.verdict, it.reason] for it in proved.assumptions],
        "horizon": proved.horizon() if proved.stable and math.isfinite(proved.stack.radii[-1]) else None,
    }


def reach(row: Row, xs: Tensor, places: int = 8) -> dict[str, Any]:
    """How strongly a random reading of the output depends on the input i steps before, and (1).

    Args:
        row: whose cell.
        xs: (time, batch, features), some of the row's sequences.
        places: steps to read at, the last one among them.
    """
    steps = len(xs)
    if steps < 2:
        return {"none": "A distance needs sequences of at least 2 steps."}
    generator = torch.Generator().manual_seed(0)
    width = row.cell.state_sizes[0]
    v = torch.randn(width, generator=generator, dtype=torch.float64)
    v = (v / v.norm()).to(xs.dtype)
    at = {steps - 1} | {int(it) for it in torch.linspace(steps // 2, steps - 1, places)}
    found = gradient_reach(row.layer(), xs, lambda h: h @ v, distances=steps - 1, at=sorted(at))
    bound = None
    try:
        proved = step_bounds(row.cell, float(row.xs.double().norm(dim=-1).max()))
    except (NoBoundError, SettingError):
        proved = None
    if proved is not None and proved.rate < 1 and row.cell.state_sizes[0] == row.cell.hidden_size:
        factor = 1.0 if proved.norm == "l2" else math.sqrt(width)
        first = factor * proved.output_lipschitz * proved.input_lipschitz
        bound = [first * proved.rate**i + (proved.direct_lipschitz if i == 0 else 0.0) for i in found.distances]
    return {"distances": found.distances, "mean": found.mean, "largest": found.largest, "bound": bound}
