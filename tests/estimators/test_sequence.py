"""The estimators keep scikit-learn's habits, take sequences as people hold them, and say who won."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import holdfast
from holdfast.errors import DataError, SettingError
from holdfast.estimators import SequenceClassifier, SequenceRegressor

FAST = {"model": "reservoir", "units": 4}


# every check that scikit-learn runs for these two applies and holds; nothing is listed as an expected failure
@parametrize_with_checks([SequenceClassifier(**FAST), SequenceRegressor("reservoir", units=32)])
def test_scikit_learns_checks_hold(estimator, check):
    torch.set_default_dtype(torch.float32)
    check(estimator)


def walks(n=40, steps=30, seed=0):
    """Random walks; those of the second class drift."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n, steps)).cumsum(axis=1), np.arange(n) % 2
    return X + 1.5 * y[:, None] * np.arange(steps), np.array(["flat", "rising"])[y]


@pytest.fixture(scope="module")
def fitted():
    X, y = walks()
    return SequenceClassifier(**FAST).fit(X, y)


def test_the_same_sequences_are_the_same_in_every_form(fitted):
    """Array (cases, time) and (cases, time, 1), DataFrames, lists of arrays, nested lists and tensors."""
    X, _ = walks(seed=1)
    probabilities = fitted.predict_proba(X)
    nested = pd.DataFrame({"channel": [pd.Series(row) for row in X]})
    for same in (X[:, :, None], pd.DataFrame(X), nested, list(X), list(X[:, :, None]), X.tolist(), torch.tensor(X)):
        np.testing.assert_allclose(fitted.predict_proba(same), probabilities, rtol=1e-5)


def test_sequences_of_different_lengths_do_not_see_their_padding():
    X, y = walks()
    cut = [row[: 10 + i % 20] for i, row in enumerate(X)]
    model = SequenceClassifier(**FAST).fit(cut, y)
    together, alone = model.predict_proba(cut), np.concatenate([model.predict_proba([row]) for row in cut])
    np.testing.assert_allclose(together, alone, rtol=1e-5)
    assert model.score(cut, y) > 0.9


def test_several_channels_and_several_targets():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 20, 3)) * (1 + rng.random(size=(60, 1, 3)))
    y = np.stack([X[:, :, 0].std(axis=1), 100 * X[:, :, 1].max(axis=1)], axis=1)
    model = SequenceRegressor("reservoir", units=16).fit(X[:45], y[:45])
    assert model.predict(X[45:]).shape == (15, 2)
    assert model.score(X[45:], y[45:]) > 0.5


def test_clone_pickle_grid_search_and_pipelines_work():
    X, y = walks()
    search = GridSearchCV(SequenceClassifier(**FAST), {"units": [2, 4]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.8
    pipeline = make_pipeline(FunctionTransformer(np.diff), SequenceClassifier(**FAST)).fit(X, y)
    again = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(again.predict_proba(X), pipeline.predict_proba(X))
    copied = clone(pipeline[-1])
    assert copied.get_params() == pipeline[-1].get_params()
    assert not hasattr(copied, "module_")


def test_equal_seeds_give_equal_models_and_other_seeds_others():
    (X, y), (new, _) = walks(), walks(seed=1)
    one, same, other = (
        SequenceClassifier(**FAST, random_state=seed).fit(X, y).predict_proba(new) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, same)
    assert abs(one - other).max() > 1e-6


def test_probabilities_are_calibrated_on_left_out_sequences():
    """On classes that overlap, the mean probability of the answer is near the accuracy on new sequences."""
    X, y = walks(200, seed=2)
    X[:, :] += 25 * np.random.default_rng(3).normal(size=(200, 1))
    rng = np.random.default_rng(4)
    y = np.where(rng.random(200) < 0.25, y[::-1], y)  # a quarter of the labels is drawn anew
    model = SequenceClassifier("reservoir", units=8).fit(X[:100], y[:100])
    sure = model.predict_proba(X[100:]).max(axis=1).mean()
    assert abs(sure - model.score(X[100:], y[100:])) < 0.15


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([np.zeros(3), np.full(4, np.nan)], "sequence 1 contains NaN"),
        ([np.zeros((3, 1)), np.zeros((3, 2))], "sequence 0 has 1, sequence 1 has 2"),
        ([np.zeros(3), np.zeros(0)], r"got \(0,\) at 1"),
        ([np.zeros(3), np.array(["a"])], "sequence 1 cannot be read"),
    ],
)
def test_bad_sequences_are_named(X, message):
    with pytest.raises(DataError, match=message):
        SequenceClassifier(**FAST).fit(X, ["a", "b"])


def test_bad_settings_and_channels_are_named(fitted):
    X, y = walks()
    with pytest.raises(SettingError, match=r"one of auto, reservoir, .*got 'transformer'"):
        SequenceClassifier("transformer").fit(X, y)
    with pytest.raises(DataError, match="fitted to 1 channels, got sequences of 2"):
        fitted.predict(np.zeros((3, 9, 2)))
    with pytest.raises(DataError, match="at least 2 classes, got 1 class: 'a'"):
        SequenceClassifier(**FAST).fit(X, ["a"] * len(X))


def test_public_names_are_those_of_the_package():
    assert holdfast.SequenceClassifier is SequenceClassifier
    assert holdfast.SequenceRegressor is SequenceRegressor
