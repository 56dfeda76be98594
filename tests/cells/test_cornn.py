"""CoRNNCell: without weights, an oscillator that can be solved by hand; and the sizes that the paper prints."""

import pytest
import torch
from torch import nn

from holdfast import CoRNN, CoRNNCell, scan
from holdfast.errors import SettingError


def _without_weights(**settings):
    cell = CoRNNCell(3, 4, bias=False, **settings)
    for weight in cell.parameters():
        nn.init.zeros_(weight)
    return cell


def test_a_free_oscillator_is_the_power_of_a_matrix():
    """W = U = V = 0: (y, z) ← [[1 - Δ²γ, Δ(1 - Δε)], [-Δγ, 1 - Δε]] (y, z)."""
    dt, gamma, epsilon = 0.1, 2.7, 0.4
    cell, start = _without_weights(dt=dt, gamma=gamma, epsilon=epsilon), (torch.randn(2, 4), torch.randn(2, 4))
    matrix = torch.tensor([[1 - dt**2 * gamma, dt * (1 - dt * epsilon)], [-dt * gamma, 1 - dt * epsilon]]).matrix_power(
        25
    )
    _, (y, z) = scan(cell, torch.zeros(25, 2, 3), start)
    torch.testing.assert_close(y, matrix[0, 0] * start[0] + matrix[0, 1] * start[1])
    torch.testing.assert_close(z, matrix[1, 0] * start[0] + matrix[1, 1] * start[1])


def test_small_steps_approach_the_solution_of_the_differential_equation():
    """ε = 0, γ = 4, y(0) = 1, z(0) = 0: y(t) = cos 2t, with an error of first order in Δ."""
    errors = []
    for steps in (200, 400):
        cell = _without_weights(dt=1 / steps, gamma=4.0, epsilon=0.0)
        ys = scan(cell, torch.zeros(steps, 1, 3), (torch.ones(1, 4), torch.zeros(1, 4)))[0][:, 0, 0]
        times = torch.arange(1, steps + 1) / steps
        errors.append((ys - torch.cos(2 * times)).abs().max().item())
    assert errors[1] < 0.01
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.02)


def test_one_step_is_the_printed_equations():
    cell, x = CoRNNCell(3, 4, dt=0.3, gamma=0.7, epsilon=1.3), torch.randn(2, 3)
    y, z = torch.randn(2, 4), torch.randn(2, 4)
    force = torch.tanh(x @ cell.weight_ih.mT + y @ cell.weight_hh.mT + z @ cell.weight_zh.mT + cell.bias)
    new_z = z + 0.3 * (force - 0.7 * y - 1.3 * z)
    torch.testing.assert_close(cell(x, (y, z)), (y + 0.3 * new_z, new_z))


@pytest.mark.parametrize(
    ("inputs", "hidden", "outputs", "printed"), [(1, 128, 10, 34), (1, 256, 10, 134), (9, 64, 1, 9)]
)
def test_parameters_are_those_printed_in_thousands(inputs, hidden, outputs, printed):
    """Sequential MNIST with 128 and 256 units, HAR-2 with 64: 34k, 134k and 9k with the readout."""
    model = nn.ModuleList([CoRNN(inputs, hidden), nn.Linear(hidden, outputs)])
    assert round(sum(weight.numel() for weight in model.parameters()) / 1000) == printed


@pytest.mark.parametrize("settings", [{"dt": 0.0}, {"gamma": -1.0}, {"epsilon": float("inf")}])
def test_a_setting_without_sense_is_refused(settings):
    with pytest.raises(SettingError, match="CoRNNCell expects"):
        CoRNNCell(3, 4, **settings)
