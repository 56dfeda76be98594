"""``holdfast sweep``: search settings with Optuna."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli._names import among
from holdfast.cli._options import Json, Quiet, Root, chosen_from, study_name
from holdfast.cli._show import number, show, show_json, show_table
from holdfast.cli._verb import say
from holdfast.errors import Interrupted

if TYPE_CHECKING:
    from holdfast.studies.sweep import SweepResult, Trial

__all__ = ["EXAMPLES", "sweep"]

EXAMPLES = (
    "holdfast sweep s1/gru-search --trials 50",
    "holdfast sweep s1/gru-search --trials 5 --scale smoke --sampler random",
    "holdfast sweep mine.toml --trials 200 --storage postgresql://user@host/sweeps  # on every machine",
)
SAMPLERS = ("tpe", "random")


def sweep(
    study: Annotated[str, study_name("Name of a study, or a TOML file, with a \\[sweep] table.")],
    trials: Annotated[int, typer.Option(min=1, help="Total number of trials, including earlier ones.")] = 50,
    storage: Annotated[
        str | None, typer.Option(help="Any Optuna URL.", show_default="an SQLite file in the run folder")
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(help="tpe learns from earlier trials; random does not.", autocompletion=among(SAMPLERS)),
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
    r"""Search the ranges in the \[sweep] table of a study.

    The same command again continues to the total, or joins in from another terminal or machine. The trial of a killed
    worker is resumed from its last checkpoint.
    """
    from holdfast.studies.study import find_study
    from holdfast.studies.sweep import sweep as search

    method: Any = chosen_from(SAMPLERS, sampler, "--sampler")
    found = find_study(study, root)
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
