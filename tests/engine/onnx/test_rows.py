"""A cell over time in ONNX Runtime is the plain loop, for every cell of the catalogue and for cells of nobody."""

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import nn

import holdfast
from helpers.cells import CELLS, OPERATIONS, MixedCell, random_state, shaken
from helpers.fuzz import RandomCell
from helpers.onnx_runs import answers, assert_close, session
from holdfast import Cell
from holdfast.engine.reference import scan_reference
from holdfast.engine.targets.onnx.native import native
from holdfast.errors import UnsupportedError
from holdfast.export import Network, Provenance, Row, onnx_model

NATIVE = {name for name in CELLS if name.startswith(("rnn-", "lstm", "gru"))} - {
    "rnn-softplus", "rnn-gelu", "rnn-leaky-relu", "rnn-abs", "rnn-smooth-relu",
}  # fmt: skip
MADE = Provenance("0", "now", "a test")


def as_session(cell, *, reverse=False):
    """The cell in one direction: a layer has both or the first."""
    cell = cell.float()
    start = tuple(entry[0].float() for entry in cell.initial_state(1))
    made = onnx_model(Network(((Row(cell, start, reverse),),), cell.input_size, MADE))
    return session(made), {node.op_type for node in made.graph.node}


def assert_same(cell, runtime, time, batch, *, reverse=False, lengths=None):
    xs = torch.randn(time, batch, cell.input_size, dtype=torch.float32)
    state = random_state(cell, batch, requires_grad=False)
    found = answers(runtime, xs, lengths, tuple(entry[None] for entry in state))
    output, last = scan_reference(cell, xs, state, lengths=lengths, reverse=reverse)
    assert_close(found.pop("output"), output)
    for entry, expected in zip(found.values(), last, strict=True):
        assert_close(entry[0], expected)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_cell_of_the_catalogue(name, reverse):
    """From random states, without lengths and with them, one of them 0; for one step and one sample too."""
    cell = shaken(name, 3, 6)
    runtime, operators = as_session(cell, reverse=reverse)
    assert ("Scan" in operators) == (name not in NATIVE), operators
    assert_same(cell, runtime, 7, 4, reverse=reverse)
    assert_same(cell, runtime, 7, 4, reverse=reverse, lengths=torch.tensor([3, 0, 7, 1]))
    assert_same(cell, runtime, 1, 1, reverse=reverse)


@pytest.fixture(scope="module")
def several():
    """Sessions are made once: one native operator, one Scan, a cell with two entries of different size."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cells = [shaken("gru-before", 3, 5), shaken("vprnn-tanh", 3, 6), shaken("own", 3, 5)]
    return [(cell, as_session(cell)[0]) for cell in cells]


@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(time=st.integers(1, 40), batch=st.integers(1, 20), seed=st.integers(0, 1000), which=st.integers(0, 2))
def test_time_and_batch_are_dynamic(several, time, batch, seed, which):
    """One session serves every number of steps, every batch size, all lengths."""
    torch.manual_seed(seed)
    lengths = torch.randint(0, time + 1, (batch,))
    assert_same(*several[which], time, batch, lengths=lengths)


class SwarmCell(Cell):
    """Heads of a state that are normalised by a softmax: folds, groups, gathers."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.inwards = nn.Parameter(torch.randn(hidden_size, input_size) / 2)
        self.turn = nn.Parameter(torch.randn(hidden_size, hidden_size) / 3)

    def drive(self, x):
        return torch.sin(x @ self.inwards.mT) + 0.1

    def weights(self):
        return (torch.linalg.matrix_exp(self.turn - self.turn.mT),)

    def step(self, drive, state, weights):
        (h,), (turn,) = state, weights
        heads = (h @ turn + drive).view(len(h), 2, -1)
        mixed = torch.softmax(heads, dim=-1).flip(-1).cumsum(-1) + heads.mean(dim=1, keepdim=True)
        return (torch.nn.functional.softsign(mixed.reshape(len(h), -1)).roll(1, dims=1),)


