"""A forecast in a folder: from a file's columns, kept without code, and asked again when the file is gone."""

import csv
import json
import shutil

import numpy as np
import pytest

from holdfast import Forecaster
from holdfast.errors import CheckpointError, ConfigError, DataError
from holdfast.estimators.forecast_run import ForecastRequest, load_forecast, predict_forecast, train_forecast
from holdfast.estimators.forecasting.times import dates_of, next_times
from holdfast.runs import load_run

MONTHS = np.arange("2018-01", "2022-01", dtype="datetime64[M]")
RANDOM = np.random.default_rng(0)
SALES = 50 + np.arange(48) + 8 * np.sin(np.arange(48) * np.pi / 6) + RANDOM.normal(size=48)


def write(path, columns):
    """Columns as a .csv file; None is an empty value."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def read(path):
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def request(path, *columns, **options):
    return ForecastRequest(path, columns or ("sales",), **{"horizon": 3, **options})


@pytest.fixture(scope="module")
def monthly(tmp_path_factory):
    """A run on monthly sales with a year column, and the file it came from."""
    folder = tmp_path_factory.mktemp("monthly")
    years = [str(month)[:4] for month in MONTHS]
    path = write(folder / "sales.csv", {"": range(48), "date": MONTHS, "year": years, "sales": SALES})
    return train_forecast(request(path), folder / "run"), folder / "run", path


def test_a_run_forecasts_as_the_forecaster_does_with_nothing_but_its_folder(monthly, tmp_path):
    made, folder, _ = monthly
    assert made.forecaster.season_ == 12
    assert made.roles.past == ()  # the year, the date and the row numbers are no inputs
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved)
    predict_forecast(moved, None, tmp_path / "out.csv")
    answers = read(tmp_path / "out.csv")
    assert answers["date"] == ["2022-01", "2022-02", "2022-03"]
    expected = Forecaster(3, season=12).fit(SALES)
    np.testing.assert_allclose(np.array(answers["sales"], dtype=float), expected.predict(), rtol=1e-7)
    for name, ends in zip(("sales low", "sales high"), expected.predict_interval(), strict=True):
        np.testing.assert_allclose(np.array(answers[name], dtype=float), ends, rtol=1e-7)
    assert (folder / "forecast.png").read_bytes()[:4] == b"\x89PNG"
    assert load_forecast(folder).forecaster.summary() == made.forecaster.summary()


def test_the_order_of_rows_does_not_matter_and_newer_steps_do(monthly, tmp_path):
    _, folder, _ = monthly
    shuffle = RANDOM.permutation(48)
    path = write(tmp_path / "other.csv", {"date": MONTHS[shuffle], "sales": SALES[shuffle]})
    predict_forecast(folder, path, tmp_path / "same.csv")
    predict_forecast(folder, None, tmp_path / "out.csv")
    assert read(tmp_path / "same.csv") == read(tmp_path / "out.csv")
    newer = np.arange("2018-01", "2022-02", dtype="datetime64[M]")
    path = write(tmp_path / "newer.csv", {"date": newer, "sales": [*SALES, 200.0]})
    predict_forecast(folder, path, tmp_path / "newer.out.csv")
    assert read(tmp_path / "newer.out.csv")["date"][0] == "2022-02"


def test_damage_is_noticed(monthly, tmp_path):
    _, folder, _ = monthly
    for name, change, message in (
        ("forecast.safetensors", lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "damaged or of another run"),
        (
            "forecast.json",
            lambda raw: raw.replace(b'"lags"', b'"lag"').replace(b'"names"', b'"name"'),
            "not a forecast|damaged",
        ),
    ):
        copy = tmp_path / name
        shutil.copytree(folder, copy)
        (copy / name).write_bytes(change((copy / name).read_bytes()))
        with pytest.raises(CheckpointError, match=message):
            load_forecast(copy)
    for change in ({"parameters": {"horizon": 10**12}}, {"members": [{"view": None, "penalty": 0, "lags": 10**12}]}):
        meta = json.loads((folder / "forecast.json").read_text())
        meta["forecaster"] |= change  # a size that would take all memory
        (copy / "forecast.json").write_text(json.dumps(meta))
        with pytest.raises(CheckpointError, match="not a forecast that Holdfast wrote"):
            load_forecast(copy)
    (copy / "forecast.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"forecast.safetensors is missing"):
        load_forecast(copy)
    meta = json.loads((folder / "forecast.json").read_text())
    assert {"sha256", "data_sha256", "roles", "choices"} <= set(meta)


def test_a_folder_with_a_forecast_is_not_used_twice_nor_as_another_run(monthly):
    _, folder, path = monthly
    with pytest.raises(ConfigError, match="holds a run already"):
        train_forecast(request(path), folder)
    with pytest.raises(ConfigError, match="holds a forecast"):
        load_run(folder)


def test_several_series_are_named(tmp_path):
    columns = {"id": ["a"] * 40 + ["b"] * 30, "step": [*range(40), *range(30)], "sales": [*SALES[:40], *SALES[:30]]}
    made = train_forecast(request(write(tmp_path / "two.csv", columns)), tmp_path / "run")
    assert made.names == ("a", "b")
    predict_forecast(tmp_path / "run", None, tmp_path / "out.csv")
    answers = read(tmp_path / "out.csv")
    assert answers["id"] == ["a"] * 3 + ["b"] * 3
    assert answers["step"] == ["40", "41", "42", "30", "31", "32"]
    columns["id"][5] = None
    with pytest.raises(DataError, match=r"'id' names the series and is empty in row 6"):
        train_forecast(request(write(tmp_path / "hole.csv", columns)), tmp_path / "other")


def test_columns_known_ahead_come_from_empty_rows_or_from_a_file(tmp_path):
    """The forecast of 3 x + noise follows x."""
    x = RANDOM.normal(size=63)
    y = [*(20 + 3 * x[:60] + 0.1 * RANDOM.normal(size=60)), None, None, None]
    path = write(tmp_path / "full.csv", {"x": x, "sales": y})
    train_forecast(request(path, known=("x",), season=1), tmp_path / "run")
    predict_forecast(tmp_path / "run", None, tmp_path / "out.csv")
    forecast = np.array(read(tmp_path / "out.csv")["sales"], dtype=float)
    np.testing.assert_allclose(forecast, 20 + 3 * x[60:], atol=0.8)
    train_forecast(
        request(write(tmp_path / "cut.csv", {"x": x[:60], "sales": y[:60]}), known=("x",), season=1), tmp_path / "cut"
    )
    assert not (tmp_path / "cut" / "forecast.png").exists()
    with pytest.raises(DataError, match=r"needs 'x' for the next 3 steps. Add rows for them, with 'sales' left empty"):
        predict_forecast(tmp_path / "cut", None, tmp_path / "out.csv")
    predict_forecast(tmp_path / "cut", write(tmp_path / "future.csv", {"x": x[60:]}), tmp_path / "again.csv")
    np.testing.assert_allclose(np.array(read(tmp_path / "again.csv")["sales"], dtype=float), forecast, rtol=1e-6)
    with pytest.raises(DataError, match="'x' for the next 3 steps"):
        predict_forecast(tmp_path / "cut", write(tmp_path / "short.csv", {"x": x[60:62]}), tmp_path / "out.csv")


def test_other_columns_are_used_only_if_they_help(tmp_path):
    leading = RANDOM.normal(size=80)
    columns = {"leading": leading, "sales": [0.0, *leading[:-1]]}
    made = train_forecast(request(write(tmp_path / "a.csv", columns), horizon=1, season=1), tmp_path / "a")
    assert made.roles.past == ("leading",)
    assert any("'leading': used" in sentence for sentence in made.choices)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"date": [*MONTHS[:-1], MONTHS[-2]], "sales": SALES}, {}, "the time 2021-11 .* appears twice"),
        ({"sales": [*SALES[:5], None, *SALES[6:]]}, {}, r"'sales' has no value in 1 rows before the last: row 6"),
        ({"sales": ["many"] * 48}, {}, "'sales' holds 'many', not numbers"),
        ({"sales": [7.0] * 48}, {}, "is 7 at every step"),
        ({"sales": SALES[:9]}, {}, r"9 steps; 8 steps and a horizon of 3 need at least 11. .*a smaller --horizon"),
        ({"sales": SALES}, {"season": 30}, "two seasons of 30 steps.*--season 1"),
        ({"sales": SALES}, {"known": ("sales",)}, "'sales' has two roles"),
        ({"sales": SALES}, {"known": ("price",)}, "the column 'price' is not in it"),
        ({"when": ["soon"] * 48, "sales": SALES}, {"time": "when"}, "'when' must hold dates or numbers without gaps"),
        ({"x": [*range(40), *[None] * 8], "sales": SALES}, {"known": ("x",)}, "'x' has no value in row 41"),
    ],
)
def test_bad_files_are_refused_in_words(tmp_path, columns, options, message):
    path = write(tmp_path / "bad.csv", columns)
    with pytest.raises(DataError, match=message):
        train_forecast(request(path, **options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unequal_distances_are_noted(tmp_path):
    path = write(tmp_path / "gap.csv", {"date": np.delete(MONTHS, 20), "sales": np.delete(SALES, 20)})
    made = train_forecast(request(path), tmp_path / "run")
    assert any("not equally spaced" in sentence for sentence in made.choices)


def test_dates_are_read_as_people_write_them():
    def text(*values):
        return np.array(values, dtype=object)

    for written in (
        text("1991 Jul", "1991 Aug"), text("1991-07", "1991-08"), text("Jul-1-1991", "Aug-1-1991"),
        text("01.07.1991", "01.08.1991"), np.array([19910701, 19910801]),
    ):  # fmt: skip
        found = dates_of(written)
        assert found is not None
        assert found.astype("datetime64[D]").astype(str).tolist() == ["1991-07-01", "1991-08-01"]
    assert dates_of(text("3/4/2020", "3/5/2020")) is None  # day or month?
    assert dates_of(text("one", None)) is None
    assert dates_of(np.array([1991, 1992])) is None  # years are numbers


def test_times_continue_by_the_calendar():
    quarters = dates_of(np.array(["1970 Q3", "1970 Q4", "1971 Q1"], dtype=object))
    assert quarters is not None
    assert next_times(quarters, 2).astype(str).tolist() == ["1971-04", "1971-07"]
    ends = np.array(["2020-01-15", "2020-02-15", "2020-03-15"], dtype="datetime64[D]")
    assert next_times(ends, 1).astype(str).tolist() == ["2020-04-15"]
    days = np.array(["2020-02-27", "2020-02-28"], dtype="datetime64[D]")
    assert next_times(days, 2).astype(str).tolist() == ["2020-02-29", "2020-03-01"]
