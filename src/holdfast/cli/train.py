"""``holdfast train``: one cell or several, on a task or on your own file."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli._names import CELLS, OPTIMISERS, SCHEDULES, TASKS, among
from holdfast.cli._options import Json, Quiet
from holdfast.cli._show import interval_text, number, show, show_json, show_table
from holdfast.cli._verb import ExitCode, in_flags, is_main_process, say
from holdfast.errors import ConfigError, HoldfastError

if TYPE_CHECKING:
    from holdfast.estimators.forecast_run import ForecastRequest
    from holdfast.runs.compare import Comparison
    from holdfast.runs.request import Chosen
    from holdfast.tasks import Task
    from holdfast.train.loop import Outcome

__all__ = ["EXAMPLES", "show_outcome", "train"]

EXAMPLES = (
    "holdfast train addition --set task.steps=200 --updates 1000 --lr 1e-2 --optimiser rmsprop",
    "holdfast train addition --cell sgornn --cell lstm --run runs/both  # compare two cells: a table and a plot",
    "holdfast train --data mine.csv --target label  # chooses the other settings and prints them",
    "holdfast train --data airline.csv --forecast passengers --horizon 12  # with intervals and a plot",
    "holdfast train --data GunPoint_TRAIN.ts --test GunPoint_TEST.ts --cell sgornn --cell gru",
    "holdfast train --config run.toml --seed 1",
    "holdfast train addition --watch  # a page about the network, written again at every evaluation",
    "holdfast train addition --devices 2 --run runs/two-processes",
)

_what, _how, _where = (
    functools.partial(typer.Option, rich_help_panel=panel) for panel in ("What to train", "How to train", "Output")
)


def train(
    task: Annotated[
        str | None,
        typer.Argument(help=f"One of: {', '.join(TASKS)}.", show_default=False, autocompletion=among(TASKS)),
    ] = None,
    data: Annotated[
        Path | None,
        _what(help="Train on your own file (.csv, .tsv, .parquet, .npz, .npy, .ts, .arff, .xlsx, .csv.gz) or folder."),
    ] = None,
    target: Annotated[
        list[str] | None, _what(help="Column of that file to predict. Repeat to predict several numbers.")
    ] = None,
    forecast: Annotated[
        list[str] | None, _what(help="Column of that file to forecast, --horizon steps ahead. Repeat for several.")
    ] = None,
    horizon: Annotated[int | None, _what(min=1, help="Steps to forecast.", show_default="12")] = None,
    known: Annotated[
        list[str] | None, _what(help="Column that is known for the future too, for --forecast. Repeat for several.")
    ] = None,
    season: Annotated[
        int | None, _what(min=1, help="Steps of a season, for --forecast; 1 for none.", show_default="found")
    ] = None,
    time: Annotated[str | None, _what(help="Column that orders the steps.", show_default="found by name")] = None,
    sequence: Annotated[
        str | None, _what(help="Column that says to which sequence a row belongs.", show_default="found by name")
    ] = None,
    test: Annotated[
        Path | None, _what(help="File for the test split.", show_default="a part of --data is kept apart")
    ] = None,
    impute: Annotated[
        str | None,
        _what(help="Fill in missing numbers: mean, last or zero.", autocompletion=among(("mean", "last", "zero"))),
    ] = None,
    cell: Annotated[
        list[str] | None,
        _what(
            help=f"One of: {', '.join(CELLS)}. Repeat to compare cells.",
            autocompletion=among(CELLS),
            show_default="sgornn",
        ),
    ] = None,
    hidden: Annotated[int | None, _what(min=1, help="Hidden units.")] = None,
    layers: Annotated[int | None, _what(min=1, help="Number of layers.")] = None,
    updates: Annotated[int | None, _how(min=1, help="Number of updates.")] = None,
    epochs: Annotated[float | None, _how(help="Number of passes over the data; give --updates or --epochs.")] = None,
    lr: Annotated[float | None, _how(help="Learning rate.")] = None,
    optimiser: Annotated[
        str | None, _how(help=f"One of: {', '.join(OPTIMISERS)}.", autocompletion=among(OPTIMISERS))
    ] = None,
    batch: Annotated[int | None, _how(min=1, help="Sequences per update.")] = None,
    clip: Annotated[float | None, _how(help="Maximum gradient norm.")] = None,
    schedule: Annotated[
        str | None, _how(help=f"Learning-rate schedule: {', '.join(SCHEDULES)}.", autocompletion=among(SCHEDULES))
    ] = None,
    patience: Annotated[int | None, _how(min=1, help="Stop after this many evaluations without improvement.")] = None,
    seed: Annotated[int | None, _how(min=0, help="Seed for weights, data order and noise.")] = None,
    set_: Annotated[
        list[str] | None,
        _how(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting, as in TOML: task.steps=200, cell.options.recurrent=exp. "
            "For one of several cells: lstm:train.lr=1e-3.",
        ),
    ] = None,
    config: Annotated[
        Path | None, _how(help="TOML file with the tables task, cell and train, or the settings.json of a run.")
    ] = None,
    run: Annotated[Path | None, _where(help="Run folder.", show_default="runs/TASK-CELL-N")] = None,
    figure: Annotated[Path | None, _where(help="Plot file of a comparison.", show_default="RUN/comparison.png")] = None,
    watch: Annotated[
        bool, _where("--watch", help="Write RUN/diagnosis.html again at every evaluation: open it in a browser.")
    ] = False,
    devices: Annotated[int, _where(min=1, help="Number of processes that share each batch.")] = 1,
    accelerator: Annotated[str, _where(help="Kind of device: cpu, cuda, mps or auto.")] = "cpu",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a cell on a task or on your own sequences.

    Ctrl-C saves the run. [bold]holdfast resume RUN[/bold] resumes a stopped or killed run.
    """
    from holdfast.runs.request import Request, choose

    if updates is not None and epochs is not None:
        raise typer.BadParameter("give --updates or --epochs, not both.", param_hint="--epochs")
    for name, value in (("--test", test), ("--impute", impute)):
        if value is not None and data is None and config is None:
            raise typer.BadParameter("it is for your own data; add --data FILE.", param_hint=name)
    trained: dict[str, Any] = {
        "task.test_path": test and str(test.resolve()),
        "task.impute": impute,
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
    options = {key: value for key, value in trained.items() if value is not None}
    if forecast:
        given = {
            "--target": target,
            "--cell": cell,
            "--set": set_,
            "--config": config,
            "TASK": task,
            "--figure": figure,
        }
        elsewhere = {"--devices": devices > 1, "--accelerator": accelerator != "cpu", "--watch": watch}
        _refuse(data, {**given, **elsewhere}, options)
        from holdfast.estimators.forecast_run import ForecastRequest

        columns = tuple(forecast), horizon or 12, tuple(known or ()), time, sequence
        _forecast(ForecastRequest(data or Path(), *columns, season, seed or 0), run, as_json)
        return
    for name, value in (("--horizon", horizon), ("--known", known), ("--season", season)):
        if value:
            raise typer.BadParameter("is for forecasts; add --forecast COLUMN.", param_hint=name)
    options |= {f"task.{key}": value for key, value in (("time", time), ("sequence", sequence)) if value is not None}
    chosen = choose(Request(task, data, tuple(target or ()), tuple(cell or ()), options, tuple(set_ or ()), config))
    for sentence in chosen.choices:
        say(in_flags(sentence))
    if len(chosen.settings) == 1:
        _one(chosen, run, {"devices": devices, "accelerator": accelerator}, quiet, as_json, watch)
    elif watch:
        raise ConfigError("--watch works with one cell; train the cells with one command each.")
    elif accelerator != "cpu":
        raise ConfigError("--accelerator works with one cell; train the cells with one command each.")
    elif devices > 1:
        raise ConfigError("--devices works with one cell; train the cells with one command each.")
    else:
        _several(chosen, run, figure, quiet, as_json)


def _refuse(data: Path | None, others: dict[str, Any], options: dict[str, Any]) -> None:
    """Options that a forecast has no use for."""
    if data is None:
        raise typer.BadParameter("it names a column of a file; add --data FILE.", param_hint="--forecast")
    names = {"cell.hidden_size": "--hidden", "train.schedule.kind": "--schedule", "task.test_path": "--test"}
    used = [name for name, value in others.items() if value]
    used += [names.get(key, f"--{key.partition('.')[2]}") for key in options if key != "train.seed"]
    if used:
        reasons = {
            "--target": "a forecast is its own target",
            "--test": "a forecast is tested at past origins",
            "--impute": "a forecast needs complete series; fill in missing values first",
        }
        why = reasons.get(used[0], "a forecast is not trained step by step")
        raise typer.BadParameter(f"give --forecast or {used[0]}, not both: {why}.", param_hint="--forecast")


def _forecast(request: ForecastRequest, run: Path | None, as_json: bool) -> None:
    from holdfast.estimators.forecast_run import PICTURE, train_forecast

    folder = _folder(run, f"forecast-{'-'.join(request.forecast)}".replace(os.sep, "-"))
    done = train_forecast(request, folder)
    forecaster = done.forecaster
    if as_json:
        chosen = {"model": forecaster.model_, "season": forecaster.season_, "scores": forecaster.scores_}
        show_json({"folder": str(folder), **chosen, "interval": forecaster.coverage_, "choices": done.choices})
        return
    say(f"Run folder: {folder}")
    for sentence in done.choices:
        show(sentence)
    if (folder / PICTURE).is_file():
        show(f"Plot: {folder / PICTURE}")
    show(f"Next: holdfast predict {folder} --out forecast.csv")


def _one(chosen: Chosen, run: Path | None, where: dict[str, Any], quiet: bool, as_json: bool, watch: bool) -> None:
    from holdfast.runs.train import train_run

    settings, task = chosen.settings[0], chosen.tasks[0]
    name = settings.network.name
    folder = _folder(run, f"{settings.task_name}-{name}", several=where["devices"] > 1)
    say(f"Run folder: {folder}")
    look: dict[str, Any] = {}
    if watch:
        from holdfast.diagnose import Watch

        look = {"look": Watch(folder, settings, task, say), "at": "evaluations"}
        say(f"Page: {look['look'].path}")
    outcome = train_run(settings, folder, task=task, progress=not quiet, label=name, **where, **look)
    show_outcome(folder, outcome, as_json, task)
    _draw(folder, task)


def _draw(folder: Path, task: Task) -> None:
    """The pictures of a run, where they can be drawn; a training is not lost for want of one."""
    from holdfast.runs.pictures import draw_run

    if is_main_process():
        try:
            say(f"Pictures: {', '.join(str(path) for path in draw_run(folder, task))}")
        except (HoldfastError, OSError) as error:
            say(f"No pictures: {error}")


def show_outcome(folder: Path, outcome: Outcome, as_json: bool, task: Task | None = None) -> None:
    """How a run ended, and the next command. With its task, accuracies come with their intervals."""
    if as_json:
        show_json({"folder": str(folder), **dataclasses.asdict(outcome)})
        return
    scores = "; ".join(
        f"{split} {', '.join(f'{name} {number(value)}' for name, value in parts.items())}"
        f"{_interval(task, split, parts.get('accuracy'))}"
        for split, parts in outcome.last.items()
    )
    reason = f" {outcome.reason}" if outcome.reason else ""
    best = f" Best: {number(outcome.best)} at update {outcome.best_update}." if outcome.best is not None else ""
    skipped = f" Skipped {outcome.skipped} non-finite updates." if outcome.skipped else ""
    rewinds = f" Spikes of the loss put earlier weights back {outcome.rewinds} times." if outcome.rewinds else ""
    show(
        f"{outcome.status.capitalize()} after {outcome.updates} updates in {outcome.seconds:.1f} s, "
        f"{outcome.parameters:,} parameters.{reason}\n"
        f"Last evaluation: {scores}.{best}{skipped}{rewinds}\n"
        f"Next: holdfast evaluate {folder}"
    )


def _interval(task: Task | None, split: str, accuracy: float | None) -> str:
    from holdfast.runs.intervals import answers_in

    return "" if task is None else _interval_of(accuracy, answers_in(task, split))


def _interval_of(accuracy: float | None, count: int | None) -> str:
    from holdfast.runs.intervals import wilson

    return f" ({interval_text(count, wilson(accuracy, count))})" if count and accuracy is not None else ""


def _several(chosen: Chosen, run: Path | None, figure: Path | None, quiet: bool, as_json: bool) -> None:
    from holdfast.runs.compare import compare

    settings = chosen.settings
    folder = _folder(run, f"{settings[0].task_name}-{'-'.join(one.network.name for one in settings)}")
    say(f"Run folders in {folder}")
    comparison = compare(settings, folder, tasks=chosen.tasks, figure=figure, progress=not quiet)
    if as_json:
        show_json(dataclasses.asdict(comparison))
    else:
        show_comparison(comparison)
    for row, task in zip(comparison.rows, chosen.tasks, strict=True):
        if row.status != "diverged":
            _draw(Path(row.folder), task)
    if all(row.status == "diverged" for row in comparison.rows):
        raise typer.Exit(ExitCode.DIVERGED)


def show_comparison(comparison: Comparison) -> None:
    """The table that ``make demo`` ends with."""
    score = {"mse": "error"}.get(comparison.metric, comparison.metric)
    head = ["cell", "parameters", "learning rate", "updates", "updates/s", f"{comparison.split} {score}", "ended"]
    rows = [
        [
            row.name,
            f"{row.parameters:,}",
            f"{row.lr:g}",
            f"{row.updates:,}",
            f"{row.updates / row.seconds:.1f}" if row.seconds else "-",
            number(row.score) + _interval_of(row.score, comparison.count),
            row.status,
        ]
        for row in comparison.rows
    ]
    if comparison.baseline is not None:
        rows.append(["best constant answer", "0", "", "", "", number(comparison.baseline), ""])
    show_table(comparison.setting, head, rows, left=("ended",))
    for row in comparison.rows:
        if row.reason:
            show(f"{row.name}: {row.reason}")
    if comparison.figure is not None:
        show(f"Curves: {comparison.figure}")


def _folder(asked: Path | None, stem: str, *, several: bool = False) -> Path:
    """The folder asked for, or the first free one of this name, reserved by creating it."""
    if asked is not None:
        return asked
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError("Under torchrun all processes need the same run folder; add --run FOLDER.")
    if (told := os.environ.get("HOLDFAST_RUN_FOLDER")) and not is_main_process():
        return Path(told)  # from the process that started this one for --devices
    for count in range(1, 1_000_000):
        folder = Path("runs") / f"{stem}-{count}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        if several:
            os.environ["HOLDFAST_RUN_FOLDER"] = str(folder)
        return folder
    raise ConfigError(f"runs/{stem}-1 to runs/{stem}-999999 exist; choose a folder with --run.")
