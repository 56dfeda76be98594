"""S4's lemmas on random systems: bounds that hold, that are nearly attained, and that fail without stability."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import ScalarGates, scan
from holdfast.errors import SettingError
from holdfast.stability import (
    Region,
    Smoothness,
    certificate,
    gradient_gap,
    gradient_smoothness,
    project_,
    step_bounds,
    trained_output_gap,
    weight_gap,
    weight_gap_closed,
)

MAKE = {
    "linear": lambda: holdfast.LinearCell(2, 3),
    "rnn": lambda: holdfast.RNNCell(2, 3),
    "fastrnn": lambda: holdfast.FastRNNCell(2, 3, gates=ScalarGates(0.0, -1.0)),
    "sgornn": lambda: holdfast.SGORNNCell(2, 4, nonlinearity="tanh", gates=ScalarGates(-1.0, 0.5, clip="2alpha")),
    "lstm": lambda: holdfast.LSTMCell(2, 3),
    "gru": lambda: holdfast.GRUCell(2, 3),
    "indrnn": lambda: holdfast.IndRNNCell(2, 3, nonlinearity="tanh"),
    "mingru": lambda: holdfast.MinGRUCell(2, 3),
    "minlstm": lambda: holdfast.MinLSTMCell(2, 3, nonlinearity="tanh"),
}
drawn = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "rate": st.floats(0.05, 0.9),
        "bound": st.floats(0.1, 2),
        "steps": st.integers(8, 20),
    }
)


def system(name, seed, rate, bound, steps):
    """A stable cell of (about) this rate, inputs of this length, and a target."""
    torch.manual_seed(seed)
    cell = MAKE[name]()
    with torch.no_grad():
        if name in ("lstm", "gru"):
            for weight, small in zip(cell.parameters(), (0.3, 0.2 * rate, 0.5, 0.5), strict=False):
                weight.mul_(small)  # input, recurrent, biases: gates that stay well below 1
        elif name in ("indrnn", "mingru", "minlstm"):
            project_(cell, rate, input_bound=bound)
        elif hasattr(cell, "weight_hh"):
            cell.weight_hh.mul_(rate / torch.linalg.matrix_norm(cell.weight_hh, 2))
    xs = torch.randn(steps, 1, 2)
    return cell, bound * xs / xs.norm(dim=2, keepdim=True), torch.randn(1, cell.hidden_size)


def loss(h, target):
    """√(1 + ‖h - target‖²): 1-Lipschitz, and 1-smooth."""
    return (1 + (h - target).square().sum()).sqrt()


def last_state(cell, xs, k=None):
    return scan(cell, xs if k is None else xs[-k:], backend="reference")[1][0]


def gradient(cell, xs, target, k=None):
    grads = torch.autograd.grad(loss(last_state(cell, xs, k), target), list(cell.parameters()))
    return torch.cat([grad.reshape(-1) for grad in grads])


@pytest.mark.parametrize("name", MAKE)
@given(setting=drawn, k=st.integers(1, 7))
@settings(deadline=None, max_examples=3)
def test_no_state_output_or_gradient_gap_passes_its_bound(name, setting, k):
    """Lemmas 1, 2 and Proposition 1: for all systems, inputs, T ≤ 20 and k ≤ 7; with biases, so f(0, 0) ≠ 0."""
    cell, xs, target = system(name, **setting)
    readout = torch.randn(2, cell.hidden_size)
    proved = certificate(cell, setting["bound"], readout=readout, loss_lipschitz=1.0, loss_smoothness=1.0)
    assert proved.stable
    full, short = last_state(cell, xs), last_state(cell, xs, k)
    gap = (full - short).norm(p=2 if proved.stack.layers[0].norm == "l2" else math.inf)
    assert gap <= proved.state_gap(k) * (1 + 1e-9)
    assert ((full - short) @ readout.mT).norm() <= proved.output_gap(k) * (1 + 1e-9)
    own = certificate(cell, setting["bound"], loss_lipschitz=1.0, loss_smoothness=1.0)
    apart = (gradient(cell, xs, target) - gradient(cell, xs, target, k)).norm()
    assert apart <= own.gradient_gap(k) * (1 + 1e-9)


def scalar(a, cell_type=holdfast.LinearCell, w=1.0):
    cell = cell_type(1, 1, bias=False)
    with torch.no_grad():
        cell.weight_hh.fill_(a)
        cell.weight_ih.fill_(w)
    return cell


@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("a", [0.2, 0.5, 0.9])
def test_state_and_gradient_bounds_are_attained_by_a_scalar_system(a, k):
    """h_t = a h_{t-1} + 1, T → ∞: the state gap is a^k / (1 - a), the bound; the gradient gap, to 25% of the bound.

    ∂p/∂a differs by a^k / (1 - a)² + k a^(k-1) / (1 - a), ∂p/∂w by a^k / (1 - a), for p = h.
    """
    cell, xs = scalar(a), torch.ones(400, 1, 1)
    proved = certificate(cell, 1.0, loss_lipschitz=1.0, loss_smoothness=0.0)
    full, short = last_state(cell, xs), last_state(cell, xs, k)
    assert (full - short).item() == pytest.approx(proved.state_gap(k))
    grads = [torch.autograd.grad(h, [cell.weight_hh, cell.weight_ih]) for h in (full, short)]
    apart = [(one - other).item() for one, other in zip(*grads, strict=True)]
    assert apart == pytest.approx([a**k / (1 - a) ** 2 + k * a ** (k - 1) / (1 - a), a**k / (1 - a)])
    assert math.hypot(*apart) <= proved.gradient_gap(k) <= 1.25 * math.hypot(*apart)


def test_a_tanh_network_comes_within_a_factor_of_its_gradient_bound():
    """With small inputs tanh is nearly linear: measured and proved differ by less than a half."""
    cell, xs = scalar(0.6, holdfast.RNNCell), 0.05 * torch.ones(300, 1, 1)
    proved = certificate(cell, 0.05, loss_lipschitz=1.0, loss_smoothness=0.0)
    for k in (2, 5, 10):
        grads = [
            torch.autograd.grad(last_state(cell, xs, n).sum(), [cell.weight_hh, cell.weight_ih]) for n in (None, k)
        ]
        apart = math.hypot(*((one - other).item() for one, other in zip(*grads, strict=True)))
        assert apart <= proved.gradient_gap(k) <= 1.5 * apart


def test_bounds_of_a_stable_system_are_passed_by_one_that_is_not():
    """With a = 1.1 where 0.9 was certified: state and gradient gaps pass what holds for 0.9; its own are infinite."""
    stable, unstable = scalar(0.9), scalar(1.1)
    xs, k = torch.ones(60, 1, 1), 5
    claimed = certificate(stable, 1.0, loss_lipschitz=1.0, loss_smoothness=0.0)
    grads = []
    for n in (None, k):
        h = last_state(unstable, xs, n)
        grads.append((h.item(), torch.autograd.grad(h.sum(), unstable.weight_hh)[0].item()))
    assert abs(grads[0][0] - grads[1][0]) > claimed.state_gap(k)
    assert abs(grads[0][1] - grads[1][1]) > claimed.gradient_gap(k)
    own = certificate(unstable, 1.0, loss_lipschitz=1.0, loss_smoothness=0.0)
    assert own.state_gap(k) == own.gradient_gap(k) == own.gradient_smoothness == math.inf


def test_lemma_2_as_printed_is_false_for_small_rates():
    """U = 0 gives λ = 0: printed, the gradients for k = 1 are equal. But ∂p/∂U = ∇p h_{T-1}ᵀ, and h_{T-1}^1 = 0."""
    for u in (0.0, 0.05):
        cell, xs = scalar(u), torch.ones(10, 1, 1)
        proved = certificate(cell, 1.0, loss_lipschitz=1.0, loss_smoothness=0.0)
        full, short = (torch.autograd.grad(last_state(cell, xs, n).sum(), cell.weight_hh)[0] for n in (None, 1))
        apart = (full - short).abs().item()
        assert proved.gradient_gap(1, form="published") < apart <= proved.gradient_gap(1)
    assert proved.gradient_gap(1, form="published") < 0.2 * apart


def test_the_jacobian_term_has_one_power_of_the_rate_less_than_printed():
    """With k = 2, ∂h_T/∂h_{T-1}, tanh near its bend: the gap passes λ^k β_hh L_x B / (1 - λ)², not λ^(k-1) β_hh R."""
    u, B, k = 0.1, 0.6, 2
    cell = scalar(u, holdfast.RNNCell)
    bounds = step_bounds(cell, B)
    xs = torch.full((10, 1, 1), B)
    slopes = []
    for n in (None, k):
        h = scan(cell, xs[:-1] if n is None else xs[-n:-1], backend="reference")[1][0]
        slopes.append(u * (1 - torch.tanh(u * h + B) ** 2).item())
    apart, exact = abs(slopes[0] - slopes[1]), u ** (k - 1) * bounds.smoothness.hh * bounds.state_bound
    printed = u**k * bounds.smoothness.hh * B / (1 - u) ** 2
    assert printed < 0.2 * apart < apart <= exact


@pytest.mark.parametrize("name", ["linear", "rnn"])
@given(setting=drawn, size=st.floats(1e-3, 0.5))
@settings(deadline=None, max_examples=5)
def test_no_two_gradients_of_a_region_pass_lemma_3(name, setting, size):
    """For all w, w' in Ω: ‖∇p_T(w) - ∇p_T(w')‖ ≤ β ‖w - w'‖, for full and truncated models."""
    cell, xs, target = system(name, **setting)
    region = Region(recurrent=setting["rate"], input=1.0, bias=0.5)
    proved = certificate(cell, setting["bound"], loss_lipschitz=1.0, loss_smoothness=1.0, region=region)
    grads, weights = [], []
    for _ in range(2):
        project_(cell, region=region)
        weights.append(torch.cat([w.detach().reshape(-1) for w in cell.parameters()]))
        grads.append([gradient(cell, xs, target, k) for k in (None, 3)])
        with torch.no_grad():
            for w in cell.parameters():
                w.add_(size * torch.randn_like(w))
    moved = (weights[0] - weights[1]).norm()
    for one, other in zip(*grads, strict=True):
        assert (one - other).norm() <= proved.gradient_smoothness * moved * (1 + 1e-9)


