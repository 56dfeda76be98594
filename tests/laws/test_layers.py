"""For every cell as a layer: saving and loading, seeds, packed input, first states.

What a layer adds to a scan does not depend on how the scan runs, so these run on the plain loop, which needs no time to
prepare for each of the many layers here.
"""

import copy
import io
import pickle

import pytest
import torch
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from holdfast import RandomStart, Recurrent, scan

TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}


def _close(actual, expected):
    torch.testing.assert_close(actual, expected, **TOLERANCE)


def _entries(h_n):
    return (h_n,) if isinstance(h_n, torch.Tensor) else tuple(h_n)


def _stack(factory, **settings):
    return Recurrent(factory, 3, 4, num_layers=2, bidirectional=True, backend="reference", **settings)


def test_state_dict_carries_the_whole_layer(factory):
    """Another layer of the same kind, loaded with it, is the same function; strict, and by way of a file."""
    xs, layer, other = torch.randn(5, 2, 3), _stack(factory), _stack(factory)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    _close(other(xs), layer(xs))
    assert list(other.state_dict()) == list(layer.state_dict())


def test_learned_start_is_in_the_state_dict(factory):
    layer, other = (_stack(factory, initial_state="learned") for _ in range(2))
    with torch.no_grad():
        for value in layer.initial_state.parameters():
            value.normal_()
    other.load_state_dict(layer.state_dict())
    _close(other(torch.zeros(3, 2, 3)), layer(torch.zeros(3, 2, 3)))


def test_deepcopy_is_equal_and_apart(factory):
    xs, layer = torch.randn(5, 2, 3), _stack(factory)
    twin, before = copy.deepcopy(layer), layer(xs)
    _close(twin(xs), before)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.add_(1.0)
    _close(layer(xs), before)


def test_pickle_gives_the_same_function(factory):
    xs, layer = torch.randn(5, 2, 3), _stack(factory)
    _close(pickle.loads(pickle.dumps(layer))(xs), layer(xs))


def test_same_seed_gives_the_same_layer_and_the_same_run(factory):
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        layer = _stack(factory, dropout=0.5, initial_state=RandomStart(0.1))
        output, h_n = layer(torch.randn(5, 2, 3))
        output.sum().backward()
        gradients = [weight.grad for weight in layer.parameters() if weight.grad is not None]
        runs.append((output, *_entries(h_n), *layer.state_dict().values(), *gradients))
    assert all(torch.equal(one, two) for one, two in zip(*runs, strict=True))


def test_packed_equals_each_sample_alone(factory):
    """Lengths in no order: each sample's output and last state are those of the unpadded sample on its own."""
    layer, xs, lengths = _stack(factory), torch.randn(6, 4, 3), [2, 6, 1, 4]
    packed, h_n = layer(pack_padded_sequence(xs, lengths, enforce_sorted=False))
    padded, back = pad_packed_sequence(packed)
    assert back.tolist() == lengths
    for b, length in enumerate(lengths):
        alone, last = layer(xs[:length, b])
        _close(padded[:length, b], alone)
        _close(tuple(entry[:, b] for entry in _entries(h_n)), _entries(last))


def test_packing_equal_lengths_changes_nothing(factory):
    layer, xs = _stack(factory), torch.randn(5, 3, 3)
    output, h_n = layer(xs)
    packed, packed_h_n = layer(pack_padded_sequence(xs, [5, 5, 5]))
    _close((pad_packed_sequence(packed)[0], packed_h_n), (output, h_n))


def test_packed_and_padded_runs_are_deterministic(factory):
    layer, xs = _stack(factory), torch.randn(5, 3, 3)
    packed = pack_padded_sequence(xs, [3, 5, 1], enforce_sorted=False)
    assert torch.equal(layer(xs)[0], layer(xs)[0])
    assert torch.equal(layer(packed)[0].data, layer(packed)[0].data)


def test_batch_first_and_unbatched_are_views_of_the_same_run(factory):
    layer, xs = _stack(factory), torch.randn(5, 3, 3)
    output, h_n = layer(xs)
    first = _stack(factory, batch_first=True)
    first.load_state_dict(layer.state_dict())
    _close(first(xs.transpose(0, 1)), (output.transpose(0, 1), h_n))
    _close(layer(xs[:, 1])[0], output[:, 1])


def test_functional_call_is_the_layer_with_those_weights(factory):
    xs, layer, other = torch.randn(5, 2, 3), _stack(factory), _stack(factory)
    _close(functional_call(layer, other.state_dict(), (xs,)), other(xs))


