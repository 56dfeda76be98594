"""``holdfast train``: one cell or several, on a task or on your own file."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from holdfast.cli._names import CELLS, CHOSEN, OPTIMISERS, SCHEDULES, TASKS, TREES, among
from holdfast.cli._options import Json, Quiet
from holdfast.cli._show import interval_text, number, show, show_json, show_table
from holdfast.cli._verb import ExitCode, in_flags, is_main_process, say
from holdfast.errors import ConfigError, HoldfastError

if TYPE_CHECKING:
    from holdfast.estimators.forecast_run import ForecastRequest
    from holdfast.runs.choice import StoredChoice
    from holdfast.runs.compare import Comparison
    from holdfast.runs.request import Chosen
    from holdfast.runs.settings import RunSettings
    from holdfast.tasks import Task
    from holdfast.train.loop import Outcome

__all__ = ["EXAMPLES", "automatic", "show_outcome", "train"]

EXAMPLES = (
    "holdfast train addition --set task.steps=200 --updates 1000 --lr 1e-2 --optimiser rmsprop",
    "holdfast train addition --cell sgornn --cell lstm --run runs/both  # compare two cells: a table and a plot",
    "holdfast train --data mine.csv --target label  # tries several models and keeps the best, within 5 minutes",
    "holdfast train --data mine.csv --target label --cell gru  # trains this cell",
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
        str | None, _what(help="Column that says to which sequence a row belongs.", show_default="found")
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
            help=f"One of: {', '.join(CELLS)}. Repeat to compare cells. With --data also {' or '.join(CHOSEN)}; for "
            f"trees {TREES[0]}.",
            autocompletion=among((*CHOSEN, *CELLS, *TREES)),
            show_default="sgornn; auto with --data and no options of a training",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        _what(min=0, help="Time for the automatic choice; 0 trains no cell.", show_default="5"),
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
    """Train a cell on a task, or find a good model for your own sequences.

    With --data and --target alone, a reservoir, trained cells and simple baselines are compared and the best is kept.
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
    alone = {"--config": config, "--devices": devices > 1, "--accelerator": accelerator != "cpu", "--watch": watch}
    if forecast:
        given = {
            "--target": target,
            "--cell": cell,
            "--set": set_,
            "--config": config,
            "TASK": task,
            "--figure": figure,
            "--minutes": minutes is not None,
        }
        _refuse(data, {**alone, **given}, options)
        from holdfast.estimators.forecast_run import ForecastRequest

        columns = tuple(forecast), horizon or 12, tuple(known or ()), time, sequence
        _forecast(ForecastRequest(data or Path(), *columns, season, seed or 0), run, as_json)
        return
    for name, value in (("--horizon", horizon), ("--known", known), ("--season", season)):
        if value:
            raise typer.BadParameter("is for forecasts; add --forecast COLUMN.", param_hint=name)
    options |= {f"task.{key}": value for key, value in (("time", time), ("sequence", sequence)) if value is not None}
    cells, more = _cells(data, cell or [], minutes, options, set_ or [], alone)
    options |= more
    chosen = choose(Request(task, data, tuple(target or ()), cells, options, tuple(set_ or ()), config))
    for sentence in chosen.choices:
        say(in_flags(sentence))
    if chosen.settings[0].network.name == "auto":
        automatic(chosen.settings[0], run, quiet, as_json, chosen.tasks[0])
    elif len(chosen.settings) == 1:
        _one(chosen, run, {"devices": devices, "accelerator": accelerator}, quiet, as_json, watch)
    elif watch:
        raise ConfigError("--watch works with one cell; train the cells with one command each.")
    elif accelerator != "cpu":
        raise ConfigError("--accelerator works with one cell; train the cells with one command each.")
    elif devices > 1:
        raise ConfigError("--devices works with one cell; train the cells with one command each.")
    else:
        _several(chosen, run, figure, quiet, as_json)


