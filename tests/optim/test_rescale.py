"""Theorem 1: other weights, the same function. Theorem 2: a step of Path-SGD commutes with it, one of SGD does not."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.path_graphs import random_model
from helpers.scripts import script
from holdfast.errors import SettingError, ShapeError
from holdfast.optim import (
    PathAdam,
    PathSGD,
    internal_units,
    kappa,
    kappa_first,
    kappa_second,
    path_network,
    path_norm_sq,
    rescale_,
)

networks = st.fixed_dictionaries(
    {
        "inputs": st.integers(1, 4),
        "hidden": st.integers(1, 6),
        "layers": st.integers(1, 3),
        "kind": st.sampled_from(["holdfast", "torch"]),
        "words": st.sampled_from([0, 5]),
        "bias": st.booleans(),
        "learned": st.booleans(),
        "last_only": st.booleans(),
    }
)


def tame(model):
    """Weights that neither explode nor let all units die over ten steps: signs only where time or the readout is."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.uniform_(0.1, 0.6)
            if "weight_hh" in name or "readout" in name:
                parameter[torch.rand_like(parameter) < 0.3] *= -1
    return model


def random_alpha(model, decades=1.0):
    return [10 ** (decades * (2 * torch.rand(size) - 1)) for size in internal_units(model)]


def sequences(model, steps=8, batch=5):
    if model.embedding is not None:
        return torch.randint(0, model.embedding.num_embeddings, (steps, batch))
    return torch.rand(steps, batch, model.rnn.input_size)


def trained(model, make, xs, updates=1):
    model = copy.deepcopy(model)
    optimiser = make(model)
    for _ in range(updates):
        optimiser.zero_grad()
        (model(xs) - 1).square().mean().backward()
        optimiser.step()
    return model


def small_rate(model, xs):
    """Of a step that should lower the loss by 2 percent: large enough to see, too small to let all units die."""
    loss = (model(xs) - 1).square().mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    found = kappa_first(model, len(xs))
    pairs = zip(model.parameters(), gradients, strict=True)
    return 0.02 * loss.item() / sum((g.square() / found[p].clamp(min=1e-30)).sum().item() for p, g in pairs)


def distance(one, two, xs):
    with torch.no_grad():
        return ((one(xs) - two(xs)).abs().max() / one(xs).abs().max()).item()


seeds = st.integers(0, 10**6)


@settings(max_examples=15, deadline=None)
@given(sizes=networks, seed=seeds)
def test_rescaling_keeps_the_function_and_the_path_norm(sizes, seed):
    """For all α > 0, over four decades: f and γ² stay, κ_i is multiplied by (β_u/β_v)²."""
    torch.manual_seed(seed)
    model = random_model(**sizes)
    xs, steps, before = sequences(model), 8, copy.deepcopy(model)
    assert rescale_(model, random_alpha(model, 2.0)) is model
    torch.testing.assert_close(model(xs), before(xs), rtol=1e-9, atol=1e-9 * before(xs).abs().max().item())
    torch.testing.assert_close(path_norm_sq(model, steps), path_norm_sq(before, steps), rtol=1e-11, atol=0)
    for function in (kappa_first, kappa_second, kappa):
        ours, theirs = function(model, steps), function(before, steps)
        for parameter, other in zip(model.parameters(), before.parameters(), strict=True):
            factor = (parameter / other).detach()
            torch.testing.assert_close(ours[parameter] * factor**2, theirs[other], rtol=1e-9, atol=0)


@settings(max_examples=15, deadline=None)
@given(sizes=networks, second=st.booleans(), form=st.sampled_from(["exact", "published"]), seed=seeds)
def test_a_step_of_path_sgd_commutes_with_rescaling(sizes, second, form, seed):
    """The functions after a step from p and from the rescaled p agree to 1e-9, with and without κ⁽²⁾, in both forms."""
    torch.manual_seed(seed)
    model = tame(random_model(**sizes))
    xs, other = sequences(model), copy.deepcopy(model)
    rescale_(other, random_alpha(other))
    lr = small_rate(model, xs)

    def make(model):
        return PathSGD(model.parameters(), model, lr=lr, steps=len(xs), second=second, form=form)

    moved, other_moved = trained(model, make, xs), trained(other, make, xs)
    assert distance(moved, other_moved, xs) < 1e-9
    assert distance(model, moved, xs) > 1e-6


