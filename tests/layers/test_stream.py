"""A stream is its layer: for every cell, one input at a time gives what the whole sequence gives."""

import copy
import io
import pickle
import sys

import jaxtyping
import pytest
import torch
from torch import nn

import holdfast as hf
from helpers.cells import CELLS, MixedCell, built
from helpers.fuzz import RandomCell
from holdfast.engine.targets.cpu import step as compiled_step
from holdfast.engine.targets.cpu import step_kernel, trial
from holdfast.errors import DTypeError, FusedError, FusedFallbackWarning, SettingError, ShapeError
from holdfast.rrnn import RRNN, RRNNGRU

TOLERANCE = {torch.float64: {"rtol": 1e-10, "atol": 1e-12}, torch.float32: {"rtol": 1e-4, "atol": 1e-5}}


def assert_same(layer, xs, state=None, stream=None):
    """Outputs of every step and the last state are those of the plain loop over the whole sequence."""
    whole = copy.deepcopy(layer).eval()
    whole.backend = "reference"
    with torch.no_grad():
        expected, last = whole(xs, state)
    stream = stream or layer.stream(xs.shape[1])
    if state is not None:
        stream.state = state
    outputs = torch.stack([stream.step(x) for x in xs])
    torch.testing.assert_close(outputs, expected, **TOLERANCE[xs.dtype])
    torch.testing.assert_close(stream.state, last, **TOLERANCE[xs.dtype])
    return stream


def random_state(layer, batch, dtype=None):
    state = tuple(torch.randn(layer.num_layers, batch, n, dtype=dtype) for n in layer.cells[0].state_sizes)
    return state[0] if len(state) == 1 else state


