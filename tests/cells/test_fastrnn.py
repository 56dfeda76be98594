"""FastRNNCell: exact answers, and where its gates start."""

import math

import pytest
import torch
from torch import nn

from holdfast import FastRNNCell, ScalarGates, scan


def test_without_recurrence_it_is_a_geometric_series():
    """U = 0 and x constant: h_t = α φ(W x + b) (1 - βᵗ) / (1 - β)."""
    cell, x, t = FastRNNCell(3, 4), torch.randn(2, 3), torch.arange(1, 8)[:, None, None]
    nn.init.zeros_(cell.weight_hh)
    alpha, beta = cell.gates()
    exact = alpha * torch.tanh(cell.drive(x)) * (1 - beta**t) / (1 - beta)
    torch.testing.assert_close(scan(cell, x.expand(7, 2, 3))[0], exact)


def test_without_candidate_the_state_decays_by_beta():
    """W = U = 0, b = 0: h_T = β^T h_0."""
    cell, h = FastRNNCell(3, 4), torch.randn(2, 4)
    for weight in (cell.weight_ih, cell.weight_hh, cell.bias):
        nn.init.zeros_(weight)
    _, beta = cell.gates()
    torch.testing.assert_close(scan(cell, torch.randn(50, 2, 3), h)[1][0], beta**50 * h)


def test_with_identity_nonlinearity_it_is_linear():
    """φ = id: h_T = (α U + β I)^T h_0 without input."""
    cell, h = FastRNNCell(3, 4, nonlinearity="identity", bias=False), torch.randn(2, 4)
    alpha, beta = cell.gates()
    turn = torch.linalg.matrix_power(alpha * cell.weight_hh + beta * torch.eye(4), 9)
    torch.testing.assert_close(scan(cell, torch.zeros(9, 2, 3), h)[1][0], h @ turn.mT)


def test_gates_start_at_minus_three_and_three_without_a_clip():
    """S3's experiments: α = σ(-3), β = σ(3)."""
    alpha, beta = FastRNNCell(3, 4).gates()
    assert alpha.item() == pytest.approx(1 / (1 + math.exp(3)), abs=1e-15)
    assert beta.item() == pytest.approx(1 / (1 + math.exp(-3)), abs=1e-15)


def test_given_gates_are_the_cells_own():
    gates = ScalarGates(clip="alpha", horizon=100)
    assert FastRNNCell(3, 4, gates=gates).gates is gates
