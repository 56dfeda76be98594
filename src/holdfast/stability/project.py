"""Projections of a cell's weights onto the stable set, in place.

    RNN, linear      ‖U‖₂ ≤ λ / L                                                          (1) S4 §7.2
    FastRNN          ‖U‖₂ ≤ (λ - β) / (α L)                                                (2)
    SGORNN           β ≤ λ - α L                                                           (3)
    LSTM             ‖U_i‖, ‖U_o‖ ≤ λ - f̄,  ‖U_g‖ ≤ (λ - f̄)/4,  ‖U_f‖ ≤ (λ - f̄)(1 - f̄)   (4) S4 Proposition 5
                     f̄ = σ(max_j (‖W_f,j‖₂ B + b_f,j) + ‖U_f‖)                             (5) Lemma 5
    GRU              U ← s U, the largest s ≤ 1 with a proved rate of at most λ            (6)
    IndRNN           |u_j| ≤ λ / L                                                         (7)
    minGRU           ‖W_z,j‖₂ B - b_z,j ≤ logit λ, so that 1 - z_j ≤ λ                     (8)
    minLSTM          softplus(‖W_i,j‖₂ B - b_i,j) - softplus(-‖W_f,j‖₂ B - b_f,j) ≤ logit λ, so that f'_j ≤ λ     (9)

In (4) and (5) norms of recurrent matrices are largest row sums, so (4) is an ℓ1 ball for each row; they add up to λ as
in S4's proof, where λ = 1. f̄ depends on U_f, which (4) bounds by f̄: the two are solved together, with input weights
and biases fixed. With ``forget=f̄`` these move too, row by row, to the nearest with
‖W_f,j‖ B + b_f,j ≤ logit f̄ - ‖U_f‖.

(1), (4), (5), (7), (8) are Euclidean projections: nearest, and nothing inside moves. ``method="fast"`` scales U in
(1), (2) instead of clipping it. The rate of a GRU is that of gated.py. It does not fall as s grows, since every bound
in it is made of |U| by sums, products and intervals that widen. At s = 0 it is the largest update gate that inputs and
biases open. So (6) is found by bisection. (9) moves the rows (W, b) of both gates of a unit by one distance, the least
that is enough. That is the nearest point in the larger of the two distances, and at most √2 times as far as the nearest
in the Euclidean one. Proofs: docs/theory/s4-stability.md, §9, §11. Sources: S4; Duchi et al. (2008) for ℓ1 balls.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.cells import Cell, GRUCell, IndRNNCell, LSTMCell, MinGRUCell, MinLSTMCell, StepForm, step_form
from holdfast.cells.form import cells_with_form
from holdfast.cells.nonlinearity import name_of, slopes
from holdfast.constraints.gates import ScalarGates
from holdfast.constraints.spectral import clip_spectral, shrink_spectral
from holdfast.errors import NoBoundError, SettingError, one_of
from holdfast.layers import Recurrent
from holdfast.stability.contraction import check_input_bound, contraction_rate
from holdfast.stability.gated import Box
from holdfast.stability.input_gated import minlstm_step
from holdfast.stability.step import Region, step_bounds

__all__ = ["l1_ball_rows", "project_"]

METHODS = {"svd": clip_spectral, "fast": shrink_spectral}
_OWN = (LSTMCell, GRUCell, MinGRUCell, MinLSTMCell)  # projected, and without a step form


@torch.no_grad()
def project_(
    model: Any,
    rate: float | None = None,
    *,
    region: Region | None = None,
    method: str = "svd",
    input_bound: float | None = None,
    forget: float | None = None,
) -> Any:
    """Move a model's weights, in place, to where its contraction rate is at most ``rate``; return the model.

    Law: ``contraction_rate(model) <= rate`` afterwards, for every layer; a model that is inside is not changed, nor is
    any model by a second projection.

    Args:
        model: a cell, or a layer of them, in one direction or both.
        rate: λ, the largest rate allowed; below 1 for a stable model. S4's experiments have 1.
        region: instead of a rate: project U, W and b of ``RNNCell`` and ``LinearCell`` onto it.
        method: "svd", the nearest matrix, or "fast", a scaled one.
        input_bound: the largest ‖x_t‖₂; LSTM, GRU, minGRU and minLSTM only.
        forget: f̄, the largest value of a forget gate; LSTM only; default: as input weights and biases determine.

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.stability import contraction_rate
        >>> layer = project_(RNN(3, 4), rate=0.3)
        >>> contraction_rate(layer) <= 0.3
        True

    References:
        Miller & Hardt (2019), Stable recurrent models.
    """
    one_of("project_", "method", method, METHODS)
    if (rate is None) == (region is None):
        raise SettingError(
            f"project_ expects either a rate or a region, got rate={rate}, region={region}; give exactly one."
        )
    if rate is not None and not 0 < rate <= 1:
        raise SettingError(f"project_ expects a rate in (0, 1], got {rate}; a rate above 1 is not stable.")
    cells = model.cells if isinstance(model, Recurrent) else [model]
    directions = getattr(model, "directions", 1)
    bounds: list[float | None] = []  # of the inputs of each cell
    for i, cell in enumerate(cells):
        if region is not None:
            _project_region_(cell, region, method)
            continue
        bound = input_bound
        if isinstance(cell, LSTMCell | GRUCell) and i >= directions:
            bound = math.sqrt(cell.input_size)  # outputs of the layer below: |h| ≤ 1
        if isinstance(cell, MinGRUCell | MinLSTMCell) and i >= directions:
            first = (i // directions - 1) * directions
            outputs = [step_bounds(cells[row], bounds[row]).output_bound for row in range(first, first + directions)]
            bound = math.sqrt(cell.input_size) * max(outputs)
        bounds.append(bound)
        _project(cell, float(rate or 0.0), method=method, input_bound=bound, forget=forget)
    return model


def _project(cell: Any, rate: float, *, method: str, input_bound: float | None, forget: float | None) -> None:
    if isinstance(cell, LSTMCell):
        _project_lstm(cell, rate, input_bound, forget)
    elif isinstance(cell, GRUCell):
        _project_gru(cell, rate, input_bound)
    elif isinstance(cell, MinGRUCell):
        _project_mingru(cell, rate, input_bound)
    elif isinstance(cell, MinLSTMCell):
        _project_minlstm(cell, rate, input_bound)
    elif isinstance(cell, IndRNNCell):
        _clamp_(_plain(cell, cell.weight_hh), rate / slopes(cell.phi).lipschitz)  # (7)
    elif (form := step_form(cell)) is None:
        known = ", ".join(sorted(kind.__name__ for kind in (*cells_with_form(), *_OWN)))
        raise NoBoundError(f"No projection is registered for {type(cell).__name__}; projected cells: {known}.")
    elif form.free:
        _ball_(cell, form.weight_hh, rate / form.lipschitz, method)  # (1)
    elif contraction_rate(cell) > rate:
        _project_gated(cell, form, rate, method)


def _project_gated(cell: Cell, form: StepForm, rate: float, method: str) -> None:
    name, (alpha, beta), gates = type(cell).__name__, form.gate_values, form.gates
    room = rate - alpha * form.lipschitz
    if isinstance(form.recurrent, Tensor):
        if not beta < rate:
            raise SettingError(
                f"project_ cannot bring {name} to rate {rate:g} by its matrix, since β = {beta:.4g} is already as "
                'large; lower beta_logit, or build the cell with ScalarGates(clip="alpha").'
            )
        _ball_(cell, form.weight_hh, (rate - beta) / (alpha * form.lipschitz) * (1 - 1e-12), method)  # (2)
        return
    if not isinstance(gates, ScalarGates):
        raise SettingError(
            f"project_ cannot bring {name} to rate {rate:g}: its matrix keeps lengths, so "
            f"λ = {contraction_rate(cell):g} whatever the weights. Use SGORNN, whose gates shrink the state, or RNN."
        )
    if room <= 0:
        raise SettingError(
            f"project_ cannot bring {name} to rate {rate:g}, since α L = {rate - room:.4g} is already as large; lower "
            "alpha_logit."
        )
    logit, target = gates.beta_logit, math.log(room) - math.log1p(-room)  # (3)
    while contraction_rate(cell) > rate:
        logit.fill_(target)
        target -= torch.finfo(logit.dtype).eps * (1 + abs(target))  # one unit in the last place, if rounding went up


def _project_lstm(cell: LSTMCell, rate: float, input_bound: float | None, forget: float | None) -> None:
    if input_bound is None:
        raise SettingError("project_ expects input_bound for an LSTM, got None; give input_bound, the largest ‖x_t‖₂.")
    bound = check_input_bound(input_bound, "l2")
    if cell.phi is not torch.tanh:
        raise NoBoundError(
            f'project_ expects LSTMs with tanh, got {name_of(cell.phi)}; build the LSTM with nonlinearity="tanh".'
        )
    size = cell.hidden_size
    weight_f, weight_hh = cell.weight_ih[size : 2 * size], _plain(cell, cell.weight_hh)
    bias_f = torch.zeros(size) if cell.bias is None else cell.bias[size : 2 * size]
    if forget is None:
        reach = (weight_f.double().norm(dim=1) * bound + bias_f.double()).max().item()
        forget, radius_f = _forget_fixed_point(reach, rate)
    else:
        if not 0.5 < forget < rate:
            raise SettingError(f"project_ expects forget in (0.5, rate) = (0.5, {rate:g}), got {forget}.")
        radius_f = (rate - forget) * (1 - forget)
        _forget_rows_(cell, bound, math.log(forget / (1 - forget)) - radius_f)
    room = rate - forget
    radii = (room, radius_f, room / 4, room)  # (4), rows stacked i, f, g, o
    for part, radius in zip(weight_hh.chunk(4), radii, strict=True):
        part.copy_(l1_ball_rows(part, radius))


def _clamp_(weight: Tensor, bound: float) -> None:
    """Into [-bound, bound], also where the weight's type cannot hold the bound."""
    edge = weight.new_tensor(bound)
    if edge.item() > bound:
        edge = torch.nextafter(edge, torch.zeros_like(edge))
    weight.clamp_(-edge, edge)


