"""``holdfast study``: list, run and report what the papers say comes out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli._names import among, studies
from holdfast.cli._show import show, show_json, show_table
from holdfast.cli._verb import say, verb

__all__ = ["app"]

app = typer.Typer(
    name="study",
    help="Tables and figures of the papers: list them, run them, report claim, paper's number and ours.",
    no_args_is_help=True,
    epilog="[bold]Examples[/bold]\n\nholdfast study list\n\nholdfast study run s3/addition --scale small\n\n"
    "holdfast study report",
)

Root = Annotated[Path, typer.Option(help="Folder of the studies.")]
Results = Annotated[Path, typer.Option(help="Folder of the results.")]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
Name = typer.Argument(help="A study's name, such as s3/addition, or a TOML file.", autocompletion=studies)


@verb(app, "list", "holdfast study list", "holdfast study list --json")
def list_(root: Root = Path("studies"), as_json: Json = False) -> None:
    """The studies there are, their sources and their scales."""
    from holdfast.studies.study import find_studies, load_study

    found = [load_study(path, root) for path in find_studies(root)]
    if as_json:
        show_json(
            [
                {
                    "name": one.name,
                    "title": one.title,
                    "source": one.source,
                    "scales": list(one.scale),
                    "sweep": bool(one.sweep),
                }
                for one in found
            ]
        )
        return
    if not found:
        show(f"There is no study in {root}; --root names another folder.")
        return
    rows = [[one.name, one.title, one.source, ", ".join(one.scale), "yes" if one.sweep else ""] for one in found]
    head = ["study", "title", "source", "scales", "sweep"]
    show_table("", head, rows, left=head)


@verb(
    app,
    "run",
    "holdfast study run s3/addition --scale small",
    "holdfast study run s3/har2 --scale paper --only 'sgornn*'",
)
def run(
    study: Annotated[str, Name],
    scale: Annotated[
        str,
        typer.Option(
            help="smoke, small, paper, or what the study has.", autocompletion=among(("smoke", "small", "paper"))
        ),
    ] = "small",
    only: Annotated[list[str] | None, typer.Option(help="Names or patterns of runs; may be given again.")] = None,
    root: Root = Path("studies"),
    results: Results = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder of logs and checkpoints.")] = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run what of a study has not been run at a scale, and write its report. Killed, the same command goes on."""
    from holdfast.studies.run import result_folder, run_study
    from holdfast.studies.study import find_study

    found = find_study(study, root)
    run_study(found, scale, results, runs=runs, only=only or None, progress=not quiet)
    show((result_folder(found, scale, results) / "report.md").read_text(encoding="utf-8"))


@verb(app, "report", "holdfast study report", "holdfast study report s3/addition --scale small")
def report(
    study: Annotated[str | None, Name] = None,
    scale: Annotated[str | None, typer.Option(help="Of one study.", show_default="the largest that was run")] = None,
    root: Root = Path("studies"),
    results: Results = Path("results"),
    as_json: Json = False,
) -> None:
    """Claim, paper's number, ours, and whether it is met: of all studies, or the whole page of one."""
    from holdfast.errors import ConfigError
    from holdfast.studies.report import overview, overview_table, write_report
    from holdfast.studies.result import read_result
    from holdfast.studies.run import result_folder
    from holdfast.studies.study import find_studies, find_study, load_study

    if study is None:
        if scale is not None:
            raise typer.BadParameter("--scale is for one study; name it.", param_hint="--scale")
        rows = overview([load_study(path, root) for path in find_studies(root)], results)
        if as_json:
            show_json([dataclasses.asdict(row) for row in rows])
        else:
            show(overview_table(rows))
        return
    found = find_study(study, root)
    asked = [scale] if scale is not None else list(found.scale)[::-1]
    for name in asked:
        found.at(name)
        folder = result_folder(found, name, results)
        result = read_result(folder / "result.json")
        if result is not None:
            break
    else:
        raise ConfigError(
            f"{found.name} has no result at {' or '.join(asked)} in {results}: holdfast study run {found.name}"
        )
    if as_json:
        show_json([dataclasses.asdict(row) for row in overview([found], results)])
        return
    path = write_report(found, result, folder)
    show(path.read_text(encoding="utf-8"))
    say(f"Written to {path}")