def test_path_sgd_commutes_with_rescaling_over_many_steps_with_momentum_and_weight_decay():
    model = tame(random_model(3, 5, 2))
    xs, other = sequences(model), copy.deepcopy(model)
    rescale_(other, random_alpha(other))

    def make(model):
        settings = {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}
        return PathSGD(model.parameters(), model, lr=1e-3, steps=len(xs), every=3, **settings)

    moved, other_moved = (trained(one, make, xs, updates=20) for one in (model, other))
    assert distance(moved, other_moved, xs) < 1e-9
    assert distance(model, moved, xs) > 1e-2


def test_relative_steps_commute_with_rescaling():
    """γ² and Σ g²/κ are the same from the rescaled start, and so is their quotient; that of ``match_sgd`` is not."""
    model = tame(random_model(3, 5, 2))
    xs, other = sequences(model), copy.deepcopy(model)
    rescale_(other, random_alpha(other))

    def make(model, **more):
        return PathSGD(model.parameters(), model, lr=1e-3, steps=len(xs), **more)

    moved, other_moved = (trained(one, lambda m: make(m, relative=True), xs, updates=20) for one in (model, other))
    assert distance(moved, other_moved, xs) < 1e-9
    assert distance(model, moved, xs) > 1e-4
    matched = [trained(one, lambda m: make(m, match_sgd=True), xs) for one in (model, other)]
    assert distance(*matched, xs) > 1e-6


def path(kind, lr, **settings):
    return lambda model: kind(model.parameters(), model, lr=lr, steps=8, **settings)


INVARIANT = {
    "Path-SGD": path(PathSGD, 1e-5, momentum=0.9, weight_decay=1e-2),
    "Path-SGD, relative": path(PathSGD, 1e-3, relative=True),
    "PathAdam, invariant": path(PathAdam, 1e-3, invariant=True, weight_decay=1e-2),
    "PathAdam, invariant, measured": path(PathAdam, 1e-3, invariant=True, recurrent="measured"),
    "PathAdam, invariant, amsgrad, κ⁽²⁾": path(PathAdam, 1e-3, invariant=True, amsgrad=True, second=True, every=2),
}
NOT_INVARIANT = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=1e-4),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-2),
    "PathAdam as printed": path(PathAdam, 1e-2),  # S2 §5.3 claims no invariance for it: there is none
}


@pytest.mark.parametrize("make", INVARIANT.values(), ids=INVARIANT)
@settings(max_examples=8, deadline=None)
@given(sizes=networks, seed=seeds)
def test_every_invariant_optimiser_commutes_with_rescaling(make, sizes, seed):
    """Three steps from p and from the rescaled p, α over two decades: the functions agree to 1e-9."""
    torch.manual_seed(seed)
    model = tame(random_model(**sizes))
    xs, other = sequences(model), copy.deepcopy(model)
    rescale_(other, random_alpha(other))
    moved, other_moved = (trained(one, make, xs, updates=3) for one in (model, other))
    assert distance(moved, other_moved, xs) < 1e-9
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), moved.parameters(), strict=True))


@pytest.mark.parametrize("name", [name for name in INVARIANT if name != "Path-SGD"])  # its steps have no bound
@settings(max_examples=4, deadline=None)
@given(sizes=networks, lengths=st.permutations([3, 8, 12, 5]), seed=seeds)
def test_every_invariant_optimiser_commutes_with_rescaling_while_the_length_changes(name, sizes, lengths, seed):
    """An update for each of four lengths, told to the optimiser before it: the functions agree to 1e-9."""
    torch.manual_seed(seed)
    model = tame(random_model(**sizes))
    data = [sequences(model, steps) for steps in lengths]
    other = copy.deepcopy(model)
    rescale_(other, random_alpha(other))
    for one in (model, other):
        optimiser = INVARIANT[name](one)
        for xs in data:
            optimiser.preconditioner.steps = len(xs)
            optimiser.zero_grad()
            (one(xs) - 1).square().mean().backward()
            optimiser.step()
    assert all(distance(model, other, xs) < 1e-9 for xs in data)


