"""Names for shell completion. They are listed here because looking them up would import PyTorch on every key press.

A test compares them with ``holdfast.train.LAYERS``, ``holdfast.train.OPTIMISERS`` and ``holdfast.tasks.TASKS``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.files import shipped_folder

__all__ = ["CELLS", "CHOSEN", "OPTIMISERS", "SCHEDULES", "TASKS", "among", "runs", "studies"]

CELLS = (
    "exprnn",
    "fastrnn",
    "gru",
    "linear",
    "lstm",
    "mingru",
    "minlstm",
    "rnn",
    "rrnn",
    "rrnn-gru",
    "sgornn",
    "vprnn",
)
CHOSEN = ("auto", "reservoir")  # for --data: chosen automatically, and fitted in closed form
OPTIMISERS = ("adagrad", "adam", "adamw", "path-adam", "path-sgd", "phased-adam", "rmsprop", "sgd")
SCHEDULES = ("constant", "linear", "plateau", "step")
TASKS = (
    "addition",
    "bird",
    "copying",
    "enwik8",
    "gaussian",
    "har",
    "mnist",
    "own",
    "ptb",
    "ptb-characters",
    "sst",
    "text8",
    "wikitext2",
)


def among(names: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Completion of one of a few names.

    Example:
        >>> among(CELLS)("s")
        ['sgornn']
    """

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def studies(incomplete: str) -> list[str]:
    """Completion of a study's name."""
    root = here if (here := Path("studies")).is_dir() else shipped_folder("studies")
    names = (path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.toml"))
    return sorted(name for name in names if name.startswith(incomplete))


def runs(incomplete: str) -> list[str]:
    """Completion of a run folder: those in ``runs``, and those in the folder being typed."""
    below = {Path("runs"), Path(incomplete if incomplete.endswith("/") else Path(incomplete).parent)}
    found = {
        path.parent.as_posix() for folder in below for path in folder.glob("**/settings.json") if folder != Path(".")
    }
    return sorted(name for name in found if name.startswith(incomplete))
