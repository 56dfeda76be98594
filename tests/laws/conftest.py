"""The catalogue: every cell, in every form it has. A new cell is one more entry, and inherits the whole suite."""

import functools
from functools import partial

import pytest
import torch
from torch import nn

import holdfast
from holdfast import Cell, ScalarGates


class OwnCell(Cell):
    """A cell as a user writes one: two entries of different size, its output the smaller."""

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.randn(hidden_size, input_size))
        self.weight_ho = nn.Parameter(torch.randn(2, hidden_size))
        self.leak = nn.Parameter(torch.tensor(0.9))

    @property
    def state_sizes(self):
        return 2, self.hidden_size

    def drive(self, x):
        return x @ self.weight_ih.mT

    def weights(self):
        return self.leak, self.weight_ho

    def step(self, drive, state, weights):
        (_, h), (leak, weight_ho) = state, weights
        h = leak * h + torch.tanh(drive)
        return torch.sigmoid(h @ weight_ho.mT), h


SMOOTH = {
    "own": OwnCell,
    "rnn-tanh": holdfast.RNNCell,
    "rnn-np": partial(holdfast.RNNCell, init="np"),
    "rnn-no-bias": partial(holdfast.RNNCell, bias=False),
    "rnn-softplus": partial(holdfast.RNNCell, nonlinearity="softplus"),
    "rnn-gelu": partial(holdfast.RNNCell, nonlinearity="gelu"),
    "linear": holdfast.LinearCell,
    "linear-output": partial(holdfast.LinearCell, output_size=2),
    "linear-direct": partial(holdfast.LinearCell, output_size=2, direct=True, bias=False),
    "fastrnn": holdfast.FastRNNCell,
    "fastrnn-clip": lambda n, h: holdfast.FastRNNCell(n, h, gates=ScalarGates(clip="alpha", horizon=20)),
    "sgornn-tanh": partial(holdfast.SGORNNCell, nonlinearity="tanh"),
    "sgornn-tanh-exp": partial(holdfast.SGORNNCell, nonlinearity="tanh", recurrent="exp"),
    "sgornn-tanh-cayley": partial(holdfast.SGORNNCell, nonlinearity="tanh", recurrent="cayley"),
    "sgornn-tanh-householder": partial(holdfast.SGORNNCell, nonlinearity="tanh", recurrent="householder"),
    "vprnn-tanh": partial(holdfast.VPRNNCell, nonlinearity="tanh", sublayers=3),
    "exprnn-tanh": partial(holdfast.ExpRNNCell, nonlinearity="tanh", init="henaff"),
    "lstm": holdfast.LSTMCell,
    "lstm-no-bias": partial(holdfast.LSTMCell, bias=False),
    "gru-after": holdfast.GRUCell,
    "gru-before": partial(holdfast.GRUCell, reset="before"),
    "gru-after-no-bias": partial(holdfast.GRUCell, bias=False),
    "gru-before-no-bias": partial(holdfast.GRUCell, reset="before", bias=False),
}
KINKED = {
    "rnn-relu": partial(holdfast.RNNCell, nonlinearity="relu", init="identity"),
    "rnn-leaky-relu": partial(holdfast.RNNCell, nonlinearity="leaky_relu"),
    "rnn-abs": partial(holdfast.RNNCell, nonlinearity="abs"),
    "fastrnn-relu": partial(holdfast.FastRNNCell, nonlinearity="relu"),
    "lstm-relu": partial(holdfast.LSTMCell, nonlinearity="relu"),
    "sgornn": holdfast.SGORNNCell,
    "sgornn-horizon": lambda n, h: holdfast.SGORNNCell(n, h, gates=ScalarGates(clip="2alpha", horizon=50)),
    "sgornn-exp": partial(holdfast.SGORNNCell, recurrent="exp"),
    "sgornn-cayley": partial(holdfast.SGORNNCell, recurrent="cayley"),
    "sgornn-householder": partial(holdfast.SGORNNCell, recurrent="householder"),
    "vprnn": holdfast.VPRNNCell,
    "exprnn": holdfast.ExpRNNCell,
}
CELLS = SMOOTH | KINKED


@pytest.fixture(params=CELLS)
def cell(request):
    """A cell (3, 4) that tests share and leave as it is: what a backend prepares for it, it prepares once."""
    return _shared(request.param)


@pytest.fixture(params=CELLS.values(), ids=CELLS)
def factory(request):
    """(input_size, hidden_size) to a cell whose weights, biases and gates lie off their special starts."""
    return partial(_shaken, request.param)


@pytest.fixture(params=SMOOTH.values(), ids=SMOOTH)
def smooth_factory(request):
    """As ``factory``, for the cells with a continuous second derivative."""
    return partial(_shaken, request.param)


@functools.cache
def _shared(name):
    torch.manual_seed(0)
    return _shaken(CELLS[name], 3, 4)


def _shaken(make, input_size, hidden_size):
    cell = make(input_size, hidden_size)
    with torch.no_grad():
        for weight in cell.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return cell
