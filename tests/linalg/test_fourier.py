"""The Fourier transform as plane rotations."""

import pytest
import torch

from holdfast.linalg import givens
from holdfast.linalg.fourier import fourier, fourier_rotations, fourier_sublayers

SIZES = [*range(1, 33), 49, 81, 121, 125, 166, 357, 360, 512]


def pairs(z):
    return torch.cat((z.real, z.imag), dim=-1)


@pytest.mark.parametrize("n", SIZES)
def test_the_rotations_are_the_fourier_transform(n):
    """For all x of n complex numbers, in as many sublayers as counted beforehand."""
    x, (angles, permutations) = torch.randn(3, n, dtype=torch.complex128), fourier_rotations(n)
    exact = pairs(torch.fft.fft(x, norm="ortho"))
    torch.testing.assert_close(givens.rotate(pairs(x), angles, permutations), exact, rtol=0, atol=1e-13)
    assert len(angles) == fourier_sublayers(n)
    assert torch.equal(permutations.sort().values, torch.arange(2 * n).expand(len(angles), -1))


@pytest.mark.parametrize("n", [1, 6, 16, 35])
def test_both_forms_agree_in_values_and_gradients(n):
    """By torch.fft and as one operator of rotations, with an order before it."""
    x, cotangent, order = torch.randn(3, 2 * n, requires_grad=True), torch.randn(3, 2 * n), torch.randperm(n)
    order, tables, results = torch.cat((order, n + order)), fourier_rotations(n), []
    for primitive in (False, True):
        with givens.rotations_as_primitive() if primitive else torch.enable_grad():
            assert givens.is_primitive() == primitive
            y = fourier(x, *tables, order)
            results.append((y, *torch.autograd.grad(y, x, cotangent)))
    torch.testing.assert_close(*results, rtol=0, atol=1e-13)


def test_the_inverse_is_the_transform_in_another_order():
    """F⁻¹ x = F (x_0, x_{n-1}, ..., x_1)."""
    x, order = torch.randn(2, 12, dtype=torch.complex128), -torch.arange(12) % 12
    y = fourier(pairs(x), *fourier_rotations(12), torch.cat((order, 12 + order)))
    torch.testing.assert_close(y, pairs(torch.fft.ifft(x, norm="ortho")))