def _project_gru(cell: GRUCell, rate: float, input_bound: float | None) -> None:
    """(6)."""
    if input_bound is None:
        raise SettingError("project_ expects input_bound for a GRU, got None; give input_bound, the largest ‖x_t‖₂.")
    bound, weight = check_input_bound(input_bound, "l2"), _plain(cell, cell.weight_hh)
    if contraction_rate(cell, bound) <= rate:
        return
    start = weight.clone()

    def rate_at(scale: float) -> float:
        weight.copy_(start * scale)
        return contraction_rate(cell, bound)

    if (open_gate := rate_at(0.0)) > rate:
        weight.copy_(start)
        raise SettingError(
            f"project_ cannot bring this GRU to rate {rate:g} by its matrices: inputs and biases alone open an update "
            f"gate to {open_gate:.4g}. Lower the biases of z or input_bound, or choose a larger rate."
        )
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if rate_at(middle) <= rate else (low, middle)
    weight.copy_(start * low)


def _project_mingru(cell: MinGRUCell, rate: float, input_bound: float | None) -> None:
    """(8): 1 - z is a forget gate with the weights -W_z and the biases -b_z."""
    size, bound = cell.hidden_size, _input_gated(cell, rate, input_bound)
    if rate == 1:
        return
    bias = None if cell.bias is None else _plain(cell, cell.bias)[:size]
    _cone_rows_(_plain(cell, cell.weight_ih)[:size], bias, bound, math.log(rate) - math.log1p(-rate), sign=-1)


