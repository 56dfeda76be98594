"""coRNN and the antisymmetric RNN: small steps of a differential equation, and how fast their gradients can grow.

    J = [[(1 - Δ²γ) I, Δ(1 - Δε) I], [-Δγ I, (1 - Δε) I]] + Δ [[Δ I], [I]] D [U V]          (1) coRNN, |D| ≤ L
    λ = ‖B‖₂ + Δ √(1 + Δ²) L ‖[U V]‖₂,  B the 2 × 2 matrix of (1)                          (2)
    J = I + ε D M,  M = A - γ I,  0 ≤ D ≤ L                                                (3) antisymmetric
    λ = √((1 - εLγ/2)² + (εLa/2)²) + (εL/2) √(a² + γ²),  a = ‖A‖₂                           (4)
        gated: D is g D + φ g', within (4) plus or minus M/4, so add (εM/4) √(a² + γ²),  |φ| ≤ M
    ‖∂s_T/∂s_0‖ ≤ λ^T,  ‖∂s_T/∂b‖ ≤ Δ √(1 + Δ²) L (λ^T - 1) / (λ - 1)                      (5) s = (y, z)
    ‖∂s_T/∂[U V]‖ ≤ Δ √(1 + Δ²) L Σ_t λ^(T-t) R_{t-1},  R_t = Δ √(1 + Δ²) √n M Σ_{i<t} ‖B‖^i   (6) ‖s_t‖ ≤ R_t

λ is 1 + O(Δ), so with Δ of the order 1/T all of (5) and (6) stay bounded however long the sequence: what the paper
states of its gradients. The bound here is ours, for the step of the authors' program. λ of (4) is at least 1, since a
unit in saturation keeps its distances, and λ of (2) is below 1 only for weights near zero. So neither is projected. The
gated antisymmetric RNN needs a bounded φ, which its gate's derivative multiplies. Norms are Euclidean. Proofs:
docs/theory/s4-stability.md, §11. Sources: Rusch & Mishra (2021), §3; Chang et al. (2019), §3.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from holdfast.cells import AntisymmetricRNNCell, CoRNNCell
from holdfast.cells.nonlinearity import name_of, slopes
from holdfast.errors import NoBoundError, SettingError, one_of, positive_size
from holdfast.linalg.norms import spectral_norm
from holdfast.linalg.skew import skew_from_vector
from holdfast.stability.contraction import contraction_rate

__all__ = ["cornn_gradient_bound"]


@contraction_rate.register
def _(cell: CoRNNCell, input_bound: float | None = None, *, input_norm: str = "l2") -> float:
    """(2). Law: (1) of contraction.py, for all inputs and states, in the length of (y, z)."""
    weights = torch.cat((cell.weight_hh, cell.weight_zh), dim=1).detach().double()
    return _free_norm(cell) + _gain(cell) * spectral_norm(weights).item()


@contraction_rate.register
def _(cell: AntisymmetricRNNCell, input_bound: float | None = None, *, input_norm: str = "l2") -> float:
    """(4). Law: as above."""
    known = slopes(cell.phi)
    if cell.gated and not math.isfinite(known.sup):
        raise NoBoundError(
            f"AntisymmetricRNNCell with gated=True needs a bounded φ such as tanh, got {name_of(cell.phi)}; the "
            "derivative of the gate multiplies φ."
        )
    if (known.regions is not None and min(known.regions.slopes) < 0) or name_of(cell.phi) == "gelu":
        raise NoBoundError(f"AntisymmetricRNNCell expects a φ that does not decrease, got {name_of(cell.phi)}.")
    skew = skew_from_vector(cell.skew.detach().double(), cell.hidden_size)
    a, step = spectral_norm(skew).item(), cell.epsilon * known.lipschitz / 2
    gate = cell.epsilon * known.sup / 4 if cell.gated else 0.0
    return math.hypot(1 - step * cell.gamma, step * a) + (step + gate) * math.hypot(a, cell.gamma)


def cornn_gradient_bound(cell: CoRNNCell, steps: int, wrt: Literal["state", "bias", "weight_hh"] = "state") -> float:
    """How far, at most, the gradient of a coRNN's last state (y, z) can grow over ``steps``: (5), (6).

    Law: the spectral norm of the Jacobian is at most this, for every input and, except for "state", from h_0 = 0. It is
    a bound of ours for the step of ``CoRNNCell``; the paper's is for another step (docs/differences.md).

    Args:
        cell: the cell.
        steps: T.
        wrt: of the first state, of b, or of [U V] together (``weight_hh`` and ``weight_zh``).

    Example:
        >>> from holdfast import CoRNNCell
        >>> bounds = [cornn_gradient_bound(CoRNNCell(2, 8, dt=1 / steps), steps) for steps in (100, 10_000)]
        >>> max(bounds) < 30  # with Δ = 1/T it does not grow with T
        True

    References:
        Rusch & Mishra (2021), Coupled oscillatory recurrent neural network (coRNN).
    """
    one_of("cornn_gradient_bound", "wrt", wrt, ("state", "bias", "weight_hh"))
    if not isinstance(cell, CoRNNCell):
        raise SettingError(f"cornn_gradient_bound expects a CoRNNCell, got {type(cell).__name__}.")
    positive_size("cornn_gradient_bound", "steps", steps)
    rate, gain = contraction_rate(cell), _gain(cell)
    if wrt == "state":
        return math.exp(log) if (log := steps * math.log(rate)) < 700 else math.inf
    reached = [1.0] * steps if wrt == "bias" else _reach(cell, steps)
    total = 0.0
    for size in reached:  # Horner's rule for Σ_t λ^(T-t) R_{t-1}
        total = rate * total + size
    return gain * total


def _free_norm(cell: CoRNNCell) -> float:
    """‖B‖₂ of (2)."""
    dt, gamma, kept = cell.dt, cell.gamma, 1 - cell.dt * cell.epsilon
    matrix = torch.tensor([[1 - dt * dt * gamma, dt * kept], [-dt * gamma, kept]], dtype=torch.float64)
    return spectral_norm(matrix).item()


def _gain(cell: CoRNNCell) -> float:
    """Δ √(1 + Δ²) L."""
    return cell.dt * math.hypot(1, cell.dt) * slopes(cell.phi).lipschitz


def _reach(cell: CoRNNCell, steps: int) -> list[float]:
    """R_0 … R_{T-1} of (6)."""
    known = slopes(cell.phi)
    if not math.isfinite(known.sup):
        raise NoBoundError(f"The gradient in the weights needs a bounded φ such as tanh, got {name_of(cell.phi)}.")
    free, push = _free_norm(cell), cell.dt * math.hypot(1, cell.dt) * math.sqrt(cell.hidden_size) * known.sup
    found = [0.0]
    for _ in range(steps - 1):
        found.append(free * found[-1] + push)
    return found
