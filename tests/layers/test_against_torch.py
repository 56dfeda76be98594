"""RNN, LSTM and GRU with the weights of torch.nn's are torch.nn's: outputs, last states and every gradient."""

import itertools
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import holdfast

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}
KINDS = {
    "tanh": lambda *args, **settings: nn.RNN(*args, nonlinearity="tanh", **settings),
    "relu": lambda *args, **settings: nn.RNN(*args, nonlinearity="relu", **settings),
    "lstm": nn.LSTM,
    "gru": nn.GRU,
}
STEPS, BATCH, INPUT, HIDDEN = 5, 3, 2, 4
LENGTHS = [2, 5, 3]  # in no order


def _close(actual, expected):
    torch.testing.assert_close(actual, expected, **TOLERANCE)


def _start(layer, form):
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    shape = (rows, HIDDEN) if form == "unbatched" else (rows, BATCH, HIDDEN)
    return tuple(torch.randn(shape, requires_grad=True) for _ in range(2 if isinstance(layer, nn.LSTM) else 1))


def _run(layer, xs, h_0, form, batch_first):
    """Outputs and last states as one tuple of tensors, and the gradients of a fixed random function of them."""
    given = xs.transpose(0, 1) if batch_first and form != "unbatched" else xs
    if form == "packed":
        given = pack_padded_sequence(given, LENGTHS, batch_first=batch_first, enforce_sorted=False)
    start = None if h_0 is None else h_0[0] if len(h_0) == 1 else h_0
    output, h_n = layer(given, start)
    kind = type(output)
    output = output.data if isinstance(output, PackedSequence) else output
    results = (output, *((h_n,) if isinstance(h_n, torch.Tensor) else h_n))
    cotangent = torch.Generator().manual_seed(1)
    loss = sum((result * torch.randn(result.shape, generator=cotangent)).sum() for result in results)
    names, weights = zip(*layer.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, (xs, *(h_0 or ()), *weights))
    inputs = gradients[: -len(weights)]
    return kind, results, inputs, dict(zip(names, gradients[-len(weights) :], strict=True))


def _same_weight_gradients(ours, theirs, layer):
    """A sum of two biases has the gradient of each; the GRU's b_hn stands apart, inside the reset gate."""
    seen = set()
    for name in layer._names:
        _close(ours[f"{name}.weight_ih"], theirs[f"weight_ih_{name}"])
        _close(ours[f"{name}.weight_hh"], theirs[f"weight_hh_{name}"])
        seen |= {f"{name}.weight_ih", f"{name}.weight_hh"}
        if f"{name}.bias" in ours:
            ih, hh = theirs[f"bias_ih_{name}"], theirs[f"bias_hh_{name}"]
            _close(ours[f"{name}.bias"], ih)
            seen.add(f"{name}.bias")
            if f"{name}.bias_hn" in ours:
                _close(torch.cat([ours[f"{name}.bias"][: 2 * HIDDEN], ours[f"{name}.bias_hn"]]), hh)
                seen.add(f"{name}.bias_hn")
            else:
                _close(ours[f"{name}.bias"], hh)
    assert seen == ours.keys()


