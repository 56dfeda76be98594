"""Projections of models: inside, idempotent, nearest where it is claimed, unchanged if inside."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import ScalarGates
from holdfast.constraints.spectral import spectral_ball
from holdfast.errors import SettingError
from holdfast.stability import NoBoundError, Region, contraction_rate, l1_ball_rows, project_, stack_bounds

MAKE = {
    "rnn": lambda: holdfast.RNN(2, 5, 2, bidirectional=True),
    "rnn-sigmoid": lambda: holdfast.RNN(2, 5, nonlinearity="sigmoid"),
    "linear": lambda: holdfast.LinearRNN(2, 5),
    "indrnn": lambda: holdfast.IndRNN(2, 5, 2, horizon=3),
    "fastrnn": lambda: holdfast.FastRNN(2, 5, gates=ScalarGates(0.0, -2.0)),
    "sgornn": lambda: holdfast.SGORNN(2, 4, gates=ScalarGates(-4.0, 6.0)),
}


def weights(model):
    return [weight.detach().clone() for weight in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["svd", "fast"])
@pytest.mark.parametrize("name", MAKE)
@given(seed=st.integers(0, 10**6), size=st.floats(0.1, 5), rate=st.floats(0.3, 1))
@settings(deadline=None, max_examples=3)
def test_a_projected_model_has_the_rate_and_is_a_fixed_point(name, method, dtype, seed, size, rate):
    """For all cells, methods, types, weights and rates: every cell's λ ≤ rate; twice is once, bit for bit."""
    torch.manual_seed(seed)
    model = MAKE[name]().to(dtype)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "weight_hh" in key:
                weight.mul_(size)
    inside = all(contraction_rate(cell) <= rate for cell in model.cells)
    before = weights(model)
    project_(model, rate, method=method)
    assert all(contraction_rate(cell) <= rate * (1 + 1e-14) for cell in model.cells)
    once = weights(model)
    if inside and method == "svd":
        assert all(map(torch.equal, before, once))
    project_(model, rate, method=method)
    assert all(map(torch.equal, once, weights(model)))


@pytest.mark.parametrize(("reset", "dtype"), [("before", torch.float32), ("after", torch.float64)])
@given(seed=st.integers(0, 10**6), size=st.floats(0.1, 3), rate=st.floats(0.95, 1))
@settings(deadline=None, max_examples=3)
def test_a_projected_gru_has_the_rate_and_is_only_scaled(reset, dtype, seed, size, rate):
    """Two layers: proved rates of at most ``rate``, one factor in [0, 1] per cell, the largest that is proved."""
    torch.manual_seed(seed)
    model = holdfast.GRU(2, 4, 2, reset=reset).to(dtype)
    with torch.no_grad():
        for cell in model.cells:
            cell.weight_hh.mul_(size)
            cell.weight_ih.mul_(0.3)
    before, bounds = [cell.weight_hh.detach().clone() for cell in model.cells], (1.0, 2.0)
    project_(model, rate, input_bound=1.0)
    for cell, start, bound in zip(model.cells, before, bounds, strict=True):
        found = contraction_rate(cell, bound)
        assert found <= rate
        scale = (cell.weight_hh.double() / start.double()).median().item()
        torch.testing.assert_close(cell.weight_hh.detach(), start * scale)
        assert scale == 1 or found >= rate - 1e-4
    once = weights(model)
    project_(model, rate, input_bound=1.0)
    assert all(map(torch.equal, once, weights(model)))


@pytest.mark.parametrize("bias", [True, False])
@given(seed=st.integers(0, 10**6), rate=st.floats(0.5, 0.99), bound=st.floats(0.1, 3))
@settings(deadline=None, max_examples=4)
def test_a_projected_mingru_has_the_rate_in_every_layer(bias, seed, rate, bound):
    """Layers above take the bound of the outputs below; candidates do not move; twice is once."""
    torch.manual_seed(seed)
    model = holdfast.MinGRU(2, 4, 2, bias=bias)
    before = [cell.weight_ih[4:].detach().clone() for cell in model.cells]
    project_(model, rate, input_bound=bound)
    assert all(it.rate <= rate * (1 + 1e-12) for it in stack_bounds(model, bound).layers)
    assert all(torch.equal(cell.weight_ih[4:], start) for cell, start in zip(model.cells, before, strict=True))
    once = weights(model)
    project_(model, rate, input_bound=bound)
    assert all(map(torch.equal, once, weights(model)))


