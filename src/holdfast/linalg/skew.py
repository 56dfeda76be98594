"""Skew-symmetric generators and the maps from them, or from reflections, onto orthogonal matrices.

    A = L - Lᵀ, L strictly lower triangular                (1) a skew generator and its size(size-1)/2 free numbers
    exp(A) = r(A/2^s)^(2^s),  r(A) = p(-A)⁻¹ p(A)          (2) onto the rotations; p of degree 13, ‖A/2^s‖₁ ≤ 5.37
    (I + A)⁻¹ (I - A) D,  D = diag(±1)                     (3) scaled Cayley: all but those with eigenvalue -1 of QD
    H_1 H_2 ... H_m,  H_i = I - 2 v_i v_iᵀ / ‖v_i‖²        (4) reflections
    (4) = I - Vᵀ T V,  T⁻¹ = I/2 + triu(V Vᵀ, 1)           (5) the same, compact; rows of V of length 1
    Q ↦ Q (3 I - QᵀQ) / 2                                  (6) one Newton step to the nearest orthogonal matrix

(5) is one triangular system instead of m products, and |T_ij| = |4 v_iᵀ H_{i+1} ... H_{j-1} v_j| ≤ 4 off the diagonal,
so it is as accurate as the products. (6) squares the error that rounding leaves: 1e-4 becomes 1e-8.

Note [Own exponential]. (2) is a Padé approximant with scaling and squaring, instead of ``torch.matrix_exp``. That has,
in torch 2.13, a wrong coefficient of degree 8 for a single matrix (pytorch/pytorch#196592; a rotation by 0.04 is off by
8e-11), and its backward exponentiates a matrix of twice the size (1.2 s against 0.33 s for size 512 in float64). For a
skew A, p(-A) = p(A)ᵀ, so r(A) is orthogonal as a Cayley transform is, and the system to solve is well conditioned.

Sources: Lezcano-Casado & Martínez-Rubio (2019), §3, and Higham (2005), Algorithm 2.3, for (2); Helfrich, Willmott & Ye
(2018), §3 for (3); Joffrain et al. (2006) for (5); Higham (2008), §8.3 for (6).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.errors import OutsideSetError, ShapeError
from holdfast.linalg.norms import nearest_orthogonal, orthogonality_error, orthogonality_tolerance

__all__ = [
    "cayley",
    "cayley_inverse",
    "exp_map",
    "householder_inverse",
    "householder_product",
    "log_map",
    "skew",
    "skew_from_vector",
]

Square = Float[Tensor, "size size"]
Signs = Float[Tensor, "size"]
Lower = Float[Tensor, "entries"]
Reflectors = Float[Tensor, "reflections size"]

_PADE = [math.comb(13, j) / math.perm(26, j) for j in range(14)]  # the coefficients of p
_SQUARINGS = 12  # at most, in a graph


def skew(X: Square) -> Square:
    """A = L - Lᵀ of (1), L the strictly lower triangle of X. The rest of X is not read.

    Law: Aᵀ = -A for every X, and ``skew(A) == A`` for a skew A.

    Example:
        >>> skew(torch.tensor([[9.0, 9.0], [1.0, 9.0]]))
        tensor([[ 0., -1.],
                [ 1., 0.]])
    """
    lower = X.tril(-1)
    return lower - lower.mT


def skew_from_vector(lower: Lower, size: int) -> Square:
    """A of (1) from the size(size-1)/2 entries below the diagonal, row by row.

    Example:
        >>> skew_from_vector(torch.tensor([1.0, 2.0, 3.0]), 3)
        tensor([[ 0., -1., -2.],
                [ 1., 0., -3.],
                [ 2., 3., 0.]])
    """
    if lower.shape != (size * (size - 1) // 2,):
        raise ShapeError(
            f"skew_from_vector expects {size * (size - 1) // 2} entries for size {size}, got {tuple(lower.shape)}."
        )
    rows, columns = torch.tril_indices(size, size, -1, device=lower.device)
    X = lower.new_zeros(size, size).index_put((rows, columns), lower)
    return X - X.mT


def exp_map(X: Square) -> Square:
    """exp(A), A = skew(X): (2), then (6) once against the rounding of repeated squaring.

    Law: the result is a rotation for every square X, since exp(A)ᵀ = exp(-A) and det exp(A) = exp(tr A) = 1.

    Example:
        >>> quarter_turn = exp_map(torch.tensor([[0.0, 0.0], [torch.pi / 2, 0.0]]))
        >>> torch.testing.assert_close(quarter_turn, torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
    """
    return _newton_step(_exp(skew(X)))


def cayley(X: Square, signs: Signs | None = None) -> Square:
    """(I + A)⁻¹ (I - A) D, A = skew(X), D = diag(signs) or I: (3), then (6) once against the rounding of the solution.

    Law: orthogonal for every square X, as I - A and I + A commute and are each other's transposes; det = Π signs.
    The factor before D has no eigenvalue -1.

    Example:
        >>> cayley(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
        tensor([[ 0., 1.],
                [-1., 0.]])
    """
    A, identity = skew(X), torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)
    Q = _newton_step(torch.linalg.solve(identity + A, identity - A))
    return Q if signs is None else Q * signs


def householder_product(V: Reflectors) -> Square:
    """H_1 H_2 ... H_m of (4) for the rows v_1, ..., v_m of V, by (5) and (6): the last row is applied first.

    A row of zeros is the identity, and its gradient is zero.

    Law: orthogonal for every V, unchanged when a row is multiplied by a number other than 0; det = (-1)^m without
    rows of zeros.

    Example:
        >>> householder_product(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
        tensor([[-1., 0.],
                [ 0., 1.]])
    """
    largest = V.detach().abs().amax(dim=-1, keepdim=True)  # first to a size whose square neither overflows nor vanishes
    V = V / torch.where(largest > 0, largest, 1)
    V = V / torch.where(largest > 0, torch.linalg.vector_norm(V, dim=-1, keepdim=True), 1)
    half = torch.eye(V.shape[0], dtype=V.dtype, device=V.device) / 2
    compact = torch.linalg.solve_triangular(half + (V @ V.mT).triu(1), V, upper=True)  # T V
    identity = torch.eye(V.shape[1], dtype=V.dtype, device=V.device)
    return _newton_step(identity - V.mT @ compact)


def log_map(Q: Square) -> Square:
    """A skew A with exp(A) = Q for a rotation Q, all its angles in [-π, π]. Computed in float64, without a gradient.

    Law: ``exp_map(log_map(Q)) == Q`` up to rounding for every rotation, half-turns (eigenvalue -1) included.

    The symmetric part of Q, with eigenvalues cos θ, splits the space into invariant parts with θ near π and not. Away
    from π, Q^(1/2) is the polar factor of I + Q, and the skew part of Q^(1/4) has eigenvalues i sin(θ/4): its arcsine
    is smooth. Near π that is done for -Q = exp(B), and then A = B - π J with J² = -I and JB = BJ.

    Example:
        >>> log_map(-torch.eye(2, dtype=torch.float64)).abs()
        tensor([[0.0000, 3.1416],
                [3.1416, 0.0000]], dtype=torch.float64)
    """
    R = _orthogonal_in_double("log_map", Q)
    if torch.linalg.det(R) < 0:
        raise OutsideSetError("log_map expects a rotation, but det Q = -1; take nearest_rotation(Q).")
    cosines, basis = torch.linalg.eigh((R + R.mT) / 2)  # ascending
    inside = cosines[(cosines > -0.99) & (cosines < -0.5)]
    edges = torch.cat((cosines.new_tensor([-0.99]), inside, cosines.new_tensor([-0.5])))
    widest = edges.diff().argmax()  # cut in the widest gap, so that no plane is torn apart by rounding
    near_pi = cosines < (edges[widest] + edges[widest + 1]) / 2
    P, N = basis[:, ~near_pi], basis[:, near_pi]
    B = _log_away_from_pi(-N.mT @ R @ N)
    A = P @ _log_away_from_pi(P.mT @ R @ P) @ P.mT + N @ (B - torch.pi * _complex_structure(B)) @ N.mT
    return ((A - A.mT) / 2).to(Q.dtype)


def cayley_inverse(Q: Square) -> tuple[Square, Signs]:
    """A skew A and signs D with Q = (I + A)⁻¹ (I - A) D, for any orthogonal Q. Computed in float64, without a gradient.

    D is chosen along the elimination of Q + D, each sign that of the current pivot: no pivot is below 1, so Q + D is
    far from singular and A = (I - QD)(I + QD)⁻¹ exists.

    Law: ``cayley(*cayley_inverse(Q)) == Q`` up to rounding for every orthogonal Q.

    Example:
        >>> A, signs = cayley_inverse(torch.diag(torch.tensor([1.0, -1.0])))
        >>> A.abs().max(), signs
        (tensor(0.), tensor([ 1., -1.]))
    """
    R = _orthogonal_in_double("cayley_inverse", Q)
    work = R.clone()
    signs = torch.ones(len(R), dtype=R.dtype, device=R.device)
    for i in range(len(R)):
        signs[i] = 1.0 if work[i, i] >= 0 else -1.0
        below = work[i + 1 :, i] / (work[i, i] + signs[i])
        work[i + 1 :, i + 1 :] -= torch.outer(below, work[i, i + 1 :])
    identity = torch.eye(len(R), dtype=R.dtype, device=R.device)
    A = torch.linalg.solve(identity + R * signs, identity - R * signs, left=False)
    return ((A - A.mT) / 2).to(Q.dtype), signs.to(Q.dtype)


def householder_inverse(Q: Square) -> tuple[Square, Signs]:
    """Reflectors V and signs D with Q = H_1 ... H_n D, for any orthogonal Q. Computed in float64, without a gradient.

    By elimination, each v_i chosen away from cancellation: none is zero, so each one can learn.

    Law: ``householder_product(V) * D == Q`` up to rounding for every orthogonal Q, with rows of V of length 1.

    Example:
        >>> V, signs = householder_inverse(torch.eye(2))
        >>> V.abs(), signs
        (tensor([[1., 0.],
                [0., 1.]]), tensor([-1., -1.]))
    """
    work = _orthogonal_in_double("householder_inverse", Q)
    reflectors, signs = torch.zeros_like(work), torch.ones_like(work[0])
    for i in range(len(work)):
        v = work[:, i].clone()  # H_i takes it to ∓e_i, and leaves e_1, ..., e_{i-1} alone as v has no share of them
        v[:i] = 0
        signs[i] = -1.0 if v[i] >= 0 else 1.0
        v[i] -= signs[i]
        v /= v.norm()
        work -= 2 * torch.outer(v, v @ work)
        reflectors[i] = v
    return reflectors.to(Q.dtype), signs.to(Q.dtype)


def _orthogonal_in_double(who: str, Q: Tensor) -> Tensor:
    if Q.ndim != 2 or Q.shape[0] != Q.shape[1]:
        raise ShapeError(f"{who} expects a square matrix, got shape {tuple(Q.shape)}.")
    error, tol = orthogonality_error(Q), orthogonality_tolerance(Q.dtype)
    if not error <= tol:  # also if it is NaN
        raise OutsideSetError(
            f"{who} expects an orthogonal matrix, but ‖QᵀQ - I‖ = {error:.2g} > {tol:.0e}; take nearest_orthogonal(Q)."
        )
    return Q.detach().to(torch.float64, copy=True)


def _exp(A: Tensor) -> Tensor:
    """(2), for a skew A. See Note [Own exponential]."""
    if torch.compiler.is_compiling():
        return _exp_in_a_graph(A)
    norm = torch.linalg.matrix_norm(A.detach(), ord=1).item()
    squarings = math.ceil(math.log2(norm / 5.37)) if 5.37 < norm < math.inf else 0
    Q = _pade(A / 2**squarings)
    for _ in range(squarings):
        Q = Q @ Q
    return Q


def _exp_in_a_graph(A: Tensor) -> Tensor:
    """The same where Python cannot look at the norm: up to ``_SQUARINGS`` squarings, of which those in vain are not
    taken. NaN beyond, at a norm of 20,000.
    """
    norm = torch.linalg.matrix_norm(A.detach(), ord=1)
    squarings = torch.where(norm > 5.37, torch.ceil(torch.log2(norm / 5.37)), 0.0)
    squarings = torch.where(squarings <= _SQUARINGS, squarings, torch.nan)
    Q = _pade(A / 2**squarings)
    for done in range(_SQUARINGS):
        Q = torch.where(done < squarings, Q @ Q, Q)
    return Q


def _pade(A: Tensor) -> Tensor:
    identity = torch.eye(len(A), dtype=A.dtype, device=A.device)
    b, A2 = _PADE, A @ A
    A4 = A2 @ A2
    A6 = A4 @ A2
    odd = A6 @ (b[13] * A6 + b[11] * A4 + b[9] * A2) + b[7] * A6 + b[5] * A4 + b[3] * A2 + b[1] * identity
    odd = A @ odd
    even = A6 @ (b[12] * A6 + b[10] * A4 + b[8] * A2) + b[6] * A6 + b[4] * A4 + b[2] * A2 + identity
    return torch.linalg.solve(even - odd, even + odd)


def _newton_step(Q: Tensor) -> Tensor:
    """(6)."""
    return 1.5 * Q - 0.5 * Q @ (Q.mT @ Q)


def _log_away_from_pi(R: Tensor) -> Tensor:
    """The logarithm of R, for a rotation R with no angle near π, by two square roots and an arcsine."""
    identity = torch.eye(len(R), dtype=R.dtype, device=R.device)
    quarter = nearest_orthogonal(identity + nearest_orthogonal(identity + R))
    sines, V = torch.linalg.eigh(-0.5j * (quarter - quarter.mT).to(torch.complex128))
    return (1j * (V * (4 * sines.clamp(-1, 1).asin())) @ V.mH).real


def _complex_structure(B: Tensor) -> Tensor:
    """J with J² = -I and JB = BJ, for a skew B of even size: i on the upper half of the spectrum of -iB, -i below.

    Where B vanishes any J_0 works, and rounding would mix the halves: there, basis vectors are paired.
    """
    half = len(B) // 2
    values, V = torch.linalg.eigh(-1j * B.to(torch.complex128))  # ascending, and symmetric about 0
    idle = int((values[half:] < 1e-14).sum())
    upper, kernel = V[:, half + idle :], V[:, half - idle : half + idle]
    _, basis = torch.linalg.eigh((kernel @ kernel.mH).real)  # a projector: 1 on the kernel, 0 off it
    left, right = basis[:, len(B) - 2 * idle : len(B) - idle], basis[:, len(B) - idle :]
    return nearest_orthogonal(-2 * (upper @ upper.mH).imag + right @ left.mT - left @ right.mT)
