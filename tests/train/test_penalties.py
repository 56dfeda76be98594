"""Penalties on outputs: by hand, their laws, and in training."""

import pytest
import torch

import holdfast
from holdfast.errors import SettingError, ShapeError
from holdfast.tasks import Addition
from holdfast.train import ModelSettings, Training, build, fit
from holdfast.train.penalties import activation_regularisation, norm_stabiliser, temporal_activation_regularisation

ALL = (norm_stabiliser, activation_regularisation, temporal_activation_regularisation)


def test_the_norm_stabiliser_is_the_printed_sum():
    """The mean over samples of Σ_t (‖h_t‖ - ‖h_{t-1}‖)² / (T - 1)."""
    hs = torch.randn(5, 3, 4)
    exact = sum((hs[t].norm(dim=1) - hs[t - 1].norm(dim=1)) ** 2 for t in range(1, 5)).mean() / 4
    torch.testing.assert_close(norm_stabiliser(hs), exact)


def test_an_orthogonal_recurrence_has_no_penalty():
    """VPRNN with φ = id and no input only turns the state."""
    cell = holdfast.VPRNNCell(3, 8, nonlinearity="identity")
    hs, _ = holdfast.scan(cell, torch.zeros(9, 2, 3), torch.randn(2, 8))
    assert norm_stabiliser(hs) < 1e-25
    assert temporal_activation_regularisation(hs) > 1e-3


@pytest.mark.parametrize("penalty", ALL)
def test_padding_does_not_count(penalty):
    """With lengths: the mean of what each sequence has alone, whatever stands behind its end; 1 step has no change."""
    hs, lengths = torch.randn(6, 3, 4), torch.tensor([6, 3, 1])
    alone = [penalty(hs[:length, i : i + 1]) for i, length in enumerate(lengths.tolist())]
    torch.testing.assert_close(penalty(hs, lengths), torch.stack(alone).mean())


@pytest.mark.parametrize("penalty", ALL)
def test_gradients_are_those_of_the_function_and_finite_at_zero(penalty):
    assert torch.autograd.gradcheck(penalty, torch.randn(4, 2, 3, requires_grad=True))
    zeros = torch.zeros(4, 2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(penalty(zeros), zeros)
    assert not gradient.any()


def test_training_with_it_keeps_the_lengths_of_states_together(tmp_path):
    """The same run with and without: β = 100 makes (1) smaller."""
    task = Addition(steps=12, validation=16, test=16).load()
    found = {}
    for beta in (0.0, 100.0):
        torch.manual_seed(0)
        model = build(ModelSettings("rnn", 8, norm_stabiliser=beta, options={"backend": "reference"}), task.spec)
        fit(model, task, Training(updates=30, batch=16, lr=1e-2), tmp_path / f"{beta}", progress=False)
        found[beta] = norm_stabiliser(model.rnn(task.train_batch(999, 64, 0).inputs)[0]).item()
    assert found[100.0] < 0.5 * found[0.0]


@pytest.mark.parametrize("used", [ALL[:1], ALL[1:2], ALL[2:], ALL])
def test_a_model_adds_them_in_training_only_and_once(used):
    """Each alone and all: its factor times itself on the layer's output, for one answer at the end and padded input."""
    factors = {it.__name__: 2.0 + k for k, it in enumerate(used)}
    settings = ModelSettings("rnn", 4, options={"backend": "reference"}, **factors)
    model, xs = build(settings, Addition(steps=7).load().spec), torch.randn(7, 3, 2)
    for lengths in (None, torch.tensor([7, 2, 4])):
        model(xs, lengths)
        exact = sum(factors[it.__name__] * it(model.rnn(xs)[0], lengths) for it in used)
        torch.testing.assert_close(model.penalty(), exact)
        assert model.penalty() is None
    model.eval()(xs)
    assert model.penalty() is None


def test_wrong_input_is_named():
    with pytest.raises(ShapeError, match=r"expects an output of shape \(time, batch, hidden\), got \(3, 4\)"):
        norm_stabiliser(torch.zeros(3, 4))
    for it in ALL:
        name = it.__name__
        with pytest.raises(SettingError, match=f"{name} must be at least 0, got -1"):
            ModelSettings(**{name: -1.0})
        with pytest.raises(SettingError, match=f"pooled = true.*{name}"):
            build(ModelSettings("rnn", 4, pooled=True, **{name: 1.0}), Addition(steps=5).load().spec)
