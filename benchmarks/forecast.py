"""Forecasts on series that ship with sktime and statsmodels: the error of every method, and how often intervals cover.

    MASE = mean |y - ŷ| / mean |y_t - y_{t-m}| in the training part     (1) m: the season, 1 if there is none

    python benchmarks/forecast.py --packages .../site-packages --out benchmarks/forecast.json

Each series is cut at five origins, one horizon apart, the last one horizon before its end. Everything is fitted on what
comes before the origin. The development series were used to choose the defaults, the others were not.
The packages are only looked into for their files: they are not imported.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import re
import warnings
from pathlib import Path

import numpy as np

from holdfast import Forecaster, __version__
from holdfast.files import write_atomically

SKTIME, STATSMODELS = "sktime/datasets/data", "statsmodels/datasets"
SERIES = {  # name: (file, column, season, horizon, for development)
    "airline": (f"{SKTIME}/Airline/Airline.csv", "Passengers", 12, 12, True),
    "lynx": (f"{SKTIME}/Lynx/Lynx.csv", "0", 1, 6, True),
    "sunspots": (f"{STATSMODELS}/sunspots/sunspots.csv", "SUNACTIVITY", 1, 8, True),
    "nile": (f"{STATSMODELS}/nile/nile.csv", "volume", 1, 6, True),
    "unemployment": (f"{STATSMODELS}/macrodata/macrodata.csv", "unemp", 4, 8, True),
    "co2": (f"{STATSMODELS}/co2/co2.csv", "co2", 12, 12, True),
    "electrical equipment": (f"{STATSMODELS}/elec_equip/elec_equip.csv", "STS.M.I7.W.TOVT.NS0016.4.000", 12, 12, False),
    "seatbelts": (f"{SKTIME}/seatbelts/seatbelts.csv", "KSI", 12, 12, False),
    "prescriptions": (f"{SKTIME}/PBS_dataset/PBS_dataset.csv", "Scripts", 12, 12, False),
    "consumption": (f"{SKTIME}/Uschange/Uschange.csv", "Consumption", 4, 8, False),
    "gross domestic product": (f"{STATSMODELS}/macrodata/macrodata.csv", "realgdp", 4, 8, False),
    "solar": (f"{SKTIME}/solar/solar.csv", "solar_gen", 48, 12, False),
    "shampoo": (f"{SKTIME}/ShampooSales/ShampooSales.csv", "Sales", 1, 3, False),
    "copper": (f"{STATSMODELS}/copper/copper.csv", "COPPERPRICE", 1, 2, False),
    "sea temperature": (f"{STATSMODELS}/elnino/elnino.csv", "JAN to DEC", 12, 12, False),
}
ORIGINS, SEEDS = 5, (0, 1, 2)


def values(packages: Path, name: str) -> np.ndarray:
    """A series as numbers. Months of the sea temperature stand in columns; weeks of co2 are averaged to months."""
    path, column, *_ = SERIES[name]
    with (packages / path).open() as file:
        rows = list(csv.DictReader(file))
    if name == "sea temperature":
        return np.array([float(value) for row in rows for month, value in row.items() if month != "YEAR"])
    if name != "co2":
        return np.array([float(row[column]) for row in rows if row[column]])
    months: dict[int, list[float]] = {}
    for row in rows:
        if row[column]:
            year, month = int(row["date"][:4]), int(row["date"][4:6])
            months.setdefault(12 * year + month, []).append(float(row[column]))
    last = max(months)
    while last - 1 in months:  # the longest stretch at the end without a missing month
        last -= 1
    return np.array([np.mean(months[month]) for month in range(last, max(months) + 1)])


def measure(y: np.ndarray, season: int, horizon: int) -> dict[str, object]:
    """MASE (1) of every method at every origin, (origins, seeds), what was chosen, and coverage."""
    errors: dict[str, list[list[float]]] = {}
    inside, widths, chosen = [], [], []
    for origin in range(len(y) - ORIGINS * horizon, len(y), horizon):
        train, test = y[:origin], y[origin : origin + horizon]
        scale = float(np.abs(train[season:] - train[:-season]).mean())
        row: dict[str, list[float]] = {}
        for seed in SEEDS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # short series: fewer errors than 90% needs
                forecaster = Forecaster(horizon, season=season, random_state=seed).fit(train)
            answers = {**forecaster.predict_all(), "auto": forecaster.predict()}
            for model, answer in answers.items():
                row.setdefault(model, []).append(float(np.abs(answer - test).mean()) / scale)
            low, high = forecaster.predict_interval()
            inside.append(float(((low <= test) & (test <= high)).mean()))
            widths.append(float((high - low).mean()) / scale)
            chosen.append(forecaster.model_)
        for model, scores in row.items():
            errors.setdefault(model, []).append(scores)
    return {"mase": errors, "coverage": inside, "width": widths, "chosen": chosen}


def next_step(y: np.ndarray, season: int) -> dict[str, float]:
    """Mean squared error of the next step in the last 15% of a series, in units of the variance of the first 70%.

    This is the test score of next-step training on the same file, so that both can be compared.
    """
    part = round(0.15 * len(y))
    first, variance = len(y) - part, float(y[: len(y) - 2 * part].var())
    forecaster = Forecaster(1, season=season).fit(y[:first])
    said = np.array([forecaster.predict(series=y[:step])[0] for step in range(first + 1, len(y))])
    errors = {"forecaster": said - y[first + 1 :], "last": y[first:-1] - y[first + 1 :]}
    return {name: float(np.square(it).mean()) / variance for name, it in errors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="folder with sktime/ and statsmodels/")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/forecast.json"))
    parser.add_argument("--only", help="a regular expression for the names of the series")
    options = parser.parse_args()
    results = {}
    for name, (_, _, season, horizon, development) in SERIES.items():
        if options.only and not re.search(options.only, name):
            continue
        y = values(options.packages, name)
        results[name] = {
            "steps": len(y), "season": season, "horizon": horizon, "development": development,
            **measure(y, season, horizon),
        }  # fmt: skip
        means = {model: np.mean(scores) for model, scores in results[name]["mase"].items()}
        print(name, len(y), {model: round(float(mean), 3) for model, mean in means.items()}, flush=True)
    setting = {"origins": ORIGINS, "seeds": list(SEEDS), "holdfast": __version__, "python": platform.python_version()}
    table = {
        "setting": setting,
        "airline, next step": next_step(values(options.packages, "airline"), 12),
        "series": results,
    }
    write_atomically(options.out, json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
