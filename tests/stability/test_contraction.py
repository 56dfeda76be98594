"""Rates: no step that is seen passes what is proved, in the norm that is named, and some come up to it."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Cell, ScalarGates, scan
from holdfast.errors import DTypeError, SettingError, ShapeError
from holdfast.stability import (
    NoBoundError,
    certificate,
    contraction_rate,
    observed_contraction,
    project_,
    stack_bounds,
    truncate,
)
from holdfast.stability.contraction import certified_cells


class OwnCell(Cell):
    def drive(self, x):
        return x

    def weights(self):
        return ()

    def step(self, drive, state, weights):
        return state


LAYERS = {
    "rnn": lambda n: holdfast.RNN(2, 4, n),
    "rnn-relu": lambda n: holdfast.RNN(2, 4, n, nonlinearity="relu"),
    "linear": lambda n: holdfast.LinearRNN(2, 4, n, output_size=3, direct=True),
    "fastrnn": lambda n: holdfast.FastRNN(2, 4, n),
    "sgornn": lambda n: holdfast.SGORNN(2, 4, n, gates=ScalarGates(-1.0, 0.5, clip="2alpha")),
    "vprnn": lambda n: holdfast.VPRNN(2, 4, n),
    "exprnn": lambda n: holdfast.ExpRNN(2, 4, n, nonlinearity="tanh"),
    "scornn": lambda n: holdfast.ScoRNN(2, 4, n, nonlinearity="tanh"),
    "lstm": lambda n: holdfast.LSTM(2, 4, n),
    "gru": lambda n: holdfast.GRU(2, 4, n),
    "gru-before": lambda n: holdfast.GRU(2, 4, n, reset="before"),
    "indrnn": lambda n: holdfast.IndRNN(2, 4, n),
    "mingru": lambda n: holdfast.MinGRU(2, 4, n),
    "minlstm": lambda n: holdfast.MinLSTM(2, 4, n, nonlinearity="positive"),
}


def shaken(make, layers, seed, size):
    torch.manual_seed(seed)
    layer = make(layers)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.mul_(size).add_(0.1 * torch.randn_like(weight))
    return layer


@pytest.mark.parametrize("name", LAYERS)
@given(seed=st.integers(0, 10**6), layers=st.integers(1, 3), size=st.floats(0.1, 2), bound=st.floats(0.1, 3))
@settings(deadline=None, max_examples=3)
def test_no_observed_step_passes_the_proved_rate(name, seed, layers, size, bound):
    """For all cells, 1 to 3 layers, weights small and large, data within the bound; stacks in their weighted norm."""
    layer = shaken(LAYERS[name], layers, seed, size)
    layer.backend = "reference"  # many models of few steps: compiling each would take longer than running it
    xs = torch.randn(5, 4, 2)
    xs *= bound / xs.norm(dim=2).max()
    seen = observed_contraction(layer, xs, times=2, iterations=5, input_bound=bound)
    assert 0 <= seen <= contraction_rate(layer, input_bound=bound) * (1 + 1e-9)  # 0 if every ReLU is off


@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 2))
@settings(deadline=None, max_examples=5)
def test_the_power_method_comes_up_to_the_rate_of_a_linear_system(seed, scale):
    """A linear map attains ‖U‖₂: from below, observed and proved meet to 1%."""
    torch.manual_seed(seed)
    cell = holdfast.LinearCell(2, 4)
    with torch.no_grad():
        cell.weight_hh.mul_(scale)
    layer = holdfast.Recurrent(cell, backend="reference")
    seen = observed_contraction(layer, torch.randn(4, 3, 2), times=1, iterations=60)
    assert seen == pytest.approx(contraction_rate(cell), rel=1e-2)


@given(seed=st.integers(0, 10**6), size=st.floats(0.05, 1.5), bound=st.floats(0.05, 4))
@settings(deadline=None, max_examples=8)
def test_reached_lstm_states_contract_in_the_largest_entry_norm(seed, size, bound):
    """For all weights and pairs of states reached from zero by inputs within the bound: ‖s₊ - s₊'‖∞ ≤ λ ‖s - s'‖∞, and
    Lemma 5: |c| stays below 1 / (1 - f̄).
    """
    torch.manual_seed(seed)
    cell = holdfast.LSTMCell(3, 5)
    with torch.no_grad():
        for weight in cell.parameters():
            weight.copy_(size * torch.randn_like(weight))
    xs = torch.randn(20, 32, 3)
    xs *= bound / xs.norm(dim=2, keepdim=True)
    _, state = scan(cell, xs, backend="reference")
    other = tuple(entry.roll(1, 0) for entry in state)
    x = xs[0]
    after = [torch.cat(cell(x, s), dim=1) for s in (state, other)]
    before = torch.cat(state, dim=1) - torch.cat(other, dim=1)
    ratio = (after[0] - after[1]).abs().amax(dim=1) / before.abs().amax(dim=1)
    assert ratio.max() <= contraction_rate(cell, bound) * (1 + 1e-9)
    reach = (cell.weight_ih[5:10].norm(dim=1) * bound + cell.weight_hh[5:10].abs().sum(dim=1) + cell.bias[5:10]).max()
    assert state[1].abs().max() <= 1 / torch.sigmoid(-reach)


def lstm_within_proposition_5(seed, bound):
    """Weights that satisfy the printed conditions for the f̄ that they have, and the rate that its proof gives."""
    torch.manual_seed(seed)
    cell = holdfast.LSTMCell(2, 4, bias=False)
    size = cell.hidden_size
    with torch.no_grad():
        f = torch.sigmoid(cell.weight_ih[size : 2 * size].abs().sum(dim=1).max() * bound + 0.25).item()
        radii = (1 - f, (1 - f) ** 2, (1 - f) / 4, 1 - f)  # i, f, g, o
        for part, radius in zip(cell.weight_hh.chunk(4), radii, strict=True):
            part.mul_(0.99 * radius / part.abs().sum(dim=1, keepdim=True))
    norms = [part.abs().sum(dim=1).max().item() for part in cell.weight_hh.chunk(4)]
    printed = f + (norms[0] + norms[1] / (1 - f) + norms[3]) / 4 + norms[2]
    return cell, printed


@given(seed=st.integers(0, 10**6), bound=st.floats(0.05, 2))
@settings(deadline=None, max_examples=6)
def test_proposition_5_makes_an_lstm_stable_and_ours_is_no_looser(seed, bound):
    cell, printed = lstm_within_proposition_5(seed, bound)
    assert contraction_rate(cell, bound) <= printed < 1


def test_proposition_5_needs_the_length_of_the_whole_state_to_reach_the_euclidean_norm():
    """A state of d units has 2d numbers, so r > log(√(2d)) / log(1/λ), where √d is printed: d = 1 would allow r = 1.

    U = 0, f = 0.88, o = 0.99: one step multiplies a small c by f and copies it to h: √2 · 0.88 > 1 in ℓ2, 0.88 in ℓ∞.
    """
    cell = holdfast.LSTMCell(1, 1)
    with torch.no_grad():
        cell.weight_hh.zero_()
        cell.weight_ih.zero_()
        cell.bias.copy_(torch.tensor([0.0, 2.0, 0.0, 5.0]))
    rate = contraction_rate(cell, 1.0)
    assert rate == pytest.approx(torch.sigmoid(torch.tensor(2.0)).item())
    start = torch.tensor([[0.0]]), torch.tensor([[1e-3]])
    r, lengths = certificate(cell, 1.0).iterations_l2, []
    assert r == 3
    state = start
    for _ in range(r):
        state = cell(torch.zeros(1, 1), state)
        lengths.append(torch.cat(state).norm().item() / 1e-3)
    assert lengths[0] > 1 > lengths[-1]


@given(a=st.floats(-30, 30), b=st.floats(-30, 30))
@settings(deadline=None, max_examples=30)
def test_gates_of_s3_keep_the_rate_at_most_one(a, b):
    """For all logits: SGORNN's α + β ≤ 1 - α with the clip (3) of S3, and ≤ 1 with β ≤ 1 - α."""
    for clip in ("2alpha", "alpha"):
        gates = ScalarGates(a, b, clip=clip)
        cell = holdfast.SGORNNCell(2, 4, gates=gates)
        alpha, beta = (gate.item() for gate in gates())
        assert contraction_rate(cell) == alpha + beta <= 1
        if clip == "2alpha":
            assert contraction_rate(cell) < 1


