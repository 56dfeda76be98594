"""Generators and the maps onto orthogonal matrices: laws, exact answers, inverses."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import OutsideSetError, ShapeError
from holdfast.linalg import skew as skew_maps
from holdfast.linalg.norms import nearest_orthogonal, nearest_rotation, orthogonality_error
from holdfast.linalg.skew import (
    cayley,
    cayley_inverse,
    exp_map,
    householder_product,
    log_map,
    skew,
    skew_from_vector,
)

F64 = torch.float64
CLOSE = {"rtol": 0, "atol": 1e-12}
anything = {"size": st.integers(1, 9), "seed": st.integers(0, 10**6)}


def draw(*shape, seed=0):
    torch.manual_seed(seed)
    return torch.randn(*shape, dtype=F64)


def plane(angle):
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=F64)


@given(**anything)
@settings(deadline=None, max_examples=30)
def test_skew_is_skew_and_reads_the_lower_triangle_only(size, seed):
    X = draw(size, size, seed=seed)
    A = skew(X)
    assert torch.equal(A, -A.mT)
    assert torch.equal(A, skew(X.tril(-1)))
    assert torch.equal(A, skew(A))
    rows, columns = torch.tril_indices(size, size, -1)
    assert torch.equal(A, skew_from_vector(X[rows, columns], size))


@pytest.mark.parametrize("angle", [0.0, 0.3, -2.0, math.pi])
def test_exponential_of_a_plane_generator_turns_the_plane(angle):
    """exp([[0, -θ], [θ, 0]]) is the rotation by θ; its Cayley transform with tan(θ/2) is that by -θ."""
    X = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=F64)
    torch.testing.assert_close(exp_map(angle * X), plane(angle), **CLOSE)
    if angle < math.pi:
        torch.testing.assert_close(cayley(math.tan(angle / 2) * X), plane(-angle), **CLOSE)


@given(power=st.floats(-6, 3), **anything)
@settings(deadline=None, max_examples=40)
def test_exponential_is_that_of_the_spectrum(size, seed, power):
    """For all skew A of norm 1e-6 to 1e3: exp(A) = V exp(iλ) Vᴴ with A = V iλ Vᴴ, to ‖A‖ + size roundings."""
    A = 10**power * skew(draw(size, size, seed=seed))
    values, V = torch.linalg.eigh(-1j * A)
    exact = ((V * (1j * values).exp()) @ V.mH).real
    atol = 2e-15 * (10 + size + torch.linalg.matrix_norm(A, ord=1).item())
    torch.testing.assert_close(exp_map(A), exact, rtol=0, atol=atol)


def test_exponential_of_a_small_rotation_is_right_where_matrix_exp_of_torch_is_not():
    """θ = 0.04: pytorch/pytorch#196592, an error of 8e-11."""
    torch.testing.assert_close(log_map(plane(0.04))[1, 0].item(), 0.04, rtol=0, atol=1e-16)
    A = torch.tensor([[0.0, 0.0], [0.04, 0.0]], dtype=F64)
    torch.testing.assert_close(exp_map(A), plane(0.04), rtol=0, atol=1e-15)


@given(scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0]), **anything)
@settings(deadline=None, max_examples=40)
def test_maps_are_orthogonal_for_every_generator(size, seed, scale):
    """For all X: the exponential is a rotation, the Cayley transform one times D, m reflections have det (-1)^m."""
    X = scale * draw(size, size, seed=seed)
    signs = torch.randint(0, 2, (size,)).to(F64) * 2 - 1
    for Q, det in ((exp_map(X), 1.0), (cayley(X), 1.0), (cayley(X, signs), signs.prod().item())):
        assert orthogonality_error(Q) < 1e-12
        assert torch.linalg.det(Q).item() == pytest.approx(det)
    for reflections in (1, size, size + 2):
        Q = householder_product(draw(reflections, size, seed=seed))
        assert orthogonality_error(Q) < 1e-12
        assert torch.linalg.det(Q).item() == pytest.approx((-1) ** reflections)


@given(reflections=st.integers(1, 6), **anything)
@settings(deadline=None, max_examples=30)
def test_householder_product_is_the_product_first_row_leftmost(size, seed, reflections):
    """For all V: the compact form equals H_1 H_2 ... H_m written out."""
    V, product = draw(reflections, size, seed=seed), torch.eye(size, dtype=F64)
    for v in V:
        product = product @ (torch.eye(size, dtype=F64) - 2 * torch.outer(v, v) / v.dot(v))
    torch.testing.assert_close(householder_product(V), product, **CLOSE)


def test_householder_product_ignores_lengths_and_a_zero_row_is_the_identity():
    """Rows times 1e-200, 1e200 and -1 give the same; a zero row gives no NaN, in value or in gradient."""
    V = draw(3, 4)
    scaled = V * torch.tensor([[1e-200], [1e200], [-1.0]], dtype=F64)
    torch.testing.assert_close(householder_product(scaled), householder_product(V), **CLOSE)
    with_zero = torch.cat((V[:1], torch.zeros(1, 4, dtype=F64), V[1:])).requires_grad_()
    Q = householder_product(with_zero)
    torch.testing.assert_close(Q, householder_product(V), **CLOSE)
    (grad,) = torch.autograd.grad((Q * draw(4, 4, seed=1)).sum(), with_zero)
    assert grad.isfinite().all()
    assert torch.equal(grad[1], torch.zeros(4, dtype=F64))


