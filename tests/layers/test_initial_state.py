"""Where a layer starts: read off by a cell that does nothing but hold its state."""

import math

import pytest
import torch

from holdfast import Cell, RandomStart, Recurrent


class HoldCell(Cell):
    """h_t = h_{t-1}: the last state is the first."""

    def drive(self, x):
        return x

    def weights(self):
        return ()

    def step(self, drive, state, weights):
        return (state[0] + 0 * drive.sum(dim=1, keepdim=True),)


@pytest.mark.parametrize("std", [0.0, 0.01, 2.0])
def test_random_start_is_gaussian_of_that_spread(std):
    """Mean and spread to five standard errors over 2 · 500 · 8 numbers, and independent from entry to entry."""
    layer = Recurrent(HoldCell, 3, 8, bidirectional=True, initial_state=RandomStart(std))
    _, h = layer(torch.zeros(1, 500, 3))
    assert abs(h.mean().item()) <= 5 * std / math.sqrt(h.numel())
    assert abs(h.std().item() - std) <= 5 * std / math.sqrt(2 * h.numel())
    if std:
        correlations = torch.corrcoef(h.permute(0, 2, 1).reshape(16, 500)) - torch.eye(16)
        assert correlations.abs().max() < 5 / math.sqrt(500)
        assert abs((h / std).pow(4).mean().item() - 3) < 5 * math.sqrt(96 / h.numel())  # a Gaussian's fourth moment


def test_random_start_follows_the_seed():
    layer, runs = Recurrent(HoldCell, 3, 8, initial_state=RandomStart(1.0)), []
    for _ in range(2):
        torch.manual_seed(11)
        runs.append(layer(torch.zeros(1, 4, 3))[1])
    assert torch.equal(*runs)


def test_learned_start_is_one_row_for_all_samples():
    layer = Recurrent(HoldCell, 3, 8, bidirectional=True, initial_state="learned")
    (value,) = layer.initial_state.parameters()
    with torch.no_grad():
        value.normal_()
    _, h = layer(torch.zeros(2, 5, 3))
    assert torch.equal(h, value.unsqueeze(1).expand(2, 5, 8))
    (gradient,) = torch.autograd.grad(h.sum(), value)
    assert torch.equal(gradient, torch.full_like(gradient, 5.0))


def test_starts_have_the_type_of_the_weights():
    layer = Recurrent(HoldCell, 3, 8, initial_state="learned", dtype=torch.float32)
    assert next(layer.initial_state.parameters()).dtype == torch.float32
