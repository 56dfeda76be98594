"""EUNNCell: plane rotations on complex numbers. What its matrix is: tests/constraints/test_unitary.py."""

import math

import pytest
import torch

from holdfast import EUNN, EUNNCell, scan
from holdfast.errors import SettingError
from holdfast.stability import contraction_rate


def complex_of(row):
    return torch.complex(*row.chunk(2, dim=-1))


@pytest.mark.parametrize("settings", [{"capacity": 3}, {"order": "fft"}])
def test_a_step_is_the_papers_in_complex_numbers(settings):
    """For all x, h, b and angles: h' = z max(|z| + b, 0) / |z|, z = V x + W h."""
    cell, x, h = EUNNCell(3, 8, **settings), torch.randn(5, 3), torch.randn(5, 8)
    for weight in cell.parameters():
        torch.nn.init.normal_(weight)
    (a, _), (b, _) = (it.chunk(2, dim=1) for it in cell.recurrent.matrix().chunk(2))
    z = (x + 0j) @ complex_of(cell.weight_ih.mT) + complex_of(h) @ torch.complex(a, b).mT
    torch.testing.assert_close(complex_of(cell(x, h)), z * torch.relu(z.abs() + cell.bias) / z.abs())


@pytest.mark.parametrize("settings", [{}, {"order": "fft"}])
def test_without_input_the_state_keeps_its_length(settings):
    """With b = 0 over 100 steps, for all angles."""
    cell, h = EUNNCell(3, 8, **settings), torch.randn(2, 8)
    torch.nn.init.normal_(cell.recurrent.angles)
    outputs, _ = scan(cell, torch.zeros(100, 2, 3), h)
    torch.testing.assert_close(outputs.norm(dim=2), h.norm(dim=1).expand(100, 2))


def test_two_units_by_hand():
    """One plane, θ = π/2, φ = 0, D = I: (h_1, h_2) becomes (-h_2, h_1), complex numbers as they are."""
    cell = EUNNCell(1, 4, capacity=1)
    with torch.no_grad():
        for weight in cell.parameters():
            weight.zero_()
        cell.recurrent.angles.fill_(math.pi / 2)
    h = torch.tensor([[1.0, 2.0, 3.0, 4.0]])  # 1 + 3i, 2 + 4i
    torch.testing.assert_close(cell(torch.zeros(1, 1), h), torch.tensor([[-2.0, 1.0, -4.0, 3.0]]))


@pytest.mark.parametrize(
    ("settings", "count"),
    [({"capacity": 2}, 2 * 511 + 512), ({"capacity": 4}, 4 * 511 + 512), ({"order": "fft"}, 9 * 512 + 512)],
)
def test_a_factor_has_two_numbers_per_plane(settings, count):
    """512 complex units: L (n - 1) + n for the tunable order, n log₂ n + n for the other: Jing et al. (2017), §4.

    All in all, as in the authors' program (jingli9111/EUNN-tensorflow): these, V, complex, and a real bias.
    """
    layer = EUNN(3, 1024, **settings)
    assert sum(weight.numel() for weight in layer.cells[0].recurrent.parameters()) == count
    assert sum(weight.numel() for weight in layer.parameters()) == count + 2 * 512 * 3 + 512


def test_the_rate_is_one_for_a_shrinking_modrelu():
    cell = EUNNCell(2, 8)
    torch.nn.init.uniform_(cell.bias, -1.0, 0.0)
    assert contraction_rate(cell) == 1.0
    x, h, k = torch.randn(200, 2), torch.randn(200, 8), torch.randn(200, 8)
    assert ((cell(x, h) - cell(x, k)).norm(dim=1) <= (h - k).norm(dim=1) * (1 + 1e-12)).all()


def test_settings_that_no_cell_has():
    for settings, words in (({"order": "fft"}, "power of 2 units, got 6"), ({"capacity": 7}, "at most 6")):
        with pytest.raises(SettingError, match=words):
            EUNN(3, 12, **settings)