def descend(cell, xs, target, region, alpha, steps, k):
    """w^0, w^1, ..., by projected gradient descent with α_i = α / i."""
    path = []
    for i in range(1, steps + 1):
        grads = torch.autograd.grad(loss(last_state(cell, xs, k), target), list(cell.parameters()))
        with torch.no_grad():
            for weight, grad in zip(cell.parameters(), grads, strict=True):
                weight.sub_(alpha / i * grad)
        if region is not None:
            project_(cell, region=region)
        path.append(torch.cat([weight.detach().reshape(-1) for weight in cell.parameters()]))
    return path


@pytest.mark.parametrize("name", ["linear", "rnn"])
@given(setting=drawn, k=st.integers(1, 5), alpha=st.floats(0.001, 0.3))
@settings(deadline=None, max_examples=4)
def test_no_weight_gap_passes_proposition_2_nor_the_output_gap_theorem_1(name, setting, k, alpha):
    """For all systems, k and α, after each of 12 steps: ‖w_recurr - w_trunc‖ and the outputs that follow from it."""
    region, steps = Region(recurrent=setting["rate"], input=0.8, bias=0.3), 12
    paths, states = [], []
    for n in (None, k):
        cell, xs, target = system(name, **setting)
        project_(cell, region=region)
        proved = certificate(cell, setting["bound"], loss_lipschitz=1.0, loss_smoothness=1.0, region=region)
        paths.append(descend(cell, xs, target, region, alpha, steps, n))
        states.append(last_state(cell, xs, n))
    for i, (one, other) in enumerate(zip(*paths, strict=True), start=1):
        assert (one - other).norm() <= proved.weight_gap(k, i, alpha) * (1 + 1e-9)
    assert (states[0] - states[1]).norm() <= proved.trained_output_gap(k, steps, alpha) * (1 + 1e-9)


