"""``holdfast predict``: what a trained run says about a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli._names import runs
from holdfast.cli._show import show
from holdfast.cli._verb import verb
from holdfast.cli.evaluate import Which, which_of

__all__ = ["register"]

EXAMPLES = (
    "holdfast predict runs/mine --data new.csv --out predictions.csv",
    "holdfast predict runs/mine --data new.npz --out predictions.parquet",
)


def register(app: typer.Typer) -> None:
    verb(app, "predict", *EXAMPLES)(predict)


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run that was trained with --data.", autocompletion=runs)],
    data: Annotated[Path, typer.Option(help="A file of the same form; it needs no target.")],
    out: Annotated[Path, typer.Option(help="File to write: .csv, .parquet or .npz.")] = Path("predictions.csv"),
    which: Which = "best",
) -> None:
    """Write a row a sequence: the class and the probability of each, or numbers in the units of the training file."""
    from holdfast.runs.apply import predict_run

    predicted = predict_run(run, data, out, which=which_of(which))  # type: ignore[arg-type]
    show(f"{predicted.sequences:,} sequences, columns {', '.join(predicted.columns)}: {predicted.path}")