def minlstm_gates(cell):
    """The rows (W, b) of f and i, (hidden, 2, width), as numbers of their own."""
    n = cell.hidden_size
    rows = cell.weight_ih[: 2 * n].detach().double().view(2, n, -1)
    if cell.bias is not None:
        rows = torch.cat([rows, cell.bias[: 2 * n].detach().double().view(2, n, 1)], dim=2)
    return rows.transpose(0, 1)


def minlstm_rates(rows, bound):
    """The largest f' of each unit, over separate inputs of length ``bound`` for f and for i: (9) solved for λ."""
    weight, bias = rows[..., :2], rows[..., 2] if rows.shape[-1] == 3 else torch.zeros(())
    reach = torch.tensor([1.0, -1.0]) * bias + bound * weight.norm(dim=-1)
    return torch.sigmoid(torch.log1p(reach[..., 1].exp()) - torch.log1p((-reach[..., 0]).exp()))


minlstms = st.fixed_dictionaries(
    {"seed": st.integers(0, 10**6), "size": st.floats(0.1, 10), "bound": st.just(0.0) | st.floats(0.01, 3)}
)


@pytest.mark.parametrize(("bias", "least"), [(True, 0.02), (False, 0.5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(setting=minlstms, share=st.floats(0, 1))
@settings(deadline=None, max_examples=8)
def test_a_projected_minlstm_forgets_at_the_rate_for_every_input(dtype, bias, least, setting, share):
    """Two layers, all weights and rates: no input within the bound opens f' beyond λ; candidates and units that are
    inside do not move; twice is once.
    """
    torch.manual_seed(setting["seed"])
    rate, bound = least + share * (0.99 - least), setting["bound"]
    model = holdfast.MinLSTM(2, 4, 2, bias=bias).to(dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(setting["size"])
    before = [minlstm_gates(cell) for cell in model.cells]
    candidates = [cell.weight_ih[8:].detach().clone() for cell in model.cells]
    project_(model, rate, input_bound=bound)
    assert all(it.rate <= rate for it in stack_bounds(model, bound).layers)
    first = model.cells[0]
    assert contraction_rate(first, bound) <= rate
    xs = torch.randn(200, 2, dtype=dtype)
    xs *= bound / xs.norm(dim=1, keepdim=True)
    tiny = 1e-6 if dtype == torch.float32 else 1e-14
    assert first.coefficients(first.drive(xs))[0].max() <= rate * (1 + tiny)
    assert all(torch.equal(cell.weight_ih[8:], start) for cell, start in zip(model.cells, candidates, strict=True))
    inside = minlstm_rates(before[0], bound) <= rate - 1e-9
    assert torch.equal(minlstm_gates(first)[inside], before[0][inside])
    once = weights(model)
    project_(model, rate, input_bound=bound)
    assert all(map(torch.equal, once, weights(model)))


@pytest.mark.parametrize(("bias", "least"), [(True, 0.05), (False, 0.51)])
@given(setting=minlstms, share=st.floats(0, 1))
@settings(deadline=None, max_examples=8)
def test_no_minlstm_with_the_rate_has_both_gates_nearer(bias, least, setting, share):
    """Each gate of each unit moves by ρ at most, and all points whose gates lie within 0.99 ρ have a larger rate. So no
    member is nearer in the larger of the two distances, nor by more than √2 in the Euclidean one.
    """
    torch.manual_seed(setting["seed"])
    rate, bound = least + share * (0.95 - least), setting["bound"]
    cell = holdfast.MinLSTMCell(2, 4, bias=bias)
    with torch.no_grad():
        for weight in cell.parameters():
            weight.mul_(setting["size"])
    before = minlstm_gates(cell)
    project_(cell, rate, input_bound=bound)
    moved = minlstm_gates(cell) - before
    rho = moved.norm(dim=2).amax(dim=1)
    outside = rho > 1e-6
    torch.testing.assert_close(minlstm_rates(before + moved, bound)[outside], rho[outside] * 0 + rate)
    assert (minlstm_rates(before + 0.99 * moved, bound) > rate)[outside].all()
    other = torch.randn(1000, *moved.shape)
    other *= 0.99 * rho[:, None, None] / other.norm(dim=3, keepdim=True)
    assert (minlstm_rates(before + other, bound) > rate)[:, outside].all()


lstms = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "size": st.floats(0.01, 5),
        "bound": st.just(0.0) | st.floats(0.01, 2),
        "bias": st.booleans(),
    }
)


def lstm(seed, size, bound, bias):
    torch.manual_seed(seed)
    cell = holdfast.LSTMCell(2, 4, bias=bias)
    with torch.no_grad():
        cell.weight_hh.mul_(size)
    return cell


@given(setting=lstms, rate=st.floats(0.97, 1.0))
@settings(deadline=None, max_examples=10)
def test_a_projected_lstm_satisfies_proposition_5(setting, rate):
    """For all weights and input bounds: the printed conditions, scaled to λ, hold for Lemma 5's f̄; λ is kept."""
    cell, bound = lstm(**setting), setting["bound"]
    project_(cell, rate, input_bound=bound)
    i, f, g, o = (part.abs().sum(dim=1).max().item() for part in cell.weight_hh.chunk(4))
    reach = cell.weight_ih[4:8].norm(dim=1) * bound + (cell.bias[4:8] if setting["bias"] else 0)
    top = torch.sigmoid(reach.max() + f).item()
    slack = 1 + 1e-9
    assert max(i, o) <= (rate - top) * slack
    assert g <= (rate - top) / 4 * slack
    assert f <= (rate - top) * (1 - top) * slack
    assert contraction_rate(cell, bound) <= rate
    once = weights(cell)
    project_(cell, rate, input_bound=bound)
    assert all(map(torch.equal, once, weights(cell)))


@given(setting=lstms, forget=st.floats(0.55, 0.9), scale=st.floats(0.1, 20))
@settings(deadline=None, max_examples=10)
def test_with_a_given_forget_gate_input_weights_move_too_and_to_the_nearest(setting, forget, scale):
    """B ‖w‖ + b ≤ logit f̄ - ‖U_f‖ for every row, whatever the inputs; nearest: ⟨p - q, z - q⟩ ≤ 0 for members z."""
    cell, bound = lstm(**setting), setting["bound"]
    with torch.no_grad():
        cell.weight_ih.mul_(scale)
    before = torch.cat([cell.weight_ih[4:8], *([cell.bias[4:8, None]] if setting["bias"] else [])], dim=1).detach()
    project_(cell, 0.95, input_bound=bound, forget=forget)
    assert contraction_rate(cell, bound) <= 0.95
    most = math.log(forget / (1 - forget)) - (0.95 - forget) * (1 - forget)
    after = torch.cat([cell.weight_ih[4:8], *([cell.bias[4:8, None]] if setting["bias"] else [])], dim=1).detach()
    bias = after[:, 2] if setting["bias"] else torch.zeros(4)
    assert (after[:, :2].norm(dim=1) * bound + bias <= most + 1e-12).all()
    others = torch.randn(50, after.shape[1])
    if setting["bias"]:
        others[:, 2] = torch.minimum(others[:, 2], most - bound * others[:, :2].norm(dim=1))
    elif bound:
        others *= torch.rand(50, 1) * max(most, 0) / bound / others.norm(dim=1, keepdim=True)
    inner = ((before - after).unsqueeze(1) * (others - after.unsqueeze(1))).sum(dim=2)
    assert inner.max() <= 1e-9 * (1 + before.norm() ** 2)
    once = weights(cell)
    project_(cell, 0.95, input_bound=bound, forget=forget)
    assert all(map(torch.equal, once, weights(cell)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(rows=st.integers(1, 5), width=st.integers(1, 8), radius=st.floats(0.0, 4), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=15)
def test_rows_land_in_their_balls_at_the_nearest_point(dtype, rows, width, radius, seed):
    """For all rows and radii: Σ |p| ≤ r; ⟨w - p, z - p⟩ ≤ 0 for members z; twice is once; inside, nothing moves."""
    torch.manual_seed(seed)
    W = torch.randn(rows, width, dtype=dtype)
    P = l1_ball_rows(W, radius)
    tiny = 1e-6 if dtype == torch.float32 else 1e-12
    assert (P.double().abs().sum(dim=1) <= radius * (1 + 1e-15)).all()
    Z = torch.randn(rows, width, dtype=dtype)
    Z *= radius / Z.abs().sum(dim=1, keepdim=True)
    assert ((W - P) * (Z - P)).sum(dim=1).max() <= tiny * (1 + W.norm() ** 2)
    assert torch.equal(l1_ball_rows(P, radius), P)
    inside = W.double().abs().sum(dim=1) <= radius
    assert torch.equal(P[inside], W[inside])


@given(seed=st.integers(0, 10**6), size=st.floats(0.1, 5))
@settings(deadline=None, max_examples=10)
def test_a_region_is_projected_onto_matrix_by_matrix(seed, size):
    torch.manual_seed(seed)
    region = Region(recurrent=0.5, input=0.8, bias=0.2)
    for make in (holdfast.RNNCell, holdfast.LinearCell):
        cell = make(2, 4)
        with torch.no_grad():
            for weight in cell.parameters():
                weight.mul_(size)
        project_(cell, region=region)
        slack = 1 + 1e-14  # two ways to compute a norm differ in the last place
        assert torch.linalg.matrix_norm(cell.weight_hh, 2) <= 0.5 * slack
        assert torch.linalg.matrix_norm(cell.weight_ih, 2) <= 0.8 * slack
        assert cell.bias.norm() <= 0.2
        once = weights(cell)
        project_(cell, region=region)
        assert all(map(torch.equal, once, weights(cell)))


def test_layers_of_lstms_use_what_bounds_the_outputs_below():
    """|h| ≤ 1, so the second layer's inputs are bounded by √n, whatever the first layer's are."""
    layer = holdfast.LSTM(2, 4, 2)
    with torch.no_grad():
        for cell in layer.cells:
            cell.weight_ih.mul_(0.2)
    project_(layer, 0.98, input_bound=1.0)
    assert contraction_rate(layer.cells[0], 1.0) <= 0.98
    assert contraction_rate(layer.cells[1], 2.0) <= 0.98


def test_what_cannot_be_projected_is_refused_with_the_reason():
    for make in (holdfast.VPRNN, holdfast.ExpRNN):
        assert project_(make(2, 4), 1.0) is not None
        with pytest.raises(SettingError, match=r"keeps lengths, so λ = 1 whatever the weights. Use SGORNN"):
            project_(make(2, 4), 0.9)
    with pytest.raises(NoBoundError, match=r"registered for LEMCell; projected cells: .*ExpRNNCell.* MinLSTMCell"):
        project_(holdfast.LEM(2, 4), 0.9)
    gru = holdfast.GRUCell(2, 4)
    torch.nn.init.constant_(gru.bias, 3.0)
    before = weights(gru)
    with pytest.raises(SettingError, match=r"alone open an update gate to 0.9\d+"):
        project_(gru, 0.5, input_bound=1.0)
    assert all(map(torch.equal, before, weights(gru)))
    for make in (holdfast.GRU, holdfast.MinGRU, holdfast.MinLSTM):
        with pytest.raises(SettingError, match=r"give input_bound"):
            project_(make(2, 4), 0.9)
    for make in (holdfast.MinGRU, holdfast.MinLSTM):
        with pytest.raises(SettingError, match=r"at least 0.5 for a Min(GRU|LSTM) without a bias"):
            project_(make(2, 4, bias=False), 0.4, input_bound=1.0)
    with pytest.raises(SettingError, match=r"FastRNNCell to rate 0.5 by its matrix, since β = 0.9526"):
        project_(holdfast.FastRNN(2, 4), 0.5)
    with pytest.raises(SettingError, match=r"α L = 0.7311 is already as large"):
        project_(holdfast.SGORNN(2, 4, gates=ScalarGates(1.0, 1.0)), 0.5)
    with pytest.raises(SettingError, match=r"give input_bound"):
        project_(holdfast.LSTM(2, 4), 0.9)
    cell = holdfast.LSTMCell(2, 4)
    torch.nn.init.constant_(cell.bias, 3.0)
    with pytest.raises(SettingError, match=r"open a forget gate to 0.9\d+. Give forget="):
        project_(cell, 0.9, input_bound=1.0)
    with pytest.raises(SettingError, match=r"forget in \(0.5, rate\)"):
        project_(holdfast.LSTMCell(2, 4), 0.9, input_bound=1.0, forget=0.95)
    with pytest.raises(NoBoundError, match=r"LSTMs with tanh"):
        project_(holdfast.LSTMCell(2, 4, nonlinearity="relu"), 0.9, input_bound=1.0)
    for rate in (0.0, 1.5, -1.0):
        with pytest.raises(SettingError, match=r"rate in \(0, 1\]"):
            project_(holdfast.RNN(2, 4), rate)
    with pytest.raises(SettingError, match=r"a rate or a region"):
        project_(holdfast.RNN(2, 4))
    with pytest.raises(SettingError, match=r"method to be one of svd, fast"):
        project_(holdfast.RNN(2, 4), 0.9, method="qr")
    with pytest.raises(NoBoundError, match=r"A region expects RNNCell or LinearCell, got SGORNNCell"):
        project_(holdfast.SGORNN(2, 4), region=Region(0.5, 1.0))
    held = holdfast.RNNCell(2, 4)
    spectral_ball(held, "weight_hh", 0.9)
    with pytest.raises(SettingError, match=r"RNNCell is parametrised; call"):
        project_(held, 0.5)
    assert contraction_rate(held) <= 0.9 + 1e-9
