"""Arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli._names import among, runs, studies

__all__ = ["Accelerator", "Devices", "Json", "Quiet", "Root", "Run", "Which", "chosen_from", "study_name"]

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Run = Annotated[Path, typer.Argument(help="Run folder.", autocompletion=runs)]
Devices = Annotated[int, typer.Option(min=1, help="Number of processes that share each batch.")]
Accelerator = Annotated[str, typer.Option(help="Kind of device: cpu, cuda, mps or auto.")]
Root = Annotated[
    Path | None, typer.Option(help="Folder of the studies.", show_default="./studies, or those that come with Holdfast")
]
Which = Annotated[
    str | None,
    typer.Option(
        help="Weights to use: best (at the best evaluation) or last.",
        autocompletion=among(("best", "last")),
        show_default="what the run chose",
    ),
]


def study_name(help: str = "Name of a study, such as s3/addition, or a TOML file.") -> typer.models.ArgumentInfo:
    """The argument that names a study."""
    return typer.Argument(help=help, autocompletion=studies)


def chosen_from(known: tuple[str, ...], value: str, option: str) -> str:
    """``value`` if it is one of the known ones, else a usage error."""
    if value not in known:
        raise typer.BadParameter(f"expected one of {', '.join(known)}; got {value!r}.", param_hint=option)
    return value
