"""Matrices of bounded spectral norm: the nearest one, a cheaper one, and a constraint for any module's weight.

    argmin {‖P - W‖_F : ‖P‖₂ ≤ r} = Σ_i min(σ_i, r) u_i v_iᵀ,  W = Σ_i σ_i u_i v_iᵀ        (1) clip, exact
    W · r / s,  s ≥ ‖W‖₂ proved                                                            (2) shrink, fast
    s² I - WᵀW = RᵀR exists  ⇔  ‖W‖₂ ≤ s                                                   (3) the proof: Cholesky
    d(1) = U (Γ₋ ∘ sym D + Γ₊ ∘ skew D) Vᵀ,  D = Uᵀ dW V,  Γ± = (f_i ± f_j)/(σ_i ± σ_j)    (4) derivative, f = min(σ, r)

(2) is proved to land inside in floating point: (3) is factored in float64 for s² lowered by what rounding can do to WᵀW
and to the factor, and the last scaling leaves room for its own rounding. A matrix that (3) proves to be inside already
is left alone. s comes from a block power iteration, a little enlarged; if (3) refuses it, it is enlarged more.

Sources: Miller & Hardt (2019), §7.2 for (1); Higham (2002), Accuracy and Stability, §3.5 and Theorem 10.3 for the
rounding in (3); Lewis & Sendov (2005) for (4). Proofs: docs/theory/s4-stability.md.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from holdfast.errors import OutsideSetError, SettingError, ShapeError, one_of, positive_number
from holdfast.linalg.norms import spectral_norm

__all__ = ["SpectralBall", "clip_spectral", "shrink_spectral", "spectral_ball", "spectral_norm_bound"]

Matrix = Float[Tensor, "rows columns"]
MAPS = ("clip", "scale")


def clip_spectral(W: Matrix, radius: float = 1.0) -> Matrix:
    """The matrix of spectral norm at most ``radius`` that is nearest to W in the Frobenius norm: (1), by SVD.

    Law: inside, ``spectral_norm(result.double()) <= radius``; W itself, bit for bit, if W is inside; nearest.

    Example:
        >>> clip_spectral(torch.tensor([[3.0, 0.0], [0.0, 0.5]]))
        tensor([[1.0000, 0.0000],
                [0.0000, 0.5000]])
    """
    _check("clip_spectral", W, radius)
    wide = W.detach().double()
    if not wide.numel() or spectral_norm(wide) <= radius:
        return W.detach().clone()
    left, sigma, right = torch.linalg.svd(wide, full_matrices=False)
    clipped = ((left * sigma.clamp(max=radius)) @ right).to(W.dtype)  # (1)
    while (norm := spectral_norm(clipped.double()).item()) > radius:  # by the rounding of this type
        clipped = clipped * (radius / norm * (1 - torch.finfo(W.dtype).eps))
    return clipped


def shrink_spectral(W: Matrix, radius: float = 1.0) -> Matrix:
    """W, scaled to a spectral norm of at most ``radius``: (2), proved by (3), in the time of two or three products.

    Law: ‖result‖₂ ≤ radius, in exact arithmetic on the result; W itself if ‖W‖₂ ≤ radius (1 - 1e-9);
    and at most a factor 1e-3 shorter than necessary. It is not the nearest: all singular values shrink.

    Example:
        >>> shrunk = shrink_spectral(2 * torch.eye(3))
        >>> 0.999 <= spectral_norm(shrunk).item() <= 1
        True
    """
    _check("shrink_spectral", W, radius)
    wide = W.detach().double()
    if wide.norm().item() * (1 + 1e-12) <= radius or _proved(wide, radius):
        return W.detach().clone()
    u = torch.finfo(W.dtype).eps  # rounding W · c moves it by at most u ‖W · c‖_F ≤ u √n ‖W · c‖₂
    factor = radius / _enlarged(wide) * (1 - (math.sqrt(min(W.shape)) + 2) * u)
    return (wide * factor).to(W.dtype)


def spectral_norm_bound(W: Matrix) -> float:
    """The s of (3): at least ‖W‖₂, proved, and at most 1e-3 of it above; several times faster than the SVD for large W.

    Law: ‖W‖₂ ≤ s ≤ 1.001 ‖W‖₂, the left in exact arithmetic.

    Example:
        >>> 5 <= spectral_norm_bound(torch.tensor([[3.0, 0.0], [0.0, -5.0]])) <= 5.005
        True
    """
    _check("spectral_norm_bound", W, 1.0)
    return _enlarged(W.detach().double())


def _enlarged(wide: Tensor) -> float:
    """The least proved bound of a ladder above the power iteration's estimate."""
    frobenius = wide.norm().item() * (1 + 1e-12)
    if frobenius == 0:
        return 0.0
    estimate = _power_estimate(wide)
    for margin in (1e-6, 1e-4, 1e-3):
        if _proved(wide, estimate * (1 + margin)):
            return estimate * (1 + margin)
    return spectral_norm(wide).item() * (1 + 1e-9)  # the iteration had not converged: decompose


