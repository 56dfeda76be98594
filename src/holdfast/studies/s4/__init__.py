"""Procedures of S4's studies: random instances (Figure 1), gradients over distance (2), distance of weights (3)."""

from __future__ import annotations

from holdfast.studies.s4.distance import weight_distance
from holdfast.studies.s4.instances import gradient_gaps, weight_gaps
from holdfast.studies.s4.reach import reach_in_training

__all__ = ["gradient_gaps", "reach_in_training", "weight_distance", "weight_gaps"]
