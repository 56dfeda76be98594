"""What a run of a study does, by name: a training, or an analysis that registers itself here.

    measured = procedure(settings table, options, folder)      (1)

A procedure that was interrupted is called again with the same arguments and continues from what its folder holds.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import ConfigError
from holdfast.runs.measured import Measured, measure
from holdfast.runs.settings import run_settings

__all__ = ["ANSWERS", "PROCEDURES", "Procedure", "procedure", "train"]


class Procedure(Protocol):
    """(1)."""

    def __call__(
        self, table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool = True, label: str = ...
    ) -> Measured: ...


PROCEDURES: dict[str, Procedure] = {}
"""Procedures by their names in study files."""

Answers = Callable[[Any, Mapping[str, Any]], Mapping[str, int | None]]

ANSWERS: dict[str, Answers] = {}
"""On how many answers a procedure counts each accuracy of its own: what ``procedure(answers=)`` was given."""


def procedure(
    name: str,
    defaults: Mapping[str, Any] | None = None,
    needed: Collection[str] = (),
    answers: Answers | None = None,
) -> Callable[[Callable[..., Measured]], Procedure]:
    """Register a function under ``name``, for runs with ``procedure = name``.

    The function gets the run's settings as tables, the run's ``options``, and a folder of its own that keeps what an
    earlier, interrupted call left there. If it trains nothing, and so gives no seconds back, its own count.

    Args:
        name: in study files.
        defaults: options and their defaults; the function gets all of them. None: any option, unchecked.
        needed: options without a default.
        answers: from the options of the task and of the run, on how many answers it counts "x.accuracy", as {"x": n}.

    Example:
        >>> @procedure("doctest", {"x": 1})
        ... def double(table, options, folder, *, progress, label):
        ...     return Measured(last={"twice": 2 * options["x"]})
        >>> double({}, {"x": 4}, Path(".")).value("twice", "last")
        8
        >>> PROCEDURES.pop("doctest")({}, {"y": 4}, Path("."), label="tiny")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: tiny: the procedure doctest has no option 'y'; known: x.
    """

    def register(function: Callable[..., Measured]) -> Procedure:
        @functools.wraps(function)
        def checked(
            table: dict[str, Any],
            options: dict[str, Any],
            folder: Path,
            *,
            progress: bool = True,
            label: str = "training",
        ) -> Measured:
            known = sorted({*(defaults or ()), *needed})
            for option in options if defaults is not None else ():
                if option not in known:
                    raise ConfigError(
                        f"{label}: the procedure {name} has no option {option!r}; known: {', '.join(known) or 'none'}."
                    )
            if missing := sorted(set(needed) - options.keys()):
                raise ConfigError(f"{label}: the procedure {name} needs the option {missing[0]!r}.")
            begin, spent = time.perf_counter(), time.process_time()
            found = function(table, {**(defaults or {}), **options}, folder, progress=progress, label=label)
            if found.seconds:
                return found
            seconds, cpu_seconds = round(time.perf_counter() - begin, 3), round(time.process_time() - spent, 3)
            return dataclasses.replace(found, seconds=seconds, cpu_seconds=cpu_seconds)

        PROCEDURES[name] = checked
        if (counted := answers) is not None:
            ANSWERS[name] = lambda task, options: counted(task, {**(defaults or {}), **options})
        return checked

    return register


@procedure("train", {})
def train(table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str) -> Measured:
    """Train by the settings; a run that diverges is measured up to that point.

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
    return measure(run_settings(table, label), folder, progress=progress, label=label)