def test_rates_by_hand():
    """FastRNN: α ‖U‖ + β. VPRNN and ExpRNN: 1. A sigmoid quarters. GRU with U = 0: the update gate's reach."""
    fast = holdfast.FastRNNCell(2, 4, gates=ScalarGates(0.0, 0.0))
    with torch.no_grad():
        fast.weight_hh.copy_(3 * torch.eye(4))
    assert contraction_rate(fast) == pytest.approx(0.5 * 3 + 0.5)
    assert contraction_rate(holdfast.VPRNNCell(2, 4)) == 1.0
    assert contraction_rate(holdfast.ExpRNNCell(2, 4)) == 1.0
    quarter = holdfast.RNNCell(2, 4, nonlinearity="sigmoid", init="identity")
    assert contraction_rate(quarter) == pytest.approx(0.25)
    gru = holdfast.GRUCell(1, 2, bias=False)
    with torch.no_grad():
        gru.weight_hh.zero_()
        gru.weight_ih.fill_(1.0)
    assert contraction_rate(gru, 2.0) == pytest.approx(torch.sigmoid(torch.tensor(2.0)).item())


def test_modrelu_with_a_positive_bias_has_no_rate():
    """With b > 0 the states ±ε, however close, are thrown 2b apart."""
    cell = holdfast.ExpRNNCell(2, 4)
    with torch.no_grad():
        cell.bias.fill_(-0.1)
    assert contraction_rate(cell) == 1.0
    with torch.no_grad():
        cell.bias[2] = 0.1
    assert contraction_rate(cell) == math.inf
    h = 1e-9 * torch.randn(1, 4)
    gap = cell(torch.zeros(1, 2), h) - cell(torch.zeros(1, 2), -h)
    assert gap.norm() >= 0.19