def test_a_ready_cell_is_a_layer(cell):
    """On whatever backend its scans take by default: step by step from zero, it is the cell."""
    xs, state = torch.randn(5, 2, 3), cell.initial_state(2)
    layer = Recurrent(cell)
    assert layer.cells[0] is cell
    assert (layer.input_size, layer.hidden_size) == (3, 4)
    outputs = []
    for x in xs:
        state = cell.step(cell.drive(x), state, cell.weights())
        outputs.append(state[0])
    output, h_n = layer(xs)
    _close((output, *_entries(h_n)), (torch.stack(outputs), *(entry.unsqueeze(0) for entry in state)))


def test_a_cell_that_has_run_can_still_be_copied_and_pickled(cell):
    """What a backend has prepared for it does not stand in the way, and does not go along."""
    xs = torch.randn(5, 2, 3)
    outputs, _ = scan(cell, xs)
    _close(scan(copy.deepcopy(cell), xs)[0], outputs)
    _close(scan(pickle.loads(pickle.dumps(cell)), xs, backend="reference")[0], outputs)


def test_without_outputs_the_last_states_are_the_same(factory):
    layer, xs = _stack(factory), torch.randn(5, 2, 3)
    _, h_n = layer(xs)
    nothing, same = layer(xs, need_output=False)
    assert nothing is None
    _close(same, h_n)


def test_random_start_is_fresh_a_sequence_in_training_and_zero_in_evaluation(factory):
    """Equal sequences differ from run to run and from sample to sample in training; in evaluation neither."""
    layer, xs = (
        Recurrent(factory, 3, 4, initial_state=RandomStart(0.5), backend="reference"),
        torch.randn(3, 1, 3).expand(3, 2, 3),
    )
    zeros = Recurrent(layer.cells[0], backend="reference")
    (first, _), (second, _) = layer(xs), layer(xs)
    assert not torch.allclose(first, second)
    assert not torch.allclose(first[:, 0], first[:, 1])
    layer.eval()
    _close(layer(xs), zeros(xs))


def test_learned_start_receives_gradients_and_starts_at_zero(factory):
    layer, xs = _stack(factory, initial_state="learned"), torch.randn(3, 2, 3)
    plain = _stack(factory)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("initial_state")})
    output, h_n = layer(xs)
    _close((output, h_n), plain(xs))
    (output.sum() + sum(entry.sum() for entry in _entries(h_n))).backward()
    gradients = [value.grad for value in layer.initial_state.parameters()]
    assert len(gradients) == len(layer.cells[0].state_sizes)
    assert (gradients[-1] != 0).any()  # of the entry that is carried on; an output that is not fed back has none


@pytest.mark.parametrize("start", ["learned", RandomStart(1.0)], ids=["learned", "random"])
def test_a_given_start_overrides_every_other(factory, start):
    """Each cell starts at its own row of h_0, forward before backward: the layer is four scans by hand."""
    xs, layer = torch.randn(3, 2, 3), _stack(factory, initial_state=start)
    rows = [tuple(torch.randn(2, size) for size in cell.state_sizes) for cell in layer.cells]
    below, last = xs, []
    for first in (0, 2):
        outputs = []
        for row in (first, first + 1):
            output, state = scan(layer.cells[row], below, rows[row], reverse=row % 2 == 1, backend="reference")
            outputs.append(output)
            last.append(state)
        below = torch.cat(outputs, dim=-1)
    h_0 = tuple(torch.stack(entries) for entries in zip(*rows, strict=True))
    output, h_n = layer(xs, h_0[0] if len(h_0) == 1 else h_0)
    _close((output, *_entries(h_n)), (below, *(torch.stack(entries) for entries in zip(*last, strict=True))))


def test_reset_parameters_draws_all_weights_anew(factory):
    """Under the same seed twice the same weights, whatever they were before."""
    layer = Recurrent(factory, 3, 4)
    if not hasattr(layer.cells[0], "reset_parameters"):
        pytest.skip("this cell has no reset_parameters")
    states = []
    for _ in range(2):
        with torch.no_grad():
            for weight in layer.parameters():
                weight.fill_(9.0)
        torch.manual_seed(3)
        layer.reset_parameters()
        states.append({name: weight.detach().clone() for name, weight in layer.named_parameters()})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not any((weight == 9.0).all() for weight in states[0].values())
