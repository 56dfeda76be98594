"""Projected optimisers: any of them, with closures, schedulers and checkpoints, ends its steps in the set."""

import copy
import pickle

import pytest
import torch

import holdfast
from holdfast.errors import DTypeError, SettingError, StateDictError
from holdfast.stability import Projected, contraction_rate


def grown(layer, factor=3.0):
    with torch.no_grad():
        layer.l0.weight_hh.mul_(factor)
    return layer


def run(layer, xs, optimiser, steps, scheduler=None):
    for _ in range(steps):
        optimiser.zero_grad()
        layer(xs)[0].square().sum().neg().backward()
        optimiser.step()
        if scheduler is not None:
            scheduler.step()


@pytest.fixture
def layer():
    return grown(holdfast.RNN(2, 4, backend="reference"))


@pytest.fixture
def xs():
    return torch.randn(5, 2, 2)


def test_it_starts_and_ends_every_step_in_the_set(layer, xs):
    optimiser = Projected(torch.optim.Adam(layer.parameters(), lr=0.5), layer, rate=0.9)
    assert contraction_rate(layer) <= 0.9
    for _ in range(5):
        run(layer, xs, optimiser, 1)
        assert contraction_rate(layer) <= 0.9


def test_every_n_steps(layer, xs):
    optimiser = Projected(torch.optim.SGD(layer.parameters(), lr=1.0), layer, rate=0.9, every=3)
    rates = []
    for _ in range(6):
        run(layer, xs, optimiser, 1)
        rates.append(contraction_rate(layer) <= 0.9)
    assert rates == [False, False, True] * 2


def test_it_is_an_optimizer_to_schedulers_hooks_and_closures(layer, xs):
    inner = torch.optim.SGD(layer.parameters(), lr=1.0)
    optimiser = Projected(inner, layer, rate=0.9)
    assert isinstance(optimiser, torch.optim.Optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda t: 1 / (t + 1))
    seen = []
    optimiser.register_step_post_hook(lambda *args: seen.append(1))
    run(layer, xs, optimiser, 3, scheduler)
    assert inner.param_groups[0]["lr"] == pytest.approx(0.25)
    assert optimiser.param_groups is inner.param_groups
    assert optimiser.state is inner.state
    assert optimiser.defaults is inner.defaults
    assert len(seen) == 3
    lbfgs = Projected(torch.optim.LBFGS(layer.parameters(), lr=0.1), layer, rate=0.9)

    def closure():
        lbfgs.zero_grad()
        loss = layer(xs)[0].square().sum()
        loss.backward()
        return loss

    assert lbfgs.step(closure) > 0
    assert contraction_rate(layer) <= 0.9
    optimiser.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    assert len(inner.param_groups) == 2
    assert "every=1" in repr(optimiser)


def test_a_run_that_is_saved_and_resumed_ends_with_the_same_weights(layer, xs):
    def made(layer):
        return Projected(torch.optim.Adam(layer.parameters(), lr=0.1), layer, rate=0.9, every=2)

    optimiser = made(layer)
    run(layer, xs, optimiser, 3)
    other = copy.deepcopy(layer)
    resumed = made(other)
    other.load_state_dict(layer.state_dict())  # wrapping projects at once; the saved weights come after
    resumed.load_state_dict(pickle.loads(pickle.dumps(optimiser.state_dict())))
    assert resumed.param_groups is resumed.optimizer.param_groups
    assert resumed.steps == 3
    for one, opt in ((layer, optimiser), (other, resumed)):
        run(one, xs, opt, 4)
    for a, b in zip(layer.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    plain = torch.optim.Adam(layer.parameters(), lr=0.1).state_dict()
    resumed.load_state_dict(plain)
    assert resumed.steps == 0
    with pytest.raises(StateDictError, match=r"no param_groups"):
        resumed.load_state_dict({})


def test_copies_project_their_own_model(layer, xs):
    model, optimiser = copy.deepcopy((layer, Projected(torch.optim.SGD(layer.parameters(), lr=1.0), layer, rate=0.9)))
    assert optimiser.onto is model
    run(model, xs, optimiser, 1)
    assert contraction_rate(model) <= 0.9


def test_any_function_that_projects_will_do(layer, xs):
    optimiser = Projected(
        torch.optim.SGD(layer.parameters(), lr=1.0), lambda: layer.l0.weight_hh.data.clamp_(-0.1, 0.1)
    )
    run(layer, xs, optimiser, 2)
    assert layer.l0.weight_hh.abs().max() <= 0.1


def test_bad_settings_are_named(layer):
    inner = torch.optim.SGD(layer.parameters(), lr=1.0)
    with pytest.raises(DTypeError, match=r"expects a torch.optim.Optimizer, got RNN"):
        Projected(layer, layer, rate=0.9)
    for every in (0, 1.5, True):
        with pytest.raises(SettingError, match=r"every to be a whole number"):
            Projected(inner, layer, rate=0.9, every=every)
    with pytest.raises(SettingError, match=r"a function without arguments"):
        Projected(inner, "layer")
    with pytest.raises(SettingError, match=r"rate in \(0, 1\]"):
        Projected(inner, layer, rate=2.0)