def test_the_weight_bound_is_nearly_attained_and_is_passed_without_stability():
    """A scalar system, small α: measured within a factor 2 of the bound. Unprojected from a = 1.2: far beyond it."""
    xs, target, region, alpha, steps, k = torch.ones(60, 1, 1), torch.full((1, 1), 50.0), Region(0.5, 1.0), 1e-3, 5, 4
    paths = [descend(scalar(0.5), xs, target, region, alpha, steps, n) for n in (None, k)]
    proved = certificate(scalar(0.5), 1.0, loss_lipschitz=1.0, loss_smoothness=1.0, region=region)
    free = [descend(scalar(0.499, w=0.9), xs, target, None, alpha, steps, n) for n in (None, k)]  # nothing to project
    bound = proved.weight_gap(k, steps, alpha)
    assert all((one - other).norm() <= bound for one, other in zip(*paths, strict=True))
    apart = (free[0][-1] - free[1][-1]).norm().item()
    assert apart <= bound <= 2 * apart
    wild = [descend(scalar(1.2), xs, target, None, alpha, steps, n) for n in (None, k)]
    assert (wild[0][-1] - wild[1][-1]).norm() > 100 * bound


@given(gap=st.floats(0, 10), beta=st.floats(0, 5), alpha=st.floats(0.001, 1), steps=st.integers(1, 50))
@settings(deadline=None, max_examples=30)
def test_the_recursion_is_never_above_the_printed_closed_form(gap, beta, alpha, steps):
    """α G N^(αβ + 1) bounds δ_N of (4) with α_i = α / i."""
    step_by_step = weight_gap(gap, beta, [alpha / i for i in range(1, steps + 1)])
    assert step_by_step <= weight_gap_closed(gap, beta, alpha, steps) * (1 + 1e-12)


