"""How far a matrix is from orthogonal, the nearest one that is, and the largest singular value.

    ε(Q) = max |QᵀQ - I|                              (1) orthogonality error
    argmin {‖Q - P‖_F : PᵀP = I} = L Rᵀ, Q = L Σ Rᵀ   (2) polar factor, from the singular value decomposition
    ‖M‖₂ = max ‖M x‖ / ‖x‖                            (3) spectral norm

Source: Higham (2008), Functions of Matrices, §8.1 for (2).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.errors import ShapeError

__all__ = [
    "is_orthogonal",
    "nearest_orthogonal",
    "nearest_rotation",
    "orthogonality_error",
    "orthogonality_tolerance",
    "spectral_norm",
]

Matrix = Float[Tensor, "rows columns"]
Square = Float[Tensor, "size size"]
Scalar = Float[Tensor, ""]

_TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def orthogonality_tolerance(dtype: torch.dtype) -> float:
    """The tolerance of orthogonality: 1e-12 in float64, 1e-5 in float32, ten units of the last place in shorter types.

    The two are some hundred times the rounding of QᵀQ at size 512.

    Example:
        >>> orthogonality_tolerance(torch.float64)
        1e-12
    """
    return _TOLERANCES.get(dtype, 10 * torch.finfo(dtype).eps)


def orthogonality_error(Q: Matrix) -> float:
    """ε(Q) of (1): the largest entry of QᵀQ - I in modulus.

    Law: 0 exactly if the columns are orthonormal; NaN if an entry of Q is.

    Example:
        >>> orthogonality_error(2 * torch.eye(3))
        3.0
    """
    Q = Q.detach()
    gram = Q.mT @ Q
    gram.diagonal().sub_(1)
    return gram.abs().max().item() if gram.numel() else 0.0


def is_orthogonal(Q: Square, tol: float | None = None) -> bool:
    """Whether Q is square with ε(Q) ≤ ``tol``, by default the ``orthogonality_tolerance`` of its type.

    Example:
        >>> is_orthogonal(torch.eye(3)), is_orthogonal(2 * torch.eye(3))
        (True, False)
    """
    if Q.ndim != 2 or Q.shape[0] != Q.shape[1]:
        return False
    return orthogonality_error(Q) <= (orthogonality_tolerance(Q.dtype) if tol is None else tol)


def nearest_orthogonal(Q: Square) -> Square:
    """The orthogonal matrix nearest to Q in the Frobenius norm, by (2).

    Law: the result is orthogonal for every Q, and Q itself if Q is.

    Example:
        >>> nearest_orthogonal(torch.tensor([[3.0, 0.0], [0.0, -2.0]]))
        tensor([[ 1., 0.],
                [ 0., -1.]])
    """
    left, right = _polar_factors("nearest_orthogonal", Q)
    return left @ right


def nearest_rotation(Q: Square) -> Square:
    """The rotation (orthogonal, det = 1) nearest to Q: (2), with the weakest singular direction reversed if det Q < 0.

    Law: the result is a rotation for every Q, and Q itself if Q is.

    Example:
        >>> nearest_rotation(torch.tensor([[3.0, 0.0], [0.0, -2.0]]))
        tensor([[1., 0.],
                [0., 1.]])
    """
    left, right = _polar_factors("nearest_rotation", Q)
    if torch.linalg.det(left @ right) < 0:
        left = torch.cat((left[:, :-1], -left[:, -1:]), dim=1)
    return left @ right


def spectral_norm(M: Matrix) -> Scalar:
    """‖M‖₂ of (3), the largest singular value; exact, by decomposition, and differentiable.

    Law: ‖M x‖ ≤ ‖M‖₂ ‖x‖ for all x, with equality for one.

    Example:
        >>> spectral_norm(torch.tensor([[3.0, 0.0], [0.0, -5.0]]))
        tensor(5.)
    """
    return torch.linalg.matrix_norm(M, ord=2)


def _polar_factors(who: str, Q: Tensor) -> tuple[Tensor, Tensor]:
    if Q.ndim != 2 or Q.shape[0] != Q.shape[1]:
        raise ShapeError(f"{who} expects a square matrix, got shape {tuple(Q.shape)}.")
    left, _, right = torch.linalg.svd(Q)
    return left, right
