"""Unitary maps on pairs of reals: each is its paper's product of complex matrices, in values and in gradients."""

import cmath
import contextlib
import itertools
import math

import pytest
import torch

from holdfast.constraints.unitary import FourierProduct, PlaneRotations
from holdfast.errors import SettingError
from holdfast.linalg import givens
from holdfast.linalg.norms import orthogonality_error

MAPS = {
    "fourier": lambda n: FourierProduct(2 * n),
    "factors": lambda n: FourierProduct(2 * n, factors=True),
    "tunable": lambda n: PlaneRotations(2 * n, capacity=min(n, 3)),
    "full": lambda n: PlaneRotations(2 * n, capacity=n),
    "fft": lambda n: PlaneRotations(2 * n, "fft"),
    "real tunable": lambda n: PlaneRotations(n, capacity=min(n, 3), complex=False),
    "real fft": lambda n: PlaneRotations(n, "fft", complex=False),
}
COMPLEX = [name for name in MAPS if not name.startswith("real")]


def paired(W):
    """[[Re W, -Im W], [Im W, Re W]]."""
    return torch.cat((torch.cat((W.real, -W.imag), 1), torch.cat((W.imag, W.real), 1)))


def uRNN(U):
    """D_3 R_2 F⁻¹ D_2 Π R_1 F D_1 of dense matrices, the Fourier transform by its definition."""
    n = U.size // 2
    steps = torch.arange(n)
    F = torch.exp(-2j * math.pi * torch.outer(steps, steps) / n) / math.sqrt(n)
    D = [torch.diag(torch.exp(1j * phases)) for phases in U.phases]
    v = [torch.complex(row[:n], row[n:])[:, None] for row in U.reflectors]
    R = [torch.eye(n) - 2 * it @ it.mH / (it.mH @ it).real for it in v]
    P = torch.eye(n)[U.permutation].to(F.dtype)
    return D[2] @ R[1] @ F.mH @ D[1] @ P @ R[0] @ F @ D[0]


def planes_of(U):
    """As printed, counted from 1: F_A has (1, 2), (3, 4), ...; F_B (2, 3), ...; F_i (2pk + j, p(2k + 1) + j)."""
    n = U.units
    if U.order == "tunable":
        return [[(j, j + 1) for j in range(1 + i % 2, n, 2)] for i in range(U.capacity)]
    printed = []
    for i in range(1, U.capacity + 1):
        p = n // 2**i
        printed.append(
            [(2 * p * k + j, p * (2 * k + 1) + j) for k, j in itertools.product(range(2 ** (i - 1)), range(1, p + 1))]
        )
    return printed


def rotations(U):
    """D F ... F of dense matrices, plane by plane."""
    W = torch.diag(torch.exp(1j * U.phases)) if U.complex else torch.eye(U.units)
    turn = 0
    for factor in planes_of(U):
        for j, k in factor:
            plane, (c, s) = torch.eye(U.units, dtype=W.dtype), (U.angles[turn].cos(), U.angles[turn].sin())
            phase = torch.exp(1j * U.plane_phases[turn]) if U.complex else 1.0
            plane = plane.index_put(
                (torch.tensor([j, j, k, k]) - 1, torch.tensor([j, k, j, k]) - 1),
                torch.stack((phase * c, -s + 0 * phase, phase * s, c + 0 * phase)),
            )
            W = W @ plane
            turn += 1
    return W


@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.parametrize("name", MAPS)
def test_the_map_is_the_papers_product_in_values_and_gradients(name, n):
    """For all parameters. Real units are numbered by the first factor: unit j of the map is the printed order[j]."""
    U = MAPS[name](n)
    exact = uRNN(U) if isinstance(U, FourierProduct) else rotations(U)
    if name in COMPLEX:
        exact = paired(exact)
    else:
        order = [j - 1 for j, _ in planes_of(U)[0]] + [k - 1 for _, k in planes_of(U)[0]]
        exact = exact[order][:, order]
    torch.testing.assert_close(U.matrix(), exact, rtol=0, atol=1e-12)
    weights, cotangent = tuple(U.parameters()), torch.randn(U.size, U.size)
    ours, theirs = (torch.autograd.grad((it * cotangent).sum(), weights) for it in (U.matrix(), exact))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("size", [4, 6, 16])  # 3 complex units: an odd number
