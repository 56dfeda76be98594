"""``holdfast evaluate``: the scores of a trained run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli._names import among
from holdfast.cli._options import Json, Run, Which, chosen_from
from holdfast.cli._show import interval_text, number, show, show_json

__all__ = ["EXAMPLES", "evaluate"]

EXAMPLES = (
    "holdfast evaluate runs/addition-sgornn-1",
    "holdfast evaluate runs/mine --split validation --which last --json",
    "holdfast evaluate runs/mine --data more.csv",
)
SPLITS = ("train", "validation", "test")


def evaluate(
    run: Run,
    split: Annotated[
        str | None,
        typer.Option(help=f"One of: {', '.join(SPLITS)}.", show_default="test", autocompletion=among(SPLITS)),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Score a file in the same format as the training file; with --split, that split of the training file, "
            "moved to this place."
        ),
    ] = None,
    which: Which = None,
    as_json: Json = False,
) -> None:
    """Score a trained run on a split of its task, or on a new file."""
    from holdfast.runs.apply import evaluate_run

    weights: Any = which and chosen_from(("best", "last"), which, "--which")
    scored = evaluate_run(run, split, data=data, which=weights)
    if as_json:
        show_json(dataclasses.asdict(scored))
        return
    protocol = f" ({scored.protocol})" if scored.protocol else ""
    show(f"{scored.folder}, {scored.which} weights, on {scored.on}{protocol}:")
    for name, value in scored.scores.items():
        main = name == scored.metric and scored.baseline
        known = f"   (best constant answer: {number(scored.baseline)})" if main else ""
        chance = f"   {interval_text(scored.count, scored.interval)}" if name == "accuracy" and scored.interval else ""
        show(f"  {name:12} {number(value, 6)}{chance}{known}")
