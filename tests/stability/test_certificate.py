"""Certificates: each premise is judged on the model, what is printed is what the methods say, and JSON carries it."""

import json
import math

import pytest
import torch

import holdfast
from holdfast import RandomStart, ScalarGates
from holdfast.errors import DTypeError, SettingError, ShapeError
from holdfast.stability import Assumption, NoBoundError, Region, certificate, project_, stack_bounds


def verdicts(model, bound=1.0, **settings):
    return {a.name: a.verdict for a in certificate(model, bound, **settings).assumptions}


def test_every_premise_is_judged_on_the_model():
    """Tanh without bias keeps all of them; ReLU, a bias, a learned start, noise and U too long break one each."""
    fine = verdicts(project_(holdfast.RNN(2, 4, bias=False), rate=0.9))
    assert [fine[name] for name in ("contractive", "smooth", "f(0, 0) = 0", "h_0 = 0", "deterministic")] == [
        "holds"
    ] * 5
    assert fine["inputs are bounded"] == fine["loss Lipschitz and smooth"] == "unknown"
    assert verdicts(holdfast.RNN(2, 4, nonlinearity="relu"))["smooth"] == "broken"
    assert verdicts(holdfast.RNN(2, 4))["f(0, 0) = 0"] == "broken"
    assert verdicts(holdfast.RNN(2, 4, initial_state="learned"))["h_0 = 0"] == "broken"
    noisy = holdfast.RNN(2, 4, initial_state=RandomStart(0.1))
    assert verdicts(noisy)["deterministic"] == "broken"
    assert verdicts(noisy.eval())["deterministic"] == "holds"
    assert verdicts(holdfast.RNN(2, 4, 2, dropout=0.5))["deterministic"] == "broken"
    assert verdicts(holdfast.RNN(2, 4, init="identity"))["contractive"] == "broken"
    assert verdicts(holdfast.VPRNN(2, 4))["contractive"] == "broken"
    assert verdicts(holdfast.SGORNN(2, 4))["contractive"] == "holds"  # α + β < 1 by the clip of S3 (3)
    assert verdicts(holdfast.SGORNN(2, 4, gates=ScalarGates(3.0, 3.0)))["contractive"] == "broken"


def test_data_in_place_of_a_bound_are_measured():
    xs = torch.randn(30, 3, 2)
    proved = certificate(holdfast.RNN(2, 4), xs)
    assert proved.input_bound == pytest.approx(xs.norm(dim=2).max().item())
    assert verdicts(holdfast.RNN(2, 4), xs)["inputs are bounded"] == "holds"
    assert certificate(holdfast.RNN(2, 4), xs, input_norm="linf").input_bound == xs.abs().max().item()


def test_region_is_checked_against_the_weights():
    layer, region = holdfast.RNN(2, 4), Region(recurrent=0.5, input=0.7, bias=0.1)
    assert verdicts(layer, region=region)["weights stay in a convex Ω"] == "broken"
    project_(layer, region=region)
    assert verdicts(layer, region=region)["weights stay in a convex Ω"] == "unknown"
    assert certificate(layer, 1.0, region=region).rate == 0.5


def test_the_horizon_is_the_least_window_for_epsilon():
    """λ = 0.5, R = 2: 2 · 0.5^k ≤ ε; a readout of norm 4 asks for two steps more. For stacks, by search."""
    cell = holdfast.LinearCell(1, 1, bias=False)
    with torch.no_grad():
        cell.weight_hh.fill_(0.5)
        cell.weight_ih.fill_(1.0)
    assert certificate(cell, 1.0, eps=0.25).horizon() == 3
    assert certificate(cell, 1.0, eps=0.25, readout=torch.tensor([[4.0]])).horizon() == 5
    assert certificate(cell, 1.0).horizon(4.0) == 1
    for layers in (1, 3):
        layer = project_(holdfast.RNN(2, 4, layers), rate=0.9)
        proved = certificate(layer, 1.0)
        for eps in (1e-1, 1e-4, 1e-9):
            k = proved.horizon(eps)
            assert proved.output_gap(k) <= eps < proved.output_gap(k - 1)


def test_a_readout_of_an_lstm_is_measured_from_largest_entries():
    """‖V x‖₂ ≤ L_f max |x|: attained by a row of equal signs, where √n ‖V‖₂ would be the same."""
    V = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, -1.0, -1.0]])
    proved = certificate(holdfast.LSTMCell(2, 4), 1.0, readout=V)
    assert proved.readout_lipschitz == pytest.approx(4.0)  # √n ‖V‖₂ = 2 · 2; the row sums would give 4 √2
    assert certificate(holdfast.LSTMCell(2, 4), 1.0, readout=V[:1]).readout_lipschitz == pytest.approx(4.0)
    linear = torch.nn.Linear(4, 3)
    assert certificate(holdfast.RNNCell(2, 4), 1.0, readout=linear).readout_lipschitz == pytest.approx(
        torch.linalg.matrix_norm(linear.weight, 2).item()
    )


