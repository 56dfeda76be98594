"""Pure tensor functions: plane rotations, skew generators and the maps from them, norms. No cell is known here."""

from __future__ import annotations

from holdfast.linalg.givens import (
    default_sublayers,
    random_permutations,
    rotate,
    rotation_matrix,
    rotations_as_primitive,
)
from holdfast.linalg.norms import (
    is_orthogonal,
    nearest_orthogonal,
    nearest_rotation,
    orthogonality_error,
    orthogonality_tolerance,
    spectral_norm,
)
from holdfast.linalg.skew import (
    cayley,
    cayley_inverse,
    exp_map,
    householder_inverse,
    householder_product,
    log_map,
    skew_from_vector,
)

__all__ = [
    "cayley",
    "cayley_inverse",
    "default_sublayers",
    "exp_map",
    "householder_inverse",
    "householder_product",
    "is_orthogonal",
    "log_map",
    "nearest_orthogonal",
    "nearest_rotation",
    "orthogonality_error",
    "orthogonality_tolerance",
    "random_permutations",
    "rotate",
    "rotation_matrix",
    "rotations_as_primitive",
    "skew_from_vector",
    "spectral_norm",
]
