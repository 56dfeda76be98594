"""SGORNNCell: exact answers for every orthogonal map, and where its gates start."""

import math

import pytest
import torch
from torch import nn

from holdfast import SGORNN, RotationProduct, ScalarGates, SGORNNCell, scan

MAPS = ["rotations", "exp", "cayley", "householder"]


@pytest.mark.parametrize("recurrent", MAPS)
def test_with_identity_nonlinearity_it_is_linear(recurrent):
    """φ = id and no input: h_T = (α U + β I)^T h_0, U orthogonal."""
    cell, h = SGORNNCell(3, 4, nonlinearity="identity", recurrent=recurrent), torch.randn(2, 4)
    (alpha, beta), U = cell.gates(), cell.recurrent.matrix()
    torch.testing.assert_close(U @ U.mT, torch.eye(4))
    turn = torch.linalg.matrix_power(alpha * U + beta * torch.eye(4), 9)
    torch.testing.assert_close(scan(cell, torch.zeros(9, 2, 3), h)[1][0], h @ turn.mT)


@pytest.mark.parametrize("recurrent", MAPS)
def test_one_step_is_equation_one(recurrent):
    """h_1 = α relu(W x + U h_0 + b) + β h_0."""
    cell, x, h = SGORNNCell(3, 4, recurrent=recurrent), torch.randn(2, 3), torch.randn(2, 4)
    nn.init.normal_(cell.bias)
    (alpha, beta), U = cell.gates(), cell.recurrent.matrix()
    exact = alpha * torch.relu(x @ cell.weight_ih.mT + h @ U.mT + cell.bias) + beta * h
    torch.testing.assert_close(cell(x, h), exact)


def test_a_positive_state_under_a_permutation_is_a_geometric_series():
    """U = I (two sublayers that undo each other), b = 0, no input, h_0 ≥ 0: h_T = (α + β)^T h_0 under ReLU."""
    recurrent = RotationProduct(4, sublayers=2)
    shift = torch.tensor([1, 2, 3, 0])
    recurrent.permutations.copy_(torch.stack([shift, shift.argsort()]))
    nn.init.zeros_(recurrent.angles)
    cell, h = SGORNNCell(3, 4, recurrent=recurrent), torch.rand(2, 4)
    alpha, beta = cell.gates()
    torch.testing.assert_close(scan(cell, torch.zeros(20, 2, 3), h)[1][0], (alpha + beta) ** 20 * h)


def test_a_strong_bias_makes_a_geometric_series():
    """relu(W x + U h + b) = 0 for b very negative: h_T = β^T h_0, whatever comes in."""
    cell, h = SGORNNCell(3, 4), torch.randn(2, 4)
    nn.init.constant_(cell.bias, -1e6)
    _, beta = cell.gates()
    torch.testing.assert_close(scan(cell, torch.randn(30, 2, 3), h)[1][0], beta**30 * h)


def test_gates_start_as_printed_and_inside_the_clip():
    """S3: α = σ(-3.75), β = σ(3) = 0.9526 < 1 - 2α = 0.9540, so the clip is not active."""
    alpha, beta = SGORNNCell(3, 4).gates()
    assert alpha.item() == pytest.approx(1 / (1 + math.exp(3.75)), abs=1e-15)
    assert beta.item() == pytest.approx(1 / (1 + math.exp(-3)), abs=1e-15)
    assert round(beta.item(), 4) == 0.9526
    assert round(1 - 2 * alpha.item(), 4) == 0.9540


def test_horizon_spans_the_sequence():
    """α_0 = 1/T and β_0 = 1 - 2/T: without a candidate e^-2 of the state is left after T steps."""
    steps = 500
    cell = SGORNNCell(3, 4, gates=ScalarGates(clip="2alpha", horizon=steps))
    alpha, beta = cell.gates()
    assert alpha.item() == pytest.approx(1 / steps)
    assert beta.item() == pytest.approx(1 - 2 / steps)
    assert beta.item() ** steps == pytest.approx(math.exp(-2), rel=1e-2)


def test_angles_start_within_a_twentieth():
    """S3: uniform in ±0.05, 2⌈log₂ h⌉ sublayers of h/2 angles."""
    angles = SGORNNCell(2, 128).recurrent.angles
    assert angles.shape == (14, 64)
    assert angles.abs().max() <= 0.05
    assert angles.abs().max() > 0.045


@pytest.mark.parametrize("recurrent", MAPS)
def test_the_clip_and_orthogonality_survive_training(recurrent):
    """Twenty steps of RMSprop at a rate that throws the gates about: 0 ≤ β ≤ 1 - 2α and UᵀU = I after each."""
    cell = SGORNNCell(2, 6, recurrent=recurrent)
    optimiser = torch.optim.RMSprop(cell.parameters(), lr=0.3)
    for _ in range(20):
        loss = scan(cell, torch.randn(6, 4, 2))[1][0].sub(1).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        (alpha, beta), U = cell.gates(), cell.recurrent.matrix()
        assert 0 <= beta <= 1 - 2 * alpha
        assert (U @ U.mT - torch.eye(6)).abs().max() < 1e-12


def test_layers_and_directions_have_gates_of_their_own():
    """A module among the settings of a layer is copied for each cell, and the one given stays the caller's."""
    gates = ScalarGates(clip="2alpha", horizon=100)
    layer = SGORNN(3, 4, num_layers=2, bidirectional=True, gates=gates, recurrent=RotationProduct(4))
    assert len({id(cell.gates) for cell in layer.cells} | {id(gates)}) == 5
    assert len({id(cell.recurrent.angles) for cell in layer.cells}) == 4
    assert all(cell.gates.alpha_logit.item() == gates.alpha_logit.item() for cell in layer.cells)
