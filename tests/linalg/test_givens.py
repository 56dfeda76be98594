"""Rotations: a product of orthogonal factors, and one operator that equals the plain form."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from holdfast.errors import SettingError, ShapeError
from holdfast.linalg.givens import (
    default_sublayers,
    random_permutations,
    rotate,
    rotation_matrix,
    rotations_as_primitive,
)

F64 = torch.float64
CLOSE = {"rtol": 0, "atol": 1e-12}  # some sixty roundings of numbers near 1


def draw(sublayers, size, *leading, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(*leading, size, dtype=F64)
    return x, 2 * torch.randn(sublayers, size // 2, dtype=F64), random_permutations(sublayers, size)


sizes = st.integers(1, 8).map(lambda half: 2 * half)


@given(sublayers=st.integers(0, 5), size=sizes, seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_map_is_the_product_of_its_matrices(sublayers, size, seed):
    """For all Θ, π: φ(Θ) = R_1 Q_1 ... R_k Q_k, with R and Q written out entry by entry."""
    x, angles, permutations = draw(sublayers, size, 3, seed=seed)
    product, half = torch.eye(size, dtype=F64), size // 2
    for theta, permutation in zip(angles, permutations, strict=True):
        Q, R = torch.zeros(size, size, dtype=F64), torch.zeros(size, size, dtype=F64)
        for p in range(size):
            Q[p, permutation[p]] = 1
        for p in range(half):
            R[p, p] = R[p + half, p + half] = theta[p].cos()
            R[p, p + half], R[p + half, p] = -theta[p].sin(), theta[p].sin()
        product = product @ R @ Q
    torch.testing.assert_close(rotation_matrix(angles, permutations), product, **CLOSE)
    torch.testing.assert_close(rotate(x, angles, permutations), x @ product.mT, **CLOSE)
    torch.testing.assert_close(rotate(x, angles, permutations, inverse=True), x @ product, **CLOSE)


@given(sublayers=st.integers(0, 6), size=sizes, seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_map_keeps_lengths_and_the_inverse_undoes_it(sublayers, size, seed):
    """For all x, Θ, π: ‖φ(Θ) x‖ = ‖x‖, φ(Θ)ᵀ φ(Θ) x = x = φ(Θ) φ(Θ)ᵀ x."""
    x, angles, permutations = draw(sublayers, size, 2, 3, seed=seed)
    y = rotate(x, angles, permutations)
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1), **CLOSE)
    torch.testing.assert_close(rotate(y, angles, permutations, inverse=True), x, **CLOSE)
    back = rotate(x, angles, permutations, inverse=True)
    torch.testing.assert_close(rotate(back, angles, permutations), x, **CLOSE)


@pytest.mark.parametrize("inverse", [False, True])
def test_gradient_and_second_gradient_are_those_of_the_function(inverse):
    x, angles, permutations = draw(3, 4, 2)

    def function(x, angles):
        return rotate(x, angles, permutations, inverse=inverse)

    inputs = x.requires_grad_(), angles.requires_grad_()
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@given(
    sublayers=st.integers(1, 5), size=sizes, leading=st.lists(st.integers(1, 3), max_size=3), seed=st.integers(0, 99)
)
@settings(deadline=None, max_examples=40)
def test_primitive_equals_plain_in_value_and_gradient(sublayers, size, leading, seed):
    """For all x of any leading shape, Θ, π and cotangents."""
    x, angles, permutations = draw(sublayers, size, *leading, seed=seed)
    inputs, cotangent = (x.requires_grad_(), angles.requires_grad_()), torch.randn_like(x)
    plain = rotate(x, angles, permutations)
    with rotations_as_primitive():
        primitive = rotate(x, angles, permutations)
    torch.testing.assert_close(primitive, plain, **CLOSE)
    grads = (torch.autograd.grad(y, inputs, cotangent) for y in (primitive, plain))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def traced_vjp(x, angles, permutations, cotangent):
    def function(x, angles):
        return torch.relu(rotate(x, angles, permutations))

    def value_and_gradient(x, angles, permutations, cotangent):
        with rotations_as_primitive():
            y, vjp = torch.func.vjp(function, x, angles)
            return y, *vjp(cotangent)

    return make_fx(value_and_gradient)(x, angles, permutations, cotangent)


def test_tracer_sees_one_node_each_way_and_the_graph_computes_the_same():
    """make_fx over torch.func.vjp: one ``rotate``, one ``rotate_backward``, and the plain form's numbers."""
    x, angles, permutations = draw(6, 8, 5)
    cotangent = torch.randn_like(x)
    traced = traced_vjp(x, angles, permutations, cotangent)
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.holdfast.rotate.default) == 1
    assert targets.count(torch.ops.holdfast.rotate_backward.default) == 1
    assert not any("cos" in str(target) or "index_select" in str(target) for target in targets)

    y, vjp = torch.func.vjp(lambda x, angles: torch.relu(rotate(x, angles, permutations)), x, angles)
    for one, other in zip(traced(x, angles, permutations, cotangent), (y, *vjp(cotangent)), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("sublayers", [0, 3])
def test_operators_keep_pytorchs_rules(sublayers):
    """Schema and fake tensors, by ``torch.library.opcheck``; the gradient is the function's around the operator."""
    x, angles, permutations = draw(sublayers, 4, 2)
    inputs = x, angles, permutations
    assert set(torch.library.opcheck(torch.ops.holdfast.rotate, inputs).values()) == {"SUCCESS"}
    inputs = torch.randn(2, 4, dtype=F64), x, angles, permutations
    assert set(torch.library.opcheck(torch.ops.holdfast.rotate_backward, inputs).values()) == {"SUCCESS"}


def test_primitive_is_used_inside_the_context_only_and_not_for_the_inverse():
    x, angles, permutations = draw(2, 4, 1)
    angles.requires_grad_()

    def is_primitive(**options):
        return "Rotate" in type(rotate(x, angles, permutations, **options).grad_fn).__name__

    assert not is_primitive()
    with rotations_as_primitive():
        assert is_primitive()
        assert not is_primitive(inverse=True)
    with pytest.raises(ZeroDivisionError), rotations_as_primitive():
        _ = 1 / 0
    assert not is_primitive()


def test_primitive_refuses_a_second_gradient():
    """Rather than give a wrong one: the plain form has it."""
    x, angles, permutations = draw(2, 4, 1)
    angles.requires_grad_()
    with rotations_as_primitive():
        y = rotate(x, angles, permutations)
    (grad,) = torch.autograd.grad(y.square().sum(), angles, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(grad.sum(), angles)


@pytest.mark.parametrize(("size", "sublayers"), [(1, 0), (2, 2), (3, 4), (64, 12), (65, 14), (128, 14), (256, 16)])
def test_default_sublayers_is_twice_the_rounded_up_logarithm(size, sublayers):
    assert default_sublayers(size) == sublayers


def test_permutations_are_permutations_and_follow_the_generator():
    one, other = (random_permutations(5, 6, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other)
    assert torch.equal(one.sort(dim=-1).values, torch.arange(6).expand(5, 6))
    assert one.dtype == torch.int64


def test_bad_shapes_are_named():
    x, angles, permutations = draw(3, 4, 2)
    with pytest.raises(ShapeError, match=r"expects x of shape \(\.\.\., 4\), got \(2, 6\)"):
        rotate(torch.zeros(2, 6, dtype=F64), angles, permutations)
    with pytest.raises(ShapeError, match=r"got \(2, 2\) and \(3, 4\)"):
        rotate(x, angles[:2], permutations)
    with pytest.raises(ShapeError, match="even size"):
        rotate(torch.zeros(2, 3, dtype=F64), torch.zeros(1, 1, dtype=F64), torch.arange(3)[None])
    with pytest.raises(SettingError, match="got 0"):
        default_sublayers(0)


@pytest.mark.parametrize("sublayers", [0, 1, 4])
def test_constant_angles_have_the_gradient_of_the_plain_form(sublayers):
    """As one operator, angles without gradient: the gradient at x is the inverse map's."""
    x, g, permutations = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8), random_permutations(sublayers, 8)
    angles, results = torch.randn(sublayers, 4), []
    results += torch.autograd.grad(rotate(x, angles, permutations) * 1.0, x, g)
    with rotations_as_primitive():
        results += torch.autograd.grad(rotate(x, angles, permutations), x, g)
    torch.testing.assert_close(*results)
