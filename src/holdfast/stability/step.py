"""All that the theorems need of one step: Lipschitz and smoothness constants, of a cell or of a set of weights.

    h₊ = α φ(z) + β h,  z = U h + W x + b                                                  (1) all cells but LSTM, GRU
    λ = α L u + β,  L_x = α L ‖W‖₂,  u = ‖U‖₂                                              (2)
    ‖h_t‖ ≤ R = min(α √n M / (1 - β), (‖f(0, 0)‖ + L_x B) / (1 - λ)),  ‖x_t‖ ≤ B           (3) S4 Lemma 1, k = 0
    L_w² = (α L)² (ℓ² R² + B² + 1) + α'² (A + c R)² + (β' R)²,  A ≥ ‖φ(z)‖                 (4) Lipschitz in w
    β_hh = α S u²                                                                          (5) S4 A.2, condition 4
    β_wh² = β_hw² = (α L ℓ + α S u ℓ R)² + (α S u)² (B² + 1) + α'² (L u + c)² + β'²        (6) conditions 2, 3
    β_ww = ‖[[α (S ρ² + L s R), α' L ρ, 0], [·, α'' A, 0], [·, ·, β'' R]]‖₂                (7) condition 1
    ρ² = ℓ² R² + B² + 1
    ‖dU‖₂ ≤ ℓ ‖dθ‖,  ‖d²U‖₂ ≤ s ‖dθ‖²,  θ the parameters behind U                          (8)

    U itself                    ℓ = 1     s = 0
    k rotations                 √k        k       each turns by its own angles
    exponential of a skew A     1         1
    scaled Cayley               2         4       2 (I + A)⁻¹ - I, and ‖(I + A)⁻¹‖ ≤ 1
    reflections                 ∞         ∞       a short v turns fast

w holds U (or the parameters behind it), W, b and the gates' logits, with the Euclidean length. The ones under the roots
belong to the bias; α', α'', β', β'' are derivatives in the logits; a cell without bias or gates has neither. c is 2 or
1 with the clip β ≤ 1 - c α, which makes β_ww and β_hw infinite, else 0. L, S and M are in cells/nonlinearity.py; LSTM
and GRU are in gated.py.

Source: S4, A.2 and A.3.1, for tanh; the rest and all proofs, also of (8): docs/theory/s4-stability.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.cells import Cell, GRUCell, LinearCell, LSTMCell, MinGRUCell, MinLSTMCell, StepForm, step_form
from holdfast.cells.exprnn import modrelu
from holdfast.cells.form import cells_with_form
from holdfast.cells.nonlinearity import name_of, slopes
from holdfast.constraints.dynamic import DynamicExponential
from holdfast.constraints.gates import ScalarGates
from holdfast.constraints.orthogonal import RotationProduct, ScaledCayley, SkewExponential
from holdfast.errors import NoBoundError, SettingError
from holdfast.linalg.norms import spectral_norm
from holdfast.stability.contraction import check_input_bound, contraction_rate, input_box
from holdfast.stability.gated import Jet, gru_step, lstm_step
from holdfast.stability.input_gated import mingru_step, minlstm_step
from holdfast.types import State

__all__ = ["Region", "Smoothness", "StepBounds", "norm_of", "state_norm", "step_bounds", "times"]

Gated = LSTMCell | GRUCell | MinGRUCell | MinLSTMCell
_STEPS = {LSTMCell: lstm_step, GRUCell: gru_step, MinGRUCell: mingru_step, MinLSTMCell: minlstm_step}


@dataclass(frozen=True)
class Region:
    """Ω = {‖U‖₂ ≤ recurrent, ‖W‖₂ ≤ input, ‖b‖₂ ≤ bias}: the convex set that projected gradient descent stays in.

    Args:
        recurrent, input, bias: the three radii. A cell without a bias takes any ``bias``.

    Example:
        >>> Region(recurrent=0.75, input=2.0)
        Region(recurrent=0.75, input=2.0, bias=0.0)
    """

    recurrent: float
    input: float
    bias: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= radius < math.inf for radius in vars(self).values()):
            raise SettingError(f"Region expects finite radii of at least 0, got {vars(self)}.")


@dataclass(frozen=True)
class Smoothness:
    """L_w, β_ww, β_wh, β_hw and β_hh of S4's A.2; infinity if there is no such constant.

    Args:
        weights: L_w, how far a change of w moves the next state.
        ww, wh, hw, hh: how fast ∂f/∂w changes with w and h, and ∂f/∂h with w and h.

    Example:
        >>> from holdfast import RNNCell
        >>> step_bounds(RNNCell(3, 4), input_bound=1.0).smoothness.ww < math.inf
        True
    """

    weights: float
    ww: float
    wh: float
    hw: float
    hh: float


@dataclass(frozen=True)
class StepBounds:
    """Bounds on one step of a cell, in ``norm``.

    Args:
        cell: the cell's name.
        norm: "l2", or "linf" for the largest entry: of the recurrent state, and of the input in ``input_lipschitz``.
        rate: λ.
        input_lipschitz: L_x.
        rest: ‖f(0, 0)‖.
        state_bound: R ≥ ‖h_t‖ at every step; infinity if nothing is known.
        output_lipschitz, direct_lipschitz: of the output in the state and in the input; 1 and 0 if the output is h.
        output_bound: the largest norm of an output.
        smoothness: the constants for training.
        caveat: why some of these are infinite, or "".

    Example:
        >>> from holdfast import LinearCell
        >>> cell = LinearCell(1, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = cell.weight_hh.fill_(0.5), cell.weight_ih.fill_(2.0)
        >>> bounds = step_bounds(cell, input_bound=3.0)
        >>> bounds.rate, bounds.input_lipschitz, bounds.state_bound  # 2 · 3 / (1 - 0.5)
        (0.5, 2.0, 12.0)
    """

    cell: str
    norm: str
    rate: float
    input_lipschitz: float
    rest: float
    state_bound: float
    output_lipschitz: float
    direct_lipschitz: float
    output_bound: float
    smoothness: Smoothness
    caveat: str = ""


def step_bounds(
    cell: Cell,
    input_bound: float | None = None,
    *,
    input_norm: str = "l2",
    start: float = 0.0,
    region: Region | None = None,
) -> StepBounds:
    """The bounds (2) to (7) of a cell at its weights, or of all weights in ``region``.

    Law: each number bounds what its name says, for all inputs within the bound and all states that they reach.

    Args:
        cell: a certified cell.
        input_bound: B ≥ ‖x_t‖; without it, bounds that depend on the inputs are infinite (LSTM, GRU: an error).
        input_norm: the norm of that, "l2" or "linf".
        start: ‖h_0‖, if the cell does not start at zero.
        region: bound all weights in it, not only the cell's own; for ``RNNCell`` and ``LinearCell``.

    Example:
        >>> from holdfast import RNNCell
        >>> region = Region(recurrent=0.75, input=2.0)
        >>> step_bounds(RNNCell(3, 4, bias=False), input_bound=0.1, region=region).rate
        0.75
    """
    if input_bound is not None:
        input_bound = check_input_bound(input_bound, input_norm)
    if isinstance(cell, Gated):
        return _gated_bounds(cell, input_bound, input_norm, start, region)
    rate, form = contraction_rate(cell), step_form(cell)  # the first raises if the cell is not certified
    if form is None:
        known = ", ".join(sorted(kind.__name__ for kind in cells_with_form().union(_STEPS)))
        raise NoBoundError(
            f"{type(cell).__name__} has a proved rate, λ = {rate:.4g}, but no other constants: there is no certificate "
            f"for it and no window for a given error. Cells that have them: {known}. A cell of your own has them once "
            "holdfast.cells.step_form.register knows its form, if it is that of StepForm."
        )
    length = math.inf if input_bound is None else input_bound
    if input_norm == "linf":
        length *= math.sqrt(cell.input_size)
    return _form_bounds(cell, form, rate, length, start, region)


def norm_of(cell: Cell) -> str:
    """The norm in which a cell is certified: "linf" for LSTM, GRU, minGRU and minLSTM, else "l2"."""
    return "linf" if isinstance(cell, Gated) else "l2"


def state_norm(cell: Cell, state: State) -> Tensor:
    """The norm of each sample's state, entries (batch, size) to (batch,), without an output that is not fed back.

    Example:
        >>> from holdfast import LSTMCell, RNNCell
        >>> h, c = torch.tensor([[3.0, 4.0]]), torch.tensor([[-6.0, 0.0]])
        >>> state_norm(RNNCell(1, 2), (h,)), state_norm(LSTMCell(1, 2), (h, c))  # Euclidean, and the largest entry
        (tensor([5.]), tensor([6.]))
    """
    entries = state[-1:] if isinstance(cell, LinearCell) else state
    if norm_of(cell) == "linf":
        return torch.stack([entry.abs().amax(dim=1) for entry in entries]).amax(dim=0)
    return torch.stack([entry.norm(dim=1) for entry in entries]).norm(dim=0)


def _form_bounds(cell: Cell, form: StepForm, rate: float, B: float, start: float, region: Region | None) -> StepBounds:
    known, n, has_bias = slopes(form.phi), cell.hidden_size, form.bias is not None
    L, S, u, weight_norm = form.lipschitz, known.smoothness, form.spectral_norm, _norm(form.weight_ih)
    bias = torch.zeros(n, dtype=torch.float64) if form.bias is None else form.bias.detach().double().cpu()
    bias_norm, (alpha, beta), (turn, bend) = bias.norm().item(), form.gate_values, _turn_and_bend(form)
    rest = 0.0 if form.phi is modrelu else alpha * form.phi(bias).detach().norm().item()
    if region is not None:
        if not form.free:
            raise NoBoundError(
                f"A region expects RNNCell or LinearCell, whose stable set is convex, got {type(cell).__name__}."
            )
        u, weight_norm, bias_norm = region.recurrent, region.input, region.bias if has_bias else 0.0
        rate, rest = L * u, L * bias_norm + math.sqrt(n) * known.at_zero
    trained = form.gates if isinstance(form.gates, ScalarGates) else None
    (alpha_1, alpha_2), (beta_1, beta_2) = (_logistic(gate if trained else 0.0) for gate in (alpha, beta))
    clip = 0 if trained is None else {"2alpha": 2, "alpha": 1, None: 0}[trained.clip]
    input_lipschitz = alpha * L * weight_norm if rate < math.inf else math.inf  # (2)
    cap = alpha * math.sqrt(n) * known.sup / (1 - beta) if beta < 1 else math.inf
    R = min(cap, (rest + times(input_lipschitz, B)) / (1 - rate) if rate < 1 else math.inf)  # (3)
    R = max(R, start)
    inside = times(u, R) + times(weight_norm, B) + bias_norm  # ‖z‖
    size = min(math.sqrt(n) * known.sup, math.sqrt(n) * known.at_zero + times(L, inside))  # A
    ones = float(has_bias)
    rho_sq = times(turn, turn, R, R) + B * B + ones
    mixed = math.sqrt(
        (times(alpha, L, turn) + times(alpha, S, u, turn, R)) ** 2
        + times(times(alpha, S, u) ** 2, B * B + ones)
        + times(alpha_1, L * u + clip) ** 2
        + beta_1**2
    )  # (6)
    smoothness = Smoothness(
        weights=math.sqrt(
            (alpha * L) ** 2 * rho_sq + times(alpha_1, size + times(clip, R)) ** 2 + times(beta_1, R) ** 2
        ),  # (4)
        ww=math.inf
        if clip
        else _largest_eigenvalue(
            alpha * (times(S, rho_sq) + times(L, bend, R)),
            times(alpha_1, L, math.sqrt(rho_sq)),
            times(alpha_2, size),
            times(beta_2, R),
        ),  # (7)
        wh=mixed,
        hw=math.inf if clip else mixed,
        hh=times(alpha, S, u, u),  # (5)
    )
    out, direct, output_bound = 1.0, 0.0, R
    if form.weight_ho is not None:
        out, direct = _norm(form.weight_ho), 0.0 if form.weight_io is None else _norm(form.weight_io)
        output_bound = times(out, R) + times(direct, B)
    return StepBounds(
        type(cell).__name__, "l2", rate, input_lipschitz, rest, R, out, direct, output_bound, smoothness,
        _caveat(form, turn, clip),
    )  # fmt: skip


def _turn_and_bend(form: StepForm) -> tuple[float, float]:
    """ℓ and s of (8)."""
    match form.recurrent:
        case Tensor():
            return 1.0, 0.0
        case RotationProduct(sublayers=k):
            return math.sqrt(k), float(k)
        case SkewExponential() | DynamicExponential():
            return 1.0, 1.0
        case ScaledCayley():
            return 2.0, 4.0
    return math.inf, math.inf


def _caveat(form: StepForm, turn: float, clip: int) -> str:
    """Why some constants are infinite, or ""."""
    reasons = []
    if turn == math.inf:
        reasons.append(f"{type(form.recurrent).__name__} has no Lipschitz constant in its parameters")
    if clip:
        reasons.append(f"the clip β ≤ 1 - {'2' if clip == 2 else ''}α has a kink")
    if form.lipschitz == math.inf:
        reasons.append("modrelu with a positive bias jumps at zero")
    elif slopes(form.phi).smoothness == math.inf:
        reasons.append(f"φ = {name_of(form.phi)} has a kink")
    return "; ".join(reasons)


def _logistic(gate: float) -> tuple[float, float]:
    """σ' and |σ''| where σ takes the value ``gate``."""
    return gate * (1 - gate), abs(gate * (1 - gate) * (1 - 2 * gate))


def _gated_bounds(
    cell: Gated, input_bound: float | None, input_norm: str, start: float, region: Region | None
) -> StepBounds:
    name, box = type(cell).__name__, input_box(cell, input_bound, input_norm)
    if start > 0 or region is not None:
        reason = "starts away from zero" if start > 0 else "has a region of weights"
        raise NoBoundError(f"{name} is certified at its weights and for states reached from zero; this one {reason}.")
    step = next(made for kind, made in _STEPS.items() if isinstance(cell, kind))
    jets: tuple[Jet, ...] = _tuple(step(cell, box))  # type: ignore[arg-type]
    in_x = _tuple(step(cell, box, wrt="input"))  # type: ignore[arg-type]

    def largest(part: str, of: tuple[Jet, ...] = jets) -> float:
        return max(getattr(jet, part).max().item() for jet in of)

    smoothness, caveat = Smoothness(*(largest(part) for part in ("w", "ww", "sw", "sw", "ss"))), ""
    if isinstance(cell, MinGRUCell | MinLSTMCell) and slopes(cell.phi).smoothness == math.inf:
        smoothness = Smoothness(smoothness.weights, math.inf, math.inf, math.inf, smoothness.hh)
        caveat = f"φ = {name_of(cell.phi)} has a kink"
    with torch.no_grad():
        zero = torch.zeros(1, cell.input_size, dtype=cell.weight_ih.dtype, device=cell.weight_ih.device)
        rest = max(entry.abs().max().item() for entry in _tuple(cell(zero)))
    return StepBounds(
        name, "linf", largest("s"), largest("s", in_x), rest, largest("sup"), 1.0, 0.0, jets[0].sup.max().item(),
        smoothness, caveat,
    )  # fmt: skip


def times(*factors: float) -> float:
    """The product; 0 if a factor is 0, even if another is infinite."""
    return 0.0 if 0.0 in factors else math.prod(factors)


def _largest_eigenvalue(first: float, mixed: float, second: float, third: float) -> float:
    """Of [[first, mixed, 0], [mixed, second, 0], [0, 0, third]], all entries non-negative."""
    if not math.isfinite(first + mixed + second + third):
        return math.inf
    return max((first + second + math.hypot(first - second, 2 * mixed)) / 2, third)


def _norm(weight: Tensor) -> float:
    return spectral_norm(weight.detach().double()).item()


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
