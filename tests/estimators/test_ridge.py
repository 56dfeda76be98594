"""The closed form is scikit-learn's RidgeCV, in blocks, with few sequences or few features."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeCV

from holdfast.estimators.ridge import dual, primal

PENALTIES = [1e-3, 0.1, 1.0, 10.0, 1e3]


def problem(n, features, outputs=2):
    x = torch.randn(n, features) * torch.rand(features).exp() + 5 * torch.randn(features)
    y = x[:, :3] @ torch.randn(3, outputs) + 0.5 * torch.randn(n, outputs) + 7
    return x, y


@pytest.mark.parametrize(("n", "features", "solve", "dim"), [(13, 40, dual, 1), (40, 9, primal, 0), (9, 9, dual, 1)])
def test_the_solution_and_the_choice_are_those_of_ridgecv(n, features, solve, dim):
    x, y = problem(n, features)
    fit = solve(lambda: x.split(4, dim=dim), y, PENALTIES)
    z = ((x - x.mean(dim=0)) / x.std(dim=0, correction=0)).numpy()
    theirs = RidgeCV(PENALTIES, store_cv_results=True).fit(z, y.numpy())
    assert fit.penalty == theirs.alpha_
    np.testing.assert_allclose(fit.weight.numpy().T, theirs.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(fit.bias.numpy(), theirs.intercept_, rtol=1e-9)
    squares = theirs.cv_results_[:, :, PENALTIES.index(fit.penalty)]
    np.testing.assert_allclose((fit.left_out - y).square().numpy(), squares, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize(("n", "features", "solve", "dim"), [(7, 20, dual, 1), (12, 4, primal, 0)])
def test_left_out_answers_are_those_of_models_fitted_without_the_sequence(n, features, solve, dim):
    x, y = problem(n, features)
    fit = solve(lambda: x.split(3, dim=dim), y, [2.0])
    z = ((x - fit.mean) / fit.scale).numpy()
    for i in range(n):
        rest = np.arange(n) != i
        theirs = Ridge(2.0).fit(z[rest], y.numpy()[rest]).predict(z[i : i + 1])[0]
        np.testing.assert_allclose(fit.left_out[i].numpy(), theirs, rtol=1e-7)


@pytest.mark.parametrize(("solve", "dim"), [(dual, 1), (primal, 0)])
def test_constant_features_have_no_weight(solve, dim):
    x, y = problem(12, 5)
    x[:, 2] = 0.1
    fit = solve(lambda: x.split(4, dim=dim), y, PENALTIES)
    assert fit.weight[2].abs().max() < 1e-12
    assert torch.isfinite(fit.left_out).all()


def test_a_mask_leaves_features_out_if_that_has_less_error():
    """Of two features that answer and 30 that do not, in blocks of 16, the answering ones are taken."""
    x = torch.randn(20, 32)
    y = x[:, :1] + x[:, 16:17]
    answering = torch.arange(16) == 0
    fit = dual(lambda: x.split(16, dim=1), y, PENALTIES, masks=[torch.ones(16, dtype=torch.bool), answering])
    assert (fit.weight[:, 0] != 0).nonzero().flatten().tolist() == [0, 16]
    alone = dual(lambda: x[:, [0, 16]].split(1, dim=1), y, [penalty / 16 for penalty in PENALTIES])
    torch.testing.assert_close(fit.left_out, alone.left_out)


def test_tiny_penalties_keep_their_digits_with_many_features_in_float32():
    """With n ≪ features and means far above deviations, left-out answers are still those of models without them."""
    x = (torch.randn(12, 3000) + 100).float()
    y = torch.randn(12, 1)
    fit = dual(lambda: x.split(500, dim=1), y, [1e-6 * 3000])
    z = ((x.double() - fit.mean) / fit.scale).numpy()
    for i in range(12):
        rest = np.arange(12) != i
        theirs = Ridge(1e-6 * 3000).fit(z[rest], y.numpy()[rest]).predict(z[i : i + 1])
        np.testing.assert_allclose(fit.left_out[i].numpy(), theirs.ravel(), rtol=1e-4)


@pytest.mark.parametrize("solve", [dual, primal])
def test_a_feature_that_hardly_varied_cannot_carry_an_answer_away(solve):
    """The maximum of a saturated unit: deviation 1e-5 in the training set, off by 0.1 in the next sequence."""
    x, y = torch.randn(30, 4, dtype=torch.float64), torch.randn(30, 1, dtype=torch.float64)
    x[:, 0] = 1 - 1e-5 * torch.rand(30, dtype=torch.float64)
    fit = solve(lambda: [x], y, (1.0,))
    new = fit.mean.clone()
    new[0] -= 0.1
    answer = ((new - fit.mean) / fit.scale) @ fit.weight + fit.bias
    assert (answer - fit.bias).abs().item() < 1
