"""Maps from free weights onto a set, each with the set's membership test. They hold under any optimiser."""

from __future__ import annotations

from holdfast.constraints.dynamic import DynamicExponential
from holdfast.constraints.gates import ScalarGates
from holdfast.constraints.orthogonal import (
    HouseholderProduct,
    OrthogonalMap,
    RotationProduct,
    ScaledCayley,
    SkewExponential,
    orthogonal,
    orthogonal_map,
)
from holdfast.constraints.unitary import FourierProduct, PlaneRotations

__all__ = [
    "DynamicExponential",
    "FourierProduct",
    "HouseholderProduct",
    "OrthogonalMap",
    "PlaneRotations",
    "RotationProduct",
    "ScalarGates",
    "ScaledCayley",
    "SkewExponential",
    "orthogonal",
    "orthogonal_map",
]