def test_gaps_by_hand():
    """λ = 0.5, k = 2, R = 2, L_w = 3, β_wh = 5, β_hh = 7, L_p = 11, β_p = 13: each term of (2) and (3)."""
    smooth = Smoothness(weights=3.0, ww=17.0, wh=5.0, hw=19.0, hh=7.0)
    setting = {"rate": 0.5, "smoothness": smooth, "loss_lipschitz": 11.0, "loss_smoothness": 13.0}
    terms = (0.25 * 33 / 0.5, 0.25 * 13 * 2 * 3 * 1.5, 2 * 0.5 * 11 * 5 * 2, 0.5 * 11 * 3 * 7 * 2 * (2 - 1.5) / 0.5)
    assert gradient_gap(2, state_bound=2.0, **setting) == pytest.approx(sum(terms))
    printed = (0.25 * 33 / 0.5, 0.25 * 13 * 2 * 3 * 2, 2 * 0.25 * 11 * 5 * 2, 0.25 * 11 * 3 * 7 * 2 * 2 / 0.5)
    assert gradient_gap(2, state_bound=2.0, **setting, form="published") == pytest.approx(sum(printed))
    beta = (13 * 9 + 11 * 3 * 24) / 0.25 + 11 * 17 / 0.5 + 11 * 9 * 7 / 0.125
    assert gradient_smoothness(**setting) == pytest.approx(beta)
    assert weight_gap(2.0, 1.0, [0.5, 0.25]) == pytest.approx(1.25 * 1.0 + 0.5)
    out = {"rate": 0.5, "state_bound": 2.0, "weight_lipschitz": 3.0, "output_lipschitz": 4.0, "weights_apart": 0.1}
    assert trained_output_gap(2, **out) == pytest.approx(4 * (0.3 / 0.5 + 0.5))
    assert weight_gap_closed(1.0, 1e6, 1.0, 100) == math.inf
    with pytest.raises(SettingError, match=r"k to be a whole number of at least 1, got 0"):
        gradient_gap(0, state_bound=2.0, **setting)
    with pytest.raises(SettingError, match=r"one of exact, published"):
        gradient_gap(1, state_bound=2.0, **setting, form="sharp")
