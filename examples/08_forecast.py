"""Forecast a year of monthly values, with an interval for each month.

The series grows, has a season of twelve months, and noise. Several forecasts are compared on the past.

    python examples/08_forecast.py     writes forecast.png
"""

from __future__ import annotations

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from holdfast import Forecaster


def main(months: int = 120, horizon: int = 12) -> float:
    rng, time = np.random.default_rng(0), np.arange(months + horizon)
    series = (100 + 2 * time) * (1 + 0.25 * np.sin(2 * np.pi * time / 12)) * rng.lognormal(0, 0.04, len(time))
    known, future = series[:months], series[months:]
    forecaster = Forecaster(horizon=horizon).fit(known)
    print(forecaster.summary())
    answer, (lower, upper) = forecaster.predict(), forecaster.predict_interval()
    inside = float(np.mean((lower <= future) & (future <= upper)))
    error = float(np.mean(np.abs(answer - future)))
    naive = float(np.mean(np.abs(known[-horizon:] - future)))
    print(
        f"mean error {error:.1f}, of last year's values {naive:.1f}; {inside:.0%} of the months are in their interval"
    )
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(time[months - 48 : months], known[-48:], color="black", label="known")
    axes.plot(time[months:], future, "o", color="black", markersize=3, label="what came")
    axes.plot(time[months:], answer, label="forecast")
    axes.fill_between(time[months:], lower, upper, alpha=0.25, label="90% interval")
    axes.set(xlabel="month")
    axes.legend(loc="upper left")
    figure.savefig("forecast.png", dpi=120, bbox_inches="tight")
    return error / naive


if __name__ == "__main__":
    main()
