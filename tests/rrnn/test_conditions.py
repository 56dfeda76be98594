"""Theorems 7 and 8 on real layers."""

import math

import pytest
import torch

from holdfast.errors import SettingError
from holdfast.rrnn import RRNN, RRNNGRU, gradient_conditions


def small_layer(scale, *, seed=0, **settings):
    torch.manual_seed(seed)
    layer = RRNN(4, 4, rounds=3, tuples=2, identity=False, activations=["sigmoid", "tanh"], scorer=6, **settings)
    with torch.no_grad():
        own = layer.l0.tuples[0]
        for weight in (own.left, own.right):
            weight.mul_(scale / torch.linalg.matrix_norm(weight, ord=2).max())
    return layer


def jacobians(layer, xs):
    """‖∂h_t/∂h_{t-1}‖ of every step and sample."""
    state, norms = torch.zeros(1, 4), []
    for x in xs:
        jacobian = torch.autograd.functional.jacobian(lambda h, x=x: layer.l0(x, h)[0], state)[:, 0]
        norms.append(float(torch.linalg.matrix_norm(jacobian, ord=2)))
        state = layer.l0(x, state).detach()
    return norms


@pytest.mark.parametrize("seed", range(3))
def test_theorem_7_gradients_decay_as_stated(seed):
    """With C₁C₂C₃ < 1/2: every step's Jacobian is at most η, and ∂h_T/∂h_1 at most η^(T-1)."""
    layer, xs = small_layer(0.4, seed=seed), torch.randn(8, 1, 4)
    conditions = gradient_conditions(layer, xs)
    assert conditions.vanishing
    assert conditions.rate == 0.5 + conditions.product < 1
    norms = jacobians(layer, xs)
    assert max(norms[1:]) <= conditions.rate
    assert math.prod(norms[1:]) <= conditions.rate**7
    assert "gradients vanish" in conditions.follows


def test_the_constants_are_those_of_the_layer():
    layer, xs = small_layer(0.3), torch.randn(5, 3, 4)
    conditions = gradient_conditions(layer, xs, loss=lambda hs: 0.5 * hs.square().sum())
    with torch.no_grad():
        trace = layer.trace(xs)
    assert conditions.weights == pytest.approx(0.3)
    assert conditions.activations == 1
    assert conditions.operators == 1  # + has slope 1, and no entry of ⊙'s other side is larger here
    assert conditions.losses == pytest.approx(float(trace.output.norm(dim=2).max()))
    ((grown,),) = trace.grown
    on_trees = torch.cat((grown.leaves, grown.vectors))
    assert conditions.entries == pytest.approx(float(on_trees.abs().max()))
    products = gradient_conditions(small_layer(3.0, operators=["mul"]), xs)
    assert products.operators <= 2 * products.weights * products.entries  # √p C₁ C₅ of D.2, p = 4


def test_with_the_identity_the_sets_of_theorem_5_cannot_meet_theorem_7():
    """‖I‖ = 1, id' = 1 and ∂(a + b)/∂a = 1: it is said, and no rate is given."""
    for layer in (RRNN(4, 4, rounds=2, scorer=6), RRNNGRU(4, 4, scorer=6, backend="reference")):
        with torch.no_grad():
            for weight in layer.l0.tuples.parameters():
                weight.mul_(1e-3)
        conditions = gradient_conditions(layer, torch.randn(3, 2, 4))
        assert conditions.product >= 1
        assert (conditions.attainable, conditions.vanishing, conditions.rate) == (False, False, None)
        assert "cannot meet" in conditions.follows
        assert all(condition.holds for condition in conditions.exploding)
    assert gradient_conditions(small_layer(3.0), torch.randn(3, 2, 4)).attainable


def test_below_the_exact_threshold_theorem_7_follows():
    """All of u', P, ∂o below 2^(-1/3) give a product below 1/2; the printed threshold lies above that."""
    layer = small_layer(0.1, operators=["mul"])
    with torch.no_grad():
        layer.l0.tuples[0].bias.zero_()
    xs = torch.randn(4, 2, 4)
    exact, published = (gradient_conditions(layer, xs, form=form) for form in ("exact", "published"))
    assert exact.exploding[0].threshold == pytest.approx(0.7937, abs=1e-4)
    assert published.exploding[0].threshold > exact.exploding[0].threshold
    assert [condition.holds for condition in exact.exploding] == [True, False, False, False]  # tanh' = 1
    assert exact.vanishing


def test_the_printed_threshold_of_theorem_8_does_not_bound_unbalanced_trees():
    """N = 3, paths of 1, 2, 3 and 3 edges: at the threshold their sum is 1.5, not 1."""
    edge = 4 ** (-1 / 3)  # (N+1)^(-1/l_min), the product of three factors at the threshold
    assert sum(edge**length for length in (1, 2, 3, 3)) == pytest.approx(1.527, abs=1e-3)


def test_one_state_vector_and_one_layer_are_asked_for():
    with pytest.raises(SettingError, match="one state vector"):
        gradient_conditions(RRNN(4, 4, states=2, rounds=1), torch.randn(2, 2, 4))
    broken = small_layer(0.3)
    with torch.no_grad():
        broken.l0.tuples[0].left[0, 0, 0] = torch.nan
    with pytest.raises(SettingError, match="diverged"):
        gradient_conditions(broken, torch.randn(2, 2, 4))
    with pytest.raises(SettingError, match="published"):
        gradient_conditions(RRNN(4, 4, rounds=1), torch.randn(2, 2, 4), form="printed")


def test_rrnn_gru_meets_theorem_7_at_a_start_of_small_norm():
    """Appendix D.2's norm of 0.223: with an identity that is only a start the condition can hold, and there it does."""
    xs = torch.randn(4, 3, 30)
    options = {"setting": "published code", "scorer": 4, "backend": "reference"}
    start, drawn = (gradient_conditions(RRNNGRU(30, 30, start_norm=norm, **options), xs) for norm in (0.223, None))
    assert start.attainable
    assert start.rate == pytest.approx(0.5 + 0.223 * start.operators)
    assert start.rate < 1
    assert drawn.rate is None
