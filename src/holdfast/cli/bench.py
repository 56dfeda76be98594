"""``holdfast bench``: how fast the layers are on this machine."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from holdfast.cli._names import CELLS, among
from holdfast.cli._options import Json
from holdfast.cli._show import show_json, show_table

__all__ = ["EXAMPLES", "bench"]

EXAMPLES = ("holdfast bench", "holdfast bench --cell sgornn --steps 5000 --json")


def bench(
    cell: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of: {', '.join(CELLS)}. Repeat for several.", autocompletion=among(CELLS), show_default="all"
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Sequence length T.")] = 200,
    batch: Annotated[int, typer.Option(min=1, help="Sequences per batch.")] = 64,
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units.")] = 128,
    inputs: Annotated[int, typer.Option(min=1, help="Input features per step.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Maximum number of measurements per layer.")] = 7,
    as_json: Json = False,
) -> None:
    """Time the forward and backward pass of every layer except RRNN, compared with torch.nn."""
    from holdfast.runs.environment import environment
    from holdfast.runs.speed import PEERS, TIMED, time_layers

    sizes = {"steps": steps, "batch": batch, "hidden": hidden, "inputs": inputs}
    timings = time_layers(cell or TIMED, **sizes, rounds=rounds)
    here = environment()
    if as_json:
        layers = [dataclasses.asdict(one) for one in timings]
        show_json({**sizes, "environment": dataclasses.asdict(here), "layers": layers})
        return
    head = ["layer", "parameters", "ms", *(f"of {peer.removeprefix('torch.nn.')}" for peer in PEERS)]
    rows = [
        [one.name, f"{one.parameters:,}", f"{one.milliseconds:.2f}", *(f"{one.ratios[peer]:.2f}" for peer in PEERS)]
        for one in timings
    ]
    title = f"Forward and backward, T = {steps}, batch {batch}, {hidden} units, {inputs} inputs, float32"
    caption = f"ms: median time; of RNN, LSTM, GRU: time relative to that layer of torch.nn\n{here.sentence}"
    show_table(title, head, rows, caption=caption)
