"""The cells that every test of the fused backend runs over, and how two scans are compared."""

import torch
from torch import nn

import holdfast as hf

CELLS = {
    "rnn-tanh": lambda i: hf.RNNCell(i, 10),
    "rnn-relu": lambda i: hf.RNNCell(i, 10, nonlinearity="relu"),
    "rnn-leaky": lambda i: hf.RNNCell(i, 5, nonlinearity="leaky_relu", bias=False),
    "rnn-softplus": lambda i: hf.RNNCell(i, 5, nonlinearity="softplus"),
    "rnn-gelu": lambda i: hf.RNNCell(i, 5, nonlinearity="gelu"),
    "linear": lambda i: hf.LinearCell(i, 9),
    "linear-output": lambda i: hf.LinearCell(i, 9, output_size=4),
    "linear-direct": lambda i: hf.LinearCell(i, 9, output_size=3, direct=True),
    "fastrnn": lambda i: hf.FastRNNCell(i, 7),
    "sgornn": lambda i: hf.SGORNNCell(i, 16),
    "sgornn-exp": lambda i: hf.SGORNNCell(i, 9, recurrent="exp"),
    "sgornn-cayley": lambda i: hf.SGORNNCell(i, 10, recurrent="cayley"),
    "sgornn-householder": lambda i: hf.SGORNNCell(i, 6, recurrent="householder"),
    "vprnn": lambda i: hf.VPRNNCell(i, 12, nonlinearity="tanh"),
    "exprnn": lambda i: hf.ExpRNNCell(i, 9),
    "lstm": lambda i: hf.LSTMCell(i, 9),
    "lstm-relu": lambda i: hf.LSTMCell(i, 4, nonlinearity="relu"),
    "gru-after": lambda i: hf.GRUCell(i, 9),
    "gru-before": lambda i: hf.GRUCell(i, 9, reset="before"),
}

TOLERANCE = {torch.float64: {"rtol": 1e-10, "atol": 1e-12}, torch.float32: {"rtol": 1e-4, "atol": 2e-5}}


def assert_same_scan(cell, xs, state=None, *, tolerance=None, equal_nan=False, **options):
    """Values, last states and every gradient of the fused scan are those of the plain one."""
    state = cell.initial_state(xs.shape[1]) if state is None else state
    results = []
    for backend in ("fused", "reference"):
        inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in (xs, *state)]
        output, last = hf.scan(cell, inputs[0], tuple(inputs[1:]), backend=backend, **options)
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


class MixedCell(hf.Cell):
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
