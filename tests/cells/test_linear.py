"""LinearCell: the closed form of a linear dynamical system."""

import torch

from holdfast import LinearCell, scan


def _states(cell, xs, h):
    """h_t = U^t h_0 + Σ_{s≤t} U^(t-s) (W x_s + b), by matrix powers."""
    power = lambda n: torch.linalg.matrix_power(cell.weight_hh, n).mT  # noqa: E731 - a formula's name
    drives = xs @ cell.weight_ih.mT + (0 if cell.bias is None else cell.bias)
    return torch.stack([h @ power(t + 1) + sum(drives[s] @ power(t - s) for s in range(t + 1)) for t in range(len(xs))])


def test_states_are_matrix_powers():
    cell, xs, h = LinearCell(3, 4), torch.randn(6, 2, 3), torch.randn(2, 4)
    outputs, (last,) = scan(cell, xs, h)
    torch.testing.assert_close(outputs, _states(cell, xs, h))
    torch.testing.assert_close(last, outputs[-1])


def test_output_map_reads_every_state():
    """y_t = C h_t."""
    cell, xs, h = LinearCell(3, 4, output_size=2), torch.randn(6, 2, 3), torch.randn(2, 4)
    outputs, (y, last) = scan(cell, xs, (torch.zeros(2, 2), h))
    exact = _states(cell, xs, h)
    torch.testing.assert_close((outputs, last), (exact @ cell.weight_ho.mT, exact[-1]))
    torch.testing.assert_close(y, outputs[-1])


def test_direct_term_adds_the_input_of_the_same_step():
    """y_t = C h_t + D x_t."""
    cell, xs, h = LinearCell(3, 4, output_size=2, direct=True, bias=False), torch.randn(6, 2, 3), torch.randn(2, 4)
    outputs, _ = scan(cell, xs, (torch.zeros(2, 2), h))
    torch.testing.assert_close(outputs, _states(cell, xs, h) @ cell.weight_ho.mT + xs @ cell.weight_io.mT)


def test_an_integrator_counts():
    """U = W = 1, b = 0: h_t = t for x = 1."""
    cell = LinearCell(1, 1, bias=False)
    with torch.no_grad():
        cell.weight_ih.fill_(1.0)
        cell.weight_hh.fill_(1.0)
    outputs, _ = scan(cell, torch.ones(1000, 1, 1))
    assert torch.equal(outputs.flatten(), torch.arange(1.0, 1001.0))
