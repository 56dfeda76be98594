"""``holdfast data``: where the papers' data sets are, and how to download them."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from holdfast.cli._names import TASKS, among
from holdfast.cli._options import Json
from holdfast.cli._show import show, show_json, show_table
from holdfast.cli._verb import ExitCode, say, verb

__all__ = ["app"]

app = typer.Typer(
    name="data",
    help="The papers' data sets: list, download or check their files.",
    no_args_is_help=True,
    epilog="[bold]Examples[/bold]\n\nholdfast data list\n\nholdfast data get har\n\nholdfast data check\n\n"
    "Files are searched in HOLDFAST_DATA, then in the cache (HOLDFAST_CACHE); a download is checked by its hash.",
)


@verb(app, "list", "holdfast data list")
def list_(as_json: Json = False) -> None:
    """List every file that a task needs, its size and its location."""
    _show_files(check=False, as_json=as_json)


@verb(app, "check", "holdfast data check")
def check(as_json: Json = False) -> None:
    """Compare the hash of every file that is present. The exit code is 1 if a file is damaged."""
    if damaged := _show_files(check=True, as_json=as_json):
        say(f"holdfast data check: {damaged} damaged; delete the file and run: holdfast data get TASK")
        raise typer.Exit(ExitCode.ERROR)


@verb(app, "get", "holdfast data get har", "holdfast data get ptb wikitext2")
def get(task: Annotated[list[str], typer.Argument(help="Names of tasks.", autocompletion=among(TASKS))]) -> None:
    """Download the files of a task from their official sources; files that are present are only checked."""
    from holdfast.errors import ConfigError
    from holdfast.tasks import locate, status

    files = status()
    known = dict.fromkeys(file.task for file in files)
    for name in task:
        if name not in known:
            raise ConfigError(f"{name!r} is not a task with files; known: {', '.join(known)}.")
    for file in files:
        if file.task in task:
            show(f"{file.source.path}: {locate(file.source)}")


def _show_files(*, check: bool, as_json: bool) -> int:
    """The table of files; how many are damaged."""
    from holdfast.tasks import status

    places = {"absent": "absent", "cache": "in the cache", "HOLDFAST_DATA": "in HOLDFAST_DATA"}
    listed, rows = [], []
    files = status(check=check)
    for file in files:
        intact = ", intact" if check and file.found else ""
        state = "damaged" if file.problem is not None else places[file.where] + intact
        place = str(file.found or next(iter(file.source.urls), "no address; copy it into HOLDFAST_DATA"))
        more = {"task": file.task, "found": file.found, "state": state, "problem": file.problem}
        listed.append({**dataclasses.asdict(file.source), **more})
        rows.append([file.task, file.source.path, f"{file.source.size:,}", state, place])
    if as_json:
        show_json(listed)
    else:
        show_table("", ["task", "file", "bytes", "state", "place"], rows, left=("file", "state", "place"))
    return sum(file.problem is not None for file in files)
