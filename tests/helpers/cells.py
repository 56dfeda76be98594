"""The catalogue: every cell, in every form it has, and how two scans are compared.

A new cell is one more entry. It inherits the laws (tests/laws) and is held fused against reference (tests/engine/cpu).
"""

from functools import partial

import torch
from torch import nn

import holdfast
from holdfast import Cell, ScalarGates, scan
from holdfast.errors import SettingError


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


def urnn_in_factors(input_size, hidden_size):
    """A uRNN that multiplies by the factors of W, as large ones do."""
    cell = holdfast.URNNCell(input_size, hidden_size)
    cell.recurrent = holdfast.FourierProduct(hidden_size, factors=True)
    return cell


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
    "indrnn-tanh": partial(holdfast.IndRNNCell, nonlinearity="tanh", horizon=1),
    "cornn": holdfast.CoRNNCell,
    "lem": holdfast.LEMCell,
    "antisymmetric": holdfast.AntisymmetricRNNCell,
    "antisymmetric-gated": partial(holdfast.AntisymmetricRNNCell, gated=True, bias=False),
    "fastgrnn": holdfast.FastGRNNCell,
    "fastgrnn-low-rank": partial(holdfast.FastGRNNCell, input_rank=2, recurrent_rank=2, bias=False),
    "mingru": holdfast.MinGRUCell,
    "minlstm": holdfast.MinLSTMCell,
}
KINKED = {
    "rnn-relu": partial(holdfast.RNNCell, nonlinearity="relu", init="identity"),
    "rnn-leaky-relu": partial(holdfast.RNNCell, nonlinearity="leaky_relu"),
    "rnn-smooth-relu": partial(holdfast.RNNCell, nonlinearity="smooth_relu"),  # its second derivative jumps
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
    "indrnn": holdfast.IndRNNCell,
    "mingru-positive": partial(holdfast.MinGRUCell, nonlinearity="positive", bias=False),
    "dtriv": partial(holdfast.ExpRNNCell, rebase_every=1),
    "scornn": holdfast.ScoRNNCell,
    "urnn": holdfast.URNNCell,
    "urnn-factors": urnn_in_factors,
    "eunn": holdfast.EUNNCell,
    "goru": holdfast.GORUCell,
}
CELLS = SMOOTH | KINKED
SAME_STEP = {"dtriv": "exprnn", "scornn": "exprnn"}
"""Cells with the step of another, operation by operation: only the map behind U differs, which runs before the scan.
Every target compiles the other one alone (``COMPILED``); tests/engine/cpu/test_agreement.py compares the two steps.
"""
COMPILED = [name for name in CELLS if name not in SAME_STEP]

# Compiling a cell costs seconds. These are compared with the plain loop on the CPU in both types, obey every law and
# run in C; their operations, in the same combinations, are in other entries too, so lengths, last states, NaN, ONNX and
# Triton are tested on those: (products of two states, chunks, gates, means) lstm, cornn and antisymmetric-gated;
# (a vector times the state) indrnn; (shared products) fastgrnn-low-rank; (gates of the input) minlstm and
# mingru-positive; (clamp, relu) fuzz and MixedCell. Each passed those tests in full when it was added.
COVERED = {"antisymmetric", "fastgrnn", "indrnn-tanh", "lem", "mingru", "rnn-smooth-relu"}
OPERATIONS = [name for name in COMPILED if name not in COVERED]


def built(name, input_size, hidden_size=9):
    """A cell of the catalogue as it starts; one that turns features in pairs gets one more unit if need be."""
    try:
        return CELLS[name](input_size, hidden_size)
    except SettingError:
        return CELLS[name](input_size, hidden_size + 1)


def shaken(name, input_size, hidden_size):
    """A cell of the catalogue whose weights, biases and gates lie off their special starts."""
    cell = CELLS[name](input_size, hidden_size)
    with torch.no_grad():
        for weight in cell.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return cell


TOLERANCE = {torch.float64: {"rtol": 1e-10, "atol": 1e-12}, torch.float32: {"rtol": 1e-4, "atol": 2e-5}}


def assert_same_scan(cell, xs, state=None, *, tolerance=None, equal_nan=False, backend="fused", **options):
    """Values, last states and every gradient of the compiled scan are those of the plain one."""
    state = cell.initial_state(xs.shape[1]) if state is None else state
    results = []
    for way in (backend, "reference"):
        inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in (xs, *state)]
        output, last = scan(cell, inputs[0], tuple(inputs[1:]), backend=way, **options)
        values = [*last] if output is None else [output, *last]
        weights = [w for w in cell.parameters() if w.requires_grad] + [t for t in inputs if t.requires_grad]
        torch.manual_seed(1)
        loss = sum((value * torch.randn_like(value)).sum() for value in values)
        grads = torch.autograd.grad(loss, weights, allow_unused=True) if weights else ()
        # a gradient that is zero may come as None on one side
        results.append((values, [torch.zeros_like(w) if g is None else g for g, w in zip(grads, weights, strict=True)]))
    tolerance = tolerance or TOLERANCE[xs.dtype]
    for fused, plain in zip(*results, strict=True):
        for one, other in zip(fused, plain, strict=True):
            torch.testing.assert_close(one, other, equal_nan=equal_nan, **tolerance)


def random_state(cell, batch, requires_grad=True):
    dtype = cell.example_weight().dtype
    return tuple(torch.randn(batch, n, dtype=dtype, requires_grad=requires_grad) for n in cell.state_sizes)


class MixedCell(Cell):
    """A cell of no paper: two products, a dozen elementwise operators, a reset of its own, two states."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.randn(2 * hidden_size, input_size) * 0.5)
        self.weight_hh = nn.Parameter(torch.randn(2 * hidden_size, hidden_size) * 0.3)
        self.weight_hc = nn.Parameter(torch.randn(hidden_size, hidden_size) * 0.3)
        self.leak = nn.Parameter(torch.tensor(0.7))
        self.bias = nn.Parameter(torch.randn(hidden_size))

    @property
    def state_sizes(self):
        return self.hidden_size, self.hidden_size

    def drive(self, x):
        return x @ self.weight_ih.mT

    def weights(self):
        return self.weight_hh, self.weight_hc, self.leak, self.bias

    def step(self, drive, state, weights):
        (h, c), (weight_hh, weight_hc, leak, bias) = state, weights
        a, b = (drive + h @ weight_hh.mT).chunk(2, dim=1)
        gate = torch.sigmoid(a + bias)
        c = leak * c + (1 - leak) * torch.where(b > 0, torch.tanh(b), 0.1 * b)
        mixed = (gate * c) @ weight_hc.mT
        h = gate * torch.clamp(mixed, -2.0, 2.0) + (1 - gate) * h + 0.1 * torch.exp(-c * c)
        return h / torch.sqrt(1 + h * h), c
