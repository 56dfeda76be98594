"""Forecasts: exact where the series is, equivariant, without a look ahead, and with intervals that cover."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit
from sklearn.utils import estimator_checks

from holdfast import Forecaster
from holdfast.errors import DataError, SettingError
from holdfast.estimators.forecasting.design import Design, History
from holdfast.estimators.forecasting.direct import fit_direct, rolling_forecasts
from holdfast.estimators.forecasting.ridge import RidgeSums
from holdfast.estimators.forecasting.rolling import best_of, known_at, origins, quantile
from holdfast.estimators.forecasting.season import season_of_times, season_of_values
from holdfast.estimators.forecasting.states import step_reservoir
from holdfast.estimators.forecasting.views import View


def seasonal(steps, season=4, noise=0.0, seed=0):
    t = np.arange(steps)
    return (
        50
        + 0.5 * t
        + 10 * np.sin(2 * np.pi * t / season + 0.3)
        + noise * np.random.default_rng(seed).normal(size=steps)
    )


def history(y):
    return History(y.reshape(len(y), -1), np.zeros((len(y), 0)), np.zeros((len(y), 0)))


def design(view, reservoir=False, lags=5):
    return Design(view, lags, np.zeros(0), np.ones(0), step_reservoir(1, 0) if reservoir else None)


def test_a_trend_with_a_season_is_forecast_exactly():
    y = seasonal(60)
    forecaster = Forecaster(6).fit(y[:-6])
    assert forecaster.season_ == 4
    np.testing.assert_allclose(forecaster.predict(), y[-6:], rtol=1e-3)
    assert forecaster.score(y[-6:]) > 0.99


def test_an_autoregression_is_forecast_as_its_conditional_mean():
    """y_t = 1.5 y_{t-1} - 0.8 y_{t-2} + ε: the forecast tends to E[y_{t+h} | y_t, y_{t-1}]."""
    random, y = np.random.default_rng(0), [0.0, 0.0]
    for _ in range(1500):
        y.append(1.5 * y[-1] - 0.8 * y[-2] + random.normal())
    expected = y[-2:]
    for _ in range(4):
        expected.append(1.5 * expected[-1] - 0.8 * expected[-2])
    forecast = Forecaster(4, season=1, model="ridge").fit(np.array(y)).predict()
    np.testing.assert_allclose(forecast, expected[2:], atol=0.25 * np.std(y))


@pytest.mark.parametrize("base", ["level", "last", "season", "both"])
@pytest.mark.parametrize("reservoir", [False, True])
def test_a_forecast_at_an_origin_does_not_depend_on_what_comes_after(base, reservoir):
    """For all changes of y after the origin; a change of the last step before it does matter."""
    y, backs = seasonal(60, noise=1.0), [30, 12, 4]  # from the middle of the series on
    view = View(False, base, 4)

    def forecasts(values):
        return rolling_forecasts([history(values)], design(view, reservoir), 4, backs, np.array([0.01, 1.0]))

    before, later, sooner = forecasts(y), y.copy(), y.copy()
    later[60 - 12 :] += 100 * np.random.default_rng(1).normal(size=12)
    sooner[60 - 12 - 1] += 1.0
    soonest = y.copy()
    soonest[30:] *= 7
    np.testing.assert_array_equal(forecasts(soonest)[:, 0], before[:, 0])
    np.testing.assert_array_equal(forecasts(later)[:, :2], before[:, :2])
    assert not np.array_equal(forecasts(later)[:, 2], before[:, 2])
    assert not np.array_equal(forecasts(sooner)[:, 1], before[:, 1])


def test_the_last_rolling_forecast_is_that_of_a_fit_on_what_was_known():
    """Scales come from the first half, which has 40 of 80 and of 81 steps."""
    y = seasonal(81, noise=1.0)
    one = design(View(False, "last", 1), reservoir=True)
    rolled = rolling_forecasts([history(y)], one, 3, [1], np.array([0.1]))[0, 0, 0]
    fitted = fit_direct([history(y[:80])], one, 3, 0.1).forecast([history(y[:80])])[0]  # 81 // 2 == 80 // 2
    np.testing.assert_allclose(rolled, fitted, rtol=1e-8)


def test_the_sums_give_scikit_learns_ridge():
    random = np.random.default_rng(0)
    x, r, new = random.normal(size=(40, 6)), random.normal(size=(40, 2)), random.normal(size=(3, 6))
    sums = RidgeSums(6, 2)
    sums.add(x[:25], r[:25])
    sums.add(x[25:], r[25:])
    for penalty, line in zip((0.01, 1.0), sums.lines([0.01, 1.0]), strict=True):
        np.testing.assert_allclose(line(new), Ridge(40 * penalty).fit(x, r).predict(new), rtol=1e-8)


@pytest.mark.parametrize("model", ["reservoir", "ridge", "drift", "seasonal"])
def test_a_forecast_follows_units_and_zero_point(model):
    """ŷ(a y + b) = a ŷ(y) + b for all a > 0 and b, where no logarithm is taken."""
    y = seasonal(48, noise=2.0) - 60  # crosses zero
    first, second = (Forecaster(3, model).fit(one) for one in (y, 1000 * y - 7))
    np.testing.assert_allclose(second.predict(), 1000 * first.predict() - 7, rtol=1e-6)
    np.testing.assert_allclose(second.predict_interval()[1], 1000 * first.predict_interval()[1] - 7, rtol=1e-6)


def test_simple_models_are_what_they_say():
    y = np.array([1.0, 5.0, 2.0, 6.0, 3.0, 7.0, 4.0, 9.0, 5.0, 10.0, 6.0, 12.0, 7.0, 13.0, 8.0, 15.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few errors for 90%
        answers = {model: Forecaster(3, model, season=2).fit(y).predict() for model in ("last", "drift", "seasonal")}
    np.testing.assert_allclose(answers["last"], 15.0)
    np.testing.assert_allclose(answers["drift"], 15 + 14 / 15 * np.arange(1, 4))
    np.testing.assert_allclose(answers["seasonal"], [8.0, 15.0, 8.0])


def test_auto_takes_the_least_error_and_the_summary_says_so():
    """A random walk: its last value is the best forecast there is, and nothing learned can beat it for long."""
    y = np.random.default_rng(3).normal(size=90).cumsum()
    forecaster = Forecaster(4, season=1).fit(y)
    assert forecaster.model_ == min(forecaster.scores_, key=forecaster.scores_.get)
    assert set(forecaster.scores_) == {"last", "drift", "ridge", "reservoir"}
    np.testing.assert_array_equal(forecaster.predict_all()[forecaster.model_], forecaster.predict())
    simple = Forecaster(4, season=1, model="last").fit(y)
    assert "a simple forecast" in simple.summary()
    np.testing.assert_array_equal(simple.predict(), np.repeat(y[-1], 4))


def test_choices_use_known_errors_alone():
    """Errors not yet known at an origin change no choice made there."""
    random, backs = np.random.default_rng(0), [7, 6, 4, 3]
    errors, known = random.random((6, 4, 1, 3, 1)), known_at(backs, 2, 3)
    assert known.tolist() == [[True] * 3, [True, True, False], [False] * 3, [False] * 3]
    other = np.where(known[None, :, None, :, None], errors, random.random(errors.shape))
    assert best_of(errors, [[0, 1, 2], [3, 4, 5]], known) == best_of(other, [[0, 1, 2], [3, 4, 5]], known)


def test_intervals_of_exchangeable_series_cover_as_promised():
    """40 series of independent numbers, 4 steps ahead, 4 draws: coverage within 3 deviations of 0.8.

    Pooled over 40 series and 6 origins, a step has 160 errors or more to calibrate on. Coverage given those has a
    deviation of √(0.8 · 0.2 / 160), and 640 checks have one of √(0.8 · 0.2 / 640); both add up.
    """
    inside = []
    for seed in range(4):
        y = np.random.default_rng(seed).standard_t(4, size=(40, 44))
        forecaster = Forecaster(4, season=1, interval=0.8, random_state=seed).fit(list(y[:, :40]))
        low, high = (np.stack(ends) for ends in forecaster.predict_interval())
        inside.append(((low <= y[:, 40:]) & (y[:, 40:] <= high)).mean())
        assert (np.stack(forecaster.predict_interval(interval=0.95)[1]) >= high).all()
    deviation = np.sqrt(0.8 * 0.2 * (1 / 640 + 1 / (4 * 160)))
    assert abs(np.mean(inside) - 0.8) < 3 * deviation


def test_the_quantile_covers_one_more_exchangeable_value():
    """P(x_{n+1} ≤ q) = ⌈(n + 1) p⌉ / (n + 1), exactly, over all places that the new value can take."""
    for count, probability in ((9, 0.9), (10, 0.9), (18, 0.9), (19, 0.8)):
        values = np.arange(count + 1.0)
        covered = [values[new] <= quantile(np.delete(values, new), probability) for new in range(count + 1)]
        assert np.mean(covered) == pytest.approx(np.ceil(round((count + 1) * probability, 9)) / (count + 1))


def test_intervals_on_the_logarithmic_scale_are_positive_and_follow_the_level():
    random, t = np.random.default_rng(0), np.arange(96)
    y = np.exp(0.03 * t + 0.5 * np.sin(2 * np.pi * t / 12) + 0.05 * random.normal(size=96))
    forecaster = Forecaster(12, season=12).fit(y)
    low, high = forecaster.predict_interval()
    assert forecaster._log
    assert (low > 0).all()
    assert (low < forecaster.predict()).all()
    assert (high > forecaster.predict()).all()


def test_columns_known_ahead_are_used_and_asked_for():
    random = np.random.default_rng(0)
    known = random.normal(size=(84, 1))
    y = 20 + 5 * known[:, 0] + 0.2 * random.normal(size=84)
    forecaster = Forecaster(4, season=1).fit(y[:80], known=known[:80])
    np.testing.assert_allclose(forecaster.predict(known_future=known[80:]), y[80:], atol=1.5)
    assert forecaster.predict(2, known[80:82]).shape == (2,)
    with pytest.raises(DataError, match=r"fitted with 1 known columns; predict needs known_future.*\(horizon, 1\)"):
        forecaster.predict()
    with pytest.raises(DataError, match="known_future has 3 steps, expected 4"):
        forecaster.predict(known_future=known[80:83])


def test_columns_of_the_past_are_used():
    """y_t = x_{t-1}: one step ahead the past column says all."""
    x = np.random.default_rng(0).normal(size=90)
    y = np.concatenate([[0.0], x[:-1]])
    forecaster = Forecaster(1, season=1).fit(y, past=x)
    assert forecaster.predict()[0] == pytest.approx(x[-1], abs=0.2)
    assert forecaster.scores_["ridge"] < 0.3 * forecaster.scores_["last"]


def test_forms_of_series():
    """1-D, (time, channels), and lists of different lengths; each answer has the form of its series."""
    y, z = seasonal(60, noise=1.0), seasonal(45, noise=1.0, seed=1)
    assert Forecaster(3).fit(y).predict().shape == (3,)
    both = Forecaster(3).fit(np.stack([y, y[::-1]], axis=1))
    assert both.predict().shape == (3, 2)
    assert both.predict_interval()[0].shape == (3, 2)
    several = Forecaster(3, season=4).fit([y, z])
    assert [one.shape for one in several.predict()] == [(3,), (3,)]
    for before, after in zip(several.predict(), several.predict(series=[y, z]), strict=True):
        np.testing.assert_allclose(before, after)
    assert several.predict(series=y[:50]).shape == several.predict(series=y[:8]).shape == (3,)  # 8: fewer than lags
    assert several.predict(2)[0].shape == (2,)


def test_scikit_learns_habits():
    y = seasonal(72, noise=1.0)
    forecaster = Forecaster(3, season=4, random_state=1)
    assert clone(forecaster).get_params() == forecaster.get_params()
    fitted = forecaster.fit(y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(), fitted.predict())
    np.testing.assert_array_equal(clone(fitted).fit(y).predict(), fitted.predict())
    search = GridSearchCV(forecaster, {"model": ["last", "ridge"]}, cv=TimeSeriesSplit(2, test_size=3)).fit(y)
    assert search.best_params_ == {"model": "ridge"}


@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
    ],
)
def test_scikit_learns_checks_of_settings_pass(check):
    """The checks of fit and predict do not apply: they pass rows of independent samples and an answer y for each."""
    check("Forecaster", Forecaster())


def test_seasons_are_found():
    months = np.arange("2020-01", "2024-01", dtype="datetime64[M]")
    assert season_of_times(months) == 12
    assert season_of_times(np.arange("2020-01-01", "2020-03-01", dtype="datetime64[D]")) == 7
    assert season_of_times(np.arange(5)) is None
    assert season_of_values([seasonal(80, 7, noise=1.0)[:, None]]) == 7
    assert season_of_values([np.random.default_rng(0).normal(size=(80, 1)).cumsum(0)]) == 1


def test_a_frame_brings_its_dates_and_names():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"sales": seasonal(60, 12)}, index=pandas.date_range("2020-01-01", periods=60, freq="MS"))
    forecaster = Forecaster(6).fit(frame)
    assert forecaster.season_ == 12
    assert forecaster.predict().shape == (6, 1)
    with pytest.raises(DataError, match="comes after"):
        Forecaster(6).fit(frame.iloc[::-1])
    with pytest.warns(UserWarning, match="not equally spaced"):
        Forecaster(6).fit(frame.drop(frame.index[20]))


def test_origins_leave_half_of_the_series_and_end_at_the_horizon():
    backs = origins(200, 12, 12, series=1)
    assert backs[-1] == 12
    assert len(backs) == 24
    assert 200 - backs[0] >= 100


Y = seasonal(60, noise=1.0)
HOLE = np.where(np.isin(np.arange(60), [7, 9]), np.nan, Y)


@pytest.mark.parametrize(
    ("options", "series", "error", "message"),
    [
        ({"horizon": 0}, Y, SettingError, "horizon to be a whole number of at least 1, got 0"),
        ({"horizon": 2.5}, Y, SettingError, "horizon to be a whole number of at least 1, got 2.5"),
        ({"season": 0}, Y, SettingError, "season to be a whole number of at least 1, got 0"),
        ({"interval": 1.5}, Y, SettingError, "probability between 0 and 1, got 1.5"),
        ({"model": "arima"}, Y, SettingError, "model to be one of auto, last, drift, .*got 'arima'"),
        ({"season": 1, "model": "seasonal"}, Y, SettingError, "needs a season"),
        ({"horizon": 12, "season": 12}, Y[:30], DataError, r"30 steps; two seasons of 12 .* need at least 36"),
        ({"horizon": 12}, Y[:10], DataError, r"10 steps; 8 steps and a horizon of 12 need at least 20"),
        ({}, HOLE, DataError, r"NaN or infinity in 2 of 60 rows, counted from 0: 7, 9"),
        ({}, np.full(60, 5.0), DataError, "'0' is 5 at every step"),
        ({}, [Y, np.full(60, 5.0)], DataError, r"series\[1\]: channel '0' is 5 at every step"),
        ({}, [Y, np.stack([Y, Y], axis=1)], DataError, r"series\[1\] has 2 columns, the first series 1"),
        ({}, ["a", "b"], DataError, "must hold numbers"),
        ({}, np.zeros((2, 2, 2)), DataError, r"shape \(time,\) or \(time, channels\), got \(2, 2, 2\)"),
        ({}, [], DataError, "series is empty"),
        ({}, 1e200 * Y, DataError, "rescale it to below 1e100"),
    ],
)
def test_bad_input_is_refused_in_words(options, series, error, message):
    with pytest.raises(error, match=message):
        Forecaster(**{"horizon": 4, **options}).fit(series)


def test_bad_requests_are_refused_in_words():
    forecaster = Forecaster(3, season=4).fit(Y)
    with pytest.raises(SettingError, match="fitted for 3 steps ahead, got horizon=4"):
        forecaster.predict(4)
    with pytest.raises(SettingError, match="horizon to be a whole number of at least 1, got 0"):
        forecaster.predict(0)
    with pytest.raises(DataError, match="has 3 steps; a forecast needs at least 6"):
        forecaster.predict(series=Y[:3])
    with pytest.raises(ValueError, match="not fitted yet"):
        Forecaster().predict()
    with pytest.raises(DataError, match=r"known\[0\] has 9 steps, its series 60"):
        Forecaster(3).fit(Y, known=np.zeros(9))
    with pytest.warns(UserWarning, match="enough for intervals of"):
        Forecaster(6, season=1).fit(Y[:15])


def test_a_trained_cell_is_refused_with_what_there_is_and_what_to_do():
    with pytest.raises(
        SettingError, match=r"one of auto, last, .*reservoir, got 'gru', .*holdfast train --data FILE --cell"
    ):
        Forecaster(4, model="gru").fit(np.arange(40.0))
