"""URNNCell: complex arithmetic on pairs of reals, with a unitary matrix that keeps the state's length."""

import math

import pytest
import torch

from holdfast import URNN, URNNCell, scan
from holdfast.cells.urnn import complex_modrelu
from holdfast.errors import SettingError
from holdfast.stability import NoBoundError, contraction_rate, step_bounds


def complex_of(row):
    return torch.complex(*row.chunk(2, dim=-1))


def test_a_step_is_the_papers_in_complex_numbers():
    """For all x, h, b: h' = z max(|z| + b, 0) / |z|, z = V x + W h, with complex V, W and h."""
    cell, x, h = URNNCell(3, 8), torch.randn(5, 3), torch.randn(5, 8)
    torch.nn.init.normal_(cell.bias)
    V, W = complex_of(cell.weight_ih.mT).mT, cell.recurrent.complex_matrix()
    z = (x + 0j) @ V.mT + complex_of(h) @ W.mT
    exact = z * torch.relu(z.abs() + cell.bias) / z.abs()
    torch.testing.assert_close(complex_of(cell(x, h)), exact)


def test_without_input_the_state_keeps_its_length():
    """With b = 0, its start: ‖h_T‖ = ‖h_0‖ and h_T = W^T h_0, over 100 steps."""
    cell, h = URNNCell(3, 8), torch.randn(2, 8)
    outputs, (last,) = scan(cell, torch.zeros(100, 2, 3), h)
    torch.testing.assert_close(outputs.norm(dim=2), h.norm(dim=1).expand(100, 2))
    W = torch.linalg.matrix_power(cell.recurrent.complex_matrix(), 100)
    torch.testing.assert_close(complex_of(last), complex_of(h) @ W.mT)


def test_gradients_through_100_steps_keep_their_length():
    """With b = 0 a step is linear and unitary, so ‖∂L/∂h_0‖ = ‖∂L/∂h_T‖."""
    cell, h, g = URNNCell(3, 8), torch.randn(2, 8, requires_grad=True), torch.randn(2, 8)
    last = scan(cell, torch.zeros(100, 2, 3), h)[1][0]
    (back,) = torch.autograd.grad(last, h, g)
    torch.testing.assert_close(back.norm(dim=1), g.norm(dim=1))


def test_modrelu_keeps_the_phase_and_moves_the_size_by_b():
    """By hand: 3 + 4i with b = -1 is (3 + 4i) 4/5, with b = 1 times 6/5, with b = -6 it is 0; 0 stays 0."""
    z, b = torch.tensor([[3.0, 3.0, 3.0, 0.0, 4.0, 4.0, 4.0, 0.0]]), torch.tensor([-1.0, 1.0, -6.0, 2.0])
    exact = torch.tensor([[2.4, 3.6, 0.0, 0.0, 3.2, 4.8, 0.0, 0.0]])
    torch.testing.assert_close(complex_modrelu(z, b), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_at_zero_are_finite(dtype):
    """A zero input into a zero state, for every sign of b."""
    cell = URNNCell(2, 6).to(dtype)
    with torch.no_grad():
        cell.bias.copy_(torch.tensor([-1.0, 0.0, 5.0]))
    cell(torch.zeros(1, 2, dtype=dtype)).sum().backward()
    assert all(weight.grad.isfinite().all() for weight in cell.parameters())


def test_steps_without_input_do_not_blow_up_gradients():
    """Black pixels before the first bright one: with b = 0.1 the gradient grew by 1e11 per step, and was NaN."""
    cell = URNNCell(2, 6)
    with torch.no_grad():
        cell.bias.fill_(0.1)
    xs = torch.zeros(60, 3, 2)
    xs[50:] = torch.randn(10, 3, 2)
    h = torch.zeros(3, 6, requires_grad=True)
    for backend in ("reference", "fused"):
        grads = torch.autograd.grad(scan(cell, xs, h, backend=backend)[1][0].sum(), [*cell.parameters(), h])
        assert all(grad.isfinite().all() for grad in grads)
        assert grads[-1].norm() < 1e3


def test_the_start_is_the_papers():
    """Phases uniform in ±π, reflectors in ±1, biases zero: §4.3. Bounds, and means and variances to five errors."""
    cell, count = URNNCell(2, 2000), 3000
    phases, reflectors = cell.recurrent.phases.detach(), cell.recurrent.reflectors.detach()
    assert not cell.bias.any()
    for values, width in ((phases, math.pi), (reflectors, 1.0)):
        assert values.abs().max() <= width
        assert values.abs().max() > 0.99 * width
        assert values.mean().abs() < 5 * width / math.sqrt(3 * count)
        assert abs(values.var().item() / (width**2 / 3) - 1) < 5 * math.sqrt(0.8 / count)


def test_parameters_are_those_printed():
    """§5.3: 512 complex units on MNIST by pixels, with a trained h_0 and ten classes, are 16 thousand parameters."""
    model = URNN(1, 1024, initial_state="learned"), torch.nn.Linear(1024, 10)
    count = sum(weight.numel() for part in model for weight in part.parameters())
    assert count == 7 * 512 + 2 * 512 + 512 + 2 * 512 + 10_250 == 16_394


def test_the_rate_is_one_for_a_shrinking_modrelu_and_none_otherwise():
    """For b ≤ 0 no step moves two states apart; for b > 0 two states near zero are thrown apart."""
    cell = URNNCell(2, 8)
    torch.nn.init.uniform_(cell.bias, -1.0, 0.0)
    assert contraction_rate(cell) == 1.0
    x, h, k = torch.randn(200, 2), torch.randn(200, 8), torch.randn(200, 8)
    assert ((cell(x, h) - cell(x, k)).norm(dim=1) <= (h - k).norm(dim=1) * (1 + 1e-12)).all()
    with torch.no_grad():
        cell.bias[2] = 0.1
    assert contraction_rate(cell) == math.inf
    h = 1e-9 * torch.randn(1, 8)
    assert (cell(torch.zeros(1, 2), h) - cell(torch.zeros(1, 2), -h)).norm() > 0.19
    with pytest.raises(NoBoundError, match="URNNCell"):
        step_bounds(cell, 1.0)


def test_an_odd_number_of_reals_is_refused():
    with pytest.raises(SettingError, match=r"URNNCell expects an even hidden_size.*got 7; take 8"):
        URNN(3, 7)