@pytest.mark.parametrize("function", [exp_map, cayley, householder_product])
def test_gradient_and_second_gradient_are_those_of_the_function(function):
    X = draw(3, 3).requires_grad_()
    assert torch.autograd.gradcheck(function, X)
    assert torch.autograd.gradgradcheck(function, X)


@given(**anything)
@settings(deadline=None, max_examples=40)
def test_logarithm_inverts_the_exponential_on_rotations(size, seed):
    """For all rotations Q: exp(log Q) = Q, log Q is skew, and no angle is beyond π."""
    Q = nearest_rotation(draw(size, size, seed=seed))
    A = log_map(Q)
    assert torch.equal(A, -A.mT)
    torch.testing.assert_close(exp_map(A), Q, **CLOSE)
    assert torch.linalg.matrix_norm(A, ord=2) <= math.pi + 1e-12


angle = st.one_of(
    st.sampled_from([0.0, math.pi, -math.pi, 2.9, 2.0, 1e-9]),
    st.floats(-16, -1).map(lambda power: math.pi - 10**power),
    st.floats(-math.pi, math.pi),
)


@given(angles=st.lists(angle, min_size=1, max_size=8), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_logarithm_is_exact_at_half_turns_near_them_and_for_equal_angles(angles, seed):
    """For all angles, repeated, at π and within 10^-16 of it, in the planes of any basis."""
    blocks = torch.block_diag(*map(plane, angles))
    basis = nearest_orthogonal(draw(*blocks.shape, seed=seed))
    for Q in (blocks, nearest_orthogonal(basis @ blocks @ basis.mT)):
        torch.testing.assert_close(exp_map(log_map(Q)), Q, **CLOSE)


@pytest.mark.parametrize("turned", [2, 4, 6])
def test_logarithm_of_exact_half_turns(turned):
    """Q = diag(-1, ..., -1, 1, ..., 1), an even number of -1, in any basis: the planes to turn are not given by Q."""
    Q, basis = torch.eye(6, dtype=F64), nearest_orthogonal(draw(6, 6))
    Q[:turned] *= -1
    for matrix in (Q, nearest_orthogonal(basis @ Q @ basis.mT)):
        torch.testing.assert_close(exp_map(log_map(matrix)), matrix, **CLOSE)


@given(**anything)
@settings(deadline=None, max_examples=40)
def test_cayley_inverse_reaches_every_orthogonal_matrix(size, seed):
    """For all orthogonal Q, -I and other matrices with eigenvalue -1 included: cayley(A, D) = Q."""
    Q = nearest_orthogonal(draw(size, size, seed=seed))
    signs = torch.randint(0, 2, (size,)).to(F64) * 2 - 1
    for matrix in (Q, -torch.eye(size, dtype=F64), Q @ torch.diag(signs) @ Q.mT):
        matrix = nearest_orthogonal(matrix)
        torch.testing.assert_close(cayley(*cayley_inverse(matrix)), matrix, **CLOSE)


def test_inverses_refuse_what_lies_outside():
    with pytest.raises(OutsideSetError, match=r"log_map expects an orthogonal matrix, but ‖QᵀQ - I‖ = 3 > 1e-12; take"):
        log_map(2 * torch.eye(3, dtype=F64))
    with pytest.raises(OutsideSetError, match="det Q = -1"):
        log_map(torch.diag(torch.tensor([1.0, -1.0], dtype=F64)))
    with pytest.raises(OutsideSetError, match="cayley_inverse"):
        cayley_inverse(torch.full((2, 2), torch.nan, dtype=F64))
    with pytest.raises(ShapeError, match=r"got shape \(2, 3\)"):
        cayley_inverse(torch.zeros(2, 3, dtype=F64))
    with pytest.raises(ShapeError, match=r"3 entries for size 3, got \(4,\)"):
        skew_from_vector(torch.zeros(4, dtype=F64), 3)


@pytest.mark.parametrize("norm", [0.1, 5.0, 40.0, 3000.0])
def test_the_exponential_in_a_graph_is_the_exponential(norm):
    """Without and with squarings, in value and gradient; a norm that takes too many of them gives NaN."""
    A = skew_maps.skew(torch.randn(6, 6))
    A = (A * (norm / torch.linalg.matrix_norm(A, ord=1))).requires_grad_()
    one, other = skew_maps._exp_in_a_graph(A), skew_maps._exp(A)
    weight = torch.randn_like(one)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(*(torch.autograd.grad((value * weight).sum(), A) for value in (one, other)))
    assert skew_maps._exp_in_a_graph(A.detach() * (1e5 / norm)).isnan().all()