def _input_gated(cell: MinGRUCell | MinLSTMCell, rate: float, input_bound: float | None) -> float:
    """B, after the checks of the arguments."""
    name = type(cell).__name__.removesuffix("Cell")
    if input_bound is None:
        raise SettingError(
            f"project_ expects input_bound for a {name}, got None; give input_bound, the largest ‖x_t‖₂."
        )
    if cell.bias is None and rate < 0.5:
        raise SettingError(f"project_ expects a rate of at least 0.5 for a {name} without a bias, got {rate:g}.")
    return check_input_bound(input_bound, "l2")


def _project_minlstm(cell: MinLSTMCell, rate: float, input_bound: float | None) -> None:
    """(9). ``reach`` is what stands in its two softplus: ±b + B ‖W‖, the least i with its sign changed."""
    size, bound = cell.hidden_size, _input_gated(cell, rate, input_bound)
    rates = minlstm_step(cell, Box(bound, "l2", cell.input_size)).s
    if not (outside := rates > rate).any():
        return
    rows = _plain(cell, cell.weight_ih)[: 2 * size].view(2, size, -1)  # f, i
    bias = None if cell.bias is None else _plain(cell, cell.bias)[: 2 * size].view(2, size)
    length = rows.double().norm(dim=2)
    own = torch.zeros_like(length) if bias is None else bias.double() * length.new_tensor([[1.0], [-1.0]])
    logit, scale = math.log(rate) - math.log1p(-rate), (own.abs() + bound * length).sum(dim=0)

    def moved(distance: Tensor) -> tuple[Tensor, Tensor]:
        """How much shorter each W and smaller each ±b gets: what lowers ``reach`` most."""
        if bias is None:
            return torch.minimum(length, distance), torch.zeros_like(length)
        shorter = torch.minimum(length, distance * bound / math.hypot(1, bound))
        return shorter, (distance.square() - shorter.square()).sqrt()

    high = length.amax(dim=0) if bias is None else 2 * (1 + abs(logit) + scale)  # enough for any weights
    low = torch.zeros_like(high)
    for _ in range(100):
        distance = (low + high) / 2
        shorter, smaller = moved(distance)
        reach_f, reach_i = own - smaller + bound * (length - shorter)
        slack = 8 * torch.finfo(rows.dtype).eps * (1 + abs(logit) + scale + distance)  # so that rounding stays inside
        enough = nn.functional.softplus(reach_i) - nn.functional.softplus(-reach_f) <= logit - slack
        low, high = torch.where(enough, low, distance), torch.where(enough, distance, high)
    shorter, smaller = moved(high)
    outside = outside.to(rows.device)
    kept = 1 - shorter / length.clamp_min(torch.finfo(torch.float64).tiny)
    rows.copy_(torch.where(outside.unsqueeze(1), rows.double() * kept.unsqueeze(2), rows.double()))
    if bias is not None:
        bias.copy_(torch.where(outside, bias.double() - smaller * length.new_tensor([[1.0], [-1.0]]), bias.double()))


