"""ScoRNNCell: a step that keeps lengths, with a recurrent matrix that reaches what the Cayley map alone cannot."""

import pytest
import torch

from holdfast import ExpRNNCell, ScaledCayley, ScoRNN, ScoRNNCell, scan
from holdfast.linalg.skew import cayley_inverse


def test_without_input_the_state_is_turned_by_powers_of_u():
    """With modrelu and b = 0, its start: h_T = U^T h_0, and its norm is that of h_0."""
    cell, h = ScoRNNCell(3, 8), torch.randn(2, 8)
    outputs, (last,) = scan(cell, torch.zeros(100, 2, 3), h)
    torch.testing.assert_close(last, h @ torch.linalg.matrix_power(cell.recurrent.matrix(), 100).mT)
    torch.testing.assert_close(outputs.norm(dim=2), h.norm(dim=1).expand(100, 2))


@pytest.mark.parametrize("negative_signs", [0, 1, 3, 6])
def test_the_start_turns_planes_by_the_angles_drawn(negative_signs):
    """Helfrich et al. (2018), §4.1: U D turns plane i by t_i in [0, π/2], since tan²(t/2) = (1 - cos t)/(1 + cos t)."""
    cell = ScoRNNCell(2, 6, negative_signs=negative_signs)
    signs = cell.recurrent.signs
    assert signs.tolist() == [1.0] * (6 - negative_signs) + [-1.0] * negative_signs
    planes = (cell.recurrent.matrix() * signs).detach()
    t = 2 * torch.atan(cell.recurrent.skew[[0, 5, 14]].detach())  # entries (1, 0), (3, 2), (5, 4), counted by rows
    assert ((t >= 0) & (t <= torch.pi / 2)).all()
    turned = torch.block_diag(*(torch.stack((c, s, -s, c)).view(2, 2) for c, s in zip(t.cos(), t.sin(), strict=True)))
    torch.testing.assert_close(planes, turned)


def test_an_orthogonal_matrix_with_eigenvalue_minus_one_is_reached():
    """Q = diag(-1, rotation): no skew A gives it with D = I, where every I + A is invertible. With D it is exact."""
    c, s = torch.cos(torch.tensor(0.3)), torch.sin(torch.tensor(0.3))
    Q = torch.block_diag(torch.stack((c, -s, s, c)).view(2, 2), -torch.eye(1))
    cell = ScoRNNCell(2, 3, negative_signs=1)
    A, signs = cayley_inverse(Q)
    assert torch.equal(signs, cell.recurrent.signs)
    with torch.no_grad():
        cell.recurrent.skew.copy_(A[*torch.tril_indices(3, 3, -1)])
    torch.testing.assert_close(cell.recurrent.matrix().detach(), Q)
    assert cell.recurrent.contains(Q)
    assert not ScaledCayley(3, negative_signs=0).contains(Q)  # the plain Cayley map
    assert not ExpRNNCell(2, 3).recurrent.contains(Q)  # the exponential


def test_a_named_nonlinearity_takes_the_bias_inside():
    """Then h = tanh(V x + U h + b)."""
    cell, x, h = ScoRNNCell(3, 4, nonlinearity="tanh"), torch.randn(2, 3), torch.randn(2, 4)
    torch.nn.init.normal_(cell.bias)
    exact = torch.tanh(x @ cell.weight_ih.mT + h @ cell.recurrent.matrix().mT + cell.bias)
    torch.testing.assert_close(cell(x, h), exact)


@pytest.mark.parametrize(("units", "printed"), [(170, 16), (360, 69), (512, 137)])
def test_parameters_are_those_printed(units, printed):
    """Helfrich et al. (2018), Table 1, MNIST by pixels, in thousands; the start is zero."""
    model = ScoRNN(1, units), torch.nn.Linear(units, 10)
    assert round(sum(weight.numel() for part in model for weight in part.parameters()) / 1000) == printed
