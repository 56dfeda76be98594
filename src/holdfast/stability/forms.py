"""Cells seen as one formula, for the constants of step.py.

    h₊ = α φ(U h + W x + b) + β h                                                       (1)
    ‖dU‖₂ ≤ ℓ ‖dθ‖,  ‖d²U‖₂ ≤ s ‖dθ‖²,  θ the parameters behind U                       (2)

    U itself                    ℓ = 1     s = 0
    k rotations                 √k        k       each turns by its own angles
    exponential of a skew A     1         1
    scaled Cayley               2         4       2 (I + A)⁻¹ - I, and ‖(I + A)⁻¹‖ ≤ 1
    reflections                 ∞         ∞       a short v turns fast

Proofs of (2): docs/theory/s4-stability.md.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.cells import ExpRNNCell, FastRNNCell, LinearCell, RNNCell, SGORNNCell, VPRNNCell
from holdfast.constraints.gates import ScalarGates
from holdfast.constraints.orthogonal import OrthogonalMap, RotationProduct, ScaledCayley, SkewExponential
from holdfast.linalg.norms import spectral_norm
from holdfast.stability.slopes import NoBoundError, Slopes, slopes

__all__ = ["Form", "form_of"]


@dataclass(frozen=True)
class Form:
    """A cell seen as (1)."""

    u: float  # ‖U‖₂
    weight_ih: Tensor
    bias: Tensor | None
    slopes: Slopes
    rest: float  # ‖f(0, 0)‖
    alpha: float = 1.0
    beta: float = 0.0
    turn: float = 1.0  # ℓ
    bend: float = 0.0  # s
    alpha_slopes: tuple[float, float] = (0.0, 0.0)  # dα/da and |d²α/da²| for α = σ(a)
    beta_slopes: tuple[float, float] = (0.0, 0.0)
    clip: int = 0  # c of the clip β ≤ 1 - c α
    caveat: str = ""  # what has no constant


@functools.singledispatch
def form_of(cell: Any) -> Form:
    """The cell as (1); a later cell of this form registers its own."""
    raise NoBoundError(f"{type(cell).__name__} has a contraction rate, but no other constants: see step.form_of.")


@form_of.register
def _(cell: RNNCell) -> Form:
    rest = _length(cell.phi(_bias(cell)))
    return Form(_norm(cell.weight_hh), cell.weight_ih, cell.bias, slopes(cell.phi), rest, caveat=_kink(cell.phi))


@form_of.register
def _(cell: LinearCell) -> Form:
    return Form(_norm(cell.weight_hh), cell.weight_ih, cell.bias, slopes("identity"), _length(_bias(cell)))


@form_of.register
def _(cell: FastRNNCell) -> Form:
    return _gated_form(cell, cell.gates, _norm(cell.weight_hh), 1.0, 0.0, "")


@form_of.register
def _(cell: SGORNNCell) -> Form:
    return _gated_form(cell, cell.gates, 1.0, *_map_constants(cell.recurrent))


@form_of.register
def _(cell: VPRNNCell) -> Form:
    rest, (turn, bend, caveat) = _length(cell.phi(_bias(cell))), _map_constants(cell.recurrent)
    known, caveat = slopes(cell.phi), _joined(caveat, _kink(cell.phi))
    return Form(1.0, cell.weight_ih, cell.bias, known, rest, turn=turn, bend=bend, caveat=caveat)


@form_of.register
def _(cell: ExpRNNCell) -> Form:
    turn, bend, caveat = _map_constants(cell.recurrent)
    if not cell.modrelu or cell.bias is None:
        rest = _length(cell.phi(_bias(cell)))
        caveat = _joined(caveat, _kink(cell.phi))
        return Form(1.0, cell.weight_ih, cell.bias, slopes(cell.phi), rest, turn=turn, bend=bend, caveat=caveat)
    jumps = bool((cell.bias > 0).any())
    steep = Slopes(1.0, math.inf, math.inf, 0.0)  # its rate is read from contraction_rate, which knows about the jump
    caveat = "modrelu with a positive bias jumps at zero" if jumps else "modrelu has a kink"
    return Form(1.0, cell.weight_ih, cell.bias, steep, 0.0, turn=turn, bend=bend, caveat=caveat)


def _gated_form(cell: Any, gates: ScalarGates, u: float, turn: float, bend: float, caveat: str) -> Form:
    alpha, beta = (gate.item() for gate in gates())
    clip = {"2alpha": 2, "alpha": 1, None: 0}[gates.clip]
    if clip:
        caveat = _joined(caveat, f"the clip β ≤ 1 - {'2' if clip == 2 else ''}α has a kink")
    return Form(
        u,
        cell.weight_ih,
        cell.bias,
        slopes(cell.phi),
        rest=alpha * _length(cell.phi(_bias(cell))),
        alpha=alpha,
        beta=beta,
        turn=turn,
        bend=bend,
        alpha_slopes=_logistic(alpha),
        beta_slopes=_logistic(beta),
        clip=clip,
        caveat=_joined(caveat, _kink(cell.phi)),
    )


def _map_constants(recurrent: OrthogonalMap) -> tuple[float, float, str]:
    """ℓ and s of an orthogonal map, and why they are infinite if they are."""
    if isinstance(recurrent, RotationProduct):
        return math.sqrt(recurrent.sublayers), float(recurrent.sublayers), ""
    if isinstance(recurrent, SkewExponential):
        return 1.0, 1.0, ""
    if isinstance(recurrent, ScaledCayley):
        return 2.0, 4.0, ""
    return math.inf, math.inf, f"{type(recurrent).__name__} has no Lipschitz constant in its parameters"


def _logistic(gate: float) -> tuple[float, float]:
    """σ' and |σ''| where σ is this."""
    return gate * (1 - gate), abs(gate * (1 - gate) * (1 - 2 * gate))


def _kink(phi: Any) -> str:
    name = getattr(phi, "__name__", repr(phi))
    return f"φ = {name} has a kink" if slopes(phi).smoothness == math.inf else ""


def _joined(*caveats: str) -> str:
    return "; ".join(caveat for caveat in caveats if caveat)


def _bias(cell: Any) -> Tensor:
    """The bias, or zeros in its place."""
    if cell.bias is None:
        return torch.zeros(cell.hidden_size, dtype=torch.float64)
    return cell.bias.detach().double().cpu()


def _norm(weight: Tensor) -> float:
    return spectral_norm(weight.detach().double()).item()


def _length(vector: Tensor) -> float:
    return vector.detach().norm().item()
