"""κ⁽¹⁾ in float32, of one layer and of stacked ones, held to that in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.path_graphs import random_model
from holdfast import RNN
from holdfast.engine.kernels import flow
from holdfast.errors import SettingError
from holdfast.optim import PathSGD, kappa_first, path_network
from holdfast.optim.one_layer import one_layer_first


class Model(nn.Module):
    def __init__(self, width=2, hidden=5, outputs=3, *, layers=1, bias=True, last_only=True, dtype=torch.float32):
        super().__init__()
        self.rnn = RNN(width, hidden, layers, nonlinearity="relu", bias=bias)
        self.readout, self.last_only = nn.Linear(hidden, outputs, bias=bias), last_only
        self.to(dtype)

    def forward(self, xs):
        output, h_n = self.rnn(xs)
        return self.readout(h_n[-1] if self.last_only else output)


def same(found, expected, rtol):
    assert list(found) == list(expected)
    for parameter, value in found.items():
        assert value.shape == parameter.shape
        torch.testing.assert_close(value.double(), expected[parameter], rtol=rtol, atol=0)


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 4),
    hidden=st.integers(1, 40),
    outputs=st.integers(1, 4),
    steps=st.integers(2, 60),
    bias=st.booleans(),
    last_only=st.booleans(),
)
def test_it_equals_kappa_of_any_network(width, hidden, outputs, steps, bias, last_only):
    torch.manual_seed(0)
    model = Model(width, hidden, outputs, bias=bias, last_only=last_only)
    found = kappa_first(model, steps, dtype=torch.float32)
    assert all(value.dtype == torch.float32 for value in found.values())
    same(found, kappa_first(model, steps), rtol=1e-5)


def test_rounding_stays_small_over_a_thousand_steps():
    torch.manual_seed(0)
    model = Model(hidden=128)
    with torch.no_grad():
        model.rnn.l0.weight_hh.copy_(torch.eye(128))
    same(kappa_first(model, 1000, dtype=torch.float32), kappa_first(model, 1000), rtol=3e-5)


@pytest.mark.parametrize("what", ["fading", "growing", "zero"])
def test_past_the_range_of_float32_it_is_computed_in_float64(what):
    """A unit that is read by 1e-12 has paths of 1e-24 · f, whose float32 is lost where f fades by 1e-16 and less."""
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        if what == "fading":
            model.readout.weight.mul_(1e-12)
            model.rnn.l0.weight_ih.mul_(1e-8)
            model.rnn.l0.bias.mul_(1e-8)
        else:
            model.rnn.l0.weight_hh.mul_(1e3 if what == "growing" else 0.0)
    network = path_network(model)
    steps = 1 if what == "zero" else 50  # in one step no path meets U
    with torch.no_grad():
        assert one_layer_first(network, steps, every=False) is None
    same(kappa_first(model, steps, dtype=torch.float32), kappa_first(model, steps), rtol=1e-12)


def test_other_networks_get_float64():
    feed_forward = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).float()
    for model in (Model(dtype=torch.float64), feed_forward):
        same(kappa_first(model, 4, "last", dtype=torch.float32), kappa_first(model, 4, "last"), rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(
    hidden=st.integers(1, 20),
    layers=st.integers(1, 3),
    words=st.sampled_from([0, 7]),
    learned=st.booleans(),
    steps=st.integers(2, 40),
    last_only=st.booleans(),
    compiled=st.booleans(),
)
def test_stacked_networks_are_computed_in_float32_too(hidden, layers, words, learned, steps, last_only, compiled):
    """With embeddings and learned states, and on machines without the compiled loop."""
    torch.manual_seed(0)
    model = random_model(3, hidden, layers, words=words, learned=learned, last_only=last_only).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(0.3 / hidden**0.5, 1 / hidden**0.5)  # within the range of float32 for 40 steps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow, "LARGEST", 256 if compiled else 0)
        found = kappa_first(model, steps, dtype=torch.float32)
    assert all(value.dtype == torch.float32 for value in found.values())
    same(found, kappa_first(model, steps), rtol=2e-5)


@pytest.mark.parametrize("what", ["fading", "growing", "underflow"])
def test_stacked_networks_past_the_range_of_float32_are_computed_in_float64(what):
    torch.manual_seed(0)
    model = Model(layers=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if what == "growing" and "weight_hh" in name:
                parameter.mul_(1e3)
            elif what == "fading" and ("readout" in name or "l0" in name):
                parameter.mul_(1e-8)
            elif what == "underflow" and "l1.weight_ih" in name:
                parameter.mul_(1e-18)
    same(kappa_first(model, 50, dtype=torch.float32), kappa_first(model, 50), rtol=1e-12)


def test_tied_weights_add_up_in_float32_too():
    model = Model(width=5, outputs=5)
    model.readout.weight = model.rnn.l0.weight_ih
    same(kappa_first(model, 4, dtype=torch.float32), kappa_first(model, 4), rtol=1e-5)


def test_a_step_of_path_sgd_is_the_same_with_and_without_it(monkeypatch):
    torch.manual_seed(0)
    models, xs = [Model(), Model()], torch.randn(20, 4, 2, dtype=torch.float32)
    models[1].load_state_dict(models[0].state_dict())
    before = [parameter.clone() for parameter in models[0].parameters()]
    for model, largest in zip(models, (256, 0), strict=True):
        monkeypatch.setattr(flow, "LARGEST", largest)
        optimiser = PathSGD(model.parameters(), model, lr=1e-3, steps=20)
        model(xs).square().mean().backward()
        optimiser.step()
    for one, other, start in zip(models[0].parameters(), models[1].parameters(), before, strict=True):
        assert not torch.equal(one, start)
        torch.testing.assert_close(one - start, other - start, rtol=1e-4, atol=1e-7)


def test_another_precision_is_refused():
    with pytest.raises(SettingError, match=r"float32, torch\.float64, got torch\.float16"):
        kappa_first(Model(), 4, dtype=torch.float16)
