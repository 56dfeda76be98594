"""Stability: bounds on a recurrence that hold for all inputs, with the premises they need.

The theorems of SGORNN (S3) are in bounds.py and complexity.py. For stable recurrence (S4): measure (contraction, step,
stack, observed, reach), enforce (project, projected, stable_lstm), certify (certificate, gaps), use (truncate, stream).
"""

from __future__ import annotations

from holdfast.cells.nonlinearity import Slopes, register_slopes, slopes
from holdfast.errors import NoBoundError
from holdfast.stability.assumptions import Assumption
from holdfast.stability.bounds import (
    ModelBounds,
    generalisation_gap,
    gradient_bound_rotations,
    gradient_bound_theta,
    gradient_bound_weight_ih,
    rotations_derivative_bound,
)
from holdfast.stability.certificate import Certificate, certificate
from holdfast.stability.complexity import (
    fastrnn_alpha_limit,
    rademacher_bound,
    rademacher_complexity,
    rotations_lipschitz,
)
from holdfast.stability.contraction import certified_cells, contraction_rate
from holdfast.stability.gaps import (
    gradient_gap,
    gradient_smoothness,
    trained_output_gap,
    weight_gap,
    weight_gap_closed,
)
from holdfast.stability.observed import observed_contraction
from holdfast.stability.oscillator import cornn_gradient_bound
from holdfast.stability.project import l1_ball_rows, project_
from holdfast.stability.projected import Projected
from holdfast.stability.reach import Reach, gradient_reach
from holdfast.stability.stable_lstm import stable_lstm
from holdfast.stability.stack import Stack, stack_bounds
from holdfast.stability.step import Region, Smoothness, StepBounds, state_norm, step_bounds
from holdfast.stability.stream import TruncatedStream
from holdfast.stability.truncate import Truncated, truncate

__all__ = [
    "Assumption",
    "Certificate",
    "ModelBounds",
    "NoBoundError",
    "Projected",
    "Reach",
    "Region",
    "Slopes",
    "Smoothness",
    "Stack",
    "StepBounds",
    "Truncated",
    "TruncatedStream",
    "certificate",
    "certified_cells",
    "contraction_rate",
    "cornn_gradient_bound",
    "fastrnn_alpha_limit",
    "generalisation_gap",
    "gradient_bound_rotations",
    "gradient_bound_theta",
    "gradient_bound_weight_ih",
    "gradient_gap",
    "gradient_reach",
    "gradient_smoothness",
    "l1_ball_rows",
    "observed_contraction",
    "project_",
    "rademacher_bound",
    "rademacher_complexity",
    "register_slopes",
    "rotations_derivative_bound",
    "rotations_lipschitz",
    "slopes",
    "stable_lstm",
    "stack_bounds",
    "state_norm",
    "step_bounds",
    "trained_output_gap",
    "truncate",
    "weight_gap",
    "weight_gap_closed",
]
