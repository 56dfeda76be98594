"""A trained cell as a forecaster, beside the reservoir: the measurement behind ``Forecaster(model="gru")``.

    python benchmarks/forecast_cell.py --packages .../site-packages [--cells gru lstm]

At five origins of each series of benchmarks/forecast.py whose file is there, a cell reads a window of the differences
that the ``Forecaster`` chose there, and answers with all horizons at once, prepared as for the reservoir. It is
trained as ``holdfast.estimators.fit_trained`` does, on all windows before the origin. Errors are MASE, as in
benchmarks/forecast.py. They go to benchmarks/forecast_cell.json, and what is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from forecast import ORIGINS, SERIES, values

from holdfast import Forecaster
from holdfast.estimators import fit_trained
from holdfast.estimators.forecasting.design import History
from holdfast.files import write_atomically
from holdfast.runs.environment import environment


def cell_forecast(cell: str, forecaster: Forecaster, y: np.ndarray, horizon: int, season: int) -> np.ndarray:
    """The forecast of a trained cell after the end of ``y``, in the view of the fitted forecaster's reservoir."""
    empty = np.zeros((len(y), 0))
    history = History(y[:, None], empty, empty)
    direct = forecaster._direct["reservoir"][0]  # type: ignore[attr-defined]
    design, seen = direct.design, direct.design.seen(history)
    w = np.nan_to_num(design.view.differences(seen.z - seen.centre) / seen.spread)
    size = min(max(24, 2 * season), len(y) // 3)
    targets = np.stack([design.targets(seen, h)[: len(y) - horizon, 0] for h in range(1, horizon + 1)], axis=1)
    ends = [t for t in range(size - 1, len(y) - horizon) if np.isfinite(targets[t]).all()]
    windows = torch.tensor(np.stack([w[t - size + 1 : t + 1] for t in ends]), dtype=torch.float32)
    answers = torch.tensor(targets[ends], dtype=torch.float32)
    lengths = torch.full((len(ends),), size)
    model = fit_trained(cell, windows, lengths, answers, classes=None, updates=300, hidden_size=32)
    with torch.no_grad():
        said = model(torch.tensor(w[-size:][:, None], dtype=torch.float32), torch.tensor([size]))[0][0].numpy()
    simple = np.array([design.simple(seen, h)[-1, 0] for h in range(1, horizon + 1)])
    return design.view.unscale(simple + seen.spread[0] * said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="folder with sktime/ and statsmodels/")
    parser.add_argument("--cells", nargs="*", default=["gru"])
    parser.add_argument("--development", action="store_true", help="only series that defaults were chosen on")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "forecast_cell.json")
    options = parser.parse_args()
    table: dict = json.loads(options.out.read_text()) if options.out.exists() else {"series": {}}
    table["environment"] = environment().sentence
    for name, (path, _, season, horizon, development) in SERIES.items():
        done = name in table["series"]
        if done or not (options.packages / path).is_file() or (options.development and not development):
            continue
        y = values(options.packages, name)
        errors: dict[str, list[float]] = {}
        seconds: dict[str, float] = {}
        for origin in range(len(y) - ORIGINS * horizon, len(y), horizon):
            train, test = y[:origin], y[origin : origin + horizon]
            scale = float(np.abs(train[season:] - train[:-season]).mean())
            began = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # short series: fewer errors than 90% needs
                forecaster = Forecaster(horizon, season=season).fit(train)
            seconds["forecaster"] = seconds.get("forecaster", 0.0) + time.process_time() - began
            answers = {**forecaster.predict_all(), "auto": forecaster.predict()}
            for cell in options.cells:
                began = time.process_time()
                answers[cell] = cell_forecast(cell, forecaster, train, horizon, season)
                seconds[cell] = seconds.get(cell, 0.0) + time.process_time() - began
            for model, answer in answers.items():
                errors.setdefault(model, []).append(float(np.abs(answer - test).mean()) / scale)
        table["series"][name] = {"mase": errors, "seconds": seconds}
        print(name, {model: round(float(np.mean(it)), 3) for model, it in errors.items()}, flush=True)
        write_atomically(options.out, json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