def test_what_is_printed_and_what_is_in_json_are_the_numbers_of_the_methods():
    layer = project_(holdfast.RNN(2, 4), rate=0.8)
    proved = certificate(layer, 1.0, loss_lipschitz=1.0, loss_smoothness=2.0)
    k, text, report = proved.horizon(), str(proved), json.loads(proved.to_json())
    for number in (proved.rate, proved.output_gap(k), proved.gradient_gap(k), proved.gradient_smoothness):
        assert f"{number:.4g}" in text
    assert f"horizon k(ε = 0.001)            {k}" in text
    assert all(str(assumption) in text for assumption in proved.assumptions)
    assert report["horizon"] == k
    assert report["rate"] == proved.rate
    assert report["stack"]["layers"][0]["smoothness"]["hh"] == proved.stack.layers[0].smoothness.hh
    assert report["assumptions"][0] == vars(proved.assumptions[0])
    unstable = certificate(holdfast.RNN(2, 4, 2, init="identity", nonlinearity="relu"), 1.0)
    assert "not certified as stable" in str(unstable)
    assert json.loads(unstable.to_json())["stack"]["radii"] == ["inf", "inf"]
    assert "λ of each layer" in str(unstable)
    lstm = holdfast.LSTMCell(2, 4)
    with torch.no_grad():
        lstm.weight_hh.mul_(0.1)
    assert "largest entry" in str(certificate(lstm, 0.5))
    assert "steps to contract in ℓ2" in str(certificate(lstm, 0.5))
    assert str(Assumption("a", "holds", "b")) == "holds    a: b"


def test_a_learned_start_enlarges_the_bounds():
    """The window starts at h_0 too, so two states may be R + ‖h_0‖ apart."""
    layer = project_(holdfast.RNN(2, 4, initial_state="learned", nonlinearity="relu", bias=False), rate=0.5)
    zero = stack_bounds(layer, 1.0).radii[0]
    with torch.no_grad():
        layer.initial_state.values[0].fill_(10.0)
    assert stack_bounds(layer, 1.0).radii[0] == pytest.approx(20.0 + 20.0)
    assert zero < 20
    lstm = holdfast.LSTM(2, 4, initial_state="learned")
    torch.nn.init.ones_(lstm.initial_state.values[0])
    with pytest.raises(NoBoundError, match=r"starts away from zero"):
        certificate(lstm, 1.0)


def test_what_cannot_be_certified_is_refused_with_the_reason():
    layer = project_(holdfast.RNN(2, 4), rate=0.9)
    with pytest.raises(NoBoundError, match=r"RNN\(2, 4\) is not certified as stable: λ = 1 ≥ 1.*project_"):
        certificate(holdfast.RNN(2, 4, init="identity"), 1.0).horizon()
    with pytest.raises(SettingError, match=r"depend on the loss: give loss_lipschitz"):
        certificate(layer, 1.0).gradient_gap(3)
    with pytest.raises(SettingError, match=r"region=Region\("):
        certificate(layer, 1.0, loss_lipschitz=1.0, loss_smoothness=1.0).weight_gap(3, 10, 0.1)
    with pytest.raises(NoBoundError, match=r"derived for one layer; .* has 2"):
        certificate(holdfast.RNN(2, 4, 2), 1.0, loss_lipschitz=1.0, loss_smoothness=1.0).gradient_gap(3)
    with pytest.raises(SettingError, match=r"one layer with region, got 2"):
        certificate(holdfast.RNN(2, 4, 2), 1.0, region=Region(0.5, 1.0))
    for bad in ({"eps": 0.0}, {"eps": math.nan}, {"loss_lipschitz": -1.0}, {"readout": -2.0}):
        with pytest.raises(SettingError):
            certificate(layer, 1.0, **bad)
    with pytest.raises(SettingError, match=r"input_bound expects a finite number"):
        certificate(layer, -1.0)
    with pytest.raises(ShapeError, match=r"data of shape \(..., 2\), got \(5, 3\)"):
        certificate(layer, torch.zeros(5, 3))
    with pytest.raises(ShapeError, match=r"readout of shape \(features, 4\)"):
        certificate(layer, 1.0, readout=torch.zeros(4, 3))
    with pytest.raises(DTypeError, match=r"readout to be a torch.nn.Linear"):
        certificate(layer, 1.0, readout="linear")
    with pytest.raises(SettingError, match=r"k to be a whole number of at least 1, got 0"):
        certificate(layer, 1.0).state_gap(0)
    with pytest.raises(SettingError, match=r"eps to be positive"):
        certificate(layer, 1.0).horizon(-1.0)
