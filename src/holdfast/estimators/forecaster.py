"""Forecasts of series: a ridge readout on reservoir states beside simple forecasts, the best at past origins wins."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np

from holdfast.errors import DataError, MissingExtraError, SettingError, one_of, positive_size
from holdfast.estimators.forecasting.design import Design, History, first_half
from holdfast.estimators.forecasting.direct import fit_direct, rolling_forecasts
from holdfast.estimators.forecasting.panel import Panel, read_panel
from holdfast.estimators.forecasting.ridge import LAMBDAS
from holdfast.estimators.forecasting.rolling import best_of, known_at, origins, quantile, simple_forecasts
from holdfast.estimators.forecasting.season import season_of_times, season_of_values
from holdfast.estimators.forecasting.states import step_reservoir
from holdfast.estimators.forecasting.views import View, shifted, views_of
from holdfast.train import LAYERS

try:
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
except ModuleNotFoundError:
    raise MissingExtraError("Forecaster needs scikit-learn: pip install 'holdfast[estimators]'.") from None

__all__ = ["MODELS", "Forecaster", "Member"]

MODELS = {
    "last": "last value",
    "drift": "drift",
    "seasonal": "seasonal naive",
    "ridge": "ridge on lags",
    "reservoir": "reservoir",
}
SIMPLE = ("last", "drift", "seasonal")
LEAST_STEPS = 8  # before the first forecast
MOST_COLUMNS = 200  # lags of all channels together


@dataclasses.dataclass(frozen=True)
class Member:
    """One forecast among those compared: a model, and for the learned ones its view and penalty λ."""

    model: str
    view: View | None = None
    penalty: float = 0.0

    def __str__(self) -> str:
        return f"{self.view}, λ = {self.penalty:g}" if self.view else MODELS[self.model]


class Forecaster(BaseEstimator):
    """Forecasts of one or several series, with intervals.

    Five forecasts are made at up to 24 past origins, each fitted on the steps before the origin: the last value, drift,
    the seasonal naive forecast, ridge regression on lags, and ridge regression on lags and on the states of a frozen
    SGORNN reservoir. The learned ones see the series as it is, differenced, seasonally differenced, or both, on the
    original or the logarithmic scale. The two best of these views are averaged. The least error wins, and its errors
    give the interval (conformal prediction).

    Args:
        horizon: how many steps ahead.
        model: "auto" for the winner, or "reservoir", "ridge", "last", "drift" or "seasonal".
        season: steps of a season; 1 for none; "auto": from the dates, if the series has some, else by a test of its
            autocorrelation.
        interval: probability that a value lies inside its interval.
        random_state: seed of the reservoir.

    Attributes:
        model_, season_: what was chosen.
        scores_: error of every model at the past origins, by name: mean absolute error over that of the (seasonal)
            naive forecast inside the series (MASE).
        coverage_: of the interval; less than ``interval`` if there were too few past origins for it.

    Example:
        >>> months = np.arange(96)
        >>> sales = (100 + months) * (1 + 0.3 * np.sin(2 * np.pi * months / 12))
        >>> forecaster = Forecaster(horizon=6).fit(sales)
        >>> forecaster.season_, forecaster.predict().shape
        (12, (6,))
        >>> low, high = forecaster.predict_interval()
        >>> bool((low <= high).all())
        True
    """

    def __init__(
        self,
        horizon: int = 12,
        model: str = "auto",
        season: int | str = "auto",
        interval: float = 0.9,
        random_state: int = 0,
    ):
        self.horizon = horizon
        self.model = model
        self.season = season
        self.interval = interval
        self.random_state = random_state

    def fit(self, series: Any, y: Any = None, *, known: Any = None, past: Any = None) -> Forecaster:
        """Choose and fit the forecast.

        Args:
            series: (time,), (time, channels), a DataFrame, or a list of those for several series. Every channel is
                forecast.
            y: ignored; scikit-learn passes it.
            known: columns that are known for the future too, in the same form as ``series``.
            past: columns that are known for the past only.
        """
        self._check_settings()
        panel = read_panel(series, "series")
        histories = _histories(panel, known, past)
        self.season_ = self._season_of(panel)
        self._check_lengths(panel)
        self._form, self.names_ = (panel.several, panel.flat), panel.names
        self.known_columns_, self.past_columns_ = histories[0].known.shape[1], histories[0].past.shape[1]
        self._choose(histories)
        self.history_ = histories
        return self

    def predict(
        self,
        horizon: int | None = None,
        known_future: Any = None,
        *,
        series: Any = None,
        known: Any = None,
        past: Any = None,
    ) -> Any:
        """The forecast of the next steps, in the form in which the series came.

        Args:
            horizon: how many; at most, and by default, the horizon of the fit.
            known_future: known columns of those steps, if the fit had some.
            series, known, past: forecast after the end of these series instead of those of the fit.
        """
        steps, histories, form = self._asked(horizon, known_future, series, known, past)
        return _returned(self._forecast(histories, self.model_)[:, :steps], form)

    def predict_all(self, horizon: int | None = None, known_future: Any = None) -> dict[str, Any]:
        """The forecast of every model that was compared, by name; ``predict`` has the one that was chosen."""
        steps, histories, form = self._asked(horizon, known_future, None, None, None)
        return {model: _returned(self._forecast(histories, model)[:, :steps], form) for model in self._direct}

    def predict_interval(
        self,
        horizon: int | None = None,
        known_future: Any = None,
        *,
        series: Any = None,
        known: Any = None,
        past: Any = None,
        interval: float | None = None,
    ) -> tuple[Any, Any]:
        """Lower and upper ends of the intervals, each in the form of ``predict``.

        Args:
            horizon, known_future, series, known, past: as for ``predict``.
            interval: another probability than that of the fit.
        """
        probability = self.interval if interval is None else _probability(interval)
        steps, histories, form = self._asked(horizon, known_future, series, known, past)
        point = View(self._log, "last").scale(self._forecast(histories, self.model_)[:, :steps])
        spread = np.stack([_naive_scale(one.values, self.season_, self._log) for one in histories])[:, None]
        reach = quantile(self.calibration_, probability)[:steps] * spread
        unscale = View(self._log, "last").unscale
        return _returned(unscale(point - reach), form), _returned(unscale(point + reach), form)

    def score(self, series: Any, y: Any = None, *, known_future: Any = None) -> float:
        """1 - error / error of the naive forecast, on the steps that follow the fit; above 0 is better than naive.

        The naive forecast is the seasonal one, or the last value if there is no season. Errors are mean absolute ones.
        """
        panel = read_panel(series, "series")
        steps = min(map(len, panel.values))
        forecast = self.predict(steps, known_future)
        forecasts = forecast if panel.several else [forecast]
        name = "seasonal naive" if self.season_ > 1 else "last value"
        ours = naive = 0.0
        for one, actual, answer in zip(self.history_, panel.values, forecasts, strict=True):
            answer = np.asarray(answer).reshape(steps, -1)
            ours += float(np.abs(answer - actual[:steps]).mean())
            naive += float(np.abs(simple_forecasts(one.values, steps, self.season_)[name] - actual[:steps]).mean())
        return 1.0 - ours / naive if naive > 0 else (1.0 if ours == 0 else -np.inf)

    def summary(self) -> str:
        """Who won, by how much, and what the interval rests on.

        Example:
            >>> print(Forecaster(2).fit(np.arange(40.0) + np.tile([0.0, 1.0], 20)).summary())
            Season: 2 steps...
        """
        lines = [f"Season: {self.season_} steps." if self.season_ > 1 else "Season: none found or given."]
        ranked = sorted(self.scores_, key=lambda name: self.scores_[name])
        lines.append(
            f"Error at {self.origins_} past origins, relative to the naive forecast inside the series (MASE): "
            + ", ".join(f"{MODELS[name]} {self.scores_[name]:.3g}" for name in ranked)
            + "."
        )
        ours, best = self.scores_[self.model_], next(name for name in ranked if name in SIMPLE)
        if self.model_ in SIMPLE:
            learned = min(self.scores_[name] for name in ("ridge", "reservoir"))
            verdict = (
                "no learned model was better"
                if learned >= ours
                else f"a learned one has {learned:.3g}, but this was asked for"
            )
            lines.append(f"Forecast: {MODELS[self.model_]}, a simple forecast: {verdict}.")
        else:
            less = 1 - ours / self.scores_[best] if self.scores_[best] > 0 else 0.0
            views = f"the mean of {len(self.members_)}" if len(self.members_) > 1 else "one"
            lines.append(
                f"Forecast: {MODELS[self.model_]} ({views}: {'; '.join(map(str, self.members_))}): {abs(less):.0%} "
                f"{'less' if less >= 0 else 'more'} error than {MODELS[best]}, the best simple forecast; better at "
                f"{self.wins_} of {self.origins_} origins."
            )
        held = "held-out windows" if self.honest_ else "the windows that also chose the forecast, as there are too few"
        lines.append(f"Interval: {self.coverage_:.0%}, from {len(self.calibration_)} errors in {held}.")
        return "\n".join(lines)

    # choosing and fitting

    def _choose(self, histories: list[History]) -> None:
        """Ask all forecasts at past origins, take the best, calibrate it and fit it on everything."""
        horizon, values = int(self.horizon), [one.values for one in histories]
        backs = origins(min(map(len, values)), horizon, self.season_, len(values))
        members, groups, forecasts = self._all_forecasts(histories, backs)
        if self.model != "auto" and self.model not in groups:
            raise SettingError(
                f"Forecaster(model={self.model!r}) needs a season, and none was found; give season=12 or so."
            )
        actual = np.stack([[y[len(y) - back :][:horizon] for y in values] for back in backs])
        scales = np.stack([_naive_scale(y, self.season_, False) for y in values])[:, None]
        errors = np.abs(forecasts - actual) / scales  # (members, origins, series, horizon, channels)

        everything = np.ones((len(backs), horizon), dtype=bool)
        self.honest_ = len(backs) > 3
        tested = list(range(max(2, len(backs) // 4), len(backs))) if self.honest_ else list(range(len(backs)))
        knowns = [known_at(backs, j, horizon) if self.honest_ else everything for j in range(len(backs))]
        # what each model would have said: no error is known at the first origin, so nothing is chosen there
        said = {model: np.full(actual.shape, np.nan) for model in groups}
        for model, parts in groups.items():
            for j, known in enumerate(knowns):
                if known.any():
                    said[model][j] = forecasts[best_of(errors, parts, known), j].mean(axis=0)
        missed = {model: np.abs(one - actual) / scales for model, one in said.items()}
        self.scores_ = {model: float(one[tested].mean()) for model, one in missed.items()}
        self.model_ = min(self.scores_, key=self.scores_.__getitem__) if self.model == "auto" else self.model
        simple = min((model for model in SIMPLE if model in groups), key=self.scores_.__getitem__)
        self.origins_ = len(tested)
        self.wins_ = sum(bool(missed[self.model_][j].mean() < missed[simple][j].mean()) for j in tested)

        names, stacked, followed = list(said), np.stack(list(missed.values())), []
        for j in tested:  # the model that would have been chosen
            known = knowns[j].copy()
            known[0] &= not self.honest_
            best = best_of(stacked, [list(range(len(names)))], known)[0]
            followed.append(said[names[best] if self.model == "auto" else self.model_][j])
        final = {model: [members[it] for it in best_of(errors, parts, everything)] for model, parts in groups.items()}
        self.members_ = final[self.model_]
        self._calibrate(values, actual[tested], np.stack(followed))
        self._direct = {
            model: [
                fit_direct(histories, self._design(histories, one.view, model == "reservoir"), horizon, one.penalty)
                for one in chosen
                if one.view is not None
            ]
            for model, chosen in final.items()
        }

    def _all_forecasts(
        self, histories: list[History], backs: list[int]
    ) -> tuple[list[Member], dict[str, list[list[int]]], np.ndarray]:
        """All members, their numbers by model and view, and what they would have said at every origin."""
        horizon, values = int(self.horizon), [one.values for one in histories]
        before = [[simple_forecasts(y[: len(y) - back], horizon, self.season_) for y in values] for back in backs]
        members = [Member(model) for model, shown in MODELS.items() if shown in before[0][0]]
        groups = {one.model: [[index]] for index, one in enumerate(members)}
        forecasts = [np.array([[[it[MODELS[one.model]] for it in row] for row in before] for one in members])]
        for view in views_of(values, self.season_):
            for model in ("ridge", "reservoir"):
                design = self._design(histories, view, model == "reservoir")
                forecasts.append(rolling_forecasts(histories, design, horizon, backs, LAMBDAS))
                groups.setdefault(model, []).append(list(range(len(members), len(members) + len(LAMBDAS))))
                members += [Member(model, view, float(penalty)) for penalty in LAMBDAS]
        return members, groups, np.concatenate(forecasts)

    def _design(self, histories: list[History], view: View, reservoir: bool) -> Design:
        channels, shortest = histories[0].values.shape[1], min(one.steps for one in histories)
        lags = max(1, min(max(12, self.season_ + 1), shortest // 4, MOST_COLUMNS // channels))
        sides = np.concatenate([
            np.concatenate([one.past, one.known[: one.steps]], axis=1)[: first_half(one.steps)] for one in histories
        ])  # fmt: skip
        spread = sides.std(axis=0)
        width = channels + sides.shape[1]
        cells = step_reservoir(width, int(self.random_state)) if reservoir else None
        return Design(view, lags, sides.mean(axis=0), np.where(spread > 0, spread, 1.0), cells)

    def _calibrate(self, values: list[np.ndarray], actual: np.ndarray, said: np.ndarray) -> None:
        """Errors on the scale of the best view, in units of each series' naive error: (errors, horizon, channels)."""
        best = self.members_[0].view
        self._log = best is not None and best.log and bool((said > 0).all())
        scale = View(self._log, "last").scale
        spread = np.stack([_naive_scale(y, self.season_, self._log) for y in values])[:, None]
        scores = np.abs(scale(said) - scale(actual)) / spread
        self.calibration_ = scores.reshape(-1, *scores.shape[2:])
        count = len(self.calibration_)
        self.coverage_ = float(min(self.interval, count / (count + 1)))
        if self.coverage_ < self.interval:
            warnings.warn(
                f"Forecaster has {count} past errors per step, enough for intervals of {self.coverage_:.0%} and not of "
                f"{self.interval:.0%}; give a longer series or a shorter horizon.",
                UserWarning,
                stacklevel=4,
            )

    # predicting

    def _asked(
        self, horizon: int | None, known_future: Any, series: Any, known: Any, past: Any
    ) -> tuple[int, list[History], tuple[bool, bool]]:
        if not hasattr(self, "history_"):
            raise NotFittedError("This Forecaster is not fitted yet; call fit(series) first.")
        steps = (
            int(self.horizon) if horizon is None else positive_size("Forecaster.predict", "horizon", _whole(horizon))
        )
        if steps > int(self.horizon):
            raise SettingError(
                f"Forecaster was fitted for {self.horizon} steps ahead, got horizon={steps}; fit it anew."
            )
        histories, form = self.history_, self._form
        if series is not None:
            panel = read_panel(series, "series")
            if panel.channels != len(self.names_):
                raise DataError(f"series has {panel.channels} channels, expected {len(self.names_)} as in the fit.")
            histories = _histories(panel, known, past)
            form = panel.several, panel.flat
            _same_columns(histories[0], self.known_columns_, self.past_columns_)
            least = self.season_ + 2
            for one in histories:
                if one.steps < least:
                    raise DataError(f"A series has {one.steps} steps; a forecast needs at least {least}.")
        futures = self._futures(histories, known_future)
        return steps, [self._with_future(one, steps, future) for one, future in futures], form

    def _futures(self, histories: list[History], known_future: Any):
        if known_future is None:
            if self.known_columns_:
                raise DataError(
                    f"Forecaster was fitted with {self.known_columns_} known columns; predict needs known_future with "
                    f"their values for the next steps, of shape (horizon, {self.known_columns_})."
                )
            return [(one, None) for one in histories]
        panel = read_panel(known_future, "known_future")
        if panel.channels != self.known_columns_ or len(panel.values) != len(histories):
            raise DataError(
                f"known_future has {len(panel.values)} parts with {panel.channels} columns, expected {len(histories)} "
                f"with {self.known_columns_}, as in the fit."
            )
        return list(zip(histories, panel.values, strict=True))

    def _with_future(self, history: History, steps: int, future: np.ndarray | None) -> History:
        if future is None:
            return history
        if len(future) < steps:
            raise DataError(f"known_future has {len(future)} steps, expected {steps}.")
        # horizons beyond those asked for are computed and thrown away: any value does
        padding = np.repeat(future[-1:], max(0, int(self.horizon) - len(future)), axis=0)
        return dataclasses.replace(history, known=np.concatenate([history.known[: history.steps], future, padding]))

    def _forecast(self, histories: list[History], model: str) -> np.ndarray:
        if self._direct[model]:
            return np.mean([one.forecast(histories) for one in self._direct[model]], axis=0)
        horizon, shown = int(self.horizon), MODELS[model]
        return np.stack([simple_forecasts(one.values, horizon, self.season_)[shown] for one in histories])

    # checks

    def _check_settings(self) -> None:
        positive_size("Forecaster", "horizon", _whole(self.horizon))
        if self.model in LAYERS:
            raise SettingError(
                f"Forecaster expects model to be one of auto, {', '.join(MODELS)}, got {self.model!r}, which would "
                "have to be trained again at every past origin. To train a cell, predict the next step: holdfast train "
                f"--data FILE --cell {self.model}."
            )
        one_of("Forecaster", "model", self.model, ("auto", *MODELS))
        if self.season != "auto":
            positive_size("Forecaster", "season", _whole(self.season))
        _probability(self.interval)

    def _season_of(self, panel: Panel) -> int:
        if self.season != "auto":
            return int(self.season)
        dated = [season for when in panel.times if when is not None and (season := season_of_times(when))]
        season = dated[0] if dated else season_of_values(panel.values)
        least = min(map(len, panel.values))
        return season if least >= max(2 * season, LEAST_STEPS) + int(self.horizon) else 1  # too short for its season

    def _check_lengths(self, panel: Panel) -> None:
        for index, y in enumerate(panel.values):
            who = f"series[{index}]" if panel.several else "series"
            least = max(2 * self.season_, LEAST_STEPS) + int(self.horizon)
            if len(y) < least:
                seasons = (
                    f"two seasons of {self.season_} steps" if 2 * self.season_ > LEAST_STEPS else f"{LEAST_STEPS} steps"
                )
                raise DataError(
                    f"{who} has {len(y)} steps; {seasons} and a horizon of {self.horizon} need at least {least}. Give "
                    "a longer series, a shorter horizon, or season=1."
                )
            if (constant := (y == y[0]).all(axis=0)).any():
                channel = panel.names[int(constant.argmax())]
                raise DataError(
                    f"{who}: channel {channel!r} is {y[0, constant.argmax()]:g} at every step; leave it out."
                )


