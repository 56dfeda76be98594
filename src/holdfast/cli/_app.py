"""The ``holdfast`` application: verbs, version, help."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import bench, cite, data, diagnose, evaluate, export, predict, resume, study, sweep, train
from holdfast.cli._verb import verb

__all__ = ["app"]

app = typer.Typer(
    name="holdfast",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # --debug shows Python's own traceback
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 error, 2 wrong usage, 3 training diverged, 130 Ctrl-C, 143 SIGTERM.\n\n"
    "Try: holdfast train addition --set task.steps=50",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"holdfast {version('holdfast')}")
        except PackageNotFoundError:  # run from a source tree
            import holdfast

            typer.echo(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Recurrent networks for long sequences: train, evaluate, search settings, reproduce the papers' results."""


for module in (train, resume, evaluate, diagnose, predict, export, sweep, bench, cite):
    name = module.__name__.rpartition(".")[2]
    verb(app, name, *module.EXAMPLES)(getattr(module, name))
app.add_typer(study.app)
app.add_typer(data.app)
