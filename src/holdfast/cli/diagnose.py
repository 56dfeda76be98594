"""``holdfast diagnose``: what is wrong with a trained run, in the terminal and on a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli._names import runs as run_names
from holdfast.cli._options import Json, Quiet, Run, Which, chosen_from
from holdfast.cli._show import show, show_json, show_table

__all__ = ["EXAMPLES", "diagnose"]

EXAMPLES = (
    "holdfast diagnose runs/addition-sgornn-1",
    "holdfast diagnose runs/mine --data more.csv --out mine.html",
    "holdfast diagnose runs/addition-sgornn-1 runs/addition-lstm-1  # two runs side by side",
)


def diagnose(
    run: Run,
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Other run folders, to compare.", autocompletion=run_names)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Sequences to look at: a file in the same format as the training file.",
            show_default="the validation split",
        ),
    ] = None,
    lag: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many steps back the task needs its inputs.", show_default="known for addition and copying"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="HTML file to write.", show_default="RUN/diagnosis.html")] = None,
    which: Which = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Say why a run diverges, forgets or learns nothing, and what to do; write a page with pictures.

    Two or more runs are put side by side.
    """
    from holdfast.diagnose import compare, diagnose_run
    from holdfast.diagnose.of_run import PAGE

    weights: Any = which and chosen_from(("best", "last"), which, "--which")
    folders = [run, *(runs or [])]
    found = [diagnose_run(it, data=data, which=weights, lag=lag, progress=not quiet) for it in folders]
    both = compare(*found) if len(found) > 1 else None
    path = found[0].save(out or run / PAGE) if both is None else both.save(out or run / "comparison.html")
    if as_json:
        show_json({"page": str(path), "diagnoses": [json.loads(one.to_json()) for one in found]})
        return
    for one in found:
        one.show()
    if both is not None:
        show_table("", ["measure", *(str(folder) for folder in folders)], both.rows())
    show(f"Page: {path}")