@given(seed=st.integers(0, 10**6), layers=st.integers(2, 4), rate=st.floats(0.1, 0.95), gain=st.floats(0.1, 50))
@settings(deadline=None, max_examples=15)
def test_a_stack_is_stable_if_every_layer_is_whatever_the_gains_between(seed, layers, rate, gain):
    """M v ≤ λ v with λ < 1 for the weights v that are named, M^k r → 0, and M r ≤ r so that it only falls."""
    torch.manual_seed(seed)
    layer = holdfast.RNN(2, 4, layers)
    with torch.no_grad():
        for cell in layer.cells:
            cell.weight_hh.mul_(rate / torch.linalg.matrix_norm(cell.weight_hh, 2))
            cell.weight_ih.mul_(gain)
    stack = stack_bounds(layer, input_bound=1.0)
    M, v, r = (torch.tensor(t) for t in (stack.matrix, stack.weights, stack.radii))
    assert stack.stable
    assert stack.rate <= max((1 + rate) / 2, M.sum(dim=1).max().item()) * (1 + 1e-12)
    assert stack.rate < 1 or max(stack.weights) == 1.0
    assert ((M @ v) <= stack.rate * v * (1 + 1e-12)).all()
    assert ((M @ r) <= r * (1 + 1e-12)).all()
    assert stack.rate < 1
    assert stack.output_gap(4000) < 1e-6


def test_a_stack_with_a_layer_that_expands_is_not_stable():
    layer = holdfast.RNN(2, 4, 2, init="identity")
    with torch.no_grad():
        layer.cells[0].weight_hh.mul_(0.5)
        layer.cells[1].weight_hh.mul_(1.5)
    stack = stack_bounds(layer, 1.0)
    assert not stack.stable
    assert contraction_rate(layer) >= 1.5
    assert stack.output_gap(10) == math.inf
    assert stack.horizon(1e-3) is None


