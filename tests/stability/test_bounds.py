"""S3's theorems on random SGORNNs: what is measured never passes what is proved."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.constraints.gates import ScalarGates
from holdfast.constraints.orthogonal import RotationProduct
from holdfast.errors import SettingError
from holdfast.linalg.givens import default_sublayers, random_permutations, rotation_matrix
from holdfast.stability.bounds import (
    ModelBounds,
    generalisation_gap,
    gradient_bound_rotations,
    gradient_bound_theta,
    gradient_bound_weight_ih,
    rotations_derivative_bound,
)

F64 = torch.float64
UNIT = ModelBounds(x_norm=1.0, weight_ih_norm=1.0, readout_norm=1.0)
GATES = {"alpha": 0.1, "beta": 0.8}


def sgornn_gradients(xs, weight_ih, recurrent, readout, alpha, beta, sigma_y, y):
    """The largest |∂L/∂Θ| and |∂L/∂W| for L = |y - σ_y(vᵀ h_T)|, h_0 = 0, ReLU, no bias: S3 (1) written out."""
    h, weights = torch.zeros(1, recurrent.size, dtype=F64), recurrent.weights()
    for x in xs:
        h = alpha * torch.relu(x @ weight_ih.mT + recurrent.transform(h, weights)) + beta * h
    loss = (y - sigma_y(h @ readout)).abs().sum()
    return [grad.abs().max().item() for grad in torch.autograd.grad(loss, (recurrent.angles, weight_ih))]


def draw_model(half, inputs, steps, spread, seed):
    torch.manual_seed(seed)
    recurrent = RotationProduct(2 * half).to(F64)
    with torch.no_grad():
        recurrent.angles.uniform_(-math.pi, math.pi)
    xs = torch.randn(steps, 1, inputs, dtype=F64)
    if seed % 2:  # rays that agree: inputs that stay, a readout that points where the state is
        xs = xs[:1].abs().expand(steps, 1, inputs)
    weight_ih = spread * torch.randn(2 * half, inputs, dtype=F64)
    weight_ih = (weight_ih.abs() if seed % 2 else weight_ih).requires_grad_()
    readout = torch.randn(2 * half, dtype=F64)
    bounds = ModelBounds(
        x_norm=xs.norm(dim=-1).max().item(),
        weight_ih_norm=weight_ih.norm().item(),
        readout_norm=readout.norm().item(),
    )
    return recurrent, xs, weight_ih, readout, bounds


@given(
    half=st.integers(1, 6),
    inputs=st.integers(1, 4),
    steps=st.integers(1, 40),
    spread=st.floats(0.01, 10),
    alpha_logit=st.floats(-5, 1),
    beta_logit=st.floats(-1, 8),
    sigma_y=st.sampled_from([torch.tanh, lambda z: z]),
    y=st.floats(-10, 10),
    seed=st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=80)
def test_no_gradient_passes_theorem_2(half, inputs, steps, spread, alpha_logit, beta_logit, sigma_y, y, seed):
    """For all sizes, T ≤ 40, weights, angles, inputs, targets, σ_y in {id, tanh} and gates with β ≤ 1 - α.

    The published form holds too, as our proof of it says, and so do the sharp ones. 1e-12 is for rounding.
    """
    recurrent, xs, weight_ih, readout, bounds = draw_model(half, inputs, steps, spread, seed)
    alpha, beta = (gate.item() for gate in ScalarGates(alpha_logit, beta_logit, clip="alpha").to(F64)())
    theta, weight = sgornn_gradients(xs, weight_ih, recurrent, readout, alpha, beta, sigma_y, y)
    setting = {"alpha": alpha, "beta": beta, "steps": steps, "hidden_size": 2 * half}
    for form in ("exact", "published", "sharp"):
        of_theta = gradient_bound_theta(bounds, **setting, derivative_bound=1.0, form=form)
        of_rotations = gradient_bound_rotations(bounds, **setting, form=form)
        assert theta <= of_theta * (1 + 1e-12)
        assert theta <= of_rotations * (1 + 1e-12)
        assert weight <= gradient_bound_weight_ih(bounds, **setting, form=form) * (1 + 1e-12)


def still_model(steps):
    """A state that grows along one ray: rotations off, W and v all positive, x constant."""
    recurrent = RotationProduct(2, sublayers=1).to(F64)
    with torch.no_grad():
        recurrent.angles.zero_()
    recurrent.permutations.copy_(torch.tensor([[0, 1]]))
    xs, weight_ih = torch.ones(steps, 1, 1, dtype=F64), torch.tensor([[1.0], [0.0]], dtype=F64, requires_grad=True)
    readout = torch.tensor([0.0, 1.0], dtype=F64)
    return recurrent, xs, weight_ih, readout, UNIT


def test_sharp_bounds_are_attained():
    """α + β = 1, U = I and all rays alike: |∂L/∂W| = C α T / R_W, and with a ray in between |∂L/∂θ| nears C α² T²/2."""
    recurrent, xs, weight_ih, _, bounds = still_model(40)
    readout = torch.tensor([1.0, 0.0], dtype=F64)
    _, weight = sgornn_gradients(xs, weight_ih, recurrent, readout, 0.1, 0.9, lambda z: z, 99.0)
    setting = {"alpha": 0.1, "beta": 0.9, "steps": 40, "hidden_size": 2}
    assert weight == pytest.approx(gradient_bound_weight_ih(bounds, **setting, form="sharp"))

    readout, weight_ih = torch.tensor([0.0, 1.0], dtype=F64), torch.tensor([[1.0], [1e-9]], dtype=F64).requires_grad_()
    theta, _ = sgornn_gradients(xs, weight_ih, recurrent, readout, 0.1, 0.9, lambda z: z, 99.0)
    assert theta == pytest.approx(gradient_bound_rotations(bounds, **setting, form="sharp"))


def test_without_its_premise_the_bound_is_passed():
    """α = β = 0.9, so α + β > 1: the gradients grow as 1.8^T and pass what the theorem would say for β ≤ 0.1."""
    passed = []
    for steps in (2, 40):
        recurrent, xs, weight_ih, readout, bounds = still_model(steps)
        with torch.no_grad():
            weight_ih += 1e-3
            readout += 0.1
        bounds = ModelBounds(1.0, weight_ih.norm().item(), readout.norm().item())
        theta, weight = sgornn_gradients(xs, weight_ih, recurrent, readout, 0.9, 0.9, lambda z: z, -99.0)
        setting = {"alpha": 0.9, "beta": 0.1, "steps": steps, "hidden_size": 2}
        passed.append(
            (theta > gradient_bound_rotations(bounds, **setting), weight > gradient_bound_weight_ih(bounds, **setting))
        )
    assert passed == [(False, False), (True, True)]


@pytest.mark.parametrize("size", [2, 3, 10])
def test_printed_norm_inequality_fails_and_the_factor_is_the_size(size):
    """X of ones: ‖X‖₁,₁ = h² and ‖X‖_F = h, so ‖X‖₁,₁ ≤ √h ‖X‖_F is false. For all X it is ≤ h ‖X‖_F."""
    ones = torch.outer(*torch.ones(2, size, dtype=F64))  # of rank one, as each step's share of ∂L/∂U is
    entries, frobenius = ones.abs().sum(), torch.linalg.matrix_norm(ones)
    assert entries > math.sqrt(size) * frobenius
    assert entries == pytest.approx(size * frobenius)
    for X in torch.randn(50, size, size, dtype=F64):
        assert X.abs().sum() <= size * torch.linalg.matrix_norm(X) * (1 + 1e-12)


def test_chain_from_entries_to_the_spectral_norm_needs_the_extra_root():
    """X = Hadamard matrix: ‖X‖₁,₁ = h², ‖X‖₂ = √h: h^(3/2) is attained between them, so (31) as printed is false."""
    two = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=F64)
    X = torch.kron(torch.kron(two, two), two)
    spectral = torch.linalg.matrix_norm(X, ord=2)
    assert X.abs().sum() == pytest.approx(8**1.5 * spectral)
    assert X.abs().sum() > 8 * spectral


@given(half=st.integers(1, 8), sublayers=st.integers(1, 6), seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_no_entry_of_an_angles_derivative_passes_one(half, sublayers, seed):
    """For all Θ, π and angles: |∂φ(Θ)_τμ/∂θ| ≤ ‖∂φ(Θ)/∂θ‖₂ = 1, far below k √h."""
    torch.manual_seed(seed)
    permutations, angles = random_permutations(sublayers, 2 * half), 3 * torch.randn(sublayers, half, dtype=F64)
    jacobian = torch.autograd.functional.jacobian(lambda theta: rotation_matrix(theta, permutations), angles)
    derivatives = jacobian.movedim((0, 1), (-2, -1))  # (sublayers, half, size, size)
    torch.testing.assert_close(torch.linalg.matrix_norm(derivatives, ord=2), torch.ones_like(angles))
    assert derivatives.abs().max() <= 1 + 1e-12


def test_derivative_bounds_of_rotations():
    """1 ≤ k √h ≤ 4 √h log₂ h for every even h; 1 is attained by a plane at θ = 0."""
    for size in (2, 6, 128, 1000):
        sharp, exact, published = (
            rotations_derivative_bound(size, form=form) for form in ("sharp", "exact", "published")
        )
        assert sharp == 1.0 <= exact <= published
        assert exact == default_sublayers(size) * math.sqrt(size)
        assert published == 4 * math.sqrt(size) * math.log2(size)
    assert rotations_derivative_bound(16, sublayers=3, form="exact") == 12.0
    theta = torch.zeros(1, 1, dtype=F64)
    jacobian = torch.autograd.functional.jacobian(lambda theta: rotation_matrix(theta, torch.tensor([[0, 1]])), theta)
    assert jacobian.abs().max() == 1.0


def test_generalisation_gap_by_hand():
    """C = 6, αT/√m = 0.5·4/10: 4·6·0.2 = 4.8. B_L = 2, δ = 2/e²: √(2/200) = 0.1, so 6·0.1; published 6·√0.02."""
    bounds = ModelBounds(x_norm=1.0, weight_ih_norm=2.0, readout_norm=3.0)
    setting = {"alpha": 0.5, "beta": 0.0, "steps": 4, "samples": 100, "loss_bound": 2.0, "delta": 2 * math.exp(-2)}
    assert generalisation_gap(bounds, **setting) == pytest.approx(4.8 + 0.6)
    assert generalisation_gap(bounds, **setting, form="published") == pytest.approx(4.8 + 6 * math.sqrt(0.02))


GAP = {"alpha": 0.01, "beta": 0.9, "steps": 100, "samples": 1000, "loss_bound": 1.0, "delta": 0.05}


@pytest.mark.parametrize("form", ["exact", "published"])
def test_generalisation_gap_is_monotone(form):
    """It grows with α, T, C and B_L, and falls with m and δ; the exact form is never above the published one."""

    def gap(bounds=UNIT, **changes):
        return generalisation_gap(bounds, **{**GAP, **changes}, form=form)

    for change in ({"alpha": 0.02}, {"steps": 101}, {"loss_bound": 1.1}, {"bounds": ModelBounds(1.1, 1.0, 1.0)}):
        assert gap(**change) > gap()
    for change in ({"samples": 1001}, {"delta": 0.06}):
        assert gap(**change) < gap()
    assert gap(samples=10**12) < 1e-4
    assert generalisation_gap(UNIT, **GAP, form="exact") <= gap()


def test_gradient_bounds_by_hand():
    """C = 24, h = 16, αT = 2: (7) 24·16·4 with M_φ = 1; (8) 24·2·4/3; (9) with 4·4·4 = 64; exact: another √16."""
    bounds = ModelBounds(x_norm=2.0, weight_ih_norm=3.0, readout_norm=4.0)
    setting = {**GATES, "steps": 20, "hidden_size": 16}
    assert gradient_bound_theta(bounds, **setting, derivative_bound=1.0, form="published") == pytest.approx(1536.0)
    assert gradient_bound_theta(bounds, **setting, derivative_bound=1.0) == pytest.approx(4 * 1536.0)
    assert gradient_bound_theta(bounds, **setting, derivative_bound=1.0, form="sharp") == pytest.approx(24 * 16 * 1.9)
    for form in ("exact", "published"):
        assert gradient_bound_weight_ih(bounds, **setting, form=form) == pytest.approx(64.0)
    assert gradient_bound_weight_ih(bounds, **setting, form="sharp") == pytest.approx(16.0)
    assert gradient_bound_rotations(bounds, **setting, form="published") == pytest.approx(64 * 1536.0)
    assert gradient_bound_rotations(bounds, **setting) == pytest.approx(4 * 64 * 1536.0)
    assert gradient_bound_rotations(bounds, **setting, derivative_bound=1.0) == pytest.approx(4 * 1536.0)
    assert gradient_bound_rotations(bounds, **setting, form="sharp") == pytest.approx(24 * 1.9)


def test_bad_settings_are_named():
    with pytest.raises(SettingError, match="ModelBounds expects x_norm to be positive and finite, got 0"):
        ModelBounds(0.0, 1.0, 1.0)
    with pytest.raises(SettingError, match=r"beta ≤ 1 - 2 alpha, got alpha=0.1, beta=0.81.*clip=\"2alpha\""):
        generalisation_gap(UNIT, **{**GAP, "alpha": 0.1, "beta": 0.81})
    for change in ({"delta": 1.0}, {"samples": 0}, {"steps": 1.5}, {"loss_bound": math.inf}, {"alpha": 0.0}):
        with pytest.raises(SettingError, match=f"generalisation_gap expects.*{next(iter(change))}"):
            generalisation_gap(UNIT, **{**GAP, **change})
    with pytest.raises(SettingError, match="one of exact, published, got 'sharp'"):
        generalisation_gap(UNIT, **GAP, form="sharp")
    with pytest.raises(SettingError, match=r"beta ≤ 1 - alpha, got alpha=0.9, beta=0.9"):
        gradient_bound_weight_ih(UNIT, alpha=0.9, beta=0.9, steps=3, hidden_size=4)
    with pytest.raises(SettingError, match="derivative_bound to be positive"):
        gradient_bound_theta(UNIT, **GATES, steps=3, hidden_size=4, derivative_bound=-1.0)
    with pytest.raises(SettingError, match="even, as rotations turn features in pairs, got 5"):
        gradient_bound_rotations(UNIT, **GATES, steps=3, hidden_size=5)
