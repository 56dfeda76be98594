"""The parts of S3's Theorem 1: signs, classes of networks, angles."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.constraints.orthogonal import RotationProduct
from holdfast.errors import SettingError, ShapeError
from holdfast.linalg.givens import random_permutations, rotation_matrix
from holdfast.stability import (
    ModelBounds,
    fastrnn_alpha_limit,
    generalisation_gap,
    rademacher_bound,
    rademacher_complexity,
    rotations_lipschitz,
)

UNIT = ModelBounds(x_norm=1.0, weight_ih_norm=1.0, readout_norm=1.0)


def test_one_function_cannot_follow_signs_and_all_sign_patterns_can():
    assert rademacher_complexity(torch.randn(1, 7)) == pytest.approx(0, abs=1e-15)
    every = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 5)
    assert rademacher_complexity(every) == 1.0


def test_of_linear_functions_it_is_the_mean_length_of_a_signed_sum():
    """F = {x ↦ vᵀx, ‖v‖ = 1}: (2) is E ‖Σ ε_i x_i‖ / m. A fine net of directions comes close, from below."""
    xs, angles = torch.randn(6, 2), torch.linspace(0, 2 * math.pi, 2001)
    directions = torch.stack([angles.cos(), angles.sin()], dim=1)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 6)
    exact = (signs @ xs).norm(dim=1).mean().item() / 6
    found = rademacher_complexity(directions @ xs.mT)
    assert exact * (1 - 2e-6) <= found <= exact * (1 + 1e-12)


def test_random_signs_agree_with_all_signs():
    """16 samples by all signs; the same numbers with a 17th of 0 by draws: the sup is that of 16, over 17 samples."""
    values = torch.randn(50, 16)
    more = torch.cat([values, torch.zeros(50, 1)], dim=1)
    generator = torch.Generator().manual_seed(0)
    drawn = rademacher_complexity(more, draws=20_000, generator=generator) * 17 / 16
    assert drawn == pytest.approx(rademacher_complexity(values), rel=0.02)  # 1/√20,000 is 0.7%


@settings(max_examples=15, deadline=None)
@given(
    half=st.integers(1, 4), steps=st.integers(1, 20), samples=st.integers(2, 8), alpha=st.floats(0.01, 0.5),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_no_set_of_sgornns_passes_the_bound(half, steps, samples, alpha, seed):
    """S3 (15), (23): 60 networks within the bounds, by their losses and by their answers."""
    torch.manual_seed(seed)
    beta, inputs, answers = max(0.0, 1 - 2 * alpha), 3, []
    xs = torch.nn.functional.normalize(torch.randn(steps, samples, inputs), dim=-1)
    for _ in range(60):
        recurrent = RotationProduct(2 * half)
        with torch.no_grad():
            recurrent.angles.uniform_(-math.pi, math.pi)
            weight, h = torch.randn(2 * half, inputs), torch.zeros(samples, 2 * half)
            weight = weight.abs() if seed % 2 else weight
            for x in xs:
                candidate = torch.relu(x @ (weight / weight.norm()).mT + recurrent.transform(h, recurrent.weights()))
                h = alpha * candidate + beta * h
            answers.append(h @ torch.nn.functional.normalize(torch.randn(2 * half), dim=0))
    values, targets = torch.stack(answers), torch.randn(samples)
    losses = (targets - values).abs().clamp(max=1.0)
    of_answers, of_losses = rademacher_complexity(values), rademacher_complexity(losses)
    bound = rademacher_bound(UNIT, alpha=alpha, beta=beta, steps=steps, samples=samples)
    assert of_losses <= of_answers + 1e-12  # a contraction, of this finite set too
    assert of_answers <= bound


def test_the_gap_is_twice_the_complexity_and_the_samples_term():
    gates = {"alpha": 0.1, "beta": 0.8, "steps": 9, "samples": 100}
    gap = generalisation_gap(UNIT, **gates, loss_bound=2.0, delta=0.1)
    assert gap == pytest.approx(2 * rademacher_bound(UNIT, **gates) + 3 * 2.0 * math.sqrt(math.log(20) / 200))


@settings(max_examples=50, deadline=None)
@given(half=st.integers(1, 6), scale=st.floats(1e-3, 3), one=st.booleans(), seed=st.integers(0, 10**6))
def test_rotations_change_no_more_than_their_angles(half, scale, one, seed):
    """S3 (34), with the largest entry of Δ in place of its spectral norm; ``one``: all angles move alike."""
    torch.manual_seed(seed)
    size, k = 2 * half, int(rotations_lipschitz(2 * half))
    permutations = random_permutations(k, size)
    angles, move = torch.randn(k, half) * 3, scale * (torch.ones(k, half) if one else torch.randn(k, half))
    change = rotation_matrix(angles, permutations) - rotation_matrix(angles + move, permutations)
    norm = torch.linalg.matrix_norm(change, 2).item()
    assert norm <= k * move.abs().max().item() + 1e-12
    assert move.abs().max() <= torch.linalg.matrix_norm(move, 2) + 1e-12  # so (34) as printed follows


def test_the_constant_of_the_angles_is_attained():
    """Permutations that do nothing and equal small moves: k rotations by δ turn by k δ."""
    k, delta = int(rotations_lipschitz(8)), 1e-4
    identity = torch.arange(8).expand(k, 8)
    still = rotation_matrix(torch.zeros(k, 4), identity)
    moved = rotation_matrix(torch.full((k, 4), delta), identity)
    assert torch.linalg.matrix_norm(moved - still, 2).item() == pytest.approx(k * delta, rel=1e-6)


def test_fastrnns_condition_by_hand_and_where_it_is_silent():
    """T = 10, ‖U‖₂ = 3, R_U = 4, D = 2: 1/(40·5), 1/(40·4), 1/(10·2). For ‖U‖₂ = 1 the outer terms set no limit."""
    setting = {"steps": 10, "spectral_norm": 3.0, "frobenius_norm": 4.0}
    assert fastrnn_alpha_limit(**setting, activation_constant=2.0) == 1 / 200
    assert fastrnn_alpha_limit(**setting) == 1 / 160
    assert fastrnn_alpha_limit(steps=10, spectral_norm=1.0, frobenius_norm=2.0) == 1 / 80


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"spectral_norm": -1.0},
        {"spectral_norm": 5.0},
        {"frobenius_norm": math.inf},
        {"activation_constant": -1.0},
    ],
)
def test_a_wrong_number_is_refused(wrong):
    with pytest.raises(SettingError, match="fastrnn_alpha_limit"):
        fastrnn_alpha_limit(**({"steps": 10, "spectral_norm": 1.5, "frobenius_norm": 4.0} | wrong))


def test_values_of_another_shape_and_gates_outside_the_premise_are_refused():
    with pytest.raises(ShapeError, match="functions, samples"):
        rademacher_complexity(torch.zeros(3))
    with pytest.raises(SettingError, match="2 alpha"):
        rademacher_bound(UNIT, alpha=0.5, beta=0.5, steps=3, samples=3)
