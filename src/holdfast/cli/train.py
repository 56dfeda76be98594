"""``holdfast train``: one cell or several, on a task or on a file of one's own."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli._names import CELLS, OPTIMISERS, SCHEDULES, TASKS, among
from holdfast.cli._show import number, show, show_json, show_table
from holdfast.cli._verb import ExitCode, is_main_process, say, verb
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.runs.compare import Comparison
    from holdfast.runs.request import Chosen

__all__ = ["register"]

EXAMPLES = (
    "holdfast train addition --set task.steps=200 --updates 1000 --lr 1e-2 --optimiser rmsprop",
    "holdfast train addition --cell sgornn --cell lstm --run runs/both  # a table and a plot of both",
    "holdfast train --data mine.csv --target label  # works out the rest, and says what it chose",
    "holdfast train --config run.toml --seed 1",
    "holdfast train addition --devices 2 --run runs/two-processes",
)

_WHAT, _HOW, _WHERE = "What to train", "How", "Where"


def register(app: typer.Typer) -> None:
    verb(app, "train", *EXAMPLES)(train)


def train(
    task: Annotated[
        str | None,
        typer.Argument(help=f"One of: {', '.join(TASKS)}.", show_default=False, autocompletion=among(TASKS)),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A .csv, .parquet or .npz file of your own.", rich_help_panel=_WHAT)
    ] = None,
    target: Annotated[str | None, typer.Option(help="Its column to predict.", rich_help_panel=_WHAT)] = None,
    cell: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of: {', '.join(CELLS)}. Given twice or more: a comparison.",
            autocompletion=among(CELLS),
            show_default="sgornn",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Hidden units.", rich_help_panel=_WHAT)] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Layers.", rich_help_panel=_WHAT)] = None,
    updates: Annotated[int | None, typer.Option(min=1, help="How long: updates.", rich_help_panel=_HOW)] = None,
    epochs: Annotated[float | None, typer.Option(help="How long: passes over the data.", rich_help_panel=_HOW)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", rich_help_panel=_HOW)] = None,
    optimiser: Annotated[
        str | None,
        typer.Option(help=f"One of: {', '.join(OPTIMISERS)}.", autocompletion=among(OPTIMISERS), rich_help_panel=_HOW),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences an update.", rich_help_panel=_HOW)] = None,
    clip: Annotated[float | None, typer.Option(help="Largest norm of a gradient.", rich_help_panel=_HOW)] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help=f"Of the learning rate: {', '.join(SCHEDULES)}.",
            autocompletion=among(SCHEDULES),
            rich_help_panel=_HOW,
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after so many evaluations without a better one.", rich_help_panel=_HOW),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of weights, order and noise.", rich_help_panel=_HOW)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting, as in TOML: task.steps=200, cell.options.recurrent=exp. "
            "For one of several cells: lstm:train.lr=1e-3.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file with the tables task, cell and train, or a run's settings.json.", rich_help_panel=_HOW
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Folder of the run.", show_default="runs/TASK-CELL-N", rich_help_panel=_WHERE),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(help="File of a comparison's plot.", show_default="RUN/comparison.png", rich_help_panel=_WHERE),
    ] = None,
    devices: Annotated[int, typer.Option(min=1, help="Processes that share each batch.", rich_help_panel=_WHERE)] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=_WHERE)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.", rich_help_panel=_WHERE)] = False,
) -> None:
    """Train a cell on a task or on your own sequences.

    Ctrl-C saves and says how to go on; a killed run goes on too, with [bold]holdfast resume RUN[/bold].
    """
    from holdfast.runs.request import Request, choose

    if updates is not None and epochs is not None:
        raise typer.BadParameter("how long is told in updates or in epochs, not in both.", param_hint="--epochs")
    given: dict[str, Any] = {
        "cell.hidden_size": hidden,
        "cell.layers": layers,
        "train.updates": updates,
        "train.epochs": epochs,
        "train.lr": lr,
        "train.optimiser": optimiser,
        "train.batch": batch,
        "train.clip": clip,
        "train.schedule.kind": schedule,
        "train.patience": patience,
        "train.seed": seed,
    }
    options = {key: value for key, value in given.items() if value is not None}
    chosen = choose(Request(task, data, target, tuple(cell or ()), options, tuple(set_ or ()), config))
    for sentence in chosen.choices:
        say(sentence)
    if len(chosen.settings) == 1:
        _one(chosen, run, devices, quiet, as_json)
    elif devices > 1:
        raise ConfigError("--devices works with one cell; train the cells with one command each.")
    else:
        _several(chosen, run, figure, quiet, as_json)


def _one(chosen: Chosen, run: Path | None, devices: int, quiet: bool, as_json: bool) -> None:
    from holdfast.runs.train import train_run

    settings, task = chosen.settings[0], chosen.tasks[0]
    name = settings.network.name
    folder = _folder(run, f"{settings.task_name}-{name}", several=devices > 1)
    say(f"Run folder: {folder}")
    outcome = train_run(settings, folder, task=task, progress=not quiet, devices=devices, label=name)
    if as_json:
        show_json({"folder": str(folder), **dataclasses.asdict(outcome)})
        return
    show(ending(str(folder), outcome))


def ending(folder: str, outcome: Any) -> str:
    """How a run ended, and what can be done with it."""
    scores = "; ".join(
        f"{split} {', '.join(f'{name} {number(value)}' for name, value in parts.items())}"
        for split, parts in outcome.last.items()
    )
    reason = f" {outcome.reason}" if outcome.reason else ""
    best = f" Best {number(outcome.best)} at update {outcome.best_update}." if outcome.best is not None else ""
    skipped = f" {outcome.skipped} updates were left out, as they were not finite." if outcome.skipped else ""
    return (
        f"{outcome.status.capitalize()} after {outcome.updates} updates in {outcome.seconds:.1f} s, "
        f"{outcome.parameters:,} parameters.{reason}\n"
        f"At the end: {scores}.{best}{skipped}\n"
        f"Next: holdfast evaluate {folder}"
    )


def _several(chosen: Chosen, run: Path | None, figure: Path | None, quiet: bool, as_json: bool) -> None:
    from holdfast.runs.compare import compare

    settings = chosen.settings
    folder = _folder(run, f"{settings[0].task_name}-{'-'.join(one.network.name for one in settings)}")
    say(f"Run folders below {folder}")
    comparison = compare(settings, folder, tasks=chosen.tasks, figure=figure, progress=not quiet)
    if as_json:
        show_json(dataclasses.asdict(comparison))
    else:
        show_comparison(comparison)
    if all(row.status == "diverged" for row in comparison.rows):
        raise typer.Exit(ExitCode.DIVERGED)


def show_comparison(comparison: Comparison) -> None:
    """The table that ``make demo`` ends with."""
    score = {"mse": "error"}.get(comparison.metric, comparison.metric)
    head = ["cell", "parameters", "learning rate", "updates a second", f"{comparison.split} {score}", "ended"]
    rows = [
        [
            row.name,
            f"{row.parameters:,}",
            f"{row.lr:g}",
            f"{row.updates / row.seconds:.1f}" if row.seconds else "-",
            number(row.score),
            row.status,
        ]
        for row in comparison.rows
    ]
    if comparison.baseline is not None:
        rows.append(["best constant answer", "0", "", "", number(comparison.baseline), ""])
    show_table(comparison.setting, head, rows, left=("ended",))
    for row in comparison.rows:
        if row.reason:
            show(f"{row.name}: {row.reason}")
    if comparison.figure is not None:
        show(f"Curves: {comparison.figure}")


def _folder(asked: Path | None, stem: str, *, several: bool = False) -> Path:
    """The folder that was asked for, or the first free one of this name, taken by making it."""
    if asked is not None:
        return asked
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError("Under torchrun every process has to be told the same folder: add --run FOLDER.")
    if (told := os.environ.get("HOLDFAST_RUN_FOLDER")) and not is_main_process():
        return Path(told)  # by the process that started this one for --devices
    for count in range(1, 1_000_000):
        folder = Path("runs") / f"{stem}-{count}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        if several:
            os.environ["HOLDFAST_RUN_FOLDER"] = str(folder)
        return folder
    raise ConfigError(f"runs/{stem}-1 to runs/{stem}-999999 are taken; choose a folder with --run.")
