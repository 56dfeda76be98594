"""Which way a scan takes through time on a GPU."""

from __future__ import annotations

from holdfast.engine.targets.triton.plan import TritonPlan
from holdfast.engine.targets.triton.shape import Shape, Way

__all__ = ["shape_for"]

FORCED: Way | None = None


def shape_for(plan: TritonPlan, *, masked: bool) -> Shape:
    return Shape(plan.dtype, masked, FORCED or Way.HELD)
