"""The numbers of one run: its outcome, the scores of its evaluations, its curves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from holdfast.errors import DivergedError
from holdfast.runs.schema import read_file
from holdfast.runs.settings import RunSettings
from holdfast.runs.train import train_run
from holdfast.train import sums
from holdfast.train.log import read_log
from holdfast.train.loop import Outcome, read_outcome

__all__ = ["Measured", "columns", "difference", "flat", "measure", "measured_run"]


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a procedure gives back.

    Args:
        status: "diverged" is a result like the others.
        reason: why it stopped early or diverged.
        best: metrics at the evaluation whose monitored metric is best, ``{"validation.mse": 0.03}``.
        last: metrics at the end; empty if there is none because the run diverged.
        curve: columns of equal length, ``{"update": (100, 200), "validation.mse": (0.1, 0.03)}``.
        parameters, cell_parameters: free numbers of the model, and of its recurrent layer alone.
        updates, seconds, cpu_seconds: how long it took: updates, seconds by the clock, and of the processor in all
            threads, None if unknown.
        rewinds: how often ``spikes = "rewind"`` put earlier weights back; None without it.

    Example:
        >>> Measured(best={"train.accuracy": 0.9, "test.accuracy": 0.75}).value("train.accuracy - test.accuracy")
        0.15
    """

    status: Literal["finished", "stopped", "diverged"] = "finished"
    reason: str = ""
    best: dict[str, float | None] = dataclasses.field(default_factory=dict)
    last: dict[str, float | None] = dataclasses.field(default_factory=dict)
    curve: dict[str, tuple[float | None, ...]] = dataclasses.field(default_factory=dict)
    parameters: int | None = None
    cell_parameters: int | None = None
    updates: int = 0
    seconds: float = 0.0
    cpu_seconds: float | None = None
    rewinds: int | None = None

    def value(self, metric: str, pick: str = "best") -> float | None:
        """A metric, or the difference of two; None where there is no such number."""
        if metric == "diverged":
            return float(self.status == "diverged")
        if metric in ("parameters", "cell_parameters", "updates", "seconds", "cpu_seconds"):
            return getattr(self, metric)
        scores = self.best if pick == "best" else self.last
        first, minus, second = difference(metric)
        value = _finite(scores.get(first))
        if not minus or value is None:
            return value
        other = _finite(scores.get(second))
        return None if other is None else round(value - other, 12)

    def plus(self, numbers: dict[str, float | None], curve: Mapping[str, Any] | None = None) -> Measured:
        """The same with more numbers, and with another curve if one is given."""
        changes: dict[str, Any] = {} if curve is None else {"curve": dict(curve)}
        return dataclasses.replace(self, best=self.best | numbers, last=self.last | numbers, **changes)

    def after(self, other: Measured) -> Measured:
        """The same with the time of another training that it needed.

        Example:
            >>> Measured(seconds=2.0, cpu_seconds=1.5).after(Measured(seconds=3.0)).seconds
            5.0
        """
        times = self.cpu_seconds, other.cpu_seconds
        spent = None if None in times else round(sum(time for time in times if time is not None), 3)
        return dataclasses.replace(self, seconds=round(self.seconds + other.seconds, 3), cpu_seconds=spent)


def measure(settings: RunSettings, folder: Path, **options: Any) -> Measured:
    """Train by the settings in ``folder``, as ``train_run`` does with these options, and measure.

    Example:
        >>> import tempfile
        >>> from holdfast.runs import run_settings
        >>> settings = run_settings({
        ...     "task": {"name": "addition", "steps": 4, "validation": 8},
        ...     "cell": {"hidden_size": 4},
        ...     "train": {"updates": 4, "batch": 4},
        ... })
        >>> seen = []
        >>> found = measure(
        ...     settings, Path(tempfile.mkdtemp()), look=lambda model, update: seen.append(update), at={0, 2, 4},
        ...     progress=False,
        ... )
        >>> seen, found.updates
        ([0, 2, 4], 4)
    """
    found = measured_run(folder, lambda: train_run(settings, folder, **options))
    return dataclasses.replace(found, cell_parameters=cell_parameters(folder))


def cell_parameters(folder: Path) -> int | None:
    """How many weights the recurrent layer of the run in ``folder`` has, as the run wrote it down."""
    path = folder / sums.MODEL
    sums.check(folder, sums.MODEL)  # also if it is missing: None is for a run that never had one
    if not path.is_file():
        return None
    return int(read_file(path, "Start the run again in another folder.")["cell_parameters"])


def measured_run(folder: Path, run: Callable[[], Outcome]) -> Measured:
    """Measure a training in ``folder``, from its outcome and its log; if it diverges, up to that point."""
    try:
        outcome = run()
    except DivergedError:
        outcome = read_outcome(folder)
        if outcome is None:
            raise
    rows = [flat(entry) for entry in read_log(folder / "log.jsonl")]
    best = next((row for row in rows if row["update"] == outcome.best_update), {})
    last = {} if outcome.status == "diverged" else (rows[-1] if rows else {})
    curve = columns(rows)
    return Measured(
        status=outcome.status,
        reason=outcome.reason.replace(f"{folder}/", ""),  # results name no folder of this machine
        best=_scores(best),
        last=_scores(last),
        curve=curve,
        parameters=outcome.parameters,
        updates=outcome.updates,
        seconds=outcome.seconds,
        cpu_seconds=outcome.cpu_seconds,
        rewinds=outcome.rewinds if outcome.rewinds or "rewinds" in curve else None,
    )


def difference(metric: str) -> tuple[str, bool, str]:
    """The two metrics of ``"a - b"``; a metric without a minus is the first alone.

    Example:
        >>> difference("train.loss - test.loss"), difference("test.loss")
        (('train.loss', True, 'test.loss'), ('test.loss', False, ''))
    """
    first, minus, second = metric.partition(" - ")
    return first.strip(), bool(minus), second.strip()


def columns(rows: Sequence[Mapping[str, float | None]]) -> dict[str, tuple[float | None, ...]]:
    """Rows as the columns of a curve.

    Example:
        >>> columns([{"update": 1, "loss": 0.5}, {"update": 2}])
        {'update': (1, 2), 'loss': (0.5, None)}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: tuple(row.get(name) for row in rows) for name in names}


def flat(entry: Mapping[str, Any]) -> dict[str, float | None]:
    """A line of the log with its splits' scores as ``split.score``.

    Example:
        >>> flat({"update": 1, "validation": {"loss": 0.5}})
        {'update': 1, 'validation.loss': 0.5}
    """
    row: dict[str, float | None] = {}
    for name, value in entry.items():
        row |= {f"{name}.{score}": it for score, it in value.items()} if isinstance(value, dict) else {name: value}
    return row


def _scores(row: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: value for name, value in row.items() if "." in name}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
