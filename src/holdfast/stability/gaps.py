"""What truncation costs: states, gradients, weights. S4's lemmas as functions of their constants.

    ‖h_t - h_t^k‖ ≤ λ^k R,  R ≥ ‖h_{t-k}‖                                                   (1) Lemma 1
    ‖∇p_T - ∇p_T^k‖ ≤ λ^k L_p L_w / (1 - λ)                                                 (2) Lemma 2: older than k
                    + λ^k β_p R L_w (1 - λ^k) / (1 - λ)                                         another ∇_h p
                    + k λ^(k-1) L_p β_wh R                                                      another ∂h_t/∂w
                    + λ^(k-1) L_p L_w β_hh R (k - (1 - λ^k) / (1 - λ)) / (1 - λ)                other Jacobians
    β = (β_p L_w² + L_p L_w (β_wh + β_hw)) / (1 - λ)² + L_p β_ww / (1 - λ)
      + L_p L_w² β_hh / (1 - λ)³                                                            (3) Lemma 3
    δ_0 = 0,  δ_i ≤ (1 + α_i β) δ_{i-1} + α_i G                                             (4) Proposition 2, its proof
    δ_N ≤ α G N^(α β + 1),  α_i = α / i                                                     (5) Proposition 2
    ‖y_T - y_T^k‖ ≤ L_f (L_w δ_N / (1 - λ) + λ^k R)                                         (6) Theorem 1, its proof

p is the loss after T steps, with |∂p/∂h| ≤ L_p and ∂p/∂h β_p-Lipschitz; G is (2); δ is how far the weights of the full
and the truncated model lie apart. ``form="published"`` has λ^k in the last two lines of (2), and k in place of the last
bracket: as printed, and not true for small λ. All proofs: docs/theory/s4-stability.md. Source: S4, A.1 and A.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from holdfast.errors import one_of, positive_size
from holdfast.stability.step import Smoothness, times

__all__ = ["gradient_gap", "gradient_smoothness", "trained_output_gap", "weight_gap", "weight_gap_closed"]

GapForm = Literal["exact", "published"]


def gradient_gap(
    k: int,
    *,
    rate: float,
    state_bound: float,
    smoothness: Smoothness,
    loss_lipschitz: float,
    loss_smoothness: float,
    form: GapForm = "exact",
) -> float:
    """How far the gradient of the model truncated to k inputs can be from the full model's: (2).

    Law: ‖∇_w p_T - ∇_w p_T^k‖ is at most this, at every w for which the constants hold; 0 in the limit of large k.

    Args:
        k: the length of the window.
        rate, state_bound, smoothness: λ < 1, R, and L_w, β_wh, β_hh.
        loss_lipschitz, loss_smoothness: L_p and β_p, of the loss as a function of the last state.
        form: ``"exact"``, or ``"published"`` as printed.

    Example:
        >>> constants = dict(state_bound=1.0, smoothness=Smoothness(1.0, 0.0, 1.0, 1.0, 0.0))
        >>> loss = dict(loss_lipschitz=1.0, loss_smoothness=0.0)
        >>> gradient_gap(1, rate=0.0, **constants, **loss)  # even for U = 0, ∂p/∂U = h_{T-1} is missed
        1.0
        >>> gradient_gap(1, rate=0.0, **constants, **loss, form="published")
        0.0
    """
    positive_size("gradient_gap", "k", k)
    one_of("gradient_gap", "form", form, ("exact", "published"))
    if rate >= 1:
        return math.inf
    L_p, beta_p, L_w, R, left = loss_lipschitz, loss_smoothness, smoothness.weights, state_bound, 1 - rate
    exact = form == "exact"
    late = rate ** (k - 1 if exact else k)
    recent = (1 - rate**k) / left  # Σ λ^i, i < k
    return (
        rate**k * times(L_p, L_w) / left
        + rate**k * times(beta_p, R, L_w) * (recent if exact else 1 / left)
        + k * late * times(L_p, smoothness.wh, R)
        + late * times(L_p, L_w, smoothness.hh, R) * (k - recent if exact else k) / left
    )


def gradient_smoothness(*, rate: float, smoothness: Smoothness, loss_lipschitz: float, loss_smoothness: float) -> float:
    """The β with ‖∇p_T(w) - ∇p_T(w')‖ ≤ β ‖w - w'‖, for full and truncated models and every T: (3).

    Example:
        >>> gradient_smoothness(
        ...     rate=0.5, smoothness=Smoothness(1.0, 0.0, 0.0, 0.0, 0.0), loss_lipschitz=1.0, loss_smoothness=1.0
        ... )
        4.0
    """
    if rate >= 1:
        return math.inf
    L_p, beta_p, L_w, left = loss_lipschitz, loss_smoothness, smoothness.weights, 1 - rate
    return (
        (times(beta_p, L_w, L_w) + times(L_p, L_w, smoothness.wh + smoothness.hw)) / left**2
        + times(L_p, smoothness.ww) / left
        + times(L_p, L_w, L_w, smoothness.hh) / left**3
    )


def weight_gap(gap: float, beta: float, step_sizes: Iterable[float]) -> float:
    """How far apart projected gradient descent can drive the two models' weights, with these step sizes: (4).

    Law: after the last of the steps, ‖w_recurr - w_trunc‖ is at most this, if both started at the same weights and are
    projected onto the same convex set, on all of which ``gap`` (2) and ``beta`` (3) hold.

    Example:
        >>> weight_gap(1.0, 0.0, [0.1 / i for i in (1, 2)])  # 0.1 + 0.05
        0.15000000000000002
    """
    apart = 0.0
    for size in step_sizes:
        apart = (1 + times(size, beta)) * apart + times(size, gap)
    return apart


def weight_gap_closed(gap: float, beta: float, alpha: float, steps: int) -> float:
    """Proposition 2 as printed, for α_i = α / i: (5). Never below ``weight_gap``.

    Example:
        >>> weight_gap_closed(1.0, 0.0, alpha=0.1, steps=2)
        0.2
    """
    try:
        return alpha * gap * steps ** (alpha * beta + 1)
    except OverflowError:
        return math.inf


def trained_output_gap(
    k: int, *, rate: float, state_bound: float, weight_lipschitz: float, output_lipschitz: float, weights_apart: float
) -> float:
    """How far apart the outputs of the two trained models can be, each with its own weights: (6).

    Example:
        >>> trained_output_gap(
        ...     1, rate=0.5, state_bound=1.0, weight_lipschitz=1.0, output_lipschitz=2.0, weights_apart=0.0
        ... )
        1.0
    """
    positive_size("trained_output_gap", "k", k)
    if rate >= 1:
        return math.inf
    return output_lipschitz * (weight_lipschitz * weights_apart / (1 - rate) + rate**k * state_bound)
