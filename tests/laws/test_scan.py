"""For every cell: what a scan means, whatever runs it."""

import copy

import pytest
import torch

from holdfast import scan

TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}  # backends sum in other orders; nothing here runs long enough to amplify it


def _entries(cell, batch):
    return tuple(torch.randn(batch, size) for size in cell.state_sizes)


def _close(actual, expected):
    torch.testing.assert_close(actual, expected, **TOLERANCE)


def test_scan_is_the_cell_applied_step_by_step(cell):
    xs = torch.randn(6, 2, 3)
    state = expected = _entries(cell, 2)
    outputs = []
    for x in xs:
        stepped = cell(x, expected)
        expected = (stepped,) if isinstance(stepped, torch.Tensor) else stepped
        outputs.append(expected[0])
    _close(scan(cell, xs, state), (torch.stack(outputs), expected))


def test_scan_without_a_state_starts_at_zero(cell):
    xs = torch.randn(5, 2, 3)
    _close(scan(cell, xs), scan(cell, xs, cell.initial_state(2)))
    assert all(not entry.any() for entry in cell.initial_state(2))


def test_two_scans_in_a_row_are_one_scan(cell):
    xs = torch.randn(7, 2, 3)
    whole, last = scan(cell, xs)
    first, state = scan(cell, xs[:3])
    second, state = scan(cell, xs[3:], state)
    _close((torch.cat([first, second]), state), (whole, last))


def test_reverse_is_the_flip_of_a_scan_of_the_flip(cell):
    xs = torch.randn(6, 2, 3)
    state = _entries(cell, 2)
    outputs, last = scan(cell, xs, state, reverse=True)
    flipped, flipped_last = scan(cell, xs.flip(0), state)
    _close((outputs, last), (flipped.flip(0), flipped_last))


@pytest.mark.parametrize("reverse", [False, True])
def test_beyond_its_length_a_sample_stands_still_and_shows_zero(cell, reverse):
    """A sample of length n runs as its first n steps alone do; length 0 leaves the first state as it was."""
    xs, lengths = torch.randn(6, 4, 3), torch.tensor([6, 3, 1, 0])
    state = _entries(cell, 4)
    outputs, last = scan(cell, xs, state, lengths=lengths, reverse=reverse)
    for b, length in enumerate(lengths.tolist()):
        assert not outputs[length:, b].any()
        own = tuple(entry[b : b + 1] for entry in state)
        if length:
            alone, own = scan(cell, xs[:length, b : b + 1], own, reverse=reverse)
            _close(outputs[:length, b : b + 1], alone)
        _close(tuple(entry[b : b + 1] for entry in last), own)


def test_what_lies_beyond_a_samples_length_is_never_read(cell):
    """NaN in the padding reaches neither outputs nor states."""
    xs, lengths = torch.randn(5, 2, 3), torch.tensor([5, 2])
    clean = scan(cell, xs, lengths=lengths)
    xs[2:, 1] = float("nan")
    _close(scan(cell, xs, lengths=lengths), clean)


def test_samples_do_not_see_each_other(cell):
    """Reordering the batch reorders the results; a sample alone gives what it gives in company."""
    xs, order = torch.randn(5, 3, 3), torch.tensor([2, 0, 1])
    outputs, last = scan(cell, xs)
    _close(scan(cell, xs[:, order]), (outputs[:, order], tuple(entry[order] for entry in last)))
    _close(scan(cell, xs[:, 1:2]), (outputs[:, 1:2], tuple(entry[1:2] for entry in last)))


@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (1, 3), (4, 1)])
def test_shapes_are_those_of_the_state(cell, steps, batch):
    outputs, last = scan(cell, torch.randn(steps, batch, 3))
    assert outputs.shape == (steps, batch, cell.state_sizes[0])
    assert [entry.shape for entry in last] == [(batch, size) for size in cell.state_sizes]
    _close(outputs[-1], last[0])


def test_without_outputs_the_last_state_is_the_same(cell):
    xs, lengths = torch.randn(5, 2, 3), torch.tensor([5, 2])
    with torch.no_grad():
        _, last = scan(cell, xs, lengths=lengths)
        nothing, same = scan(cell, xs, lengths=lengths, need_output=False)
    assert nothing is None
    _close(same, last)


def test_a_scan_changes_none_of_its_arguments(cell):
    xs = torch.randn(5, 2, 3)
    state = _entries(cell, 2)
    before = [tensor.detach().clone() for tensor in (xs, *state, *cell.parameters(), *cell.buffers())]
    outputs, last = scan(cell, xs, state, lengths=torch.tensor([5, 0]))
    torch.autograd.grad(outputs.sum() + sum(entry.sum() for entry in last), tuple(cell.parameters()), allow_unused=True)
    after = [tensor.detach() for tensor in (xs, *state, *cell.parameters(), *cell.buffers())]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_float32_is_float64_to_its_own_precision(cell):
    """Ten steps of four units: rounding of 6e-8 a step stays below 1e-4 in values of order one."""
    xs = torch.randn(10, 2, 3)
    double, _ = scan(cell, xs)
    single, last = scan(copy.deepcopy(cell).float(), xs.float())
    assert single.dtype == torch.float32
    assert all(entry.dtype == torch.float32 for entry in last)
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)


def test_strides_do_not_matter(cell):
    """Input and state that are views, transposed or expanded, give what their copies give."""
    xs = torch.randn(2, 5, 6)[..., ::2].transpose(0, 1)  # (5, 2, 3), not contiguous
    state = tuple(torch.randn(1, size).expand(2, size) for size in cell.state_sizes)
    _close(scan(cell, xs, state), scan(cell, xs.contiguous(), tuple(entry.contiguous() for entry in state)))
