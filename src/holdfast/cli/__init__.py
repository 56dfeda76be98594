"""The command line: ``holdfast VERB``. It parses arguments; each verb calls one function of ``runs`` or ``studies``."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["main"]


def __getattr__(name: str) -> Any:
    """``app``, the typer application, made on first use: without typer, ``main`` can still say what is missing."""
    if name == "app":
        from holdfast.cli._app import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; the console script ``holdfast`` is this.

    Args:
        arguments: the words after ``holdfast``; by default those of this process.

    Example:
        >>> main(["--version"])  # doctest: +ELLIPSIS
        holdfast ...
        0
    """
    try:
        for needed in ("typer", "rich"):
            if importlib.util.find_spec(needed) is None:
                print(f"{needed} is not installed; run: pip install 'holdfast[train]'", file=sys.stderr)
                return 1
        from holdfast.cli._app import app

        app(args=arguments, prog_name="holdfast")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:  # while modules are being imported; later ones are reported by the verb
        return 130
    return 0
