"""Which models have a path norm, and what is said of those that have none."""

import functools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import holdfast
import holdfast.optim
from helpers.path_graphs import Model
from holdfast.errors import SettingError, ShapeError
from holdfast.optim import Dense, PathNetwork, Recurrence, kappa, kappa_first, path_network, path_norm_sq

STEPS = 4


def model_of(rnn):
    return Model(rnn)


REFUSED = {
    "tanh": (lambda: holdfast.RNN(2, 3), r"RNNCell with nonlinearity tanh\. Path norms are for ReLU networks"),
    "torch tanh": (lambda: nn.RNN(2, 3), r"torch.nn.RNN of mode RNN_TANH.*any_nonlinearity=True"),
    "LSTM": (lambda: holdfast.LSTM(2, 3), r"LSTMCell with gates.*any_nonlinearity=True"),
    "GRU": (lambda: holdfast.GRU(2, 3), r"GRUCell with gates"),
    "torch LSTM": (lambda: nn.LSTM(2, 3), r"torch.nn.LSTM of mode LSTM"),
    "noise": (
        lambda: holdfast.RNN(2, 3, nonlinearity="relu", initial_state=holdfast.RandomStart(0.1)),
        "starts at random: noise of one size is not rescaled",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_is_no_relu_network_is_refused_unless_asked_for(name):
    """The reason is given; with any_nonlinearity=True paths are counted all the same, one edge a gate."""
    build, reason = REFUSED[name]
    model = model_of(build())
    with pytest.raises(SettingError, match=reason):
        path_network(model)
    network = path_network(model, any_nonlinearity=True)
    gradients = torch.autograd.grad(path_norm_sq(network, STEPS), list(model.parameters()), create_graph=True)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(2 * parameter.detach() * kappa_first(network, STEPS)[parameter], gradient.detach())
        index = (0,) * parameter.dim()
        (row,) = torch.autograd.grad(gradient[index], parameter, retain_graph=True)
        torch.testing.assert_close(kappa(network, STEPS)[parameter][index], row[index] / 2)


@pytest.mark.parametrize("layer", [holdfast.SGORNN, holdfast.VPRNN, holdfast.ExpRNN, holdfast.FastRNN])
def test_weights_that_are_no_edges_are_refused_whatever_the_flag(layer):
    with pytest.raises(SettingError, match="gates and constrained matrices are not weights of edges"):
        path_network(model_of(layer(2, 4)), any_nonlinearity=True)


def test_parametrized_weights_are_refused():
    layer = holdfast.RNN(2, 3, nonlinearity="relu")
    holdfast.orthogonal(layer.cells[0], "weight_hh")
    with pytest.raises(SettingError, match="computed from other parameters"):
        path_network(model_of(layer))
    readout = parametrize.register_parametrization(nn.Linear(3, 2), "weight", nn.Identity())
    with pytest.raises(SettingError, match="computed from other parameters"):
        path_network(readout)


@pytest.mark.parametrize(
    "phi",
    ["relu", "leaky_relu", "abs", "identity", nn.functional.relu, nn.ReLU(), nn.LeakyReLU(0.2)],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_every_nonlinearity_that_scales_is_taken(phi):
    """φ(αz) = αφ(z) and φ(z) = z for z ≥ 0: the theorems use no more of ReLU."""
    cell = functools.partial(holdfast.RNNCell, nonlinearity=phi)
    assert len(path_network(model_of(holdfast.Recurrent(cell, 2, 3))).layers) == 1


def test_linear_systems_are_taken():
    assert len(path_network(model_of(holdfast.LinearRNN(2, 3))).layers) == 1
    with pytest.raises(SettingError, match="leave output_size out"):
        path_network(holdfast.LinearRNN(2, 3, output_size=4))


def test_both_kinds_of_layers_have_the_same_paths():
    """``from_torch`` adds two biases up: with one of them zero, γ² and κ agree."""
    theirs = nn.RNN(2, 3, num_layers=2, nonlinearity="relu")
    nn.init.zeros_(theirs.bias_hh_l0)
    nn.init.zeros_(theirs.bias_hh_l1)
    ours = holdfast.from_torch(theirs)
    torch.testing.assert_close(path_norm_sq(ours, STEPS, "every"), path_norm_sq(theirs, STEPS, "every"))
    torch.testing.assert_close(
        kappa(ours, STEPS, "every")[ours.cells[0].weight_hh], kappa(theirs, STEPS, "every")[theirs.weight_hh_l0]
    )


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (
            nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)),
            "pieces_of got Tanh. Path norms are for ReLU",
        ),
        (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), "does not know the paths through a BatchNorm1d; it knows"),
        (nn.Embedding(5, 2, max_norm=1.0), "without max_norm"),
        (nn.Flatten(0), "Flatten of everything but the batch"),
        (nn.MaxPool2d(2, ceil_mode=True), "without ceil_mode"),
        (nn.Conv1d(2, 3, 2, padding_mode="circular"), "padded with zeros, got 'circular'"),
        (nn.RNN(2, 3, nonlinearity="relu", bidirectional=True), "in one direction"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_modules_without_known_paths_are_named(module, reason):
    with pytest.raises(SettingError, match=reason):
        path_network(module)


def test_other_nonlinearities_between_pieces_count_as_relu_if_asked_for():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    twin = nn.Sequential(model[0], nn.ReLU(), nn.Dropout(), model[2])
    assert path_norm_sq(path_network(model, any_nonlinearity=True)) == path_norm_sq(twin)


def test_a_network_written_down_is_checked():
    W, U = torch.ones(3, 2), torch.ones(3, 3)
    with pytest.raises(ShapeError, match=r"layer 1 to read 3 features, got a weight_ih of shape \(3, 2\)"):
        PathNetwork(layers=(Recurrence(W, U), Recurrence(W, U)))
    with pytest.raises(ShapeError, match=r"weight_hh \(hidden, hidden\)"):
        Recurrence(W, torch.ones(2, 2))
    with pytest.raises(ShapeError, match="biases of 3 entries"):
        Recurrence(W, U, (torch.ones(2),))
    with pytest.raises(SettingError, match="at least one layer or piece"):
        PathNetwork()
    with pytest.raises(SettingError, match=r"expects a module or a holdfast.optim.PathNetwork, got list"):
        path_network([W, U])
    assert path_network(network := PathNetwork(decoder=(Dense(W),))) is network


def test_models_move_between_number_types():
    """γ² of the same weights, whatever type they are in."""
    model = model_of(holdfast.RNN(2, 3, nonlinearity="relu")).bfloat16()
    value = path_norm_sq(model, STEPS)
    assert value.dtype == torch.float64
    assert value == path_norm_sq(model.double(), STEPS)


@pytest.mark.parametrize("name", holdfast.optim.__all__)
def test_a_public_name_has_an_example(name):
    assert "Example:" in (getattr(holdfast.optim, name).__doc__ or "") or name == "Piece"
