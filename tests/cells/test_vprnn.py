"""VPRNNCell: with φ = id it only turns the state."""

import torch
from torch import nn

from holdfast import VPRNNCell, scan


def test_without_input_the_state_is_turned_by_powers_of_u():
    """φ = id: h_T = U^T h_0, and its norm is that of h_0."""
    cell, h = VPRNNCell(3, 8, nonlinearity="identity"), torch.randn(2, 8)
    outputs, (last,) = scan(cell, torch.zeros(100, 2, 3), h)
    U = cell.recurrent.matrix()
    torch.testing.assert_close(last, h @ torch.linalg.matrix_power(U, 100).mT)
    torch.testing.assert_close(outputs.norm(dim=2), h.norm(dim=1).expand(100, 2))


def test_volume_is_preserved():
    """φ = id: |det ∂h_t/∂h_{t-1}| = 1."""
    cell, x = VPRNNCell(3, 8, nonlinearity="identity"), torch.randn(1, 3)
    jacobian = torch.autograd.functional.jacobian(lambda h: cell(x, h), torch.randn(1, 8)).view(8, 8)
    torch.testing.assert_close(jacobian.det().abs(), torch.tensor(1.0))


def test_one_step_is_equation_one():
    """h_1 = relu(W x + U h_0 + b)."""
    cell, x, h = VPRNNCell(3, 8), torch.randn(2, 3), torch.randn(2, 8)
    nn.init.normal_(cell.bias)
    exact = torch.relu(x @ cell.weight_ih.mT + h @ cell.recurrent.matrix().mT + cell.bias)
    torch.testing.assert_close(cell(x, h), exact)


def test_a_gradient_through_time_keeps_its_norm():
    """φ = id: ‖∂L/∂h_0‖ = ‖∂L/∂h_T‖, after 300 steps."""
    cell, h = VPRNNCell(3, 8, nonlinearity="identity"), torch.randn(1, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(scan(cell, torch.randn(300, 1, 3), h)[1][0][0, 0], h)
    torch.testing.assert_close(gradient.norm(), torch.tensor(1.0))


def test_permutations_are_part_of_the_state_dict_and_no_parameters():
    cell = VPRNNCell(3, 8)
    assert "recurrent.permutations" in cell.state_dict()
    assert {name for name, _ in cell.named_parameters()} == {"weight_ih", "bias", "recurrent.angles"}