def _proved(wide: Tensor, s: float) -> bool:
    """Whether (3) proves ‖W‖₂ ≤ s. Note [What rounding can do]."""
    # Note [What rounding can do]: ‖fl(WᵀW) - WᵀW‖₂ ≤ γ ‖W‖_F², and a Cholesky factor that was found is that of a matrix
    # within γ' tr(A) of A; γ = n u / (1 - n u) with n the longer side plus 2. If A = (s² - δ) I - fl(WᵀW) has a factor
    # and δ ≥ γ (‖W‖_F² + n s²), then s² I - WᵀW is positive semidefinite.
    if wide.shape[0] < wide.shape[1]:
        wide = wide.mT
    gram, size = wide.mT @ wide, wide.shape[1]
    n = max(wide.shape) + 2
    gamma = 2 * n * torch.finfo(torch.float64).eps  # twice, for what this line itself rounds
    delta = gamma * (gram.diagonal().sum().item() + size * s * s)
    matrix = -gram
    matrix.diagonal().add_(s * s - delta)
    return bool(torch.linalg.cholesky_ex(matrix).info.item() == 0)


def _power_estimate(wide: Tensor, width: int = 8, rounds: int = 20) -> float:
    """‖W‖₂ from below, by block power iteration from a fixed start."""
    generator = torch.Generator().manual_seed(0)  # does not touch the user's random numbers
    block = torch.randn(wide.shape[1], min(width, *wide.shape), dtype=wide.dtype, generator=generator).to(wide.device)
    for _ in range(rounds):
        block = torch.linalg.qr(wide.mT @ (wide @ block)).Q
    return spectral_norm(wide @ block).item()


# -- a constraint ----------------------------------------------------------------------------------------------------


class SpectralBall(nn.Module):
    """X ↦ W with ‖W‖₂ ≤ radius, for ``torch.nn.utils.parametrize``: the identity inside the ball.

    Law: the result lies in the ball for every X, and every W of the ball is reached, by X = W.

    Args:
        radius: r > 0.
        map: ``"clip"``, (1), whose derivative (4) is stable where singular values meet; or ``"scale"``, X · r / ‖X‖₂
            where that is below X.

    Example:
        >>> ball = SpectralBall(0.5)
        >>> ball.contains(ball(torch.randn(4, 4))), ball.contains(torch.eye(4))
        (True, False)
    """

    def __init__(self, radius: float = 1.0, map: str = "clip"):
        super().__init__()
        one_of("SpectralBall", "map", map, MAPS)
        self.radius, self.map = positive_number("SpectralBall", "radius", radius), map

    def forward(self, X: Tensor) -> Tensor:
        if self.map == "clip":
            return _Clip.apply(X, self.radius)
        norm = spectral_norm(X)
        room = 1 - (math.sqrt(min(X.shape)) + 4) * torch.finfo(X.dtype).eps
        return torch.where(norm <= self.radius, X, X * (self.radius * room / norm))

    def right_inverse(self, W: Tensor) -> Tensor:
        if W.dim() != 2:
            raise ShapeError(f"SpectralBall expects a matrix, got shape {tuple(W.shape)}.")
        norm = spectral_norm(W.detach()).item()
        if not norm <= self.radius:
            raise OutsideSetError(
                f"The weight must have a spectral norm of at most {self.radius:g}, but it is {norm:.4g}; "
                f"assign clip_spectral(W, {self.radius:g})."
            )
        return W

    def contains(self, W: Matrix) -> bool:
        """Whether ‖W‖₂ ≤ radius, as computed, up to a few units of the last place."""
        slack = (math.sqrt(min(W.shape)) + 4) * torch.finfo(W.dtype).eps
        return spectral_norm(W.detach()).item() <= self.radius * (1 + slack)

    def extra_repr(self) -> str:
        return f"radius={self.radius:g}, map={self.map!r}"