def test_what_has_no_bound_is_refused_by_name():
    with pytest.raises(
        NoBoundError, match=r"registered for OwnCell; certified cells: .*ExpRNNCell, FastRNNCell, GRUCell"
    ):
        contraction_rate(OwnCell(3, 3))
    assert {"RNNCell", "LinearCell", "SGORNNCell", "VPRNNCell", "LSTMCell"} <= set(certified_cells())
    with pytest.raises(
        DTypeError, match=r"holdfast cell or layer, got RNN; convert a torch.nn layer with holdfast.from_torch"
    ):
        contraction_rate(torch.nn.RNN(2, 3))
    with pytest.raises(SettingError, match=r"bidirectional"):
        contraction_rate(holdfast.RNN(2, 3, bidirectional=True))
    with pytest.raises(SettingError, match=r"LSTMCell contracts only while.*give input_bound"):
        contraction_rate(holdfast.LSTM(2, 3))
    with pytest.raises(NoBoundError, match=r"LSTMCell is certified with tanh.*this one has relu"):
        contraction_rate(holdfast.LSTMCell(2, 3, nonlinearity="relu"), 1.0)
    with pytest.raises(SettingError, match=r"input_bound expects a finite number"):
        contraction_rate(holdfast.LSTMCell(2, 3), -1.0)
    with pytest.raises(SettingError, match=r"input_norm to be one of l2, linf"):
        contraction_rate(holdfast.LSTMCell(2, 3), 1.0, input_norm="l1")
    with pytest.raises(ShapeError, match=r"at least 2 steps"):
        observed_contraction(holdfast.RNNCell(2, 3), torch.zeros(1, 2, 2))
    with pytest.raises(SettingError, match=r"times ≥ 1"):
        observed_contraction(holdfast.RNNCell(2, 3), torch.zeros(3, 2, 2), times=0)


WITHOUT_RATE = {
    "lem": (holdfast.LEM, "No contraction bound is registered for LEMCell"),
    "fastgrnn": (holdfast.FastGRNN, "No contraction bound is registered for FastGRNNCell"),
    "goru": (holdfast.GORU, "No contraction bound is registered for GORUCell"),
    "antisymmetric-relu": (
        partial(holdfast.AntisymmetricRNN, nonlinearity="relu", gated=True),
        "gated=True needs a bounded φ such as tanh, got relu",
    ),
}
WITH_A_RATE_ALONE = {
    "urnn": (holdfast.URNN, "URNNCell has a proved rate, λ = 1, but no other"),
    "eunn": (holdfast.EUNN, "EUNNCell has a proved rate, λ = 1, but no other"),
    "cornn": (holdfast.CoRNN, r"CoRNNCell has a proved rate, λ = 1\.0\d+, but no other"),
    "antisymmetric": (holdfast.AntisymmetricRNN, r"AntisymmetricRNNCell has a proved rate, λ = 1\.0\d+, but no other"),
}


@pytest.mark.parametrize("name", [*WITHOUT_RATE, *WITH_A_RATE_ALONE])
def test_cells_without_bounds_are_refused_certificates_windows_and_projections(name):
    """Of one and two layers, with a bound on the inputs: the same reason everywhere, and nothing is moved."""
    make, reason = (WITHOUT_RATE | WITH_A_RATE_ALONE)[name]
    for layers in (1, 2):
        layer = make(2, 4, layers)
        if name in WITHOUT_RATE:
            with pytest.raises(NoBoundError, match=reason):
                contraction_rate(layer.cells[0], 1.0)
        else:
            assert contraction_rate(layer.cells[0]) >= 1
        for refused in (contraction_rate, certificate, partial(truncate, eps=0.1)):
            with pytest.raises(NoBoundError, match=reason):
                refused(layer, input_bound=1.0)
        before = [weight.detach().clone() for weight in layer.parameters()]
        with pytest.raises(NoBoundError, match=f"No projection is registered for {type(layer.cells[0]).__name__}"):
            project_(layer, 0.9, input_bound=1.0)
        assert all(map(torch.equal, before, layer.parameters()))


def test_a_cell_of_ones_own_registers_its_rate():
    class Still(OwnCell):
        pass

    contraction_rate.register(Still, lambda cell, input_bound=None, *, input_norm="l2": 1.0)
    assert contraction_rate(Still(3, 3)) == 1.0
    with pytest.raises(NoBoundError, match=r"A cell of your own has them once holdfast.cells.step_form.register"):
        stack_bounds(Still(3, 3), 1.0)
