"""``holdfast sweep``: search settings with Optuna."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli._names import CELLS, among
from holdfast.cli._options import Json, Quiet, Root, chosen_from, study_name
from holdfast.cli._show import number, show, show_json, show_table
from holdfast.cli._verb import in_flags, say
from holdfast.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from holdfast.studies.study import Study
    from holdfast.studies.sweep import SweepResult, Trial

__all__ = ["EXAMPLES", "sweep"]

EXAMPLES = (
    "holdfast sweep s1/gru-search --trials 50",
    "holdfast sweep s1/gru-search --trials 5 --scale smoke --sampler random",
    "holdfast sweep --data mine.csv --target label --cell gru --trials 30",
    "holdfast sweep mine.toml --trials 200 --storage postgresql://user@host/sweeps  # on every machine",
)
SAMPLERS = ("tpe", "random", "grid")


def sweep(
    study: Annotated[
        str | None, study_name("Name of a study, or a TOML file, with a \\[sweep] table; or give --data.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Search settings for your own file, as train --data reads it.")
    ] = None,
    target: Annotated[list[str] | None, typer.Option(help="Column of that file to predict.")] = None,
    cell: Annotated[
        str, typer.Option(help="Cell to search settings of, with --data.", autocompletion=among(CELLS))
    ] = "sgornn",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of all trials, with --data.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Total number of trials, including earlier ones.")] = 50,
    storage: Annotated[
        str | None, typer.Option(help="Any Optuna URL.", show_default="an SQLite file in the run folder")
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            help="tpe learns from earlier trials; random does not; grid takes every combination once.",
            autocompletion=among(SAMPLERS),
        ),
    ] = "tpe",
    study_name: Annotated[
        str | None, typer.Option(help="Name of the sweep in the storage.", show_default="the study's")
    ] = None,
    scale: Annotated[str | None, typer.Option(help="Scale of the study, whose settings are applied on top.")] = None,
    run: Annotated[Path | None, typer.Option(help="Folder for the runs.", show_default="runs/sweep-STUDY")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the proposals.")] = 0,
    root: Root = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    r"""Search the ranges in the \[sweep] table of a study, or settings for your own file.

    The same command again continues to the total, or joins in from another terminal or machine. The trial of a killed
    worker is resumed from its last checkpoint.
    """
    from holdfast.studies.study import find_study
    from holdfast.studies.sweep import sweep as search

    method: Any = chosen_from(SAMPLERS, sampler, "--sampler")
    if (study is None) == (data is None):
        raise typer.BadParameter("give the name of a study or --data FILE, one of the two.", param_hint="STUDY")
    found = find_study(study, root) if study is not None else _of_data(data, target, cell, set_)
    folder = run or Path("runs") / f"sweep-{found.name.replace('/', '-')}{f'-{scale}' if scale else ''}"
    say(f"Run folders in {folder}")
    try:
        result = search(
            found,
            trials,
            folder,
            storage=storage,
            sampler=method,
            name=study_name,
            scale=scale,
            seed=seed,
            progress=not quiet,
            told=_say_trial,
            waiting_for=lambda count: say(f"Waiting for {count} trials of other workers ..."),
        )
    except Interrupted as error:
        text = str(error).partition(" and saved:")[0]
        raise Interrupted(f"{text}. The trial is saved; the same command resumes it.", error.signal) from None
    if as_json:
        show_json(dataclasses.asdict(result))
    else:
        _show_result(result)


def _of_data(data: Path | None, target: list[str] | None, cell: str, given: list[str] | None) -> Study:
    """A search for a person's own file: hidden units, layers, learning rate and batch, by the validation score."""
    from holdfast.runs.request import Request, choose, parse_setting
    from holdfast.runs.settings import to_table
    from holdfast.studies.study import Study
    from holdfast.train.metrics import HIGHER_IS_BETTER

    chosen = choose(Request(data=data, target=tuple(target or ()), cells=(cell,), set=tuple(given or ())))
    for sentence in chosen.choices:
        say(in_flags(sentence))
    settings, spec = chosen.settings[0], chosen.tasks[0].spec
    if "validation" not in spec.splits:
        raise ConfigError("A sweep chooses by the validation split; leave out --set task.validation=0.")
    fixed = [parse_setting(text)[1] for text in given or ()]
    ranges = {
        "cell.hidden_size": {"choices": [16, 32, 64, 128]},
        "cell.layers": {"choices": [1, 2]},
        "train.lr": {"low": 5e-4, "high": 5e-2, "log": True},
        "train.batch": {"choices": [4, 16, 64]},
    }
    direction = "maximise" if spec.metric in HIGHER_IS_BETTER else "minimise"
    objective = {"metric": f"validation.{spec.metric}", "direction": direction}
    left = {name: one for name, one in ranges.items() if name not in fixed}
    table = to_table(settings)
    table["train"] = {name: value for name, value in table["train"].items() if value is not None}
    name = f"{(data or Path()).stem}-{cell}"
    return Study(f"Search for {name}", defaults=table, sweep={"objective": objective, **left}, name=name)


def _say_trial(trial: Trial, best: Trial | None) -> None:
    score = number(trial.score) if trial.score is not None else f"{trial.status}: {trial.reason}"
    so_far = f"   (best: {number(best.score)}, trial {best.number})" if best is not None else ""
    say(f"Trial {trial.number}: {_values(trial.values)} -> {score}{so_far}")


def _show_result(result: SweepResult, most: int = 10) -> None:
    counts = [f"{len(result.trials)} trials"]
    ended = {status: sum(one.status == status for one in result.trials) for status in ("diverged", "failed")}
    counts.extend(f"{count} {status}" for status, count in ended.items() if count)
    if result.elsewhere:
        counts.append(f"{result.elsewhere} still running elsewhere")
    names = list(result.trials[0].values) if result.trials else []
    rows = [
        [str(one.number), *(_value(one.values.get(name)) for name in names), number(one.score), one.status, one.folder]
        for one in result.trials[:most]
    ]
    title = f"{result.metric}, {result.direction}d; {', '.join(counts)}"
    show_table(title, ["trial", *names, result.metric, "ended", "folder"], rows, left=("ended", "folder"))
    if result.best is not None:
        best = Path(result.folder) / result.best.folder
        show(f"Best: holdfast evaluate {best}")
        show(f"Train with its settings: holdfast train --config {best / 'settings.json'}")
    show(f"Storage: {result.storage}")


def _values(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