def _forget_fixed_point(reach: float, rate: float) -> tuple[float, float]:
    """f̄ and ‖U_f‖ with (4) and (5): q = (λ - σ(reach + q)) (1 - σ(reach + q)); the left grows, the right falls."""

    def sigmoid(z: float) -> float:
        return 1 / (1 + math.exp(-z)) if z > -700 else 0.0

    if sigmoid(reach) >= rate:
        raise SettingError(
            f"project_ cannot bring this LSTM to rate {rate:g}: inputs and biases alone open a forget gate to "
            f"{sigmoid(reach):.4g}. Give forget=, a value below {rate:g}, to move them too, or lower input_bound."
        )
    low, high = 0.0, 1.0
    for _ in range(100):
        q = (low + high) / 2
        f = sigmoid(reach + q)
        low, high = (q, high) if q < (rate - f) * (1 - f) and f < rate else (low, q)
    return sigmoid(reach + high), max(low * (1 - 1e-12), 0.0)


def _forget_rows_(cell: LSTMCell, bound: float, most: float) -> None:
    """(5), for the rows of the forget gate."""
    size = cell.hidden_size
    bias = None if cell.bias is None else _plain(cell, cell.bias)[size : 2 * size]
    _cone_rows_(_plain(cell, cell.weight_ih)[size : 2 * size], bias, bound, most)


