"""What S3 proves of SGORNN: a generalisation gap and two bounds on gradients, none of them exponential in time.

    h_t = α relu(W x_t + φ(Θ) h_{t-1}) + β h_{t-1},  h_0 = 0,  ŷ = σ_y(vᵀ h_T)           (1) the model
    C = R_x R_W R_v,  ‖x_t‖ ≤ R_x,  ‖W‖_F ≤ R_W,  ‖v‖ ≤ R_v                              (2) its bounds
    E L - mean L ≤ 4 C α T / √m + 3 B_L √(log(2/δ) / (2m)),  β ≤ 1 - 2α                  (3) S3 Theorem 1
    max |∂L/∂Θ| ≤ C M_φ h^(3/2) (α T)²,  max |∂L/∂W| ≤ C α T √h / R_W,  β ≤ 1 - α        (4) S3 Theorem 2: (7), (8)
    max |∂L/∂Θ| ≤ 4 C h² log₂(h) (α T)²,  rotations, β ≤ 1 - α                           (5) S3 Corollary 1: (9)

L is 1-Lipschitz in ŷ and read at the last step, σ_y is 1-Lipschitz, there is no bias, h is the size of the state.
|∂φ(Θ)_τμ / ∂Θ_ij| ≤ M_φ. Forms, derived in docs/theory/s3-bounds.md:

    "exact"      (3) as the proof has it; (4), (5) with the √h that step (31) of the proof loses
    "published"  as printed: √(log(2/δ) / m) in (3); h in place of h^(3/2), and h^(3/2) in place of h², in (4), (5)
    "sharp"      our own, for gradients: each step adds a matrix of rank one, and t steps of state are not T

Source: S3, §2.1, §2.2 and Appendix A. Symbols: docs/notation.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.errors import SettingError, one_of, positive_number, positive_size
from holdfast.linalg.givens import default_sublayers

__all__ = [
    "ModelBounds",
    "generalisation_gap",
    "gradient_bound_rotations",
    "gradient_bound_theta",
    "gradient_bound_weight_ih",
    "rotations_derivative_bound",
]

GapForm = Literal["exact", "published"]
GradientForm = Literal["exact", "published", "sharp"]
GRADIENT_FORMS = get_args(GradientForm)


@dataclass(frozen=True)
class ModelBounds:
    """R_x, R_W and R_v of (2): what the inputs, the input weights and the readout stay within.

    Args:
        x_norm: R_x ≥ ‖x_t‖₂ for every step of every input.
        weight_ih_norm: R_W ≥ ‖W‖_F.
        readout_norm: R_v ≥ ‖v‖₂.

    Example:
        >>> ModelBounds(x_norm=2.0, weight_ih_norm=3.0, readout_norm=0.5).product
        3.0
    """

    x_norm: float
    weight_ih_norm: float
    readout_norm: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            positive_number("ModelBounds", name, value)

    @property
    def product(self) -> float:
        """C of (2)."""
        return self.x_norm * self.weight_ih_norm * self.readout_norm


def generalisation_gap(
    bounds: ModelBounds,
    *,
    alpha: float,
    beta: float,
    steps: int,
    samples: int,
    loss_bound: float,
    delta: float,
    form: GapForm = "exact",
) -> float:
    """By how much the expected loss can exceed the mean over ``samples``: (3), S3 Theorem 1.

    Law: with probability at least 1 - δ over the draw of m samples, and for all W, Θ, v within ``bounds``, the expected
    loss is at most the mean loss plus this. The gates are fixed beforehand, with β ≤ 1 - 2α.

    Args:
        bounds: R_x, R_W, R_v.
        alpha, beta: the gates.
        steps, samples: T and m.
        loss_bound: B_L; the loss lies in [0, B_L].
        delta: δ in (0, 1).
        form: ``"exact"``: √(log(2/δ)/(2m)), as the proof ends (24). ``"published"``: √(log(2/δ)/m), the statement (6).

    Example:
        >>> unit = ModelBounds(x_norm=1.0, weight_ih_norm=1.0, readout_norm=1.0)
        >>> gap = generalisation_gap(
        ...     unit, alpha=0.01, beta=0.98, steps=100, samples=10_000, loss_bound=1.0, delta=0.05
        ... )
        >>> round(gap, 4)  # 4 · 1 · 1 / 100 + 3 √(log(40) / 20,000)
        0.0807
    """
    who = "generalisation_gap"
    one_of(who, "form", form, ("exact", "published"))
    check_gates(who, alpha, beta, slope=2, steps=steps, samples=samples)
    positive_number(who, "loss_bound", loss_bound)
    if not 0 < delta < 1:
        raise SettingError(f"{who} expects delta in (0, 1), got {delta}.")
    complexity = 4 * bounds.product * alpha * steps / math.sqrt(samples)
    spread = math.log(2 / delta) / (2 * samples if form == "exact" else samples)
    return complexity + 3 * loss_bound * math.sqrt(spread)


def gradient_bound_theta(
    bounds: ModelBounds,
    *,
    alpha: float,
    beta: float,
    steps: int,
    hidden_size: int,
    derivative_bound: float,
    form: GradientForm = "exact",
) -> float:
    """What no entry of ∂L/∂Θ exceeds: (4), S3 Theorem 2 (7), for any map φ onto orthogonal matrices.

    Law: max |∂L/∂Θ| is at most this, for all inputs, weights and targets within ``bounds``, if β ≤ 1 - α.

    Args:
        bounds: R_x, R_W, R_v.
        alpha, beta: the gates.
        steps, hidden_size: T and h.
        derivative_bound: M_φ; 1 for rotations (``rotations_derivative_bound``).
        form: ``"exact"``: C M_φ h^(3/2) (αT)². ``"published"``: C M_φ h (αT)², true as well, though not by the printed
            proof. ``"sharp"``: C M_φ h α² T(T-1)/2.

    Example:
        >>> unit = ModelBounds(x_norm=1.0, weight_ih_norm=1.0, readout_norm=1.0)
        >>> setting = dict(alpha=0.01, beta=0.98, steps=100, hidden_size=16, derivative_bound=1.0)
        >>> [round(gradient_bound_theta(unit, **setting, form=form), 2) for form in ("exact", "published", "sharp")]
        [64.0, 16.0, 7.92]
    """
    one_of("gradient_bound_theta", "form", form, GRADIENT_FORMS)
    check_gates("gradient_bound_theta", alpha, beta, steps=steps, hidden_size=hidden_size)
    positive_number("gradient_bound_theta", "derivative_bound", derivative_bound)
    size = {"exact": hidden_size**1.5, "published": hidden_size, "sharp": hidden_size}[form]
    return bounds.product * derivative_bound * size * _growth(alpha, steps, form)


def gradient_bound_weight_ih(
    bounds: ModelBounds,
    *,
    alpha: float,
    beta: float,
    steps: int,
    hidden_size: int,
    form: GradientForm = "exact",
) -> float:
    """What no entry of ∂L/∂W exceeds: (4), S3 Theorem 2 (8).

    Law: max |∂L/∂W| is at most this, for all inputs, weights and targets within ``bounds``, if β ≤ 1 - α.

    Args:
        bounds, alpha, beta, steps, hidden_size: as in ``gradient_bound_theta``.
        form: ``"exact"`` and ``"published"``: R_x R_v α T √h; (8) is right as printed. ``"sharp"``: without the √h.

    Example:
        >>> unit = ModelBounds(x_norm=1.0, weight_ih_norm=1.0, readout_norm=1.0)
        >>> gradient_bound_weight_ih(unit, alpha=0.01, beta=0.98, steps=100, hidden_size=16)
        4.0
    """
    one_of("gradient_bound_weight_ih", "form", form, GRADIENT_FORMS)
    check_gates("gradient_bound_weight_ih", alpha, beta, steps=steps, hidden_size=hidden_size)
    size = 1.0 if form == "sharp" else math.sqrt(hidden_size)
    return bounds.x_norm * bounds.readout_norm * alpha * steps * size


def gradient_bound_rotations(
    bounds: ModelBounds,
    *,
    alpha: float,
    beta: float,
    steps: int,
    hidden_size: int,
    derivative_bound: float | None = None,
    form: GradientForm = "exact",
) -> float:
    """What no angle's gradient exceeds if φ is a product of rotations: (5), S3 Corollary 1 (9).

    Law: max |∂L/∂Θ| is at most this, for all angles, permutations, inputs, weights and targets within ``bounds``, if
    β ≤ 1 - α.

    Args:
        bounds, alpha, beta, steps, hidden_size: as in ``gradient_bound_theta``, with h even.
        derivative_bound: M_φ for ``"exact"`` and ``"published"``; default 4 √h log₂ h, as printed.
        form: ``"exact"`` and ``"published"``: ``gradient_bound_theta`` with M_φ. ``"sharp"``: C α² T(T-1)/2, whatever
            the size, since an angle's derivative of φ has spectral norm 1.

    Example:
        >>> unit = ModelBounds(x_norm=1.0, weight_ih_norm=1.0, readout_norm=1.0)
        >>> setting = dict(alpha=0.01, beta=0.98, steps=100, hidden_size=16)
        >>> [round(gradient_bound_rotations(unit, **setting, form=form), 3) for form in ("exact", "published", "sharp")]
        [4096.0, 1024.0, 0.495]
    """
    one_of("gradient_bound_rotations", "form", form, GRADIENT_FORMS)
    _even("gradient_bound_rotations", hidden_size)
    setting = {"alpha": alpha, "beta": beta, "steps": steps}
    if form == "sharp":
        check_gates("gradient_bound_rotations", **setting)
        return bounds.product * _growth(alpha, steps, form)
    if derivative_bound is None:
        derivative_bound = rotations_derivative_bound(hidden_size, form="published")
    return gradient_bound_theta(
        bounds, **setting, hidden_size=hidden_size, derivative_bound=derivative_bound, form=form
    )


def rotations_derivative_bound(hidden_size: int, sublayers: int | None = None, form: GradientForm = "sharp") -> float:
    """M_φ for a product of rotations: what no entry of ∂φ(Θ)/∂θ exceeds.

    Law: it holds for all angles, permutations and entries; ``"sharp"`` is attained.

    Args:
        hidden_size: h, even.
        sublayers: k; default 2 ⌈log₂ h⌉. Only ``"exact"`` reads it.
        form: ``"sharp"``: 1. ``"exact"``: k √h, what the proof shows (36). ``"published"``: 4 √h log₂ h (Corollary 1).

    Example:
        >>> [rotations_derivative_bound(16, form=form) for form in ("sharp", "exact", "published")]
        [1.0, 32.0, 64.0]
    """
    who = "rotations_derivative_bound"
    one_of(who, "form", form, GRADIENT_FORMS)
    _even(who, hidden_size)
    if sublayers is not None:
        positive_size(who, "sublayers", sublayers)
    if form == "sharp":
        return 1.0
    if form == "exact":
        return (default_sublayers(hidden_size) if sublayers is None else sublayers) * math.sqrt(hidden_size)
    return 4 * math.sqrt(hidden_size) * math.log2(hidden_size)


def _growth(alpha: float, steps: int, form: GradientForm) -> float:
    """α Σ_t ‖h_{t-1}‖ / (R_W R_x): each state is bounded by α T, or sharply by α (t-1)."""
    return alpha**2 * steps * (steps - 1) / 2 if form == "sharp" else (alpha * steps) ** 2


def check_gates(who: str, alpha: float, beta: float, slope: int = 1, **sizes: int) -> None:
    """The premise of a bound: 0 < α < 1, 0 ≤ β ≤ 1 - slope · α, sizes of at least 1."""
    for name, size in sizes.items():
        positive_size(who, name, size)
    if not (0 < alpha < 1 and 0 <= beta < 1 and slope * alpha + beta <= 1):
        premise = "beta ≤ 1 - 2 alpha" if slope == 2 else "beta ≤ 1 - alpha"
        clip = '"2alpha"' if slope == 2 else '"alpha"'
        raise SettingError(
            f"{who} expects alpha in (0, 1) and beta in [0, 1) with {premise}, got alpha={alpha}, beta={beta}; "
            f"use ScalarGates(clip={clip})."
        )


def _even(who: str, hidden_size: int) -> None:
    if hidden_size < 2 or hidden_size % 2:
        raise SettingError(
            f"{who} expects hidden_size to be even, as rotations turn features in pairs, got {hidden_size}."
        )
