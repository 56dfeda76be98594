"""``holdfast train --forecast`` and ``holdfast predict`` of its run."""

import numpy as np
import pytest


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sales.csv"
    values = 10 + np.arange(40) + np.random.default_rng(0).normal(size=40)
    path.write_text("year,Sales\n" + "".join(f"{1980 + step},{value}\n" for step, value in enumerate(values)))
    return path


def test_a_forecast_from_the_command_line(command, file, tmp_path):
    ran = command("train", "--data", file, "--forecast", "sales", "--horizon", "2", "--run", tmp_path / "run")
    assert ran.code == 0, ran.err
    assert "Steps are ordered by 'year'" in ran.out
    assert "Error at" in ran.out
    assert "Interval: 90%" in ran.out
    ran = command("predict", tmp_path / "run", "--out", tmp_path / "out.csv")
    assert ran.code == 0, ran.err
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "year,Sales,Sales low,Sales high"
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("2020,")
    for verb in ("evaluate", "resume"):
        ran = command(verb, tmp_path / "run")
        assert ran.code == 1
        assert "holds a forecast" in ran.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--forecast", "Sales", "--target", "year"), "give --forecast or --target, not both"),
        (("--forecast", "Sales", "--hidden", "8"), "give --forecast or --hidden, not both"),
        (("--forecast", "Sales", "--cell", "gru"), "give --forecast or --cell, not both"),
        (("--forecast", "Sales", "--horizon", "0"), "greater than or equal to 1"),
        (
            ("--forecast", "Sales", "--impute", "last"),
            "give --forecast or --impute, not both: a forecast needs complete",
        ),
        (
            ("--forecast", "Sales", "--test", "b.csv"),
            "give --forecast or --test, not both: a forecast is tested at past",
        ),
        (("--horizon", "3"), "is for forecasts; add --forecast COLUMN"),
        (("--known", "Sales"), "is for forecasts; add --forecast COLUMN"),
        (("--season", "4"), "is for forecasts; add --forecast COLUMN"),
    ],
)
def test_options_that_do_not_go_together(command, file, options, message):
    ran = command("train", "--data", file, *options)
    assert ran.code == 2
    assert message in " ".join(ran.err.replace("│", " ").split())


def test_a_forecast_needs_a_file(command):
    ran = command("train", "--forecast", "Sales")
    assert ran.code == 2
    assert "add --data FILE" in " ".join(ran.err.replace("│", " ").split())