class ClockCell(Cell):
    """Counts its steps, and resets itself: three entries, one of a single feature, a comparison, a constant state."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.inwards = nn.Parameter(torch.randn(hidden_size, input_size))
        self.period = nn.Parameter(torch.tensor(3.0))

    @property
    def state_sizes(self):
        return self.hidden_size, 1, self.hidden_size

    def drive(self, x):
        return x @ self.inwards.mT

    def weights(self):
        return (self.period,)

    def step(self, drive, state, weights):
        (h, clock, _), (period,) = state, weights
        clock = clock + 1
        due = clock > period
        h = torch.where(due, torch.zeros_like(h), torch.nn.functional.elu(h * 0.9 + drive))
        return h, torch.where(due, 0.0, clock), torch.ones_like(h)


class PlainCell(Cell):
    """Passes its input on, and its state as it came."""

    @property
    def state_sizes(self):
        return self.input_size, self.hidden_size

    def drive(self, x):
        return x

    def weights(self):
        return ()

    def step(self, drive, state, weights):
        return drive, state[1]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", [SwarmCell, ClockCell, PlainCell, MixedCell])
def test_a_cell_that_no_file_of_ours_defines(kind, reverse):
    cell = kind(4, 6)
    runtime, operators = as_session(cell, reverse=reverse)
    assert "Scan" in operators
    assert_same(cell, runtime, 9, 3, reverse=reverse)
    assert_same(cell, runtime, 9, 3, reverse=reverse, lengths=torch.tensor([9, 0, 4]))


@pytest.mark.parametrize("seed", [3, 11, 29, 46, 57, 60])
def test_a_cell_drawn_at_random(seed):
    """A few of tests/helpers/fuzz.py, with up to nine instructions each and up to three entries."""
    cell = RandomCell(seed).eval()
    runtime, _ = as_session(cell)
    assert_same(cell, runtime, 3, 4, lengths=torch.tensor([3, 0, 1, 2]))


def test_what_needs_no_state_is_computed_for_all_steps_at_once():
    """The body of the Scan has one product, the recurrent one; the input's is outside."""
    cell = holdfast.FastRNNCell(3, 5).float()
    made = onnx_model(Network(((Row(cell, cell.initial_state(1)[0]),),), 3, MADE))
    (scan,) = (node for node in made.graph.node if node.op_type == "Scan")
    (body,) = (attribute.g for attribute in scan.attribute if attribute.name == "body")
    assert [node.op_type for node in body.node].count("MatMul") == 1
    assert [node.op_type for node in made.graph.node].count("MatMul") == 1


def test_a_subclass_with_equations_of_its_own_is_not_native():
    class Leaky(holdfast.RNNCell):
        def step(self, drive, state, weights):
            return (0.5 * state[0] + 0.5 * super().step(drive, state, weights)[0],)

    cell = Leaky(3, 4)
    assert native(cell) is None
    runtime, _ = as_session(cell)
    assert_same(cell, runtime, 5, 2)


def test_a_parametrised_cell_is_still_native():
    cell = holdfast.RNNCell(3, 4)
    torch.nn.utils.parametrizations.spectral_norm(cell, "weight_hh")
    cell.eval()
    assert native(cell).kind == "RNN"
    runtime, _ = as_session(cell)
    assert_same(cell, runtime, 5, 2)


def broken(step=None, drive=None, weights=None):
    class OddCell(holdfast.FastRNNCell):
        pass

    for name, function in (("step", step), ("drive", drive), ("weights", weights)):
        if function is not None:
            setattr(OddCell, name, function)
    return OddCell(3, 4)


@pytest.mark.parametrize(
    ("cell", "named"),
    [
        (broken(step=lambda self, d, s, w: (torch.fft.rfft(s[0]).abs().repeat(1, 2)[:, :4] + d,)), "OddCell.*fft"),
        (broken(step=lambda self, d, s, w: (s[0] + d + torch.rand_like(d),)), "OddCell draws random numbers"),
        (broken(step=lambda self, d, s, w: (torch.ops.aten.tanh_backward(d, s[0]),)), "'tanh_backward' of OddCell"),
        (
            broken(step=lambda self, d, s, w: (d * (0.5 if len(d) > 1 else 0.25),)),
            "OddCell: its step depends on the batch",
        ),
        (broken(drive=lambda self, x: x.cumsum(0) @ self.weight_ih.mT), "drive to treat every step alike"),
        (broken(weights=lambda self: (torch.rand_like(self.weight_hh), *self.gates())), "got random ones"),
    ],
)
def test_what_onnx_cannot_do_is_refused_by_name(cell, named):
    with pytest.raises(UnsupportedError, match=named):
        as_session(cell)
