"""What can be promised of a recurrence: bounds that hold for all inputs, with the premises they need."""

from __future__ import annotations

from holdfast.stability.bounds import (
    ModelBounds,
    generalisation_gap,
    gradient_bound_rotations,
    gradient_bound_theta,
    gradient_bound_weight_ih,
    rotations_derivative_bound,
)

__all__ = [
    "ModelBounds",
    "generalisation_gap",
    "gradient_bound_rotations",
    "gradient_bound_theta",
    "gradient_bound_weight_ih",
    "rotations_derivative_bound",
]
