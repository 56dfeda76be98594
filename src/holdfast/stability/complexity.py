"""What Theorem 1 of S3 is made of, and FastRNN's condition that it replaces.

    α ≤ min(1 / (4T |D ‖U‖₂ - 1|), 1 / (4T R_U), 1 / (T |‖U‖₂ - 1|))             (1) S3 (4): FastRNN's condition
    ℛ_m(F) = E_ε sup_{f ∈ F} (1/m) Σ_i ε_i f(z_i),  ε_i = ±1                     (2) S3 (12), of the losses (11)
    ℛ_m(L ∘ F) ≤ 2 C α T / √m,  β ≤ 1 - 2α                                       (3) S3 (23)
    ‖φ(Θ) - φ(Θ + Δ)‖₂ ≤ Σ_j max_i |Δ_ij| ≤ k max |Δ| ≤ k ‖Δ‖₂                   (4) S3 (34), k sublayers of rotations

(4): two rotations by angles that differ by δ_i differ by max_i 2 |sin(δ_i / 2)| ≤ max_i |δ_i| in the spectral norm, and
a product of k orthogonal factors changes by at most the sum of its factors' changes.

Source: S3, §2.1 and Appendices A.1, A.3; (1) from Kusupati et al. (2018). Symbols: docs/notation.md.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from holdfast.errors import SettingError, ShapeError, positive_number, positive_size
from holdfast.linalg.givens import default_sublayers
from holdfast.stability.bounds import ModelBounds, check_gates

__all__ = ["fastrnn_alpha_limit", "rademacher_bound", "rademacher_complexity", "rotations_lipschitz"]

EXACT = 16  # up to this many samples the mean over all signs is taken, of at most 2^16


def fastrnn_alpha_limit(
    *, steps: int, spectral_norm: float, frobenius_norm: float, activation_constant: float = 1.0
) -> float:
    """The largest α under which FastRNN's generalisation bound holds: (1), S3 (4).

    A term whose denominator is 0 sets no limit: S3 calls the condition undefined for an orthogonal U, where ‖U‖₂ = 1.
    SGORNN needs β ≤ 1 - 2α instead, for any length.

    Args:
        steps: T.
        spectral_norm: ‖U‖₂.
        frobenius_norm: R_U ≥ ‖U‖_F.
        activation_constant: D of (1), which depends on the activation; at least 0.

    Example:
        >>> [fastrnn_alpha_limit(steps=steps, spectral_norm=1.5, frobenius_norm=5.0) for steps in (10, 1000)]
        [0.005, 5e-05]
    """
    who = "fastrnn_alpha_limit"
    positive_size(who, "steps", steps)
    positive_number(who, "frobenius_norm", frobenius_norm)
    if not (0 <= spectral_norm <= frobenius_norm * (1 + 1e-12)):
        raise SettingError(
            f"{who} expects 0 ≤ spectral_norm ≤ frobenius_norm, got {spectral_norm} and {frobenius_norm}."
        )
    if not (activation_constant >= 0 and math.isfinite(activation_constant)):
        raise SettingError(f"{who} expects activation_constant to be finite and at least 0, got {activation_constant}.")
    denominators = (
        4 * steps * abs(activation_constant * spectral_norm - 1),
        4 * steps * frobenius_norm,
        steps * abs(spectral_norm - 1),
    )
    return 1 / max(denominators)


def rademacher_complexity(values: Tensor, *, draws: int = 10_000, generator: torch.Generator | None = None) -> float:
    """How well a set of functions can follow random signs on these samples: (2), S3 (12).

    The mean is over all signs up to 16 samples, and over ``draws`` random ones beyond. The set is finite, so this is a
    lower bound of the complexity of a larger class from which it was drawn.

    Law: 0 for one function (with all signs); it grows with the set, and a 1-Lipschitz loss does not raise it (S3 (15)).

    Args:
        values: (functions, samples), f(z_i). For the class (11) of S3, the losses L(y_i, f(x_i)).
        draws, generator: of random signs.

    Example:
        >>> rademacher_complexity(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))  # E |ε_1 + ε_2| / 2
        0.5
    """
    if values.ndim != 2 or 0 in values.shape:
        raise ShapeError(f"rademacher_complexity expects values (functions, samples), got {tuple(values.shape)}.")
    positive_size("rademacher_complexity", "draws", draws)
    samples = values.shape[1]
    if samples <= EXACT:
        signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=samples)), dtype=values.dtype)
    else:
        coins = torch.randint(0, 2, (draws, samples), generator=generator)
        signs = 2 * coins.to(values.dtype) - 1
    return float((signs.to(values.device) @ values.mT).amax(dim=1).mean() / samples)


def rademacher_bound(bounds: ModelBounds, *, alpha: float, beta: float, steps: int, samples: int) -> float:
    """What the Rademacher complexity of SGORNN's losses does not exceed: (3), S3 (23).

    Law: ``rademacher_complexity`` of any set of these networks, on any m samples, is at most this, if β ≤ 1 - 2α and
    the loss is 1-Lipschitz. ``generalisation_gap`` is twice this plus the term of the sample.

    Args:
        bounds: R_x, R_W, R_v.
        alpha, beta: the gates.
        steps, samples: T and m.

    Example:
        >>> unit = ModelBounds(x_norm=1.0, weight_ih_norm=1.0, readout_norm=1.0)
        >>> rademacher_bound(unit, alpha=0.01, beta=0.98, steps=100, samples=400)
        0.1
    """
    check_gates("rademacher_bound", alpha, beta, slope=2, steps=steps, samples=samples)
    return 2 * bounds.product * alpha * steps / math.sqrt(samples)


def rotations_lipschitz(hidden_size: int, sublayers: int | None = None) -> float:
    """The constant k of (4), S3 (34): how much a product of rotations can change with its angles.

    Law: ‖φ(Θ) - φ(Θ + Δ)‖₂ ≤ k max |Δ| ≤ k ‖Δ‖₂, for all angles and permutations.

    Args:
        hidden_size: h.
        sublayers: k; default 2 ⌈log₂ h⌉.

    Example:
        >>> rotations_lipschitz(128)
        14.0
    """
    positive_size("rotations_lipschitz", "hidden_size", hidden_size)
    if sublayers is not None:
        positive_size("rotations_lipschitz", "sublayers", sublayers)
    return float(default_sublayers(hidden_size) if sublayers is None else sublayers)
