"""For every cell and every way of running it, the fused scan is the plain one, in values and in gradients."""

import re

import pytest
import torch

import holdfast as hf
from helpers.cells import COMPILED, OPERATIONS, SAME_STEP, MixedCell, assert_same_scan, built, random_state

every_cell = pytest.mark.parametrize("name", COMPILED)
every_operation = pytest.mark.parametrize("name", OPERATIONS)


@pytest.mark.parametrize("name", SAME_STEP)
def test_a_cell_that_no_target_compiles_has_the_step_of_one_that_they_do(name):
    """The program is the same, forwards and backwards, so that what holds for one holds for the other.

    The gradient of a matrix may be summed transposed, as the matrix lies in memory.
    """

    def program(name):
        sides = re.compile(r"(\w+) @ (\w+)\.T")
        return sides.sub(lambda it: " outer ".join(sorted(it.groups())), hf.fused_source(built(name, 3)))

    assert program(name) == program(SAME_STEP[name])


@every_cell
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_fused_equals_reference(name, dtype):
    """Narrow inputs are projected inside the loop, wide ones before it; batches that fill their blocks and others.

    Each cell runs in both types, one of them with narrow and the other with wide inputs, in turns along the catalogue.
    """
    input_size = 3 if (COMPILED.index(name) % 2 == 0) == (dtype == torch.float64) else 12
    cell = built(name, input_size).to(dtype)
    for batch in (8, 5):
        xs = torch.randn(7, batch, input_size, dtype=dtype, requires_grad=True)
        assert_same_scan(cell, xs, random_state(cell, batch))


@every_operation
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
def test_fused_equals_reference_with_lengths(name, reverse):
    """For samples of any length, 0 and all steps included, and either direction."""
    cell = built(name, 3)
    xs = torch.randn(6, 5, 3, requires_grad=True)
    state = random_state(cell, 5)
    assert_same_scan(cell, xs, state, lengths=torch.tensor([3, 6, 1, 0, 5]), reverse=reverse)
    assert_same_scan(cell, xs, state, reverse=reverse)


@every_operation
def test_fused_equals_reference_when_only_the_last_state_is_wanted(name):
    cell = built(name, 3)
    assert_same_scan(cell, torch.randn(6, 5, 3), random_state(cell, 5), need_output=False)
    with torch.inference_mode():
        xs = torch.randn(6, 5, 3)
        _, fused = hf.scan(cell, xs, need_output=False, backend="fused")
        _, plain = hf.scan(cell, xs, need_output=False, backend="reference")
    torch.testing.assert_close(fused, plain)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 33, 64, 70])
def test_every_batch_size_works(batch):
    """Blocks are of 4, 8 or 16 samples in float64; the last may be partly filled."""
    for cell in (built("sgornn", 3), built("lstm", 3)):
        assert_same_scan(cell, torch.randn(4, batch, 3, requires_grad=True), random_state(cell, batch))


@pytest.mark.parametrize("hidden", [1, 2, 3, 7, 8, 15, 16, 17, 40])
def test_every_hidden_size_works(hidden):
    for cell in (hf.RNNCell(2, hidden), hf.GRUCell(9, hidden), MixedCell(3, hidden)):
        assert_same_scan(cell, torch.randn(5, 6, cell.input_size, requires_grad=True), random_state(cell, 6))


@pytest.mark.parametrize("steps", [1, 2, 300])
def test_every_length_works(steps):
    for cell in (hf.SGORNNCell(2, 8), hf.LSTMCell(12, 6)):
        assert_same_scan(cell, torch.randn(steps, 3, cell.input_size, requires_grad=True), random_state(cell, 3))


def test_a_long_drive_is_made_in_stretches_without_gradients(monkeypatch):
    """Without gradients nothing of the drive is kept: it is made stretch by stretch, in either direction."""
    from holdfast.engine.targets.cpu import scan

    monkeypatch.setattr(scan, "CHUNK", 1)
    cell, xs, lengths = hf.GRUCell(12, 6), torch.randn(7, 3, 12), torch.tensor([7, 2, 5])
    with torch.no_grad():
        for reverse in (False, True):
            for given in (None, lengths):
                fused, plain = (
                    hf.scan(cell, xs, lengths=given, reverse=reverse, backend=b) for b in ("fused", "reference")
                )
                torch.testing.assert_close(fused, plain)