@pytest.mark.parametrize("name", ["fourier", "factors", "tunable", "full"])
def test_unitary_for_all_parameters(name, size):
    """WᴴW = I and W(i h) = i W(h); transform is the product with it."""
    U = MAPS[name](size // 2)
    for scale in (0.0, 0.5, 20.0):
        with torch.no_grad():
            for weight in U.parameters():
                weight.add_(scale * torch.randn_like(weight))
        matrix, h = U.matrix(), torch.randn(3, size)
        assert orthogonality_error(matrix) < 1e-12
        assert U.contains(matrix)
        torch.testing.assert_close(U(h), h @ matrix.mT)
        i = paired(1j * torch.eye(size // 2))
        torch.testing.assert_close(matrix @ i, i @ matrix)


@pytest.mark.parametrize("primitive", [False, True], ids=["plain", "rotations"])
@pytest.mark.parametrize("n", [1, 2, 5, 8, 9, 15, 22, 60, 64])  # odd, prime, powers of 2 and of 3, products
def test_factors_are_the_dense_matrix_in_values_and_gradients(n, primitive):
    """For all parameters and h: W h of the factors, its gradient at h and at each parameter."""
    U, h, cotangent = (
        FourierProduct(2 * n, factors=True),
        torch.randn(3, 2 * n, requires_grad=True),
        torch.randn(3, 2 * n),
    )
    inputs = (h, *U.parameters())
    with givens.rotations_as_primitive() if primitive else contextlib.nullcontext():
        ours = U(h)
        theirs = h @ U.matrix().mT
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        grads = (torch.autograd.grad(it, inputs, cotangent) for it in (ours, theirs))
        torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-10)


def test_the_factors_in_float64_are_exact_after_float32():
    """A module that goes to float32 and back has angles of full precision."""
    U, h = FourierProduct(720).float().double(), torch.randn(2, 720)
    assert len(U.weights()) > 1
    with torch.no_grad(), givens.rotations_as_primitive():
        torch.testing.assert_close(U(h), h @ U.matrix().mT, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("size", "factors"), [(8, False), (128, False), (216, True), (262, False), (332, True),
                                               (358, False), (714, True), (718, False), (1024, True)])  # fmt: skip
def test_large_sizes_of_small_primes_are_in_factors(size, factors):
    """262, 358 and 718 are twice a prime. The state's names are the same in both forms."""
    U = FourierProduct(size)
    assert (len(U.weights()) > 1) == factors
    assert list(U.state_dict()) == ["phases", "reflectors", "permutation"]
    assert len(FourierProduct(size, factors=False).weights()) == 1


def test_what_is_orthogonal_but_not_complex_is_outside():
    Q = torch.eye(6)[[1, 0, 2, 3, 4, 5]]  # swaps two real parts, not the imaginary ones
    assert not FourierProduct(6).contains(Q)
    assert not PlaneRotations(6).contains(Q)


@pytest.mark.parametrize("name", ["fourier", "tunable", "fft"])
def test_orthogonal_at_512_reals_in_float32(name):
    with torch.no_grad():
        assert orthogonality_error(MAPS[name](256).float().matrix()) < 1e-5


@pytest.mark.parametrize("n", [3, 4])
def test_full_capacity_reaches_a_neighbourhood_in_the_unitary_group(n):
    """It has n² parameters, the dimension of U(n), and at a random point they move W in n² directions.

    With the phase of a plane on its other side, as printed, they are 7 of 9 and 13 of 16: see (5).
    """
    U = PlaneRotations(2 * n, capacity=n)
    names, values = zip(*U.named_parameters(), strict=True)
    assert sum(value.numel() for value in values) == n * n

    def matrix(*values):
        return torch.func.functional_call(U, dict(zip(names, values, strict=True)), torch.eye(2 * n))

    jacobian = torch.cat([it.reshape(4 * n * n, -1) for it in torch.autograd.functional.jacobian(matrix, values)], 1)
    assert torch.linalg.matrix_rank(jacobian) == n * n


def test_the_fourier_order_reaches_the_fourier_transform_of_two():
    """θ = π/4, φ = π, D = I: [[-1, -1], [-1, 1]] / √2, the transform of two numbers up to its sign."""
    U = PlaneRotations(4, "fft")
    with torch.no_grad():
        U.angles.fill_(math.pi / 4), U.plane_phases.fill_(math.pi), U.phases.zero_()
    exact = torch.tensor([[-1.0, -1.0], [-1.0, 1.0]]) / math.sqrt(2)
    torch.testing.assert_close(U.matrix().detach(), paired(exact + 0j))


def test_settings_that_no_map_has():
    for make, words in (
        (lambda: FourierProduct(7), "even"),
        (lambda: PlaneRotations(7), "even size, got 7"),
        (lambda: PlaneRotations(2), "at least 2 units"),
        (lambda: PlaneRotations(12, "fft"), "power of 2 units, got 6; take 8"),
        (lambda: PlaneRotations(16, "fft", 3), "leave out capacity=3"),
        (lambda: PlaneRotations(8, capacity=5), "at most 4"),
        (lambda: PlaneRotations(8, "butterfly"), "'butterfly'"),
    ):
        with pytest.raises(SettingError, match=words):
            make()


def test_a_reflection_by_hand():
    """V = (1, i): R = I - v vᴴ, which swaps the axes up to phases; everything else is the identity."""
    U = FourierProduct(4)
    with torch.no_grad():
        U.phases.zero_()
        U.permutation.copy_(torch.arange(2))
        U.reflectors.copy_(torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]]))
        W = U.complex_matrix()
    R, h = torch.tensor([[0.0, cmath.sqrt(-1)], [-cmath.sqrt(-1), 0.0]]), 1 / math.sqrt(2)
    F = torch.tensor([[h, h], [h, -h]]) + 0j
    torch.testing.assert_close(W, R @ F.mH @ R @ F)
