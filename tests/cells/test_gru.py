"""GRUCell: two cells go by this name. S1 resets before the matrix, PyTorch after it."""

import math

import pytest
import torch
from torch import nn

from holdfast import GRUCell, scan


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def _unit(reset: str, **values: float) -> GRUCell:
    """One input, one unit; weights by row r, z, n."""
    cell = GRUCell(1, 1, reset=reset)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.tensor([[0.3], [-0.2], [0.7]]))
        cell.weight_hh.copy_(torch.tensor([[0.5], [0.4], [-0.6]]))
        cell.bias.copy_(torch.tensor([0.1, 0.2, -0.3]))
        if cell.bias_hn is not None:
            cell.bias_hn.fill_(values.get("bias_hn", 0.0))
    return cell


X, H = 0.8, -0.5
R, Z = sigmoid(0.3 * X + 0.5 * H + 0.1), sigmoid(-0.2 * X + 0.4 * H + 0.2)


def test_one_unit_reset_before_the_matrix_by_hand():
    """Here n = tanh(W x + U (r h) + b), h' = z h + (1 - z) n."""
    candidate = math.tanh(0.7 * X - 0.6 * (R * H) - 0.3)
    step = _unit("before")(torch.tensor([[X]]), torch.tensor([[H]]))
    assert step.item() == pytest.approx(Z * H + (1 - Z) * candidate, abs=1e-15)


def test_one_unit_reset_after_the_matrix_by_hand():
    """Here n = tanh(W x + b + r (U h + c)), h' = z h + (1 - z) n."""
    candidate = math.tanh(0.7 * X - 0.3 + R * (-0.6 * H + 0.9))
    step = _unit("after", bias_hn=0.9)(torch.tensor([[X]]), torch.tensor([[H]]))
    assert step.item() == pytest.approx(Z * H + (1 - Z) * candidate, abs=1e-15)


def test_with_one_unit_and_no_inner_bias_the_forms_agree():
    """A 1 × 1 matrix commutes with r; this is why one unit cannot tell them apart."""
    point = torch.tensor([[X]]), torch.tensor([[H]])
    torch.testing.assert_close(_unit("before")(*point), _unit("after")(*point))


def test_with_two_units_the_forms_differ():
    """U swaps the units and r = (1, 0): before, U (r ⊙ h) = (0, h_1); after, r ⊙ (U h) = (h_2, 0)."""
    steps = {}
    for reset in ("before", "after"):
        cell = GRUCell(1, 2, reset=reset)
        for weight in cell.parameters():
            nn.init.zeros_(weight)
        with torch.no_grad():
            cell.bias.copy_(torch.tensor([1e3, -1e3, -1e3, -1e3, 0.0, 0.0]))  # r = (1, 0), z = 0
            cell.weight_hh[4:] = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        steps[reset] = cell(torch.zeros(1, 1), torch.tensor([[0.3, 0.7]]))
    torch.testing.assert_close(steps["before"], torch.tanh(torch.tensor([[0.0, 0.3]])))
    torch.testing.assert_close(steps["after"], torch.tanh(torch.tensor([[0.7, 0.0]])))


@pytest.mark.parametrize("reset", ["before", "after"])
def test_an_update_gate_of_one_keeps_the_state_for_ever(reset):
    """With z = 1: h_T = h_0, to the last bit."""
    cell, h = GRUCell(3, 4, reset=reset), torch.randn(2, 4)
    nn.init.constant_(cell.bias[4:8], 1e3)
    assert torch.equal(scan(cell, torch.randn(300, 2, 3), h)[1][0], h)


@pytest.mark.parametrize("reset", ["before", "after"])
def test_open_reset_and_shut_update_make_an_elman_cell(reset):
    """With r = 1, z = 0: h_t = tanh(W_n x_t + U_n h_{t-1} + b_n), in either form without the inner bias."""
    cell, x, h = GRUCell(3, 4, reset=reset), torch.randn(2, 3), torch.randn(2, 4)
    with torch.no_grad():
        cell.bias[:4], cell.bias[4:8] = 1e3, -1e3
        if cell.bias_hn is not None:
            cell.bias_hn.zero_()
    exact = torch.tanh(x @ cell.weight_ih[8:].mT + h @ cell.weight_hh[8:].mT + cell.bias[8:])
    torch.testing.assert_close(cell(x, h), exact)
