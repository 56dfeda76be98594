"""ExpRNNCell: with φ = id it only turns the state; modrelu as printed."""

import pytest
import torch
from torch import nn

from holdfast import ExpRNNCell, scan


@pytest.mark.parametrize("nonlinearity", ["identity", "modrelu"])
def test_without_input_the_state_is_turned_by_powers_of_u(nonlinearity):
    """φ = id, or modrelu with b = 0, its start: h_T = exp(A)^T h_0 = exp(T A) h_0, and its norm is that of h_0."""
    cell, h = ExpRNNCell(3, 8, nonlinearity=nonlinearity), torch.randn(2, 8)
    outputs, (last,) = scan(cell, torch.zeros(100, 2, 3), h)
    U = cell.recurrent.matrix()
    torch.testing.assert_close(last, h @ torch.linalg.matrix_power(U, 100).mT)
    torch.testing.assert_close(outputs.norm(dim=2), h.norm(dim=1).expand(100, 2))


def test_the_recurrent_matrix_is_a_rotation():
    U = ExpRNNCell(3, 8, init="henaff").recurrent.matrix()
    torch.testing.assert_close(U @ U.mT, torch.eye(8))
    torch.testing.assert_close(U.det(), torch.tensor(1.0))


def test_modrelu_keeps_the_sign_and_moves_the_size_by_b():
    """Here h = sign(z) max(|z| + b, 0), by hand, with U = I and h_0 = 0."""
    cell = ExpRNNCell(1, 3, init="identity")
    with torch.no_grad():
        cell.weight_ih.copy_(torch.tensor([[2.0], [-2.0], [0.5]]))
        cell.bias.copy_(torch.tensor([-0.5, 0.25, -1.0]))
    torch.testing.assert_close(cell(torch.ones(1, 1)), torch.tensor([[1.5, -2.25, 0.0]]))


def test_modrelu_without_bias_is_linear():
    cell, x, h = ExpRNNCell(3, 4, bias=False), torch.randn(2, 3), torch.randn(2, 4)
    torch.testing.assert_close(cell(x, h), x @ cell.weight_ih.mT + h @ cell.recurrent.matrix().mT)


def test_a_named_nonlinearity_takes_the_bias_inside():
    """Then h = tanh(W x + exp(A) h + b)."""
    cell, x, h = ExpRNNCell(3, 4, nonlinearity="tanh"), torch.randn(2, 3), torch.randn(2, 4)
    nn.init.normal_(cell.bias)
    exact = torch.tanh(x @ cell.weight_ih.mT + h @ cell.recurrent.matrix().mT + cell.bias)
    torch.testing.assert_close(cell(x, h), exact)
