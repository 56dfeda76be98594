"""Distance from orthogonal, the nearest matrix that is, the spectral norm."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ShapeError
from holdfast.linalg.norms import (
    is_orthogonal,
    nearest_orthogonal,
    nearest_rotation,
    orthogonality_error,
    orthogonality_tolerance,
    spectral_norm,
)

F64 = torch.float64


def draw(size, seed):
    torch.manual_seed(seed)
    return torch.randn(size, size, dtype=F64)


def test_orthogonality_error_is_the_largest_entry_of_the_difference():
    """Q = [[1, 1], [0, 2]]: QᵀQ - I = [[0, 1], [1, 4]]."""
    assert orthogonality_error(torch.tensor([[1.0, 1.0], [0.0, 2.0]], dtype=F64)) == 4.0
    assert orthogonality_error(torch.eye(3)[:, :2]) == 0.0


def test_tolerance_goes_by_the_number_type():
    assert orthogonality_tolerance(torch.float32) == 1e-5
    assert orthogonality_tolerance(torch.float64) == 1e-12
    nudged = torch.eye(4, dtype=F64) * (1 + 1e-7)
    assert is_orthogonal(nudged.float())
    assert not is_orthogonal(nudged)
    assert is_orthogonal(nudged, tol=1e-6)
    assert is_orthogonal(torch.eye(4, dtype=torch.bfloat16))


def test_what_is_not_square_or_not_a_number_is_not_orthogonal():
    assert not is_orthogonal(torch.eye(3)[:, :2])
    assert not is_orthogonal(torch.full((2, 2), torch.nan))


@given(size=st.integers(1, 8), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_nearest_orthogonal_is_orthogonal_and_nearer_than_any_other(size, seed):
    """For all M, and for a sample of orthogonal Q: ‖M - nearest(M)‖_F ≤ ‖M - Q‖_F. For rotations, the same."""
    M, sample = draw(size, seed), torch.linalg.qr(draw(size, seed + 1)).Q
    nearest, rotation = nearest_orthogonal(M), nearest_rotation(M)
    assert is_orthogonal(nearest)
    assert is_orthogonal(rotation)
    assert torch.linalg.det(rotation) > 0
    assert torch.dist(M, nearest) <= torch.dist(M, sample) + 1e-12
    sample[:, 0] *= torch.linalg.det(sample).sign()
    assert torch.dist(M, rotation) <= torch.dist(M, sample) + 1e-12
    torch.testing.assert_close(nearest_orthogonal(nearest), nearest, rtol=0, atol=1e-12)
    torch.testing.assert_close(nearest_rotation(rotation), rotation, rtol=0, atol=1e-12)


@given(size=st.integers(1, 8), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_spectral_norm_bounds_every_stretch(size, seed):
    """For all M, x: ‖M x‖ ≤ ‖M‖₂ ‖x‖; and 1 for an orthogonal M."""
    M, xs = draw(size, seed), draw(size, seed + 1)
    assert ((M @ xs).norm(dim=0) <= spectral_norm(M) * xs.norm(dim=0) * (1 + 1e-12)).all()
    torch.testing.assert_close(spectral_norm(nearest_orthogonal(M)), torch.ones((), dtype=F64))


def test_a_matrix_that_is_not_square_has_no_nearest():
    with pytest.raises(ShapeError, match=r"nearest_orthogonal expects a square matrix, got shape \(2, 3\)"):
        nearest_orthogonal(torch.zeros(2, 3))
