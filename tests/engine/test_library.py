"""Where PyTorch's own kernel is taken, it computes what the plain loop computes."""

import pytest
import torch

import holdfast as hf
from holdfast.engine.library import scan_library


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_few_samples_of_an_lstm_agree_with_reference(reverse, bias):
    """float32, where PyTorch has a fast kernel: outputs, states and gradients."""
    cell = hf.LSTMCell(3, 5, bias=bias).float()
    xs = torch.randn(6, 2, 3, dtype=torch.float32, requires_grad=True)
    state = tuple(torch.randn(2, 5, dtype=torch.float32, requires_grad=True) for _ in range(2))
    assert scan_library(cell, xs, state, reverse=reverse) is not None
    results = []
    for backend in ("auto", "reference"):
        output, last = hf.scan(cell, xs, state, reverse=reverse, backend=backend)
        loss = output.square().sum() + last[1].sum()
        results.append((output, last, torch.autograd.grad(loss, [xs, *state, *cell.parameters()])))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert hf.scan(cell, xs, state, need_output=False)[0] is None


def test_it_is_left_alone_wherever_it_does_not_fit():
    """Many samples, float64, another nonlinearity, another cell: None, so that the fused scan runs."""
    state = (torch.zeros(2, 4), torch.zeros(2, 4))
    assert scan_library(hf.LSTMCell(3, 4), torch.zeros(5, 2, 3), state, reverse=False) is None
    relu = hf.LSTMCell(3, 4, nonlinearity="relu").float()
    few = torch.zeros(5, 2, 3, dtype=torch.float32)
    assert scan_library(relu, few, state, reverse=False) is None
    many = torch.zeros(5, 64, 3, dtype=torch.float32)
    assert scan_library(hf.LSTMCell(3, 4).float(), many, state, reverse=False) is None
    assert scan_library(hf.GRUCell(3, 4).float(), few, state[:1], reverse=False) is None


def test_second_derivatives_of_few_samples_are_right():
    cell, xs = hf.LSTMCell(2, 3).float(), torch.randn(4, 1, 2, dtype=torch.float32, requires_grad=True)
    results = []
    for backend in ("auto", "reference"):
        (first,) = torch.autograd.grad(hf.scan(cell, xs, backend=backend)[0].square().sum(), xs, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), [xs, *cell.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
