"""What a run of a study does, by name: a training, or an analysis that registers itself here.

    measured = procedure(settings table, options, folder)      (1)

A procedure that is interrupted is called again with the same arguments, and goes on with what its folder holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from holdfast.errors import ConfigError, DivergedError
from holdfast.studies.config import run_settings
from holdfast.studies.result import Measured
from holdfast.studies.run import cell_parameters, read_outcome, train_run
from holdfast.train.log import read_log
from holdfast.train.loop import Outcome

__all__ = ["PROCEDURES", "Procedure", "columns", "measured_run", "procedure", "train"]


class Procedure(Protocol):
    """(1)."""

    def __call__(
        self, table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str
    ) -> Measured: ...


PROCEDURES: dict[str, Procedure] = {}
"""Procedures by the name that study files call them."""

Made = TypeVar("Made", bound=Procedure)


def procedure(name: str) -> Callable[[Made], Made]:
    """Register a function under ``name``, so that a run can say ``procedure = name``.

    The function gets the run's settings as tables, the run's ``options``, and a folder of its own that holds whatever
    an earlier, interrupted call left there.

    Example:
        >>> @procedure("doctest")
        ... def double(table, options, folder, *, progress, label):
        ...     return Measured(last={"twice": 2 * options["x"]})
        >>> PROCEDURES.pop("doctest")({}, {"x": 4}, Path("."), progress=False, label="").value("twice", "last")
        8
    """

    def register(function: Made) -> Made:
        PROCEDURES[name] = function
        return function

    return register


@procedure("train")
def train(
    table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool = True, label: str = "training"
) -> Measured:
    """Train by the settings; a run that diverges is measured up to there.

    Example:
        >>> import tempfile
        >>> table = {
        ...     "task": {"name": "addition", "steps": 4, "validation": 8},
        ...     "cell": {"hidden_size": 4},
        ...     "train": {"updates": 2, "batch": 4, "evaluate_every": 1},
        ... }
        >>> train(table, {}, Path(tempfile.mkdtemp()), progress=False).curve["update"]
        (1, 2)
    """
    if options:
        raise ConfigError(
            f"{label}: the procedure train has no options, got {', '.join(options)}; settings go into set."
        )
    settings = run_settings(table, label)
    found = measured_run(folder, lambda: train_run(settings, folder, progress=progress, label=label))
    return dataclasses.replace(found, cell_parameters=cell_parameters(folder))


def measured_run(folder: Path, run: Callable[[], Outcome]) -> Measured:
    """What a training in ``folder`` came to, from its outcome and its log; if it diverges, up to there.

    Example:
        >>> import tempfile
        >>> from holdfast.studies import run_settings, train_run
        >>> settings = run_settings({
        ...     "task": {"name": "addition", "steps": 4, "validation": 8},
        ...     "cell": {"hidden_size": 4},
        ...     "train": {"updates": 2, "batch": 4},
        ... })
        >>> folder = Path(tempfile.mkdtemp())
        >>> measured_run(folder, lambda: train_run(settings, folder, progress=False)).updates
        2
    """
    try:
        outcome = run()
    except DivergedError:
        outcome = read_outcome(folder)
        if outcome is None:
            raise
    rows = [_flat(entry) for entry in read_log(folder / "log.jsonl")]
    best = next((row for row in rows if row["update"] == outcome.best_update), {})
    last = {} if outcome.status == "diverged" else (rows[-1] if rows else {})
    return Measured(
        status=outcome.status,
        reason=outcome.reason.replace(f"{folder}/", ""),  # results name no folder of this machine
        best=_scores(best),
        last=_scores(last),
        curve=columns(rows),
        parameters=outcome.parameters,
        updates=outcome.updates,
        seconds=outcome.seconds,
    )


def columns(rows: Sequence[Mapping[str, float | None]]) -> dict[str, tuple[float | None, ...]]:
    """Rows as the columns of a curve.

    Example:
        >>> columns([{"update": 1, "loss": 0.5}, {"update": 2}])
        {'update': (1, 2), 'loss': (0.5, None)}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: tuple(row.get(name) for row in rows) for name in names}


def _flat(entry: Mapping[str, Any]) -> dict[str, float | None]:
    """A line of the log with its splits' scores as ``split.score``."""
    flat: dict[str, float | None] = {}
    for name, value in entry.items():
        flat |= {f"{name}.{score}": it for score, it in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _scores(row: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: value for name, value in row.items() if "." in name}
