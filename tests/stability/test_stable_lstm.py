"""LSTMs stable by parametrisation: inside at every step, unmoved if inside, with the derivative of the map."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import scan
from holdfast.errors import DTypeError, SettingError
from holdfast.stability import NoBoundError, contraction_rate, l1_ball_rows, stable_lstm

OPTIMISERS = {"SGD": lambda p: torch.optim.SGD(p, lr=2.0), "Adam": lambda p: torch.optim.Adam(p, lr=0.3)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@given(seed=st.integers(0, 10**6), rate=st.floats(0.9, 1.0), forget=st.floats(0.7, 0.85), bound=st.floats(0.1, 3))
@settings(deadline=None, max_examples=2)
def test_the_rate_is_kept_at_the_start_and_after_every_step(optimiser, bias, seed, rate, forget, bound):
    """For all weights, rates, f̄ and input bounds, steps large enough to leave the set; and no forget gate passes f̄."""
    torch.manual_seed(seed)
    cell = holdfast.LSTMCell(2, 3, bias=bias)
    with torch.no_grad():
        for weight in cell.parameters():
            weight.mul_(5)
    assert contraction_rate(cell, bound) > rate
    stable_lstm(cell, rate, input_bound=bound, forget=forget)
    step = OPTIMISERS[optimiser](cell.parameters())
    xs = torch.randn(4, 5, 2)
    xs *= bound / xs.norm(dim=2, keepdim=True)
    for _ in range(4):
        assert contraction_rate(cell, bound) <= rate * (1 + 1e-12)
        reach = cell.weight_ih[3:6].norm(dim=1) * bound + cell.weight_hh[3:6].abs().sum(dim=1)
        reach = reach + (cell.bias[3:6] if bias else 0)
        assert torch.sigmoid(reach).max() <= forget * (1 + 1e-12)
        step.zero_grad()
        scan(cell, xs, backend="reference")[0].square().sum().neg().backward()
        step.step()


def test_rows_go_where_the_projection_takes_them_and_those_inside_stay():
    """Gate by gate the map is ``l1_ball_rows``; its derivative is the right one, and that inside is the identity."""
    cell = stable_lstm(holdfast.LSTMCell(2, 3), 0.95, input_bound=1.0, forget=0.8)
    rows = cell.parametrizations.weight_hh[0]
    X = torch.randn(12, 3)
    for found, part, radius in zip(rows(X).chunk(4), X.chunk(4), rows.limit, strict=True):
        torch.testing.assert_close(found, l1_ball_rows(part, radius))
    assert torch.equal(rows(1e-3 * X), 1e-3 * X)
    assert torch.autograd.gradcheck(rows, X.requires_grad_())
    assert torch.autograd.gradcheck(cell.parametrizations.weight_ih[0], 5 * torch.randn(12, 2).requires_grad_())


def test_a_layer_of_a_stable_cell_runs_and_is_certified():
    layer = holdfast.LSTM(2, 4, backend="reference")
    stable_lstm(layer.cells[0], 0.9, input_bound=1.0, forget=0.75)
    assert layer(torch.randn(5, 3, 2))[0].shape == (5, 3, 4)
    assert contraction_rate(layer, 1.0) <= 0.9


def test_bad_settings_are_named():
    cell = holdfast.LSTMCell(2, 3)
    with pytest.raises(DTypeError, match=r"expects an LSTMCell, got LSTM; of a layer: layer.cells\[0\]"):
        stable_lstm(holdfast.LSTM(2, 3), input_bound=1.0, forget=0.8)
    with pytest.raises(SettingError, match=r"forget in \(0.5, rate\) = \(0.5, 0.9\), got 0.95"):
        stable_lstm(cell, 0.9, input_bound=1.0, forget=0.95)
    with pytest.raises(SettingError, match=r"a larger forget, got 0.51"):
        stable_lstm(cell, 0.99, input_bound=1.0, forget=0.51)
    with pytest.raises(SettingError, match=r"rate in \(0, 1\]"):
        stable_lstm(cell, 1.5, input_bound=1.0, forget=0.8)
    with pytest.raises(SettingError, match=r"input_bound expects a finite number"):
        stable_lstm(cell, input_bound=-1.0, forget=0.8)
    with pytest.raises(NoBoundError, match=r"with tanh"):
        stable_lstm(holdfast.LSTMCell(2, 3, nonlinearity="relu"), input_bound=1.0, forget=0.8)
    stable_lstm(cell, input_bound=1.0, forget=0.8)
    with pytest.raises(SettingError, match=r"parametrised already"):
        stable_lstm(cell, input_bound=1.0, forget=0.8)
