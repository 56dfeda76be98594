"""The tables of docs/usage/forecasting.md."""

from __future__ import annotations

import json
import math
import statistics

from website.links import ROOT
from website.tables import renewed, table

__all__ = ["forecasting_page"]

FORECASTS = ("last", "drift", "seasonal", "ridge", "reservoir", "auto")


def forecasting_page() -> str:
    """The page on forecasting with its table renewed."""
    return renewed("docs/usage/forecasting.md", _forecasts())


def _forecasts() -> str:
    file = json.loads((ROOT / "benchmarks/forecast.json").read_text(encoding="utf-8"))
    rows = []
    for development in (True, False):
        part = {name: it for name, it in file["series"].items() if it["development"] == development}
        rows += [_forecast_row(name, it) for name, it in part.items()]
        ratios = {model: [_naive_ratio(it, model) for it in part.values()] for model in FORECASTS}
        means = [
            "" if None in them else f"{math.exp(statistics.mean(map(math.log, them))):.2f}" for them in ratios.values()
        ]
        inside = statistics.mean(share for it in part.values() for share in it["coverage"])
        label = f"**{'development' if development else 'other'} series**, error / naive error (geometric mean)"
        rows.append([label, "", *means, f"{inside:.0%}"])
    head = ["series", "steps, horizon", "last value", "drift", "seasonal naive", "ridge on lags", "reservoir", "chosen"]
    setting = file["setting"]
    seeds = f"{len(setting['seeds'])} seeds of the reservoir; ± is the deviation between seeds"
    note = f"Means over {setting['origins']} origins and {seeds}."
    next_step = {name: f"{value:.2g}" for name, value in file["airline, next step"].items()}
    note += (
        f" One step ahead, over the last 15% of the airline series, the mean squared error is {next_step['forecaster']}"
        f" of the variance of the training part; repeating the last value has {next_step['last']}."
    )
    return f"{table([*head, '90% interval covers'], rows)}\n\n{note}\n\n{_trained_forecasts()}"


def _trained_forecasts() -> str:
    """Why a trained cell is not offered."""
    series = json.loads((ROOT / "benchmarks/forecast_cell.json").read_text(encoding="utf-8"))["series"]
    means = {name: {model: statistics.mean(it) for model, it in row["mase"].items()} for name, row in series.items()}
    worse = sum(row["gru"] > row["reservoir"] for row in means.values())
    ratio = math.exp(statistics.mean(math.log(row["gru"] / row["reservoir"]) for row in means.values()))
    return (
        f'`model="gru"` is refused. A GRU that was trained on the same preparation had more error than the reservoir '
        f"on {worse} of {len(means)} series ({', '.join(means)}), {ratio:.2f} times as much in the geometric mean. For "
        "intervals it would have to be trained again at every past origin. benchmarks/forecast_cell.py has the "
        "measurement."
    )


def _forecast_row(name: str, it: dict) -> list[str]:
    cells = []
    for model in FORECASTS:
        seeds = [statistics.mean(one) for one in zip(*it["mase"].get(model, []), strict=True)]
        spread = f" ± {statistics.stdev(seeds):.2f}" if model in ("reservoir", "auto") and len(seeds) > 1 else ""
        cells.append(f"{statistics.mean(seeds):.2f}{spread}" if seeds else "")
    return [name, f"{it['steps']}, {it['horizon']}", *cells, f"{statistics.mean(it['coverage']):.0%}"]


def _naive_ratio(it: dict, model: str) -> float | None:
    """Error over that of the seasonal naive forecast, or of the last value where there is no season."""
    if model not in it["mase"]:
        return None
    ours, naive = (
        statistics.mean(score for row in it["mase"][which] for score in row)
        for which in (model, "seasonal" if "seasonal" in it["mase"] else "last")
    )
    return ours / naive