@pytest.mark.parametrize("make", NOT_INVARIANT.values(), ids=NOT_INVARIANT)
def test_the_others_do_not_commute_with_rescaling(make):
    """The same check is off by more than 1e-3, so it can fail."""
    model = tame(random_model(3, 5, 1))
    xs, other = sequences(model), copy.deepcopy(model)
    rescale_(other, random_alpha(other))
    assert distance(model, other, xs) < 1e-12
    assert distance(*(trained(one, make, xs, updates=3) for one in (model, other)), xs) > 1e-3


@settings(max_examples=15, deadline=None)
@given(inputs=st.integers(1, 4), hidden=st.integers(1, 6), steps=st.integers(1, 12), seed=seeds)
def test_the_curvature_that_adds_amplitudes_is_rescaled_as_kappa_is(inputs, hidden, steps, seed):
    """κᴬ of docs/theory/s2-path-norm.md, for one layer read at its last step: κᴬ_i is multiplied by (β_u/β_v)²."""
    torch.manual_seed(seed)
    amplitude, model = script("tools/path_geometry.py").amplitude, random_model(inputs, hidden, 1)

    def found():
        cell = model.rnn.cells[0]
        model.named = lambda: {"U": cell.weight_hh, "W": cell.weight_ih, "b": cell.bias, "V": model.readout.weight}
        return {name: (value.expand_as(model.named()[name]), model.named()[name].detach().clone())
                for name, value in amplitude(model, steps).items()}  # fmt: skip

    before = found()
    rescale_(model, random_alpha(model, 2.0))
    for name, (value, weight) in found().items():
        other, its_weight = before[name]
        torch.testing.assert_close(value * (weight / its_weight) ** 2, other, rtol=1e-9, atol=0)


FEED_FORWARD = {
    "dense": lambda: nn.Sequential(nn.Linear(72, 4), nn.ReLU(), nn.Linear(4, 3), nn.LeakyReLU(), nn.Linear(3, 2)),
    "convolutional": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 2, groups=2, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(3),
        nn.Flatten(),
        nn.Linear(6, 2),
    ),
}


@pytest.mark.parametrize("name", FEED_FORWARD)
def test_feed_forward_networks_are_rescaled_by_unit_and_by_channel(name):
    """The function stays, and a step of PathSGD commutes with it."""
    model = FEED_FORWARD[name]()
    xs = torch.randn(5, 72) if name == "dense" else torch.randn(5, 2, 6, 6)
    other = copy.deepcopy(model)
    assert internal_units(model) == ((4, 3) if name == "dense" else (4, 6))
    rescale_(other, random_alpha(other))
    assert distance(model, other, xs) < 1e-12

    def make(model):
        network = path_network(model, input_shape=None if name == "dense" else (2, 6, 6))
        return PathSGD(model.parameters(), network, lr=1e-2)

    assert distance(trained(model, make, xs), trained(other, make, xs), xs) < 1e-9


def test_tied_weights_allow_only_rescalings_that_keep_them_equal():
    """Embedding and readout tied: α of the features must be 1/α of the states (Definition 2)."""
    model = random_model(3, 3, 1, words=5)
    model.readout = nn.Linear(3, 5)
    model.readout.weight = model.embedding.weight
    xs, before, alpha = sequences(model), copy.deepcopy(model), torch.tensor([0.5, 2.0, 3.0])
    with pytest.raises(SettingError, match=r"not feasible \(S2, Definition 2\)"):
        rescale_(model, [alpha, alpha])
    assert torch.equal(model(xs), before(xs))  # and nothing was changed
    rescale_(model, [alpha, 1 / alpha])
    torch.testing.assert_close(model(xs), before(xs))


def test_bad_alpha_is_named():
    model = random_model(2, 3, 2)
    with pytest.raises(ShapeError, match=r"rescale_ expects alpha of shapes \(3,\), \(3,\), got \(3,\)\."):
        rescale_(model, [torch.ones(3)])
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(SettingError, match="every α to be positive and finite"):
            rescale_(model, [torch.ones(3), torch.tensor([1.0, bad, 1.0])])
    assert internal_units(model.rnn) == (3,)  # without a readout the last states are the outputs, and keep their scale
