"""The parallel scan is the plain loop, in values and in gradients, for the cells that are linear in the state."""

import pytest
import torch

import holdfast as hf
from helpers.cells import CELLS, assert_same_scan, built, random_state
from holdfast.cells import DiagonalCell
from holdfast.engine.parallel import prefix_states
from holdfast.errors import FusedError

LINEAR = [name for name in CELLS if isinstance(built(name, 3), DiagonalCell)]


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 21])
def test_parallel_equals_reference(name, steps):
    """Values, last state and gradients, for lengths that are powers of two and others."""
    cell = built(name, 3)
    xs = torch.randn(steps, 5, 3, requires_grad=True)
    assert_same_scan(cell, xs, random_state(cell, 5), backend="parallel")


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("reverse", [False, True])
def test_parallel_equals_reference_with_lengths(name, reverse):
    """Samples of any length, 0 and all steps included, in either direction; and without outputs."""
    cell, xs = built(name, 3), torch.randn(6, 5, 3, requires_grad=True)
    state, lengths = random_state(cell, 5), torch.tensor([3, 6, 1, 0, 5])
    assert_same_scan(cell, xs, state, lengths=lengths, reverse=reverse, backend="parallel")
    assert_same_scan(cell, xs, state, lengths=lengths, reverse=reverse, need_output=False, backend="parallel")


def test_a_prefix_of_ones_is_a_sum():
    """With a = 1: h_t = b_1 + ... + b_t, in integers and hence exactly."""
    b = torch.randint(-9, 9, (37, 2)).double()
    torch.testing.assert_close(prefix_states(torch.ones_like(b), b), b.cumsum(0), rtol=0, atol=0)


def test_gates_at_their_ends_stay_finite():
    """With a = 0 and a = 1 exactly, over 1,000 steps, where a form in logarithms has infinities."""
    cell, xs = hf.MinGRUCell(1, 1), torch.randn(1000, 1, 1)
    with torch.no_grad():
        cell.weight_ih[0] = 1e4
    outputs = [hf.scan(cell, xs, backend=way)[0] for way in ("parallel", "reference")]
    torch.testing.assert_close(*outputs)


def test_a_layer_takes_the_backend_in_both_directions_and_for_packed_input():
    layer = hf.MinLSTM(3, 4, num_layers=2, bidirectional=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(6, 3, 3), torch.tensor([6, 4, 1]))
    first = layer(packed)
    layer.backend = "parallel"
    second = layer(packed)
    torch.testing.assert_close(first[0].data, second[0].data)
    torch.testing.assert_close(first[1], second[1])


def test_a_cell_that_is_not_linear_in_the_state_is_refused():
    with pytest.raises(FusedError, match=r"RNNCell cannot run on the parallel backend.*auto"):
        hf.scan(hf.RNNCell(3, 4), torch.zeros(2, 2, 3), backend="parallel")
