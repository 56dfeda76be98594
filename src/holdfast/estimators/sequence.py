"""scikit-learn estimators for whole sequences: ``SequenceClassifier`` and ``SequenceRegressor``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from holdfast.errors import DataError, SettingError
from holdfast.estimators.choice import Choice, Score, automatic
from holdfast.estimators.inputs import is_ragged, padded, standardised
from holdfast.estimators.readout import fit_reservoir
from holdfast.estimators.trained import TRAINED, fit_trained, seconds_per_update, updates_within
from holdfast.train import ModelSettings

__all__ = ["SequenceClassifier", "SequenceRegressor"]

BATCH = 256


class _SequenceEstimator(BaseEstimator):
    """What both share: sequences in, a module and its scores out."""

    def __init__(self, model: str = "auto", *, minutes: float = 5.0, units: int | None = None, random_state: Any = 0):
        self.model, self.minutes, self.units, self.random_state = model, minutes, units, random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def summary(self) -> str:
        """Scores of the model and, with ``model="auto"``, of what it was compared with: n, interval, who won."""
        check_is_fitted(self)
        if not self.scores_:
            return f"{self.chosen_}"
        return Choice(self.chosen_, ModelSettings(self.chosen_), self.module_, self.scores_, self.note_).summary()

    def _checked(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """The sequences, padded, and their lengths, after what is wrong with the settings or the data is reported."""
        who, names = type(self).__name__, ("auto", "reservoir", *TRAINED)
        if self.model not in names:
            raise SettingError(f"{who} expects model to be one of {', '.join(names)}, got {self.model!r}.")
        if y is None:
            raise DataError(f"{who} requires y to be passed, but the target y is None.")
        x, lengths = self._read(X, fitting=True)
        check_consistent_length(x, y)
        if len(x) < 2:
            raise DataError(f"{who} expects at least 2 sequences, got 1 sample.")
        return x, lengths

    def _fit(self, x: np.ndarray, lengths: np.ndarray, y: Tensor, classes: int | None) -> None:
        """Fit ``module_`` to checked sequences and prepared targets."""
        inside = np.arange(x.shape[1]) < lengths[:, None]
        self.mean_, spread = x[inside].mean(axis=0), x[inside].std(axis=0)
        self.scale_ = np.where(spread > 1e-9 * np.abs(self.mean_).clip(1e-9), spread, 1.0)
        data = standardised(x, lengths, self.mean_, self.scale_)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1)) if self.random_state != 0 else 0
        self.scores_: tuple[Score, ...] = ()
        if self.model == "auto":
            choice = automatic(*data, y, classes=classes, minutes=self.minutes, units=self.units, seed=seed)
            self.chosen_, self.module_, self.scores_ = choice.name, choice.model, choice.scores
            self.note_ = choice.note
        elif self.model == "reservoir":
            self.module_, _ = fit_reservoir(*data, y, classes=classes, seed=seed, units=self.units)
            self.chosen_ = "reservoir"
        else:
            options: Any = {
                "classes": classes,
                "seed": seed,
                **({} if self.units is None else {"hidden_size": self.units}),
            }
            if self.minutes > 0:
                each = seconds_per_update(self.model, *data, y, **options)
                options["updates"] = max(1, updates_within(60 * self.minutes, each))
            self.module_ = fit_trained(self.model, *data, y, **options)
            self.chosen_ = self.model

    def _read(self, X: Any, *, fitting: bool) -> tuple[np.ndarray, np.ndarray]:
        who = type(self).__name__
        X = X.numpy(force=True) if isinstance(X, Tensor) else X
        deep = (
            X.ndim == 3
            if isinstance(X, np.ndarray)
            else isinstance(X, list | tuple) and len(X) > 0 and np.ndim(X[0]) == 2
        )
        if not is_ragged(X) and not deep:
            X = validate_data(self, X, reset=fitting, dtype=np.float64)  # type: ignore[arg-type]
            x, lengths = X[:, :, None], np.full(len(X), X.shape[1])
        else:
            if isinstance(X, np.ndarray) and X.dtype != object:
                X = check_array(X, allow_nd=True, dtype="float64", input_name="X")
            x, lengths = padded(X, who)
            if fitting:
                self.n_features_in_ = x.shape[2]
        if not fitting and x.shape[2] != len(self.mean_):
            raise DataError(f"{who} was fitted to {len(self.mean_)} channels, got sequences of {x.shape[2]}.")
        return x, lengths

    @torch.no_grad()
    def _outputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        data = standardised(*self._read(X, fitting=False), self.mean_, self.scale_)
        parts = zip(*(tensor.split(BATCH) for tensor in data), strict=True)
        return torch.cat([self.module_(x.transpose(0, 1), lengths)[0] for x, lengths in parts]).double()


class SequenceClassifier(ClassifierMixin, _SequenceEstimator):
    """A class for each sequence, in scikit-learn's manner.

    Sequences are an array (cases, time) or (cases, time, channels), a DataFrame with one row per case, or a list of
    arrays (time,) or (time, channels) of different lengths.

    Args:
        model: "auto", which tries a reservoir, then trained cells, and chooses (``holdfast.estimators.automatic``);
            "reservoir"; or a layer to train: "sgornn", "gru", "lstm", ...
        minutes: time for trained cells; 0 leaves them out of "auto". It is a limit, not a duration.
        units: of each of the reservoir's cells (default 128), or of a layer to train (default 64).
        random_state: a seed, ``numpy.random.RandomState`` or None. Fits of the same seed are equal, except where
            ``minutes`` ends a training.

    After ``fit``: ``classes_``, ``chosen_`` (the model's name), ``module_`` (a ``torch.nn.Module`` of standardised
    inputs, time first), ``scores_`` and ``summary()``. Probabilities are the softmax of the outputs; those of a
    reservoir are calibrated on left-out training sequences.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(40, 30)).cumsum(axis=1), np.repeat(["flat", "rising"], 20)
        >>> X[20:] += np.arange(30)
        >>> model = SequenceClassifier(minutes=0, units=8).fit(X[::2], y[::2])
        >>> model.score(X[1::2], y[1::2]) > 0.9
        True
    """

    def fit(self, X: Any, y: Any) -> SequenceClassifier:
        """Fit to sequences and their classes."""
        x, lengths = self._checked(X, y)
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(
                f"SequenceClassifier expects at least 2 classes, got 1 class: {self.classes_.tolist()[0]!r}."
            )
        self._fit(x, lengths, torch.from_numpy(index), len(self.classes_))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each sequence."""
        best = self._outputs(X).argmax(dim=1)
        return self.classes_[best.numpy()]

    def predict_proba(self, X: Any) -> np.ndarray:
        """(cases, classes), in the order of ``classes_``."""
        return self._outputs(X).softmax(dim=1).numpy()


