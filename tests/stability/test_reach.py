"""Gradients over distance: those of backpropagation through the whole sequence, however they are batched."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.errors import SettingError, ShapeError
from holdfast.stability import certificate, gradient_reach, project_

MAKE = {
    "rnn": lambda: holdfast.RNN(2, 4, backend="reference"),
    "lstm-2": lambda: holdfast.LSTM(2, 4, 2, backend="reference"),
    "gru-batch-first": lambda: holdfast.GRU(2, 4, batch_first=True, backend="reference"),
}


def by_hand(layer, xs, loss, targets, distances):
    """One backward pass through everything for each step."""
    norms = [[] for _ in range(distances + 1)]
    for s in range(xs.shape[0]):
        inputs = xs.clone().requires_grad_()
        output = layer(inputs.transpose(0, 1))[0].transpose(0, 1) if layer.batch_first else layer(inputs)[0]
        (grad,) = torch.autograd.grad(loss(output[s], targets[s]).sum(), inputs)
        for i in range(min(s, distances) + 1):
            norms[i] += grad[s - i].norm(dim=1).tolist()
    return norms


@pytest.mark.parametrize("name", MAKE)
@given(steps=st.integers(2, 11), distances=st.integers(1, 10), copies=st.integers(1, 12), seed=st.integers(0, 999))
@settings(deadline=None, max_examples=5)
def test_the_curve_is_that_of_whole_backpropagation(name, steps, distances, copies, seed):
    """For all lengths, distances and sizes of a batch of copies; with targets, stacks and either layout."""
    torch.manual_seed(seed)
    layer, distances = MAKE[name](), min(distances, steps - 1)
    xs, targets = torch.randn(steps, 2, 2), torch.randint(0, 4, (steps, 2))

    def loss(h, y):
        return torch.nn.functional.cross_entropy(h, y, reduction="none")

    expected = by_hand(layer, xs, loss, targets, distances)
    given_ = (xs.transpose(0, 1), targets.T) if layer.batch_first else (xs, targets)
    reach = gradient_reach(layer, given_[0], loss, given_[1], distances=distances, copies=copies)
    assert reach.distances == tuple(range(distances + 1))
    assert reach.count == tuple(map(len, expected))
    assert reach.mean == pytest.approx([sum(n) / len(n) for n in expected])
    assert reach.largest == pytest.approx([max(n) for n in expected])


def test_the_gradient_of_a_stable_model_falls_at_least_as_fast_as_its_rate():
    """‖∇_{x_t} p_{t+i}‖ ≤ L_p L_x λ^i for a 1-Lipschitz p."""
    layer, xs = project_(holdfast.RNN(3, 8), rate=0.7), torch.randn(60, 4, 3)
    reach = gradient_reach(layer, xs, lambda h: h.norm(dim=1), distances=20)
    step = certificate(layer, xs).stack.layers[0]
    for i, largest in zip(reach.distances, reach.largest, strict=True):
        assert largest <= step.input_lipschitz * step.rate**i * (1 + 1e-9)


def test_without_a_loss_the_outputs_own_size_is_what_is_felt():
    """h_t = a h_{t-1} + x_t, x = 1 from zero, p = ½ h²: ∂p_{t+i}/∂x_t = h_{t+i} a^i; the largest is the last's."""
    cell = holdfast.LinearCell(1, 1, bias=False)
    with torch.no_grad():
        cell.weight_hh.fill_(0.5)
        cell.weight_ih.fill_(1.0)
    reach = gradient_reach(cell, torch.ones(6, 1, 1), distances=3)
    last = sum(0.5**j for j in range(6))
    assert reach.largest == pytest.approx([last * 0.5**i for i in range(4)])


def test_nothing_of_the_model_is_changed():
    layer, xs = holdfast.RNN(2, 4), torch.randn(9, 2, 2, requires_grad=True)
    gradient_reach(layer, xs, lambda h: h.sum(dim=1), distances=3)
    assert xs.grad is None
    assert all(weight.grad is None for weight in layer.parameters())


def test_bad_settings_are_named():
    layer, xs = holdfast.RNN(2, 4), torch.zeros(5, 2, 2)

    def loss(h):
        return h.sum(dim=1)

    for distances in (0, 5, 2.0):
        with pytest.raises(SettingError, match=r"distances from 1 to 4"):
            gradient_reach(layer, xs, loss, distances=distances)
    with pytest.raises(ShapeError, match=r'one number per row, \(\d+,\), got \(\).*reduction="none"'):
        gradient_reach(layer, xs, lambda h: h.sum(), distances=2)
    with pytest.raises(ShapeError, match=r"a target for each of 5 steps and 2 samples"):
        gradient_reach(layer, xs, loss, torch.zeros(4, 2), distances=2)
    with pytest.raises(SettingError, match=r"got targets alone"):
        gradient_reach(layer, xs, targets=torch.zeros(5, 2), distances=2)
    with pytest.raises(SettingError, match=r"at least 1 copy"):
        gradient_reach(layer, xs, loss, distances=2, copies=0)
    with pytest.raises(SettingError, match=r"bidirectional"):
        gradient_reach(holdfast.RNN(2, 4, bidirectional=True), xs, loss, distances=2)


def test_a_few_steps_are_enough_for_a_long_sequence():
    """For steps s in ``at``: the mean over them alone of ‖∇_{x_{s-i}} p_s‖, from whole backpropagation."""
    layer, xs = holdfast.GRU(2, 4), torch.randn(9, 3, 2)

    def norms(s):
        leaf = xs.clone().requires_grad_()
        (grad,) = torch.autograd.grad(layer(leaf)[0][s].sum(), leaf)
        return grad.norm(dim=2)

    for copies in (None, 1):
        reach = gradient_reach(layer, xs, lambda h: h.sum(dim=1), distances=8, at=(8, 3), copies=copies)
        exact = [torch.cat([norms(s)[s - i] for s in (3, 8) if s >= i]).mean().item() for i in range(9)]
        assert reach.mean == pytest.approx(exact)
        assert reach.count == (6, 6, 6, 6, 3, 3, 3, 3, 3)
    with pytest.raises(SettingError, match=r"at to name steps from 0 to 8"):
        gradient_reach(layer, xs, distances=2, at=(9,))