@pytest.mark.parametrize("given_start", [False, True], ids=["zeros", "h_0"])
@pytest.mark.parametrize("form", ["padded", "packed", "unbatched"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "both-ways"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_states_and_gradients_are_those_of_torch(kind, num_layers, bidirectional, form, given_start):
    """To 1e-10, for every layout and with biases or without, on the plain loop."""
    for batch_first, bias in itertools.product((False, True), repeat=2):
        _compare(kind, num_layers, bidirectional, form, given_start, batch_first, bias, backend="reference")


@pytest.mark.parametrize("form", ["padded", "packed", "unbatched"])
@pytest.mark.parametrize("kind", KINDS)
def test_so_they_are_on_the_backend_that_a_layer_takes_by_default(kind, form):
    _compare(kind, 1, True, form, given_start=True, batch_first=True, bias=True, backend="auto")


def _compare(kind, num_layers, bidirectional, form, given_start, batch_first, bias, backend):
    theirs = KINDS[kind](INPUT, HIDDEN, num_layers, bidirectional=bidirectional, batch_first=batch_first, bias=bias)
    ours = holdfast.from_torch(theirs)
    ours.backend = backend
    shape = (STEPS, INPUT) if form == "unbatched" else (STEPS, BATCH, INPUT)
    xs = torch.randn(shape, requires_grad=True)
    h_0 = _start(theirs, form) if given_start else None
    kind_ours, results, inputs, weights = _run(ours, xs, h_0, form, batch_first)
    kind_theirs, expected, expected_inputs, expected_weights = _run(theirs, xs, h_0, form, batch_first)
    assert kind_ours is kind_theirs
    _close(results, expected)
    _close(inputs, expected_inputs)
    _same_weight_gradients(weights, expected_weights, ours)


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_output_unpacks_as_torchs_does(kind):
    theirs = KINDS[kind](INPUT, HIDDEN)
    packed = pack_padded_sequence(torch.randn(STEPS, BATCH, INPUT), LENGTHS, enforce_sorted=False)
    ours, expected = holdfast.from_torch(theirs)(packed)[0], theirs(packed)[0]
    for field in ("batch_sizes", "sorted_indices", "unsorted_indices"):
        assert torch.equal(getattr(ours, field), getattr(expected, field))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_to_torch_and_from_torch_undo_each_other(kind, bias):
    """Ours to theirs and back keeps every weight; theirs to ours and back keeps the function."""
    theirs = KINDS[kind](INPUT, HIDDEN, 2, bidirectional=True, batch_first=True, dropout=0.25, bias=bias).eval()
    ours = holdfast.from_torch(theirs)
    back = holdfast.to_torch(ours)
    again = holdfast.from_torch(back)
    assert type(back) is type(theirs)
    assert (back.batch_first, back.bidirectional, back.dropout, back.num_layers) == (True, True, 0.25, 2)
    assert not ours.training
    assert not back.training
    assert ours.state_dict().keys() == again.state_dict().keys()
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in ours.state_dict().items())
    xs = torch.randn(BATCH, STEPS, INPUT)
    _close(back(xs), theirs(xs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conversion_keeps_the_number_type(dtype):
    assert holdfast.from_torch(nn.GRU(2, 3, dtype=dtype)).cells[0].weight_hh.dtype == dtype
    assert holdfast.to_torch(holdfast.GRU(2, 3, dtype=dtype)).weight_hh_l0.dtype == dtype


def test_conversion_copies():
    theirs = nn.RNN(2, 3)
    ours = holdfast.from_torch(theirs)
    with torch.no_grad():
        theirs.weight_hh_l0.zero_()
    assert ours.cells[0].weight_hh.any()


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_off_in_evaluation(kind):
    theirs = KINDS[kind](INPUT, HIDDEN, 3, dropout=0.5).eval()
    xs = torch.randn(STEPS, BATCH, INPUT)
    _close(holdfast.from_torch(theirs)(xs), theirs(xs))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_stands_between_layers_only(kind):
    """With p = 1 every layer but the first sees zeros, and the last one's output is whole, as in torch."""
    theirs = KINDS[kind](INPUT, HIDDEN, 2, dropout=1.0)
    ours, xs = holdfast.from_torch(theirs), torch.randn(STEPS, BATCH, INPUT)
    output, _ = ours(xs)
    _close(output, theirs(xs)[0])
    _close(output, ours(torch.zeros_like(xs))[0])
    assert output.abs().sum() > 0


def test_dropout_with_one_layer_does_nothing():
    """Torch says so in a warning; the function is the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = nn.LSTM(INPUT, HIDDEN, dropout=0.9)
    xs = torch.randn(STEPS, BATCH, INPUT)
    _close(holdfast.from_torch(theirs)(xs), theirs(xs))


def test_dropout_keeps_a_share_of_one_minus_p_and_the_mean():
    """The second layer adds up its inputs: a unit's share of kept steps is 1 - p to five standard errors."""
    layer = holdfast.LinearRNN(1, 1, num_layers=2, bias=False, dropout=0.25)
    first, second = layer.cells
    with torch.no_grad():
        for cell, recurrent in ((first, 0.0), (second, 1.0)):
            cell.weight_ih.fill_(1.0)
            cell.weight_hh.fill_(recurrent)
    steps, batch = 200, 50
    _, h_n = layer(torch.ones(steps, batch, 1))
    kept = h_n[1].sum() * 0.75 / (steps * batch)  # each kept step adds 1 / (1 - p)
    assert abs(kept.item() - 0.75) < 5 * (0.75 * 0.25 / (steps * batch)) ** 0.5
