"""``holdfast resume``: go on with a run that was stopped or killed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli._names import runs
from holdfast.cli._show import show, show_json
from holdfast.cli._verb import verb
from holdfast.cli.train import ending

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    verb(app, "resume", "holdfast resume runs/addition-sgornn-1")(resume)


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of the run.", autocompletion=runs)],
    devices: Annotated[int, typer.Option(min=1, help="Processes, as many as before.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Go on with a run, to the same weights as if it had never stopped."""
    from holdfast.runs.train import resume_run

    outcome = resume_run(run, progress=not quiet, devices=devices)
    if as_json:
        show_json({"folder": str(run), **dataclasses.asdict(outcome)})
    else:
        show(ending(str(run), outcome))
