"""The spectral ball: inside, nearest, unchanged if inside; the fast way proved; held under any optimiser."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from holdfast.constraints.spectral import (
    SpectralBall,
    clip_spectral,
    shrink_spectral,
    spectral_ball,
    spectral_norm_bound,
)
from holdfast.errors import OutsideSetError, SettingError, ShapeError
from holdfast.linalg.norms import spectral_norm

DTYPES = [torch.float32, torch.float64]
matrices = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 12),
        "columns": st.integers(1, 12),
        "log_scale": st.floats(-3, 3),
        "kind": st.sampled_from(["gaussian", "orthogonal", "rank one", "nearly inside"]),
        "seed": st.integers(0, 10**6),
    }
)


def drawn(rows, columns, log_scale, kind, seed, dtype=torch.float64):
    torch.manual_seed(seed)
    W = torch.randn(rows, columns, dtype=torch.float64)
    if kind == "orthogonal":  # all singular values alike: the hardest for a power iteration, and for derivatives
        left, _, right = torch.linalg.svd(W, full_matrices=False)
        W = left @ right
    elif kind == "rank one":
        W = torch.outer(W[:, 0], W[0])
    elif kind == "nearly inside":
        return (W / spectral_norm(W) * (1 + 1e-9 * log_scale)).to(dtype)
    return (10**log_scale * W).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("project", [clip_spectral, shrink_spectral])
@given(matrix=matrices, radius=st.floats(0.05, 3))
@settings(deadline=None, max_examples=20)
def test_projections_land_inside_and_stay_there(project, dtype, matrix, radius):
    """For all shapes, sizes, spectra and radii, both types: ‖P‖₂ ≤ r as the float64 SVD sees it, and P ↦ P exactly."""
    W = drawn(**matrix, dtype=dtype)
    P = project(W, radius)
    assert P.dtype == dtype
    assert spectral_norm(P.double()) <= radius * (1 + 1e-14)  # 1e-14 is the SVD's own rounding
    assert torch.equal(project(P, radius), P)


@pytest.mark.parametrize("dtype", DTYPES)
@given(matrix=matrices)
@settings(deadline=None, max_examples=20)
def test_what_is_inside_is_left_alone(dtype, matrix):
    W = drawn(**matrix, dtype=dtype)
    norm = spectral_norm(W.double()).item()
    assert torch.equal(clip_spectral(W, max(norm, 1e-12)), W)
    assert torch.equal(shrink_spectral(W, max(norm * (1 + 2e-9), 1e-12)), W)


@given(matrix=matrices, radius=st.floats(0.05, 3))
@settings(deadline=None, max_examples=20)
def test_clip_is_the_nearest_and_shrink_the_longest_scaling(matrix, radius):
    """No member of the ball is nearer to W than the clip: ⟨W - P, Q - P⟩ ≤ 0 for all Q in it. Shrunk: s within 1e-3."""
    W = drawn(**matrix)
    P = clip_spectral(W, radius)
    for _ in range(5):
        Q = torch.randn_like(W)
        Q *= radius / spectral_norm(Q)
        assert ((W - P) * (Q - P)).sum() <= 1e-9 * (1 + W.norm() ** 2)
    S, norm = shrink_spectral(W, radius), spectral_norm(W).item()
    if norm > radius * (1 + 1e-9):
        assert radius * (1 - 2e-3) <= spectral_norm(S).item()
        torch.testing.assert_close(S / S.norm(), W / W.norm())


@given(matrix=matrices)
@settings(deadline=None, max_examples=20)
def test_the_proved_bound_is_above_the_norm_and_close(matrix):
    W = drawn(**matrix)
    norm, bound = spectral_norm(W).item(), spectral_norm_bound(W)
    assert norm * (1 - 1e-14) <= bound <= norm * (1 + 1e-3)


def test_a_spectrum_that_power_iteration_cannot_part_is_bounded_all_the_same():
    """300 singular values from 1 down to 0.999: slow convergence, and a bound that is still proved."""
    left, right = (torch.linalg.qr(torch.randn(300, 300)).Q for _ in range(2))
    W = left * torch.linspace(1, 0.999, 300) @ right
    assert 1 - 1e-12 <= spectral_norm_bound(W) <= 1.001
    assert spectral_norm(shrink_spectral(2 * W, 1.0)) <= 1
    assert spectral_norm_bound(torch.zeros(3, 4)) == 0.0


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
@pytest.mark.parametrize("map", ["clip", "scale"])
def test_the_constraints_derivative_is_that_of_the_map(map, shape):
    """Inside and outside of the ball, square and not; and where singular values meet, for the clip."""
    ball = SpectralBall(1.0, map)
    for scale in (0.3, 2.0):
        X = scale * torch.randn(shape)
        assert torch.autograd.gradcheck(ball, X.requires_grad_())
    if map == "clip":
        twin = torch.eye(*shape) * 2.0
        (grad,) = torch.autograd.grad(ball(twin.requires_grad_()).sum(), twin)
        assert grad.isfinite().all()


OPTIMISERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=3.0),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.3),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.5),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("map", ["clip", "scale"])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_the_ball_holds_after_every_step_of_every_optimiser(optimiser, map, dtype):
    layer = spectral_ball(nn.Linear(5, 5).to(dtype), "weight", 0.9, map)
    step = OPTIMISERS[optimiser](layer.parameters())
    ball = layer.parametrizations.weight[0]
    for _ in range(10):
        step.zero_grad()
        (-layer(torch.randn(8, 5, dtype=dtype)).square().sum()).backward()
        step.step()
        assert ball.contains(layer.weight)


def test_assigning_and_bad_settings():
    layer = spectral_ball(nn.RNN(3, 4), "weight_hh_l0", 0.5)
    inside = 0.4 * torch.eye(4)
    layer.weight_hh_l0 = inside
    torch.testing.assert_close(layer.weight_hh_l0, inside)
    with pytest.raises(OutsideSetError, match=r"at most 0.5, but it is 2; assign clip_spectral\(W, 0.5\)"):
        layer.weight_hh_l0 = 2 * torch.eye(4)
    torch.testing.assert_close(layer.weight_hh_l0, inside)
    with pytest.raises(SettingError, match=r"no plain matrix 'weight_hh_l0'"):
        spectral_ball(layer, "weight_hh_l0")
    with pytest.raises(SettingError, match=r"no plain matrix 'nothing'.*matrices there: weight"):
        spectral_ball(nn.Linear(2, 2), "nothing")
    with pytest.raises(SettingError, match=r"map to be one of clip, scale"):
        SpectralBall(1.0, "cut")
    for radius in (0.0, -1.0, math.inf):
        with pytest.raises(SettingError, match=r"radius to be positive and finite"):
            SpectralBall(radius)
        with pytest.raises(SettingError, match=r"radius to be positive and finite"):
            clip_spectral(torch.eye(2), radius)
    with pytest.raises(ShapeError, match=r"expects a matrix"):
        shrink_spectral(torch.zeros(3), 1.0)
    with pytest.raises(OutsideSetError, match=r"finite entries"):
        clip_spectral(torch.full((2, 2), math.nan), 1.0)
    assert repr(SpectralBall(0.5)) == "SpectralBall(radius=0.5, map='clip')"
    assert not SpectralBall(0.5).contains(torch.eye(2))
