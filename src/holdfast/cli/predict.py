"""``holdfast predict``: predictions of a trained run for a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli._options import Run, Which, chosen_from
from holdfast.cli._show import show

__all__ = ["EXAMPLES", "predict"]

EXAMPLES = (
    "holdfast predict runs/mine --data new.csv --out predictions.csv",
    "holdfast predict runs/mine --data new.npz --out predictions.parquet",
    "holdfast predict runs/forecast-passengers-1 --out forecast.csv  # after the end of the training file",
)


def predict(
    run: Run,
    data: Annotated[
        Path | None,
        typer.Option(
            help="File in the same format as the training file; it needs no target. A run of --forecast needs it only "
            "for newer steps, or for columns that are known ahead."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="File to write: .csv, .parquet or .npz.")] = Path("predictions.csv"),
    which: Which = None,
) -> None:
    """Write one row per sequence: the class and all class probabilities, or numbers in the units of the training file.

    The run must have been trained with --data. A run of --forecast writes one row per step: the forecast and its
    interval.
    """
    from holdfast.runs.apply import predict_run
    from holdfast.runs.load import FORECAST

    weights: Any = which and chosen_from(("best", "last"), which, "--which")
    if (run / FORECAST).is_file():
        from holdfast.estimators.forecast_run import predict_forecast

        predicted = predict_forecast(run, data, out)
    elif data is None:
        raise typer.BadParameter("name the file with the sequences to predict.", param_hint="--data")
    else:
        predicted = predict_run(run, data, out, which=weights)
    show(f"Wrote {predicted.rows:,} rows to {predicted.path}; columns: {', '.join(predicted.columns)}.")
