"""LEMCell: with its gates fixed, two leaky averages in a row."""

import pytest
import torch
from torch import nn

from holdfast import LEM, LEMCell, scan
from holdfast.errors import SettingError


def test_with_fixed_gates_and_no_feedback_the_states_are_two_geometric_means():
    """U = V = 0, x = 0: z_t = c + (1 - s)ᵗ (z_0 - c), y_t = d + (1 - r)ᵗ (y_0 - d)."""
    cell = LEMCell(3, 4, dt=0.8)
    nn.init.zeros_(cell.weight_hh)
    nn.init.zeros_(cell.weight_zh)
    s, r, c, d = cell.bias.detach().chunk(4)
    s, r, c, d = 0.8 * torch.sigmoid(s), 0.8 * torch.sigmoid(r), torch.tanh(c), torch.tanh(d)
    y, z = torch.randn(2, 4), torch.randn(2, 4)
    _, (last_y, last_z) = scan(cell, torch.zeros(6, 2, 3), (y, z))
    torch.testing.assert_close(last_z, c + (1 - s) ** 6 * (z - c))
    torch.testing.assert_close(last_y, d + (1 - r) ** 6 * (y - d))


def test_one_step_is_the_printed_equations():
    """The output sees the new memory, and no row sees another's weights."""
    cell, x, y, z = LEMCell(3, 4), torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4)
    w_s, w_r, w_z, w_y = cell.weight_ih.chunk(4)
    b_s, b_r, b_z, b_y = cell.bias.chunk(4)
    u_s, u_r, u_z = cell.weight_hh.chunk(3)
    s, r = torch.sigmoid(x @ w_s.mT + y @ u_s.mT + b_s), torch.sigmoid(x @ w_r.mT + y @ u_r.mT + b_r)
    new_z = (1 - s) * z + s * torch.tanh(x @ w_z.mT + y @ u_z.mT + b_z)
    new_y = (1 - r) * y + r * torch.tanh(x @ w_y.mT + new_z @ cell.weight_zh.mT + b_y)
    torch.testing.assert_close(cell(x, (y, z)), (new_y, new_z))


def test_parameters_are_those_of_the_equations():
    """Four rows of W and b, three of U, and V. The authors' plain program (tk-rusch/LEM) adds four biases per unit."""
    for n, d in ((1, 128), (3, 5)):
        layer, program = LEM(n, d), (nn.Linear(n, 4 * d), nn.Linear(d, 3 * d), nn.Linear(d, d))
        count = sum(weight.numel() for weight in layer.parameters())
        assert count == 4 * (n * d + d * d + d)
        assert sum(weight.numel() for part in program for weight in part.parameters()) == count + 4 * d


def test_states_stay_within_one():
    """From zero, with tanh, for any weights and inputs: both states are means of numbers in [-1, 1]."""
    cell = LEMCell(3, 4)
    for weight in cell.parameters():
        nn.init.normal_(weight, std=5.0)
    outputs, (_, z) = scan(cell, 10 * torch.randn(40, 3, 3))
    assert max(outputs.abs().max(), z.abs().max()) <= 1


@pytest.mark.parametrize("dt", [0.0, 1.5, float("nan")])
def test_a_step_of_time_beyond_one_is_refused(dt):
    with pytest.raises(SettingError, match=r"LEMCell expects dt in \(0, 1\]"):
        LEMCell(3, 4, dt=dt)