def test_inputs_of_any_layout_work():
    """Transposed, strided, expanded and reversed-by-flip inputs and states."""
    cell = hf.FastRNNCell(3, 6)
    h = torch.randn(6, 5).mT
    for xs in (
        torch.randn(5, 7, 3).transpose(0, 1),
        torch.randn(7, 5, 6)[:, :, ::2],
        torch.randn(7, 1, 3).expand(7, 5, 3),
        torch.randn(1, 5, 3).expand(7, 5, 3),
        torch.randn(3, 5, 7).permute(2, 1, 0),
        torch.randn(14, 5, 3)[::2],
        torch.randn(7, 5, 1).expand(7, 5, 3),
    ):
        assert_same_scan(cell, xs.requires_grad_(), (h,))
    assert_same_scan(cell, torch.randn(7, 5, 3), (torch.randn(1, 6).expand(5, 6),))


def test_any_subset_of_inputs_may_require_a_gradient():
    for mask in range(16):
        cell = MixedCell(3, 4)
        cell.weight_hh.requires_grad_(bool(mask & 1))
        cell.leak.requires_grad_(bool(mask & 2))
        xs = torch.randn(4, 3, 3, requires_grad=bool(mask & 4))
        assert_same_scan(cell, xs, random_state(cell, 3, requires_grad=bool(mask & 8)))


def test_an_output_that_is_not_used_gets_no_gradient():
    """Only the last state, only the output, only one step of the output."""
    cell, xs = hf.LSTMCell(3, 5), torch.randn(6, 4, 3)
    for pick in (
        lambda o, s: s[1].sum(),
        lambda o, s: o.square().sum(),
        lambda o, s: o[2].sum(),
        lambda o, s: s[0].sum(),
    ):
        grads = [
            torch.autograd.grad(pick(*hf.scan(cell, xs, backend=b)), tuple(cell.parameters()))
            for b in ("fused", "reference")
        ]
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", ["rnn-tanh", "sgornn", "lstm", "gru-before", "linear-direct"])
def test_gradient_is_that_of_the_function(name):
    cell = built(name, 2)
    weights = {key: w.detach().clone().requires_grad_() for key, w in cell.named_parameters()}

    def through(xs, *values):
        given = dict(zip(weights, values, strict=True))
        for key, value in given.items():
            owner, _, last = key.rpartition(".")
            module = cell.get_submodule(owner)
            module._parameters.pop(last, None)
            setattr(module, last, value)
        output, state = hf.scan(cell, xs, backend="fused")
        return output, *state

    xs = (torch.rand(3, 3, 2) + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(through, (xs, *weights.values()))


@every_operation
def test_nan_and_infinity_go_through_as_in_reference(name):
    """One bad number in one sample reaches exactly what it reaches in the plain loop, through each operator."""
    cell = built(name, 3)
    for bad in (float("nan"), float("inf"), -float("inf")):
        xs = torch.randn(4, 9, 3)
        xs[1, 4, 0] = bad
        assert_same_scan(cell, xs.requires_grad_(), random_state(cell, 9), equal_nan=True)


def test_relu_of_nan_is_nan():
    cell = hf.RNNCell(1, 2, nonlinearity="relu")
    output, _ = hf.scan(cell, torch.full((1, 1, 1), float("nan")), backend="fused")
    assert output.isnan().all()


def test_layers_use_the_fused_scan_and_agree_with_reference():
    """Stacked, bidirectional, packed, batch first: the layer is told nothing."""
    lengths = torch.tensor([4, 7, 1])
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(7, 3, 5), lengths, enforce_sorted=False)
    for make in (hf.SGORNN, hf.LSTM, hf.GRU, hf.RNN):
        layer = make(5, 6, num_layers=2, bidirectional=True)
        results = []
        for backend in ("auto", "reference"):
            layer.backend = backend
            output, h_n = layer(packed)
            loss = output.data.square().sum() + sum(t.sum() for t in (h_n if isinstance(h_n, tuple) else (h_n,)))
            results.append((output.data, h_n, torch.autograd.grad(loss, tuple(layer.parameters()))))
        torch.testing.assert_close(*results)
