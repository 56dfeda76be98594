"""bfloat16 on the CPU: stored in 16 bits, computed in float32, rounded once."""

import copy

import pytest
import torch

import holdfast as hf
from helpers.cells import built
from holdfast.engine.targets.cpu import narrow

EPS = torch.finfo(torch.bfloat16).eps


def run(cell, xs, state, backend):
    leaves = [t.detach().clone().requires_grad_() for t in (xs, *state)]
    output, last = hf.scan(cell, leaves[0], tuple(leaves[1:]), backend=backend)
    torch.manual_seed(0)
    values = [output, *last]
    loss = sum((value * torch.randn(value.shape).to(value.dtype)).sum(dtype=torch.float32) for value in values)
    wanted = [*leaves, *(p for p in cell.parameters() if p.requires_grad)]
    return values + list(torch.autograd.grad(loss, wanted, allow_unused=True))


@pytest.mark.parametrize("name", ["rnn-tanh", "lstm", "gru-before", "fastrnn", "rnn-gelu"])
@pytest.mark.parametrize("batch", [1, 20])
def test_a_scan_in_bfloat16_is_the_float32_scan_of_the_same_numbers_rounded(name, batch):
    """Values, states and all gradients, to the precision of bfloat16; types are those of the plain loop."""
    cell = built(name, 3).bfloat16()
    wide = copy.deepcopy(cell).float()
    xs, state = torch.randn(6, batch, 3).bfloat16(), tuple(torch.randn(batch, n).bfloat16() for n in cell.state_sizes)
    ours = run(cell, xs, state, "fused")
    exact = run(wide, xs.float(), tuple(s.float() for s in state), "reference")
    plain = run(cell, xs, state, "reference")
    for one, other, loop in zip(ours, exact, plain, strict=True):
        if other is None:
            assert one is None or not one.any()
            continue
        assert one.dtype == loop.dtype == torch.bfloat16
        scale = other.abs().max()
        assert (one.float() - other).abs().max() <= 4 * EPS * scale  # weights() itself, a gate's sigmoid, is rounded
        assert (one.float() - loop.float()).abs().max() <= 16 * EPS * scale  # the loop rounds after every operator


def test_new_weights_and_new_settings_are_seen():
    """A cell's twin is made anew for every scan, and plans are found again only for the same settings."""
    cell, xs = hf.RNNCell(3, 8).bfloat16(), torch.randn(4, 2, 3).bfloat16()
    with torch.no_grad():
        first = hf.scan(cell, xs, backend="fused")[0]
        known = len(vars(cell)["_fused_plans"].known)
        cell.weight_hh.data.mul_(-1)
        second = hf.scan(cell, xs, backend="fused")[0]
        assert len(vars(cell)["_fused_plans"].known) == known
        assert not torch.equal(first, second)
        cell.phi = torch.relu
        third = hf.scan(cell, xs, backend="fused")[0]
        assert (third >= 0).all()
        assert (second < 0).any()


def test_a_twin_shares_nothing_that_is_written():
    cell = hf.SGORNNCell(3, 8).bfloat16()
    twin = narrow.twin(cell)
    assert {p.dtype for p in twin.parameters()} == {torch.float32}
    assert {p.dtype for p in cell.parameters()} == {torch.bfloat16}
    assert list(dict(twin.named_parameters())) == list(dict(cell.named_parameters()))


def test_autocast_leaves_float32_weights_in_float32():
    layer, xs = hf.LSTM(3, 8).float(), torch.randn(5, 2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(xs.bfloat16())[0]
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, layer(xs.bfloat16().float())[0])
