"""MinGRUCell: a weighted mean of its candidates, with weights that are known in closed form."""

import torch
from torch import nn

from holdfast import MinGRUCell, scan
from holdfast.cells.mingru import positive


def test_a_constant_input_gives_a_geometric_series():
    """For a constant x: h_t = c + (1 - z)ᵗ (h_0 - c)."""
    cell, x, h, t = MinGRUCell(3, 4), torch.randn(2, 3), torch.randn(2, 4), torch.arange(1, 8)[:, None, None]
    gate, c = (x @ cell.weight_ih.mT + cell.bias).chunk(2, dim=1)
    exact = c + (1 - torch.sigmoid(gate)) ** t * (h - c)
    torch.testing.assert_close(scan(cell, x.expand(7, 2, 3), h)[0], exact)


def test_a_state_is_the_mean_of_the_candidates_weighted_by_the_gates():
    """For any input: h_T = Σ_t z_t Π_{s>t} (1 - z_s) c_t, from h_0 = 0."""
    cell, xs = MinGRUCell(3, 4), torch.randn(6, 2, 3)
    gate, c = (xs @ cell.weight_ih.mT + cell.bias).chunk(2, dim=2)
    z = torch.sigmoid(gate)
    kept = torch.stack([torch.prod(1 - z[t + 1 :], dim=0) for t in range(6)])
    torch.testing.assert_close(scan(cell, xs)[1][0], (z * kept * c).sum(dim=0))


def test_the_candidate_of_the_papers_code_is_positive_and_continuous():
    """g(v) = v + 1/2 from 0 on and σ(v) below, so h stays positive from a positive start."""
    v = torch.linspace(-3, 3, 601)
    torch.testing.assert_close(positive(v), torch.where(v >= 0, v + 0.5, 1 / (1 + torch.exp(-v))))
    assert positive(v).diff().max() <= 0.01 + 1e-12
    cell = MinGRUCell(3, 4, nonlinearity="positive")
    assert scan(cell, 5 * torch.randn(20, 2, 3))[0].min() > 0


def test_parameters_are_two_rows_of_input_weights_per_unit():
    """2 H (D + 1), as §3.1 counts without biases: 2 H D. A GRU has 3 H (D + H)."""
    assert sum(w.numel() for w in MinGRUCell(7, 11).parameters()) == 2 * 11 * 8
    assert sum(w.numel() for w in MinGRUCell(7, 11, bias=False).parameters()) == 2 * 11 * 7


def test_a_closed_gate_keeps_the_state_and_an_open_one_replaces_it():
    cell, x, h = MinGRUCell(3, 4), torch.randn(2, 3), torch.randn(2, 4)
    nn.init.constant_(cell.bias[:4], -800.0)
    torch.testing.assert_close(cell(x, h), h, rtol=0, atol=0)
    nn.init.constant_(cell.bias[:4], 800.0)
    torch.testing.assert_close(cell(x, h), x @ cell.weight_ih[4:].mT + cell.bias[4:])