@pytest.mark.parametrize("name", CELLS)
def test_a_stream_of_every_cell_equals_the_whole_sequence(name):
    """Compiled, from a random state, in both number types along the catalogue, with narrow and wide inputs."""
    place = list(CELLS).index(name)
    dtype, inputs = (torch.float64, torch.float32)[place % 2], (11, 3)[place // 2 % 2]
    layer = hf.Recurrent(built(name, inputs).to(dtype), backend="fused")
    assert_same(layer, torch.randn(6, 2, inputs, dtype=dtype), random_state(layer, 2, dtype))


@pytest.mark.parametrize("name", list(CELLS)[::3])
def test_a_stretch_of_inputs_is_as_many_steps(name):
    """In one call, in two, and between single steps; with lanes over features and, for many samples, over them."""
    place = list(CELLS).index(name) // 3
    dtype, inputs = (torch.float32, torch.float64)[place % 2], (3, 11)[place // 2 % 2]
    layer = hf.Recurrent(built(name, inputs).to(dtype), backend="fused")
    for batch in (1, 3) if place % 3 else (1, 40):
        xs, start = torch.randn(9, batch, inputs, dtype=dtype), random_state(layer, batch, dtype)
        one, other = layer.stream(batch), layer.stream(batch)
        one.state = other.state = start
        expected = torch.stack([one.step(x) for x in xs])
        found = torch.cat([other.run(xs[:4]), other.run(xs[4:4]), other.step(xs[4])[None], other.run(xs[5:])])
        torch.testing.assert_close(found, expected, **TOLERANCE[dtype])
        torch.testing.assert_close(other.state, one.state, **TOLERANCE[dtype])


@pytest.mark.parametrize("hidden", [1, 70, 200])
def test_a_stretch_works_at_every_size_and_in_every_place_of_memory(hidden):
    """Teams and single threads, panels that are full and others; inputs with gaps; several layers."""
    for layer in (hf.LSTM(9, hidden, num_layers=2), hf.GRU(3, hidden), hf.Recurrent(MixedCell(3, hidden))):
        wide = torch.randn(6, 2, 2 * layer.input_size)
        for xs in (wide[..., ::2], wide[..., : layer.input_size].transpose(0, 1).contiguous().transpose(0, 1)):
            stream = layer.stream(2)
            with torch.no_grad():
                expected, last = layer(xs)
            torch.testing.assert_close(stream.run(xs), expected, **TOLERANCE[xs.dtype])
            torch.testing.assert_close(stream.state, last, **TOLERANCE[xs.dtype])


def test_a_stretch_keeps_the_weights_of_the_moment():
    layer, xs = hf.GRU(3, 16), torch.randn(5, 1, 3)
    with torch.no_grad():
        expected = layer(xs)[0]
        stream = layer.stream()
        torch.testing.assert_close(stream.run(xs), expected)
        layer.cells[0].weight_hh.zero_()
        stream.reset()
        torch.testing.assert_close(stream.run(xs), expected)
        stream.reset(weights=True)
        torch.testing.assert_close(stream.run(xs), layer(xs)[0])


@pytest.mark.parametrize("hidden", [1, 2, 7, 8, 9, 16, 70])
def test_every_hidden_size_works(hidden):
    """Vectors that are full and others; products of one panel, of several and of a part of one; pairs that rotate."""
    for cell in (hf.RNNCell(9, hidden), MixedCell(3, hidden), hf.VPRNNCell(2, 2 * hidden, sublayers=3)):
        assert_same(hf.Recurrent(cell, backend="fused"), torch.randn(4, 1, cell.input_size))


@pytest.mark.parametrize("seed", [3, 7, 9, 12, 17, 21, 24, 30])
def test_steps_that_nobody_wrote_are_right_without_a_trial(seed, monkeypatch):
    """Random cells of the generator: slices, gathers, folds, running sums, values of one feature."""
    monkeypatch.setattr(compiled_step, "_try", lambda *_: None)
    cell = RandomCell(seed)
    assert_same(hf.Recurrent(cell, backend="fused"), 0.5 * torch.randn(3, 3, cell.input_size))


@pytest.mark.parametrize("rrnn", [RRNN, RRNNGRU])
def test_layers_that_choose_stream_too(rrnn):
    layer = rrnn(4, 4)
    assert_same(layer, torch.randn(5, 2, 4))


def test_stacked_layers_starts_and_dropout_are_those_of_evaluation():
    layer = hf.LSTM(3, 5, num_layers=3, dropout=0.5, initial_state="learned")
    with torch.no_grad():
        for value in layer.initial_state.values:
            value.copy_(torch.randn_like(value))
    assert layer.training
    stream = assert_same(layer, torch.randn(5, 2, 3))
    stream.reset()
    assert_same(layer, torch.randn(5, 2, 3), stream=stream)  # from the learned start again
    assert_same(hf.RNN(3, 5, initial_state=hf.RandomStart(0.5)), torch.randn(4, 1, 3))


def test_a_state_can_be_saved_and_put_back():
    layer, xs = hf.GRU(3, 5, num_layers=2), torch.randn(9, 2, 3)
    stream = layer.stream(batch=2)
    for x in xs[:4]:
        stream.step(x)
    file = io.BytesIO()
    torch.save(stream.state, file)
    file.seek(0)
    rest = [stream.step(x) for x in xs[4:]]
    other = layer.stream(batch=2)
    other.state = torch.load(file)
    torch.testing.assert_close([other.step(x) for x in xs[4:]], rest, rtol=0, atol=0)
    before = stream.state
    held = before.clone()
    stream.step(xs[0])
    assert torch.equal(before, held), "a state that was read does not change"
    single = layer.stream()
    with torch.no_grad():
        single.state = layer(xs[:4, 0])[1]  # of one sequence without a batch
        torch.testing.assert_close(single.step(xs[4, 0]), layer(xs[:5, 0])[0][4])


def test_the_weights_are_those_of_the_moment_until_reset_with_weights():
    for backend, hidden in (("fused", 5), ("fused", 32), ("reference", 5)):
        layer, x = hf.RNN(3, hidden, backend=backend), torch.randn(1, 3)
        stream = layer.stream()
        old = stream.step(x)
        with torch.no_grad():
            for weight in layer.parameters():
                weight.normal_()
        stream.reset()
        torch.testing.assert_close(stream.step(x), old, rtol=0, atol=0)
        stream.reset(weights=True)
        assert_same(layer, torch.randn(4, 1, 3), stream=stream)


def test_one_sequence_needs_no_batch_dimension_in_a_stretch_either():
    layer, xs = hf.LSTM(3, 5), torch.randn(6, 3)
    assert torch.equal(layer.stream().run(xs), layer.stream().run(xs.unsqueeze(1)).squeeze(1))
    assert layer.stream().run(xs[:0]).shape == (0, 5)
    with pytest.raises(ShapeError, match=r"shape \(time, 1, 3\) or \(time, 3\), got \(3,\)"):
        layer.stream().run(xs[0])


def test_one_sequence_needs_no_batch_dimension():
    layer, xs = hf.SGORNN(3, 6), torch.randn(4, 3)
    stream = layer.stream()
    with torch.no_grad():
        torch.testing.assert_close(torch.stack([stream(x) for x in xs]), layer(xs)[0])
    assert stream.step(xs[0]).shape == (6,)
    assert stream.step(xs[:1]).shape == (1, 6)


def test_modes_around_a_stream_do_not_matter():
    layer, xs = hf.GRU(3, 5, dtype=torch.float32), torch.randn(4, 1, 3, dtype=torch.float32, requires_grad=True)
    with torch.inference_mode():
        stream = layer.stream()
        first = stream.step(xs[0])
    expected = layer(xs)[0].detach()
    torch.testing.assert_close(first.clone(), expected[0])
    output = stream.step(xs[1])
    assert not output.requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        third = stream.step(xs[2])
    strided = torch.randn(3, 2, dtype=torch.float32).mT[:1]
    with torch.no_grad():
        torch.testing.assert_close(torch.stack([first, output, third]), expected[:3])
        torch.testing.assert_close(stream.step(strided), layer(torch.cat([xs[:3], strided[None]]))[0][-1])


def test_sequences_of_a_batch_do_not_touch_each_other():
    """NaN in one stays there, also beside the padding that vectors read."""
    layer, xs = hf.LSTM(3, 5), torch.randn(5, 3, 3)
    clean = assert_same(layer, xs)
    xs[2, 1] = torch.nan
    dirty = layer.stream(batch=3)
    for x in xs:
        dirty.step(x)
    for good, bad in zip(clean.state, dirty.state, strict=True):
        assert bad[:, 1].isnan().all()
        torch.testing.assert_close(bad[:, [0, 2]], good[:, [0, 2]], rtol=0, atol=0)


# -- what cannot be compiled -------------------------------------------------------------------------------------------


class StepCell(hf.Cell):
    """``function(drive, state)`` is the new state."""

    def __init__(self, function, states=1):
        super().__init__(3, 4)
        self.function, self.states = function, states
        self.weight_ih = nn.Parameter(torch.randn(4, 3))

    @property
    def state_sizes(self):
        return (4,) * self.states

    def drive(self, x):
        return x @ self.weight_ih.mT

    def weights(self):
        return ()

    def step(self, drive, state, weights):
        return self.function(drive, state)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda d, s: (torch.lgamma(s[0].abs() + 1) + d,), "lgamma"),
        (lambda d, s: (torch.tanh(d + s[0] if len(d) > 4 else d - s[0]),), "depends on the batch size"),
    ],
)
def test_a_step_that_cannot_be_compiled_runs_as_it_is(function, reason):
    sys.modules["holdfast.engine.step"]._warned.clear()
    layer = hf.Recurrent(StepCell(function))
    with pytest.warns(FusedFallbackWarning, match=f"A stream of StepCell runs on the slower.*{reason}"):
        stream = layer.stream(batch=2)
    assert_same(layer, torch.randn(5, 2, 3), stream=stream)
    layer.backend = "fused"
    with pytest.raises(FusedError, match=reason):
        layer.stream(batch=2)


