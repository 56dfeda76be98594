"""MinLSTMCell: its gates are normalised, so a state lies between the old one and the candidate."""

import torch
from torch import nn

from holdfast import MinLSTMCell, scan


def test_one_step_is_the_printed_equations():
    """With f' = f / (f + i), i' = i / (f + i), h' = f' h + i' c."""
    cell, x, h = MinLSTMCell(3, 4), torch.randn(2, 3), torch.randn(2, 4)
    f, i, c = (x @ cell.weight_ih.mT + cell.bias).chunk(3, dim=1)
    f, i = torch.sigmoid(f), torch.sigmoid(i)
    torch.testing.assert_close(cell(x, h), f / (f + i) * h + i / (f + i) * c, rtol=1e-8, atol=1e-8)


def test_equal_gates_halve_the_distance_to_the_candidate():
    """W_f = W_i, x constant: h_t = c + 2⁻ᵗ (h_0 - c)."""
    cell, x, h, t = MinLSTMCell(3, 4), torch.randn(2, 3), torch.randn(2, 4), torch.arange(1, 8)[:, None, None]
    with torch.no_grad():
        cell.weight_ih[4:8] = cell.weight_ih[:4]
        cell.bias[4:8] = cell.bias[:4]
    c = x @ cell.weight_ih[8:].mT + cell.bias[8:]
    torch.testing.assert_close(scan(cell, x.expand(7, 2, 3), h)[0], c + 0.5**t * (h - c))


def test_two_closed_gates_divide_nothing_by_nothing():
    """Both gates underflow to 0, and their quotient is still that of the printed equation: σ(f - i) in the limit."""
    cell, h = MinLSTMCell(3, 4), torch.randn(2, 4)
    nn.init.zeros_(cell.weight_ih)
    with torch.no_grad():
        cell.bias.copy_(torch.cat((torch.full((4,), -900.0), torch.full((4,), -901.0), torch.zeros(4))))
    torch.testing.assert_close(cell(torch.zeros(2, 3), h), torch.sigmoid(torch.tensor(1.0)) * h)


def test_parameters_are_three_rows_of_input_weights_per_unit():
    assert sum(w.numel() for w in MinLSTMCell(7, 11, bias=False).parameters()) == 3 * 11 * 7
