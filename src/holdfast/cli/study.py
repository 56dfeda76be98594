"""``holdfast study``: list, run and report the papers' tables and figures."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli._names import among
from holdfast.cli._options import Json, Quiet, Root, study_name
from holdfast.cli._show import show, show_json, show_table
from holdfast.cli._verb import say, verb

__all__ = ["app"]

app = typer.Typer(
    name="study",
    help="Tables and figures of the papers: list them, run them, compare the paper's numbers with ours.",
    no_args_is_help=True,
    epilog="[bold]Examples[/bold]\n\nholdfast study list\n\nholdfast study run s3/addition --scale small\n\n"
    "holdfast study report",
)


@verb(app, "list", "holdfast study list", "holdfast study list --json")
def list_(root: Root = None, as_json: Json = False) -> None:
    """List the studies, their sources and their scales."""
    from holdfast.studies.study import find_studies, load_study, studies_folder

    found = [load_study(path, studies_folder(root)) for path in find_studies(root)]
    if as_json:
        parts = [(one.name, one.title, one.source, list(one.scale), bool(one.sweep)) for one in found]
        show_json([dict(zip(("name", "title", "source", "scales", "sweep"), part, strict=True)) for part in parts])
    elif not found:
        show(f"No study files in {studies_folder(root)}; choose another folder with --root.")
    else:
        head = ["study", "title", "source", "scales", "sweep"]
        rows = [[one.name, one.title, one.source, ", ".join(one.scale), "yes" if one.sweep else ""] for one in found]
        show_table("", head, rows, left=head)


@verb(
    app,
    "run",
    "holdfast study run s3/addition --scale small",
    "holdfast study run s3/har2 --scale paper --only 'sgornn*'",
)
def run(
    study: Annotated[str, study_name()],
    scale: Annotated[
        str,
        typer.Option(
            help="smoke, small, paper, or another scale of the study.",
            autocompletion=among(("smoke", "small", "paper")),
        ),
    ] = "small",
    only: Annotated[list[str] | None, typer.Option(help="Name or pattern of runs. Repeat for several.")] = None,
    root: Root = None,
    results: Annotated[Path, typer.Option(help="Folder to write results to.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder for logs and checkpoints.")] = Path("runs"),
    quiet: Quiet = False,
) -> None:
    """Run the parts of a study that have no result yet, and write its report. The same command resumes a killed one."""
    from holdfast.studies.run import run_study
    from holdfast.studies.study import find_study

    found = find_study(study, root)
    run_study(found, scale, results, runs=runs, only=only or None, progress=not quiet)
    show((results / found.name / scale / "report.md").read_text(encoding="utf-8"))


@verb(app, "report", "holdfast study report", "holdfast study report s3/addition --scale small")
def report(
    study: Annotated[str | None, study_name()] = None,
    scale: Annotated[str | None, typer.Option(help="Of one study.", show_default="the largest with a result")] = None,
    root: Root = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder of the results.", show_default="./results, or those of Holdfast")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show claims, the paper's numbers and ours: of all studies, or the whole report of one."""
    from holdfast.errors import ConfigError
    from holdfast.studies.report import overview, overview_table, write_report
    from holdfast.studies.report import report as page
    from holdfast.studies.result import read_result, result_folder
    from holdfast.studies.study import find_studies, find_study, load_study, studies_folder

    if study is None and scale is not None:
        raise typer.BadParameter("--scale needs the name of a study.", param_hint="--scale")
    chosen = [find_study(study, root)] if study else [load_study(it, studies_folder(root)) for it in find_studies(root)]
    if as_json or study is None:
        rows = overview(chosen, results)
        show_json([dataclasses.asdict(row) for row in rows]) if as_json else show(overview_table(rows))
        return
    (found,) = chosen
    asked = [scale] if scale is not None else list(found.scale)[::-1]
    for name in asked:
        found.at(name)
        folder = result_folder(found.name, name, results)
        if (result := read_result(folder / "result.json")) is not None:
            break
    else:
        raise ConfigError(f"{found.name} has no result at {' or '.join(asked)}; run: holdfast study run {found.name}")
    if folder != result_folder(
        found.name, name, results or "results"
    ):  # one that came with Holdfast: not ours to write
        show(page(found, result))
        return
    path = write_report(found, result, folder)
    show(path.read_text(encoding="utf-8"))
    say(f"Written to {path}")