@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_states_that_change_places_are_not_mixed_up(backend):
    swap = StepCell(lambda d, s: (s[1], torch.tanh(d) + s[0], s[0]), states=3)
    layer = hf.Recurrent(swap, backend=backend)
    assert_same(layer, torch.randn(5, 2, 3), random_state(layer, 2))


def test_a_wrong_kernel_is_not_believed(monkeypatch):
    """The trial finds a fault in the compiler; the stream is right all the same."""
    sys.modules["holdfast.engine.step"]._warned.clear()
    wrong = dict(step_kernel.OPERATORS, tanh=step_kernel.OPERATORS["sigmoid"])
    monkeypatch.setattr(step_kernel, "OPERATORS", wrong)
    layer = hf.RNN(3, 5)
    with pytest.warns(FusedFallbackWarning, match="the compiled step does not agree"):
        stream = layer.stream(batch=2)
    assert_same(layer, torch.randn(4, 2, 3), stream=stream)
    monkeypatch.setattr(trial, "TOLERANCE", {torch.float64: 10.0})  # the check above can fail
    with pytest.raises(AssertionError):
        assert_same(layer, torch.randn(4, 2, 3))


# -- bad input -----------------------------------------------------------------------------------------------------


def test_bad_input_is_named_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: types are not checked
    layer = hf.LSTM(3, 5)
    stream = layer.stream(batch=2)
    stream.step(torch.randn(2, 3))
    before = stream.state
    for x, error, message in [
        (torch.randn(2, 4), ShapeError, r"A stream of LSTM expects x of shape \(2, 3\), got \(2, 4\)"),
        (torch.randn(3), ShapeError, r"shape \(2, 3\), got \(3,\)"),
        (torch.randn(2, 3).float(), DTypeError, r"weights of torch.float64, but x of torch.float32"),
        ([[1.0, 2.0, 3.0]] * 2, DTypeError, r"x to be a tensor, got list; use torch.as_tensor"),
    ]:
        with pytest.raises(error, match=message):
            stream.step(x)
    for state, error, message in [
        (torch.zeros(1, 2, 5), ShapeError, r"state of shape \(1, 2, 5\), \(1, 2, 5\), got \(1, 2, 5\)\."),
        ((torch.zeros(1, 2, 5), torch.zeros(1, 3, 5)), ShapeError, r"got \(1, 2, 5\), \(1, 3, 5\)"),
        ("saved.pt", DTypeError, "state of 2 tensors, got str"),
        ((torch.zeros(1, 2, 5), torch.zeros(1, 2, 5).float()), DTypeError, "a state of torch.float32"),
    ]:
        with pytest.raises(error, match=message):
            stream.state = state
    for xs, error, message in (
        (torch.randn(4, 4), ShapeError, r"expects xs of shape \(time, 2, 3\), got \(4, 4\)"),
        (torch.randn(3), ShapeError, r"expects xs of shape \(time, 2, 3\), got \(3,\)"),
        (torch.randn(2, 5, 3), ShapeError, r"got \(2, 5, 3\)"),
        (torch.randn(2, 2, 3).float(), DTypeError, r"has weights of torch.float64, but xs of torch.float32"),
        ([[1.0, 2.0, 3.0]], DTypeError, r"expects xs to be a tensor, got list; use torch.as_tensor\(xs\)"),
    ):
        with pytest.raises(error, match=message):
            stream.run(xs)
    torch.testing.assert_close(stream.state, before, rtol=0, atol=0)
    with pytest.raises(SettingError, match=r"GRU.stream expects a layer in one direction, got bidirectional=True"):
        hf.GRU(3, 5, bidirectional=True).stream()
    with pytest.raises(SettingError, match=r"LSTM.stream expects batch to be a whole number of at least 1, got 0"):
        layer.stream(0)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="keep its state"):
            copied(stream)