class _Clip(torch.autograd.Function):
    """(1) with the derivative (4), which is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, radius: float) -> Tensor:
        ctx.save_for_backward(X)
        ctx.radius = radius
        return clip_spectral(X, radius)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (X,), (grad,) = ctx.saved_tensors, grads
        left, sigma, right = torch.linalg.svd(X, full_matrices=False)
        if sigma[0] <= ctx.radius:
            return grad, None
        f = sigma.clamp(max=ctx.radius)
        D = left.mT @ grad @ right.mT
        gap, both = sigma.unsqueeze(1) - sigma, sigma.unsqueeze(1) + sigma
        same = gap.abs() <= 1e-6 * both
        slope = ((sigma < ctx.radius).to(f.dtype).unsqueeze(1) + (sigma < ctx.radius).to(f.dtype)) / 2
        minus = torch.where(same, slope, (f.unsqueeze(1) - f) / torch.where(same, 1.0, gap))
        plus = torch.where(both > 0, (f.unsqueeze(1) + f) / torch.where(both > 0, both, 1.0), 1.0)
        inner = minus * (D + D.mT) / 2 + plus * (D - D.mT) / 2
        back = left @ inner @ right
        ratio = torch.where(sigma > 0, f / torch.where(sigma > 0, sigma, 1.0), 1.0)
        if left.shape[0] > left.shape[1]:  # what leaves the span of the left singular vectors, or of the right ones
            rest = grad @ right.mT
            back = back + ((rest - left @ (left.mT @ rest)) * ratio) @ right
        elif right.shape[1] > right.shape[0]:
            rest = left.mT @ grad
            back = back + left @ (ratio.unsqueeze(1) * (rest - (rest @ right.mT) @ right))
        return back, None


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def spectral_ball(module: ModuleT, name: str = "weight_hh", radius: float = 1.0, map: str = "clip") -> ModuleT:
    """Constrain the matrix ``name`` of any module to spectral norms of at most ``radius``, under any optimiser.

    It starts at the nearest matrix of the ball. Reading it gives W; assigning a matrix outside raises
    ``OutsideSetError`` and changes nothing.

    Law: the parameter lies in the ball after every step of every optimiser.

    Example:
        >>> rnn = spectral_ball(torch.nn.RNN(3, 4), "weight_hh_l0", radius=0.9)
        >>> bool(spectral_norm(rnn.weight_hh_l0) <= 0.9 + 1e-6)
        True
    """
    ball, weight = SpectralBall(radius, map), module._parameters.get(name)  # a parametrised one is not among these
    if weight is None or weight.dim() != 2 or not weight.is_floating_point():
        known = ", ".join(key for key, value in module.named_parameters(recurse=False) if value.dim() == 2)
        raise SettingError(
            f"spectral_ball found no plain matrix {name!r} in {type(module).__name__}; matrices there: {known}."
        )
    with torch.no_grad():
        weight.copy_(clip_spectral(weight, radius))
    parametrize.register_parametrization(module, name, ball)
    return module


def _check(who: str, W: Tensor, radius: float) -> None:
    if W.dim() != 2:
        raise ShapeError(f"{who} expects a matrix, got shape {tuple(W.shape)}.")
    positive_number(who, "radius", radius)
    if not W.isfinite().all():
        raise OutsideSetError(f"{who} expects finite entries, got a matrix with NaN or infinity.")