def _histories(panel: Panel, known: Any, past: Any) -> list[History]:
    """The series with their other columns, which must be as long."""
    sides: dict[str, list[np.ndarray]] = {}
    for name, given in (("past", past), ("known", known)):
        sides[name] = [np.zeros((len(y), 0)) for y in panel.values]
        if given is None:
            continue
        columns = read_panel(given, name)
        if len(columns.values) != len(panel.values):
            raise DataError(
                f"{name} has {len(columns.values)} parts for {len(panel.values)} series; expected one for each."
            )
        for index, (y, column) in enumerate(zip(panel.values, columns.values, strict=True)):
            if len(column) != len(y):
                raise DataError(f"{name}[{index}] has {len(column)} steps, its series {len(y)}; expected the same.")
        sides[name] = columns.values
    return [History(*parts) for parts in zip(panel.values, sides["past"], sides["known"], strict=True)]


def _same_columns(history: History, known: int, past: int) -> None:
    for name, there, wanted in (("known", history.known.shape[1], known), ("past", history.past.shape[1], past)):
        if there != wanted:
            raise DataError(f"{name} has {there} columns, expected {wanted} as in the fit.")


def _returned(answers: np.ndarray, form: tuple[bool, bool]) -> Any:
    """(series, steps, channels) in the form of the series: several or one, with channels or without."""
    several, flat = form
    parts = [one[:, 0] if flat else one for one in answers]
    return parts if several else parts[0]


def _naive_scale(y: np.ndarray, season: int, log: bool) -> np.ndarray:
    """Mean absolute (seasonal) difference of each channel: the unit of errors."""
    z = View(log, "last").scale(y)
    scale = np.nanmean(np.abs(z - shifted(z, season)), axis=0)
    scale = np.where(scale > 0, scale, np.abs(np.diff(z, axis=0)).mean(axis=0))
    return np.where(scale > 0, scale, 1.0)


def _probability(value: float) -> float:
    if not 0 < value < 1:
        raise SettingError(f"Forecaster expects interval to be a probability between 0 and 1, got {value!r}.")
    return float(value)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, np.integer) else value
