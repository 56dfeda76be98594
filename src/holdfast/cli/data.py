"""``holdfast data``: where the papers' data sets are, and how they come here."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from holdfast.cli._names import TASKS, among
from holdfast.cli._show import show, show_json, show_table
from holdfast.cli._verb import ExitCode, say, verb

__all__ = ["app"]

app = typer.Typer(
    name="data",
    help="The papers' data sets: list them, get them, check them.",
    no_args_is_help=True,
    epilog="[bold]Examples[/bold]\n\nholdfast data list\n\nholdfast data get har\n\nholdfast data check\n\n"
    "Files are looked for in HOLDFAST_DATA, then in the cache (HOLDFAST_CACHE), then downloaded and checked by hash.",
)

Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@verb(app, "list", "holdfast data list")
def list_(as_json: Json = False) -> None:
    """Every file that a task reads, its size, and where it is."""
    _show_files(check=False, as_json=as_json)


@verb(app, "check", "holdfast data check")
def check(as_json: Json = False) -> None:
    """The same, with every file that is there read through and its hash compared. Exit code 1 if one is damaged."""
    if damaged := _show_files(check=True, as_json=as_json):
        say(f"holdfast data check: {damaged} damaged; delete and get again.")
        raise typer.Exit(ExitCode.ERROR)


@verb(app, "get", "holdfast data get har", "holdfast data get ptb wikitext2")
def get(
    task: Annotated[list[str], typer.Argument(help="Names of tasks, see list.", autocompletion=among(TASKS))],
) -> None:
    """Download the files of a task from their official sources, checked by hash; what is there is checked and kept."""
    from holdfast.errors import ConfigError
    from holdfast.tasks import locate, status

    files = status()
    known = dict.fromkeys(file.task for file in files)
    for name in task:
        if name not in known:
            raise ConfigError(f"{name!r} is no task with files; known: {', '.join(known)}.")
    for file in files:
        if file.task in task:
            show(f"{file.source.path}: {locate(file.source)}")


def _show_files(*, check: bool, as_json: bool) -> int:
    from holdfast.tasks import status

    files = status(check=check)
    states = [_state(file.where, file.problem, check) for file in files]
    if as_json:
        show_json(
            [
                {
                    **dataclasses.asdict(file.source),
                    "task": file.task,
                    "found": file.found,
                    "state": state,
                    "problem": file.problem,
                }
                for file, state in zip(files, states, strict=True)
            ]
        )
    else:
        rows = [
            [file.task, file.source.path, f"{file.source.size:,}", state, str(file.found or _way(file.source.urls))]
            for file, state in zip(files, states, strict=True)
        ]
        show_table("", ["task", "file", "bytes", "state", "place"], rows, left=("file", "state", "place"))
    return sum(file.problem is not None for file in files)


def _state(where: str, problem: str | None, check: bool) -> str:
    if problem is not None:
        return "damaged"
    return {"absent": "absent", "cache": "in the cache"}.get(where, "in HOLDFAST_DATA") + (
        ", right" if check and where != "absent" else ""
    )


def _way(urls: tuple[str, ...]) -> str:
    return urls[0] if urls else "no address; put it there by hand"
