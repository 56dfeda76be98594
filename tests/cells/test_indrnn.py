"""IndRNNCell: units that do not see each other, with a bound on what each remembers."""

import pytest
import torch
from torch import nn

from holdfast import IndRNNCell, scan
from holdfast.constraints.interval import inside_interval
from holdfast.errors import SettingError


def test_without_input_a_unit_is_a_power_of_its_weight():
    """φ = id, b = 0, x = 0: h_t = uᵗ h_0."""
    cell, h = IndRNNCell(3, 4, nonlinearity="identity"), torch.randn(2, 4)
    outputs = scan(cell, torch.zeros(9, 2, 3), h)[0]
    t = torch.arange(1, 10)[:, None, None]
    torch.testing.assert_close(outputs, cell.weight_hh**t * h)


def test_one_step_is_equation_one_and_units_are_independent():
    """h_1 = relu(W x + u ⊙ h_0 + b), so ∂h_1/∂h_0 is diagonal."""
    cell, x, h = IndRNNCell(3, 4), torch.randn(1, 3), torch.randn(1, 4)
    nn.init.normal_(cell.bias)
    exact = torch.relu(x @ cell.weight_ih.mT + cell.weight_hh * h + cell.bias)
    torch.testing.assert_close(cell(x, h), exact)
    jacobian = torch.autograd.functional.jacobian(lambda h: cell(x, h), h).view(4, 4)
    assert not jacobian[~torch.eye(4, dtype=torch.bool)].any()


def test_over_the_horizon_a_gradient_at_most_doubles():
    """|∂h_T/∂h_0| ≤ |u|^T ≤ 2 for every weight, also one far outside of the bound."""
    cell, h = IndRNNCell(3, 4, horizon=50), torch.rand(1, 4).requires_grad_()
    nn.init.constant_(cell.weight_hh, 7.0)
    last = scan(cell, torch.rand(50, 1, 3), h)[1][0]
    (gradient,) = torch.autograd.grad(last.sum(), h)
    assert gradient.abs().max() <= 2 * (1 + 1e-12)
    with pytest.raises(SettingError, match="horizon"):
        IndRNNCell(3, 4, horizon=0)


def test_a_weight_outside_can_come_back_and_cannot_go_further():
    """Descent on (u - 0.5)² from v = 3 ends at 0.5; descent on -u leaves v where it is; inside, gradients are true."""
    v = torch.tensor([3.0], requires_grad=True)
    optimiser = torch.optim.SGD([v], lr=0.1)
    for _ in range(200):
        optimiser.zero_grad()
        (inside_interval(v, 1.0) - 0.5).square().sum().backward()
        optimiser.step()
    torch.testing.assert_close(v.detach(), torch.tensor([0.5]))
    outside = torch.tensor([3.0, -3.0], requires_grad=True)
    (inside_interval(outside, 1.0) * torch.tensor([-1.0, 1.0])).sum().backward()
    assert not outside.grad.any()
    assert torch.autograd.gradcheck(lambda v: inside_interval(v, 1.0), torch.rand(5).requires_grad_())


def test_parameters_are_one_more_than_a_perceptron_per_unit():
    assert sum(w.numel() for w in IndRNNCell(2, 128).parameters()) == 128 * (2 + 1 + 1)