def _cone_rows_(weight: Tensor, bias: Tensor | None, bound: float, most: float, sign: int = 1) -> None:
    """Move each row (w, b) to the nearest with B ‖w‖ + ``sign`` b ≤ ``most``.

    With v = most - b that is the cone B ‖w‖ ≤ v, and the nearest point of its edge has ‖w‖ = (‖w‖ + B v) / (1 + B²).
    """
    length = weight.double().norm(dim=1)
    edge = most - 8 * torch.finfo(weight.dtype).eps * (1 + abs(most))  # so that rounding stays inside
    if bias is None:
        outside = bound * length > most
        new_length = torch.full_like(length, max(edge, 0.0) / bound if bound else 0.0)
    else:
        own = sign * bias.double()
        outside = bound * length + own > most
        new_length = ((length + bound * (edge - own)) / (1 + bound**2)).clamp_min(0)
        bias.copy_(torch.where(outside, sign * (edge - bound * new_length), bias.double()))
    factor = (new_length / length.clamp_min(torch.finfo(torch.float64).tiny)).clamp(max=1)
    weight.copy_(torch.where(outside.unsqueeze(1), weight.double() * factor.unsqueeze(1), weight.double()))


def l1_ball_rows(rows: Tensor, radius: float) -> Tensor:
    """Each row moved to the nearest one with Σ |entries| ≤ radius, by soft thresholding.

    Law: inside, nearest in the Euclidean norm, and unchanged, bit for bit, if inside.

    Example:
        >>> l1_ball_rows(torch.tensor([[3.0, 1.0], [0.2, -0.1]]), radius=1.0)
        tensor([[ 1.0000, 0.0000],
                [ 0.2000, -0.1000]])
    """
    size = rows.detach().double().abs()
    shrunk = torch.sign(rows) * (size - l1_level(size, radius)).clamp_min(0).to(rows.dtype)
    sums = shrunk.double().abs().sum(dim=1, keepdim=True)
    u = torch.finfo(rows.dtype).eps
    shrunk = torch.where(sums > radius, shrunk * ((radius / sums) * (1 - 2 * u)).to(rows.dtype), shrunk)
    inside = size.sum(dim=1, keepdim=True) <= radius
    return torch.where(inside, rows.detach(), shrunk)


def l1_level(size: Tensor, radius: float | Tensor) -> Tensor:
    """τ of each row with Σ max(size - τ, 0) = radius, (rows, 1); negative if the row is inside. Duchi et al. (2008)."""
    order, _ = size.sort(dim=1, descending=True)
    excess = order.cumsum(dim=1) - radius
    counts = torch.arange(1, size.shape[1] + 1, dtype=size.dtype, device=size.device)
    active = (order * counts > excess).sum(dim=1, keepdim=True).clamp_min(1)
    return excess.gather(1, active - 1) / active


def _project_region_(cell: Any, region: Region, method: str) -> None:
    form = step_form(cell)
    if form is None or not form.free:
        raise NoBoundError(f"A region expects RNNCell or LinearCell, got {type(cell).__name__}; project it with rate.")
    _ball_(cell, form.weight_hh, region.recurrent, method)
    _ball_(cell, form.weight_ih, region.input, method)
    if form.bias is not None:
        bias = _plain(cell, form.bias)
        length = bias.double().norm().item()
        if length > region.bias:
            shorter = 1 - 2 * torch.finfo(bias.dtype).eps if region.bias else 0.0
            bias.mul_(region.bias / length * shorter)


def _ball_(cell: Cell, weight: Tensor, radius: float, method: str) -> None:
    weight = _plain(cell, weight)
    if radius == 0:
        weight.zero_()
    else:
        weight.copy_(METHODS[method](weight, radius))


def _plain(cell: Cell, weight: Tensor) -> Tensor:
    """The weight, if it is a parameter itself. A parametrised weight is a copy with a constraint of its own."""
    if not isinstance(weight, nn.Parameter):
        raise SettingError(
            f"project_ expects plain parameters, but a weight of {type(cell).__name__} is parametrised; call "
            "torch.nn.utils.parametrize.remove_parametrizations first."
        )
    return weight
