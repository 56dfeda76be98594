"""AntisymmetricRNNCell: with φ = id it is one matrix, whose eigenvalues are known."""

import pytest
import torch
from torch import nn

from holdfast import AntisymmetricRNN, AntisymmetricRNNCell, scan
from holdfast.errors import SettingError


def test_without_input_the_state_is_a_power_of_a_matrix():
    """φ = id, x = 0, b = 0: h_T = (I + ε (A - γ I))^T h_0."""
    cell, h = AntisymmetricRNNCell(3, 4, nonlinearity="identity", epsilon=0.2, gamma=0.3), torch.randn(2, 4)
    A = cell.matrix() + 0.3 * torch.eye(4)
    torch.testing.assert_close(A, -A.mT)
    power = torch.linalg.matrix_power(torch.eye(4) + 0.2 * (A - 0.3 * torch.eye(4)), 20)
    torch.testing.assert_close(scan(cell, torch.zeros(20, 2, 3), h)[1][0], h @ power.mT)


def test_eigenvalues_of_the_matrix_have_the_real_part_minus_gamma():
    """For every A, of any size: §3 of the paper."""
    cell = AntisymmetricRNNCell(3, 7, gamma=0.25)
    nn.init.normal_(cell.skew, std=3.0)
    torch.testing.assert_close(torch.linalg.eigvals(cell.matrix()).real, torch.full((7,), -0.25))


def test_one_gated_step_is_the_printed_equations():
    cell, x, h = AntisymmetricRNNCell(3, 4, gated=True), torch.randn(2, 3), torch.randn(2, 4)
    own = h @ cell.matrix().mT
    (w, w_g), (b, b_g) = cell.weight_ih.chunk(2), cell.bias.chunk(2)
    exact = h + 0.1 * torch.sigmoid(own + x @ w_g.mT + b_g) * torch.tanh(own + x @ w.mT + b)
    torch.testing.assert_close(cell(x, h), exact)


@pytest.mark.parametrize("gated", [False, True])
def test_parameters_are_those_printed_in_thousands(gated):
    """Pixel-by-pixel MNIST with 128 units: 10K with the readout, with and without the gate."""
    model = nn.ModuleList([AntisymmetricRNN(1, 128, gated=gated), nn.Linear(128, 10)])
    assert round(sum(weight.numel() for weight in model.parameters()) / 1000) == 10


def test_one_unit_has_no_skew_part():
    """N = 1: A = 0, and the cell is h + ε φ(-γ h + W x + b)."""
    cell, x, h = AntisymmetricRNNCell(3, 1), torch.randn(2, 3), torch.randn(2, 1)
    torch.testing.assert_close(cell(x, h), h + 0.1 * torch.tanh(x @ cell.weight_ih.mT - 0.01 * h))
    with pytest.raises(SettingError, match="gamma"):
        AntisymmetricRNNCell(3, 4, gamma=-0.1)
