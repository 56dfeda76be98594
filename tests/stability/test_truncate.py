"""Truncated models: the right inputs and no others, errors within the bound, the full model for a long window."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import ScalarGates
from holdfast.errors import DTypeError, SettingError, ShapeError
from holdfast.stability import NoBoundError, project_, truncate
from holdfast.stability.truncate import Truncated

LAYERS = {
    "rnn": lambda n: holdfast.RNN(2, 4, n, backend="reference"),
    "linear-output": lambda n: holdfast.LinearRNN(2, 4, n, output_size=3, direct=True, backend="reference"),
    "sgornn": lambda n: holdfast.SGORNN(2, 4, n, backend="reference"),
    "lstm": lambda n: holdfast.LSTM(2, 4, n, backend="reference"),
    "indrnn": lambda n: holdfast.IndRNN(2, 4, n, backend="reference"),
    "mingru": lambda n: holdfast.MinGRU(2, 4, n, backend="reference"),
    "minlstm": lambda n: holdfast.MinLSTM(2, 4, n, backend="reference"),
    "gru-learned": lambda n: holdfast.GRU(2, 4, n, initial_state="learned", backend="reference"),
}


def by_hand(layer, xs, k, stride):
    """(1) to the letter: each output from a run of its own."""
    outputs = []
    for t in range(len(xs)):
        first = 0 if t < k + stride - 1 else -(-(t - k - stride + 2) // stride) * stride
        outputs.append(layer(xs[first : t + 1])[0][-1])
    return torch.stack(outputs)


@pytest.mark.parametrize("name", LAYERS)
@given(
    layers=st.integers(1, 2),
    steps=st.integers(1, 14),
    k=st.integers(1, 8),
    stride=st.integers(1, 5),
    seed=st.integers(0, 999),
)
@settings(deadline=None, max_examples=4)
def test_outputs_are_those_of_windows_run_one_by_one(name, layers, steps, k, stride, seed):
    """For all lengths, windows and strides, one and two layers: outputs, the last state, and all gradients."""
    torch.manual_seed(seed)
    layer, xs = LAYERS[name](layers), torch.randn(steps, 2, 2, requires_grad=True)
    with torch.no_grad():
        for value in layer.initial_state.values:
            value.normal_()
    short = truncate(layer, k, stride=stride)
    (output, h_n), slow = short(xs), by_hand(layer, xs, k, stride)
    torch.testing.assert_close(output, slow)
    last = h_n[0] if isinstance(h_n, tuple) else h_n
    torch.testing.assert_close(last[-1], slow[-1])
    cotangent, wanted = torch.randn_like(slow), [xs, *layer.parameters()]
    fast, plain = (torch.autograd.grad(o, wanted, cotangent, allow_unused=True) for o in (output, slow))
    for one, other in zip(fast, plain, strict=True):
        torch.testing.assert_close(one, other) if other is not None else None


def test_an_output_depends_on_the_last_k_inputs_and_no_others():
    """∂y_t/∂x_s = 0 for s ≤ t - k, exactly, and not for s = t - k + 1; two layers, k = 4."""
    layer, xs = holdfast.RNN(2, 4, 2, backend="reference"), torch.randn(12, 1, 2, requires_grad=True)
    output, _ = truncate(layer, 4)(xs)
    for t in (3, 5, 11):
        (grad,) = torch.autograd.grad(output[t].sum(), xs, retain_graph=True)
        reached = grad.abs().sum(dim=(1, 2)) > 0
        assert reached.tolist() == [t - 4 < s <= t for s in range(12)]
    poisoned = xs.detach().clone()
    poisoned[0] = math.nan
    assert truncate(layer, 4)(poisoned)[0][4:].isfinite().all()


def test_chunks_do_not_show(monkeypatch):
    """Windows are taken a few at a time: the same outputs and gradients for any size of chunk."""
    import sys

    module = sys.modules["holdfast.stability.truncate"]
    layer, xs = holdfast.LSTM(2, 4, 2, backend="reference"), torch.randn(20, 3, 2)
    results = []
    for size in (1 << 22, 1):
        monkeypatch.setattr(module, "_CHUNK", size)
        layer.zero_grad()
        output, _ = truncate(layer, 5, stride=2)(xs)
        output.square().sum().backward()
        results.append([output.detach(), *(w.grad.clone() for w in layer.parameters())])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    "make",
    [
        lambda: holdfast.RNN(2, 8, 2),
        lambda: holdfast.SGORNN(2, 8),
        lambda: holdfast.GRU(2, 8),
        lambda: holdfast.IndRNN(2, 8, 2),
        lambda: holdfast.MinGRU(2, 8, 2),
        lambda: holdfast.MinLSTM(2, 8, 2),
    ],
)
@given(seed=st.integers(0, 10**6), rate=st.floats(0.2, 0.9), eps=st.floats(1e-6, 0.5), stride=st.sampled_from([1, 7]))
@settings(deadline=None, max_examples=4)
def test_errors_stay_within_epsilon(make, seed, rate, eps, stride):
    """For stable stacks, cells and every ε: ‖y_t - y_t^k‖ ≤ error_bound ≤ ε at every t; k - 1 would not be proved."""
    torch.manual_seed(seed)
    layer = make()
    layer.backend = "reference"
    with torch.no_grad():
        if isinstance(layer, holdfast.GRU):
            layer.l0.weight_hh.mul_(0.1 * rate)
        elif isinstance(layer, holdfast.SGORNN):
            layer.l0.gates.beta_logit.fill_(rate)
        else:
            project_(layer, rate=rate, input_bound=1.0)
    xs = torch.randn(60, 2, 2)
    xs /= xs.norm(dim=2, keepdim=True)
    short = truncate(layer, eps=eps, input_bound=1.0, stride=stride)
    gap = (short(xs)[0] - layer(xs)[0]).norm(dim=2).max()
    assert gap <= short.error_bound <= eps
    assert short.k == 1 or truncate(layer, short.k - 1, input_bound=1.0).error_bound > eps


def test_error_bound_is_attained():
    """h_t = a h_{t-1} + 1, long after the start: off by a^k / (1 - a), the bound."""
    cell = holdfast.LinearCell(1, 1, bias=False)
    with torch.no_grad():
        cell.weight_hh.fill_(0.9)
        cell.weight_ih.fill_(1.0)
    short, xs = truncate(cell, 10, input_bound=1.0), torch.ones(400, 1, 1)
    gap = (short(xs)[0] - holdfast.Recurrent(cell)(xs)[0])[-1].abs().item()
    assert gap == pytest.approx(short.error_bound)


def test_error_bound_follows_the_weights_and_is_infinite_without_a_proof():
    layer = project_(holdfast.RNN(2, 4), rate=0.5)
    short = truncate(layer, 10)  # tanh: states are bounded without a bound on inputs
    assert short.error_bound == pytest.approx(0.5**10 * 2.0, rel=1e-6)
    torch.nn.init.eye_(layer.l0.weight_hh)
    assert short.error_bound == math.inf
    assert truncate(holdfast.LSTM(2, 4), 3).error_bound == math.inf  # no input bound
    read = truncate(project_(layer, rate=0.5), 10, readout=torch.nn.Linear(4, 1))
    assert read.error_bound < 0.5**10 * 2.0
    assert len(list(read.parameters())) == len(list(layer.parameters()))


def test_weights_are_shared_and_train():
    """A step on the truncated model moves the full one; it copies, saves and loads as any module does."""
    layer, xs = holdfast.SGORNN(2, 4), torch.randn(20, 3, 2)
    short = truncate(layer, 5)
    before = layer(xs)[0].detach()
    optimiser = torch.optim.SGD(short.parameters(), lr=0.1)
    short(xs)[0].square().sum().backward()
    optimiser.step()
    assert not torch.equal(layer(xs)[0], before)
    twin = copy.deepcopy(short)
    torch.testing.assert_close(twin(xs)[0], short(xs)[0])
    twin.load_state_dict(short.state_dict())
    assert "k=5" in repr(short)
    assert "stride" not in repr(short)


def test_layouts_are_those_of_the_layer():
    layer = holdfast.LSTM(2, 4, batch_first=True, backend="reference")
    xs = torch.randn(3, 9, 2)
    short = truncate(layer, 20, stride=2)
    for given_, whole in ((xs, layer(xs)), (xs[0], layer(xs[0]))):
        torch.testing.assert_close(short(given_), whole)
    none, h_n = short(xs, need_output=False)
    assert none is None
    torch.testing.assert_close(h_n, layer(xs)[1])
    fused = holdfast.RNN(9, 4)
    torch.testing.assert_close(truncate(fused, 3)(torch.ones(8, 2, 9))[0][-1], fused(torch.ones(3, 2, 9))[0][-1])


def test_dropout_between_layers_is_drawn_for_every_window_and_off_in_evaluation():
    layer = holdfast.RNN(2, 4, 2, dropout=0.5, backend="reference")
    short, xs = truncate(layer, 3), torch.randn(10, 1, 2)
    assert not torch.equal(short(xs)[0], short(xs)[0])
    short(xs)[0].sum().backward()
    short.eval()
    torch.testing.assert_close(short(xs)[0], by_hand(layer, xs, 3, 1))


@pytest.mark.parametrize("layers", [1, 2])
def test_a_stream_gives_what_the_windows_give(layers):
    """One input at a time, with a ring of k inputs: the same outputs, before and after it is full; reset forgets."""
    layer, xs = holdfast.LSTM(2, 4, layers, backend="reference"), torch.randn(13, 2, 2)
    short = truncate(layer, 5)
    stream = short.stream(batch=2)
    expected = short(xs)[0].detach()
    for _ in range(2):
        torch.testing.assert_close(torch.stack([stream(x) for x in xs]), expected)
        stream.reset()
    for x in xs[:7]:
        stream.step(x)
    saved = stream.state
    assert torch.equal(saved, xs[2:7])
    rest = [stream.step(x) for x in xs[7:]]
    stream.state = saved  # the last k inputs are all that it remembers
    torch.testing.assert_close([stream.step(x) for x in xs[7:]], rest)
    with pytest.raises(ShapeError, match=r"state of at most 5 inputs"):
        stream.state = xs[:6]
    stream.reset()
    pieces = torch.cat([stream.run(xs[:4]), stream.run(xs[4:4]), stream.run(xs[4:])])
    torch.testing.assert_close(pieces, expected)
    single = truncate(layer, 5).stream()
    assert single(xs[0, 0]).shape == (4,)
    single.reset()
    torch.testing.assert_close(single.run(xs[:, 0]), expected[:, 0])
    with pytest.raises(SettingError, match=r"batch of 2, got 3"):
        stream.run(torch.zeros(4, 3, 2))
    with pytest.raises(ShapeError, match=r"TruncatedStream expects x of shape \(2, 2\)"):
        stream(torch.zeros(2, 3))
    with pytest.raises(SettingError, match=r"batch of 2, got 3"):
        stream(torch.zeros(3, 2))
    with pytest.raises(SettingError, match=r"batch to be a whole number"):
        short.stream(batch=0)


def test_bad_settings_are_named():
    stable, unstable = project_(holdfast.RNN(2, 4), rate=0.9), holdfast.RNN(2, 4, init="identity")
    for k in (0, -3, 2.0, True):
        with pytest.raises(SettingError, match=r"k to be a whole number of at least 1"):
            truncate(stable, k)
    with pytest.raises(SettingError, match=r"stride to be a whole number of at least 1, got 0"):
        truncate(stable, 3, stride=0)
    for eps in (0.0, -1.0, math.nan):
        with pytest.raises(SettingError, match=r"eps to be positive and finite"):
            truncate(stable, eps=eps, input_bound=1.0)
    with pytest.raises(
        NoBoundError, match=r"not certified as stable: λ = 1 ≥ 1.*project_\(model, rate=0.95\).*choose k"
    ):
        truncate(unstable, eps=1e-3, input_bound=1.0)
    with pytest.raises(NoBoundError, match=r"stable with λ = 0.9756.*give input_bound"):
        truncate(holdfast.SGORNN(2, 4), eps=1e-3)
    with pytest.raises(SettingError, match=r"either k or eps, got k=None, eps=None; give exactly one"):
        truncate(stable)
    with pytest.raises(SettingError, match=r"either k or eps, got k=3"):
        truncate(stable, 3, eps=0.1)
    with pytest.raises(SettingError, match=r"bidirectional"):
        truncate(holdfast.RNN(2, 4, bidirectional=True), 3)
    with pytest.raises(SettingError, match=r"expects no h_0"):
        truncate(stable, 3)(torch.zeros(5, 1, 2), torch.zeros(1, 1, 4))
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(3, 2)])
    with pytest.raises(DTypeError, match=r"pad a PackedSequence first"):
        truncate(stable, 3)(packed)
    with pytest.raises(ShapeError, match=r"\(time, batch, 2\), got \(5, 1, 3\)"):
        truncate(stable, 3)(torch.zeros(5, 1, 3))
    assert isinstance(truncate(unstable, 3), Truncated)  # k by hand needs no proof
    gates = holdfast.FastRNN(2, 4, gates=ScalarGates(3.0, 3.0))
    assert truncate(gates, 3).error_bound == math.inf
