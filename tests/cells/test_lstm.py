"""LSTMCell: with gates forced open or shut its memory is a sum, a copy or nothing."""

import math

import pytest
import torch
from torch import nn

from holdfast import LSTMCell, scan
from holdfast.errors import SettingError

OPEN, SHUT = 1e3, -1e3  # σ(±1000) is 1 and 0 in float64


def _with_gates(i, f, o, nonlinearity="identity"):
    """Only the candidate reads the input; the three gates stand where their biases put them."""
    cell = LSTMCell(3, 4, nonlinearity=nonlinearity)
    with torch.no_grad():
        cell.weight_hh.zero_()
        cell.weight_ih.view(4, 4, 3)[[0, 1, 3]] = 0
        cell.bias.copy_(torch.tensor([i, f, 0.0, o]).repeat_interleave(4))
    return cell, cell.weight_ih[8:12]


def test_open_gates_add_up_the_candidates():
    """With i = f = o = 1, φ = id: h_t = c_t = c_0 + W_g (x_1 + ... + x_t)."""
    cell, weight = _with_gates(OPEN, OPEN, OPEN)
    xs, c = torch.randn(9, 2, 3), torch.randn(2, 4)
    outputs, (h, last) = scan(cell, xs, (torch.zeros(2, 4), c))
    torch.testing.assert_close(outputs, c + xs.cumsum(dim=0) @ weight.mT)
    torch.testing.assert_close(h, last)


def test_a_shut_input_gate_keeps_the_memory_for_ever():
    """With i = 0, f = 1: c_T = c_0, to the last bit, after 500 steps; and o = 0 shows nothing of it."""
    cell, _ = _with_gates(SHUT, OPEN, SHUT)
    c = torch.randn(2, 4)
    outputs, (_, last) = scan(cell, torch.randn(500, 2, 3), (torch.randn(2, 4), c))
    assert torch.equal(last, c)
    assert not outputs.any()


def test_a_shut_forget_gate_leaves_the_last_candidate_alone():
    """With i = o = 1, f = 0: h_t = tanh(tanh(W_g x_t))."""
    cell, weight = _with_gates(OPEN, SHUT, OPEN, nonlinearity="tanh")
    xs = torch.randn(5, 2, 3)
    torch.testing.assert_close(scan(cell, xs)[0], torch.tanh(torch.tanh(xs @ weight.mT)))


def test_one_unit_by_hand():
    """All weights 1/2, x = 1, h_0 = 1/2, c_0 = -1/4: every gate sees 1/2 + 1/4 + 1/2."""
    cell = LSTMCell(1, 1)
    for weight in cell.parameters():
        nn.init.constant_(weight, 0.5)
    h, c = cell(torch.ones(1, 1), (torch.full((1, 1), 0.5), torch.full((1, 1), -0.25)))
    gate, candidate = 1 / (1 + math.exp(-1.25)), math.tanh(1.25)
    memory = gate * -0.25 + gate * candidate
    assert c.item() == pytest.approx(memory, abs=1e-15)
    assert h.item() == pytest.approx(gate * math.tanh(memory), abs=1e-15)


def test_a_forget_bias_opens_that_gate_at_the_start_and_no_other():
    """Keras' start: b_f = 1, the other biases 0, so σ(b_f) of the memory is kept at x = h = 0."""
    cell = LSTMCell(3, 4, forget_bias=1.0)
    assert torch.equal(cell.bias.view(4, 4), torch.tensor([0.0, 1.0, 0.0, 0.0])[:, None].expand(4, 4))
    _, c = cell(torch.zeros(1, 3), (torch.zeros(1, 4), torch.ones(1, 4)))
    torch.testing.assert_close(c, torch.full((1, 4), 1 / (1 + math.exp(-1))))
    nn.init.ones_(cell.bias)
    cell.reset_parameters()
    assert cell.bias.sum() == 4


@pytest.mark.parametrize("settings", [{"forget_bias": math.nan}, {"forget_bias": 1.0, "bias": False}])
def test_a_forget_bias_needs_a_bias_and_a_finite_number(settings):
    with pytest.raises(SettingError, match="forget_bias"):
        LSTMCell(3, 4, **settings)
