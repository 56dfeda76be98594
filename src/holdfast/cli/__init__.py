"""The command line: ``holdfast VERB``. Argument parsing only; each verb calls a function of ``holdfast.studies``."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["main"]


def __getattr__(name: str) -> Any:
    """``app``, the typer application, made when it is asked for: without typer, ``main`` still says what is missing."""
    if name == "app":
        from holdfast.cli._app import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; the console script ``holdfast`` is this.

    Args:
        arguments: what comes after ``holdfast``; by default what this process was started with.

    Example:
        >>> main(["--version"])  # doctest: +ELLIPSIS
        holdfast ...
        0
    """
    try:
        for needed in ("typer", "rich"):
            if importlib.util.find_spec(needed) is None:
                print(f"The command line needs {needed}: pip install 'holdfast[train]'", file=sys.stderr)
                return 1
        from holdfast.cli._app import app

        app(args=arguments, prog_name="holdfast")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:  # while modules were being read; later ones are told by the verb
        return 130
    return 0
