"""RNNCell: exact answers, and the starts that make a ReLU network remember."""

import math

import pytest
import torch
from torch import nn

from holdfast import RNNCell, scan
from holdfast.cells.elman import normalised_positive_


def test_identity_recurrence_and_relu_add_up_positive_inputs():
    """U = I, b = 0, W x ≥ 0: h_t = W (x_1 + ... + x_t)."""
    cell, xs = RNNCell(3, 4, nonlinearity="relu", init="identity"), torch.rand(9, 2, 3)
    nn.init.uniform_(cell.weight_ih)
    outputs, _ = scan(cell, xs)
    torch.testing.assert_close(outputs, xs.cumsum(dim=0) @ cell.weight_ih.mT)


def test_identity_nonlinearity_is_the_linear_system():
    """φ = id: h_t = Σ_s U^(t-s) (W x_s + b)."""
    cell, xs = RNNCell(3, 4, nonlinearity="identity"), torch.randn(6, 2, 3)
    drives = xs @ cell.weight_ih.mT + cell.bias
    exact = sum(drives[s] @ torch.linalg.matrix_power(cell.weight_hh, 5 - s).mT for s in range(6))
    torch.testing.assert_close(scan(cell, xs)[1][0], exact)


def test_without_recurrence_a_step_is_a_layer():
    """U = 0: h_t = tanh(W x_t + b), for every t."""
    cell, xs = RNNCell(3, 4), torch.randn(5, 2, 3)
    nn.init.zeros_(cell.weight_hh)
    torch.testing.assert_close(scan(cell, xs)[0], torch.tanh(xs @ cell.weight_ih.mT + cell.bias))


def test_irnn_starts_at_the_identity_with_small_input_weights():
    """Le, Jaitly & Hinton (2015), §2: U = I, b = 0, W of standard deviation 0.001 (to five standard errors)."""
    cell = RNNCell(50, 80, nonlinearity="relu", init="identity")
    assert torch.equal(cell.weight_hh, torch.eye(80))
    assert not cell.bias.any()
    assert abs(cell.weight_ih.std().item() / 0.001 - 1) < 5 / math.sqrt(2 * cell.weight_ih.numel())


def test_np_start_is_symmetric_positive_with_largest_eigenvalue_one():
    """Talathi & Vartak (2015), §3."""
    cell = RNNCell(3, 30, nonlinearity="relu", init="np")
    assert (cell.weight_hh - cell.weight_hh.mT).abs().max() < 1e-15  # a product's two triangles are summed apart
    eigenvalues = torch.linalg.eigvalsh(cell.weight_hh)
    torch.testing.assert_close(eigenvalues[-1], torch.tensor(1.0))
    assert eigenvalues[0] > 0


def test_np_start_is_a_gaussian_gram_matrix_plus_the_identity_over_its_largest_eigenvalue():
    """U = (A + I) / λ, A = R Rᵀ / n, R standard normal: the same R from the same seed gives the same U.

    By Marchenko & Pastur the eigenvalues of A fill [0, 4] and have the mean 1, so those of U fill [1/5, 1] around 2/5.
    Without I they would reach 0, and A with n² or 1 in place of n would move the mean. To 3% at n = 400.
    """
    torch.manual_seed(11)
    U = normalised_positive_(torch.empty(400, 400))
    torch.manual_seed(11)
    R = torch.randn(400, 400)
    positive = R @ R.mT / 400 + torch.eye(400)
    torch.testing.assert_close(U, positive / torch.linalg.eigvalsh(positive)[-1])
    eigenvalues = torch.linalg.eigvalsh(U)
    assert eigenvalues[0].item() == pytest.approx(1 / 5, rel=0.03)
    assert eigenvalues.mean().item() == pytest.approx(2 / 5, rel=0.03)


@pytest.mark.parametrize("init", ["identity", "np"])
def test_np_and_identity_starts_do_not_grow(init):
    """Their spectral norm is 1, so under ReLU and without input no state grows, in any number of steps."""
    cell, h = RNNCell(3, 30, nonlinearity="relu", init=init), torch.randn(4, 30)
    _, (last,) = scan(cell, torch.zeros(200, 4, 3), h)
    assert (last.norm(dim=1) <= h.norm(dim=1) * (1 + 1e-12)).all()


def test_uniform_start_is_torchs():
    """Under one seed and without biases, the weights of torch.nn.RNN."""
    torch.manual_seed(5)
    theirs = nn.RNN(3, 7, bias=False)
    torch.manual_seed(5)
    ours = RNNCell(3, 7, bias=False)
    assert torch.equal(ours.weight_ih, theirs.weight_ih_l0)
    assert torch.equal(ours.weight_hh, theirs.weight_hh_l0)