class SequenceRegressor(RegressorMixin, _SequenceEstimator):
    """One or several numbers for each sequence, in scikit-learn's manner. Arguments as in ``SequenceClassifier``.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = [rng.normal(size=rng.integers(20, 30)) for _ in range(60)]
        >>> y = [abs(x).mean() for x in X]
        >>> SequenceRegressor("reservoir", units=8).fit(X[:40], y[:40]).score(X[40:], y[40:]) > 0.5
        True
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> SequenceRegressor:
        """Fit to sequences and numbers, (cases,) or (cases, outputs)."""
        x, lengths = self._checked(X, y)
        y = check_array(y, ensure_2d=False, dtype="float64", input_name="y")
        if y.ndim > 2:
            raise DataError(f"SequenceRegressor expects y of shape (cases,) or (cases, outputs), got {y.shape}.")
        self.flat_ = y.ndim == 1
        y = y.reshape(len(y), -1)
        spread = y.std(axis=0)
        self.target_mean_, self.target_scale_ = y.mean(axis=0), np.where(spread > 0, spread, 1.0)
        targets = torch.from_numpy(((y - self.target_mean_) / self.target_scale_).astype(np.float32))
        self._fit(x, lengths, targets, None)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The numbers, in the shape and units of the training targets."""
        y = self._outputs(X).numpy() * self.target_scale_ + self.target_mean_
        return y[:, 0] if self.flat_ else y