def _cells(
    data: Path | None, cells: list[str], minutes: float | None, options: dict[str, Any], set_: list[str], more: Any
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The cells to train, ("auto",) if a model is to be chosen, and options that come with it."""
    single = [f"--cell {name}" for name in cells if name not in CHOSEN]
    single += [_flag(key) for key in options if key.startswith(("cell.", "train.")) and key != "train.seed"]
    single += [f"--set {text}" for text in set_ if text.startswith(("cell.", "train."))]
    single += [name for name, given in more.items() if given]
    asked = [name for name in cells if name in CHOSEN]
    if not asked and (data is None or single):
        if minutes is not None:
            why = f"{single[0]} trains one model" if single else "add --data FILE"
            raise typer.BadParameter(f"it is for the automatic choice; {why}.", param_hint="--minutes")
        return tuple(cells), {}
    if len(cells) > 1:
        raise typer.BadParameter(
            f"{asked[0]} stands alone; the automatic choice compares cells by itself.", param_hint="--cell"
        )
    if asked == ["reservoir"]:
        if minutes:
            raise typer.BadParameter("a reservoir needs no time; use --cell auto.", param_hint="--minutes")
        units = options.pop("cell.hidden_size", None)
        minutes, single = 0.0, [name for name in single if name != "--hidden"]
        options |= {} if units is None else {"cell.options.units": units}
    allowed = ("--updates", "--set cell.options.", "--config")
    if wrong := [name for name in single if not name.startswith(allowed)]:
        raise typer.BadParameter(
            f"it has no use for {wrong[0]}; name a cell to train instead, such as --cell gru.", param_hint="--cell"
        )
    return ("auto",), {} if minutes is None else {"cell.options.minutes": minutes}


def _flag(key: str) -> str:
    """The flag of a setting."""
    names = {"cell.hidden_size": "--hidden", "train.schedule.kind": "--schedule", "task.test_path": "--test"}
    return names.get(key, f"--{key.partition('.')[2]}")


def _refuse(data: Path | None, others: dict[str, Any], options: dict[str, Any]) -> None:
    """Options that a forecast has no use for."""
    if data is None:
        raise typer.BadParameter("it names a column of a file; add --data FILE.", param_hint="--forecast")
    used = [name for name, value in others.items() if value]
    used += [_flag(key) for key in options if key != "train.seed"]
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


def automatic(settings: RunSettings, run: Path | None, quiet: bool, as_json: bool, task: Task | None = None) -> None:
    """Choose a model, keep it in a folder, and show what it was compared with."""
    from holdfast.estimators.automatic_run import train_automatic

    folder = _folder(run, f"{settings.task_name}-{settings.network.name}")
    say(f"Run folder: {folder}")
    task = cast("Task", settings.task.load()) if task is None else task
    choice = train_automatic(settings, folder, task=task, progress=not quiet, say=None if quiet else say)
    if as_json:
        show_json({"folder": str(folder), **dataclasses.asdict(choice)})
    else:
        _show_choice(folder, choice, task)
    _draw(folder, task)


def _show_choice(folder: Path, choice: StoredChoice, task: Task) -> None:
    score = "{:.3f}" if choice.metric == "accuracy" else "{:.3g}"
    rows = [
        [
            f"{'* ' if one.name == choice.chosen else '  '}{one.name}",
            score.format(one.value),
            f"{score.format(one.low)} to {score.format(one.high)}",
            f"{one.n:,}",
            one.how,
        ]
        for one in choice.scores
    ]
    title = "Scores of sequences that a model was not fitted to"
    if choice.metric != "accuracy":
        title += "; less is better"
    show_table(title, ["model", choice.metric, "95% interval", "n", "how"], rows, left=("how",))
    show(choice.verdict)
    if choice.test:
        scores = ", ".join(f"{name} {number(value)}" for name, value in choice.test.items())
        baseline = f"; best constant answer {number(task.spec.baseline)}" if task.spec.baseline is not None else ""
        show(f"Test: {scores}{_interval(task, 'test', choice.test.get('accuracy'))}{baseline}.")
    show(f"Next: holdfast predict {folder} --data NEW_FILE --out predictions.csv")


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
