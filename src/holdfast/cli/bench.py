"""``holdfast bench``: how fast the layers are here."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from holdfast.cli._names import CELLS, among
from holdfast.cli._show import show_json, show_table
from holdfast.cli._verb import verb

__all__ = ["register"]

EXAMPLES = ("holdfast bench", "holdfast bench --cell sgornn --steps 5000 --json")


def register(app: typer.Typer) -> None:
    verb(app, "bench", *EXAMPLES)(bench)


def bench(
    cell: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of: {', '.join(CELLS)}; may be given again.",
            autocompletion=among(CELLS),
            show_default="all",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Length T of a sequence.")] = 200,
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 64,
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units.")] = 128,
    inputs: Annotated[int, typer.Option(min=1, help="Features of a step.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each, at most.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Time forward and backward through every layer but RRNN's against torch.nn's, on this machine."""
    from holdfast.runs.environment import environment
    from holdfast.runs.speed import PEERS, TIMED, time_layers

    sizes = {"steps": steps, "batch": batch, "hidden": hidden, "inputs": inputs}
    timings = time_layers(cell or TIMED, **sizes, rounds=rounds)
    here = environment()
    if as_json:
        show_json(
            {**sizes, "environment": dataclasses.asdict(here), "layers": [dataclasses.asdict(one) for one in timings]}
        )
        return
    head = ["layer", "parameters", "ms", *(f"of {peer.removeprefix('torch.nn.')}" for peer in PEERS)]
    rows = [
        [one.name, f"{one.parameters:,}", f"{one.milliseconds:.2f}", *(f"{one.ratios[peer]:.2f}" for peer in PEERS)]
        for one in timings
    ]
    title = f"Forward and backward, T = {steps}, batch {batch}, {hidden} units, {inputs} inputs, float32"
    caption = f"ms: median; of RNN, LSTM, GRU: part of the time that torch.nn's takes\n{here.sentence}"
    show_table(title, head, rows, caption=caption)
