"""FastGRNNCell: without weights, a geometric series; its sizes and starts are EdgeML's."""

import math

import pytest
import torch
from torch import nn

from holdfast import FastGRNNCell, scan
from holdfast.errors import SettingError


def test_without_weights_the_state_is_a_geometric_series():
    """W = U = 0: h_t = c g (1 - zᵗ) / (1 - z), z = σ(b_z), c = tanh(b_c), g = ζ (1 - z) + ν."""
    cell, t = FastGRNNCell(3, 4), torch.arange(1, 8)[:, None, None]
    nn.init.zeros_(cell.weight_ih)
    nn.init.zeros_(cell.weight_hh)
    z, c = torch.sigmoid(cell.bias[:4]), torch.tanh(cell.bias[4:])
    g = torch.sigmoid(cell.zeta_logit) * (1 - z) + torch.sigmoid(cell.nu_logit)
    outputs = scan(cell, torch.randn(7, 2, 3))[0]
    torch.testing.assert_close(outputs, (c * g * (1 - z**t) / (1 - z)).expand(7, 2, 4))


def test_low_rank_is_the_full_cell_with_products_for_matrices():
    """W = W_1 W_2ᵀ and U = U_1 U_2ᵀ, in one step and over time."""
    low, full = FastGRNNCell(5, 6, input_rank=2, recurrent_rank=3), FastGRNNCell(5, 6)
    with torch.no_grad():
        full.weight_ih.copy_(low.weight_ih @ low.weight_ih_2.mT)
        full.weight_hh.copy_(low.weight_hh @ low.weight_hh_2.mT)
    xs = torch.randn(9, 2, 5)
    torch.testing.assert_close(scan(low, xs)[0], scan(full, xs)[0])


@pytest.mark.parametrize(("w_rank", "u_rank"), [(None, None), (3, None), (None, 8), (3, 8)])
def test_parameters_are_those_of_edgeml(w_rank, u_rank):
    """W and U or their factors, two biases, two scalars."""
    inputs, hidden = 9, 80
    own = FastGRNNCell(inputs, hidden, input_rank=w_rank, recurrent_rank=u_rank)
    w = inputs * hidden if w_rank is None else w_rank * (inputs + hidden)
    u = hidden * hidden if u_rank is None else 2 * u_rank * hidden
    assert sum(weight.numel() for weight in own.parameters()) == w + u + 2 * hidden + 2


def test_starts_are_those_of_the_authors_program():
    cell = FastGRNNCell(100, 100)
    assert (cell.zeta_logit.item(), cell.nu_logit.item()) == (1.0, -4.0)
    assert (cell.bias == 1).all()
    assert cell.weight_hh.std().item() == pytest.approx(0.1, rel=3 / math.sqrt(2 * 100 * 100))


def test_a_rank_below_one_is_refused():
    with pytest.raises(SettingError, match="recurrent_rank"):
        FastGRNNCell(3, 4, recurrent_rank=0)
