"""``holdfast evaluate``: the scores of a trained run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli._names import among, runs
from holdfast.cli._show import number, show, show_json
from holdfast.cli._verb import verb

__all__ = ["Which", "register"]

EXAMPLES = (
    "holdfast evaluate runs/addition-sgornn-1",
    "holdfast evaluate runs/mine --split validation --which last --json",
    "holdfast evaluate runs/mine --data more.csv",
)

Which = Annotated[
    str,
    typer.Option(
        help="Weights at the best evaluation, or the last ones: best, last.",
        autocompletion=among(("best", "last")),
    ),
]


def register(app: typer.Typer) -> None:
    verb(app, "evaluate", *EXAMPLES)(evaluate)


def which_of(which: str) -> str:
    """The word ``best`` or ``last``, or a usage error."""
    if which not in ("best", "last"):
        raise typer.BadParameter(f"{which!r} is not one of best, last.", param_hint="--which")
    return which


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of the run.", autocompletion=runs)],
    split: Annotated[
        str | None,
        typer.Option(
            help="train, validation or test.",
            show_default="test",
            autocompletion=among(("train", "validation", "test")),
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Instead, a file of the same form as the one it was trained on.")
    ] = None,
    which: Which = "best",
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Score a trained run on a split of its task, or on a new file."""
    from holdfast.runs.apply import evaluate_run

    scored = evaluate_run(run, split, data=data, which=which_of(which))  # type: ignore[arg-type]
    if as_json:
        show_json(dataclasses.asdict(scored))
        return
    protocol = f" ({scored.protocol})" if scored.protocol else ""
    show(f"{scored.folder}, {scored.which} weights, on {scored.on}{protocol}:")
    for name, value in scored.scores.items():
        known = (
            f"   (best constant answer: {number(scored.baseline)})" if name == scored.metric and scored.baseline else ""
        )
        show(f"  {name:12} {number(value, 6)}{known}")
