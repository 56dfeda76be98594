"""GORUCell: the gates of a GRU around an orthogonal turn."""

import pytest
import torch
from torch import nn

from holdfast import GORU, GORUCell, scan
from holdfast.stability import NoBoundError, contraction_rate


@pytest.mark.parametrize("settings", [{}, {"order": "fft"}, {"capacity": 8}, {"recurrent": "exp"}])
def test_a_step_is_the_papers(settings):
    """For all weights, x and h: (1) to (4), written out."""
    cell, x, h = GORUCell(3, 8, **settings), torch.randn(5, 3), torch.randn(5, 8)
    for weight in cell.parameters():
        nn.init.normal_(weight)
    (W_r, W_z, W_c), (U_r, U_z), (b_r, b_z) = cell.weight_ih.chunk(3), cell.weight_hh.chunk(2), cell.bias.chunk(2)
    r, z = torch.sigmoid(x @ W_r.T + h @ U_r.T + b_r), torch.sigmoid(x @ W_z.T + h @ U_z.T + b_z)
    inner = x @ W_c.T + r * (h @ cell.recurrent.matrix().T)
    candidate = inner.sign() * torch.relu(inner.abs() + cell.bias_c)
    torch.testing.assert_close(cell(x, h), z * h + (1 - z) * candidate)


def test_open_gates_turn_and_closed_ones_keep():
    """With r = 1 and z = 0: h_T = U^T h_0 and its length is kept. With z = 1: h_T = h_0. No input, b_c = 0."""
    cell, h = GORUCell(3, 8), torch.randn(2, 8)
    with torch.no_grad():
        cell.weight_hh.zero_()
        cell.bias.copy_(torch.tensor([800.0] * 8 + [-800.0] * 8))
    last = scan(cell, torch.zeros(50, 2, 3), h)[1][0]
    torch.testing.assert_close(last, h @ torch.linalg.matrix_power(cell.recurrent.matrix(), 50).mT)
    torch.testing.assert_close(last.norm(dim=1), h.norm(dim=1))
    nn.init.constant_(cell.bias, 800.0)
    torch.testing.assert_close(scan(cell, torch.zeros(50, 2, 3), h)[1][0], h)


def test_it_starts_as_the_authors_program():
    """Weights in ±0.01, the reset gate's bias 2, the others 0, angles in ±π."""
    cell = GORUCell(40, 50)
    for weight in (cell.weight_ih, cell.weight_hh):
        assert 0.0099 < weight.abs().max() <= 0.01
    assert cell.bias.tolist() == [2.0] * 50 + [0.0] * 50
    assert not cell.bias_c.any()
    assert 2.5 < cell.recurrent.angles.abs().max() <= torch.pi


@pytest.mark.parametrize(
    ("settings", "angles"), [({"capacity": 2}, 127), ({"capacity": 128}, 8128), ({"order": "fft"}, 448)]
)
def test_parameters_are_those_of_the_equations(settings, angles):
    """3 input matrices, 2 gate matrices, 3 biases, and an angle per plane: 128·127/2 at full capacity, a rotation's.

    So has the authors' program (jingli9111/GORU-tensorflow).
    """
    count = sum(weight.numel() for weight in GORU(10, 128, **settings).parameters())
    assert count == 3 * 128 * 10 + 2 * 128 * 128 + 3 * 128 + angles


def test_no_rate_is_proved():
    with pytest.raises(NoBoundError, match="registered for GORUCell"):
        contraction_rate(GORUCell(2, 4))
