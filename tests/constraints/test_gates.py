"""Scalar gates: the clip holds exactly, its gradient is the true one, the starts are the papers'."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.constraints.gates import ScalarGates
from holdfast.errors import SettingError

CLIPS = ["2alpha", "alpha", None]
DTYPES = [torch.float32, torch.float64]
logits = st.one_of(st.floats(-1e4, 1e4), st.floats(-40, 40), st.floats(-4, 4))


def gates_at(alpha_logit, beta_logit, clip, dtype=torch.float64):
    gates = ScalarGates(clip=clip).to(dtype)
    with torch.no_grad():
        gates.alpha_logit.fill_(alpha_logit)
        gates.beta_logit.fill_(beta_logit)
    return gates


def assert_in_set(gates):
    alpha, beta = gates()
    exact = Fraction(alpha.item()), Fraction(beta.item())  # the real numbers that the floats are: no rounding below
    assert 0 < exact[0] < 1
    assert 0 <= exact[1] < 1
    if gates.clip == "2alpha":
        assert beta <= 1 - 2 * alpha  # as floats
        assert exact[1] <= 1 - 2 * exact[0]  # and as reals
        assert beta > 0 or alpha == 0.5
    elif gates.clip == "alpha":
        assert beta <= 1 - alpha
        assert 0 < exact[1] <= 1 - exact[0]
    else:
        assert beta > 0
    assert gates.contains(alpha, beta)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("clip", CLIPS)
@given(alpha_logit=logits, beta_logit=logits)
@settings(deadline=None, max_examples=150)
def test_gates_lie_in_their_set_exactly(clip, dtype, alpha_logit, beta_logit):
    """For all logits in ±10⁴, both types: α in (0, 1), β in [0, 1), β ≤ 1 - 2α or 1 - α; compared as real numbers."""
    assert_in_set(gates_at(alpha_logit, beta_logit, clip, dtype))


OPTIMISERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=10.0),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.3),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.3),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1.0),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.3, weight_decay=0.1),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.5),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_clip_holds_after_every_step_of_every_optimiser(optimiser, clip, dtype):
    """100 steps that pull α and β up, by seeded amounts, far beyond the edge."""
    gates, generator = gates_at(-3.75, 3.0, clip, dtype), torch.Generator().manual_seed(0)
    step = OPTIMISERS[optimiser](gates.parameters())
    for _ in range(100):
        pull = 10 * torch.rand(2, generator=generator, dtype=dtype) - 2
        alpha, beta = gates()
        step.zero_grad()
        (-pull[0] * alpha - pull[1] * beta).backward()
        step.step()
        assert_in_set(gates)


@pytest.mark.parametrize(("clip", "slope"), [("2alpha", 2.0), ("alpha", 1.0)])
def test_gradient_of_the_clip_is_that_of_the_minimum(clip, slope):
    """Active: dβ/dα = -2 (or -1) and none for b. Inactive: σ'(b) and none for a."""
    active = gates_at(-2.0, 8.0, clip)
    alpha, beta = active()
    assert beta.item() == pytest.approx(1 - slope * alpha.item(), abs=1e-15)
    grads = torch.autograd.grad(beta, (active.alpha_logit, active.beta_logit))
    expected = -slope * alpha * (1 - alpha), torch.zeros((), dtype=alpha.dtype)
    torch.testing.assert_close(grads, expected)

    inactive = gates_at(-2.0, -1.0, clip)
    _, beta = inactive()
    grads = torch.autograd.grad(beta, (inactive.alpha_logit, inactive.beta_logit))
    torch.testing.assert_close(grads, (torch.zeros_like(beta), beta * (1 - beta)))


def test_unclipped_branch_is_followed_at_a_tie():
    """α = β = 1/2 with β ≤ 1 - α is a tie: the gradient goes to b alone."""
    gates = gates_at(0.0, 0.0, "alpha")
    _, beta = gates()
    grads = torch.autograd.grad(beta, (gates.alpha_logit, gates.beta_logit))
    assert [grad.item() for grad in grads] == [0.0, 0.25]


def test_beyond_one_half_alpha_is_held_there_and_beta_at_zero():
    """β in (0, 1 - 2α] has no member once α ≥ 1/2; the gates stop at the corner (1/2, 0)."""
    for alpha_logit in (0.0, 1e-9, 3.0, 1e4):
        alpha, beta = gates_at(alpha_logit, 3.0, "2alpha")()
        assert (alpha.item(), beta.item()) == (0.5, 0.0)


def test_papers_starts():
    """SGORNN's clip is inactive at its start, 0.9526 < 0.9540; FastRNN's is at -3 and 3."""
    alpha, beta = ScalarGates(alpha_logit=-3.75, beta_logit=3.0, clip="2alpha")()
    assert round(beta.item(), 4) == 0.9526
    assert round(1 - 2 * alpha.item(), 4) == 0.9540
    fastrnn = ScalarGates()
    assert (fastrnn.alpha_logit.item(), fastrnn.beta_logit.item()) == (-3.0, 3.0)
    assert {name: value.shape for name, value in fastrnn.named_parameters()} == {"alpha_logit": (), "beta_logit": ()}


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("horizon", [3, 10, 500, 5000])
def test_horizon_starts_at_one_over_t(horizon, clip):
    """α_0 = 1/T, β_0 = 1 - 2/T."""
    alpha, beta = ScalarGates(horizon=horizon, clip=clip).double()()
    assert alpha.item() == pytest.approx(1 / horizon, rel=1e-6)
    assert beta.item() == pytest.approx(1 - 2 / horizon, rel=1e-6)


def test_reset_returns_to_the_start():
    gates = ScalarGates(horizon=100)
    before = [value.item() for value in gates.parameters()]
    with torch.no_grad():
        gates.alpha_logit.fill_(7.0)
    gates.reset_parameters()
    assert [value.item() for value in gates.parameters()] == before


def test_contains_is_the_set_and_no_more():
    gates = ScalarGates(clip="2alpha")
    assert gates.contains(0.25, 0.5)
    assert not gates.contains(0.25, 0.51)
    assert not gates.contains(0.0, 0.5)
    assert not gates.contains(0.1, -0.1)
    assert ScalarGates(clip="alpha").contains(0.25, 0.75)
    assert ScalarGates().contains(0.9, 0.9)
    assert not ScalarGates().contains(1.0, 0.9)
    assert not ScalarGates().contains(float("nan"), 0.5)
    assert "clip='2alpha'" in repr(gates)


def test_bad_settings_are_named():
    with pytest.raises(SettingError, match="clip to be one of 2alpha, alpha, None, got 'beta'"):
        ScalarGates(clip="beta")
    with pytest.raises(SettingError, match="either horizon or logits"):
        ScalarGates(alpha_logit=-3.0, horizon=10)
    with pytest.raises(SettingError, match="above 2 steps, got 2"):
        ScalarGates(horizon=2)
    with pytest.raises(SettingError, match="finite"):
        ScalarGates(alpha_logit=float("nan"))
