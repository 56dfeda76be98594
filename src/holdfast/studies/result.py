"""What a study came to, as it stands in ``result.json``."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from holdfast.errors import ConfigError
from holdfast.files import write_atomically
from holdfast.studies.environment import Environment
from holdfast.studies.schema import structured, table_of

__all__ = ["Attempt", "Measured", "SeedResult", "StudyResult", "difference", "read_result", "write_result"]


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
        updates, seconds: how long it took.

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

    def value(self, metric: str, pick: str = "best") -> float | None:
        """A metric, or the difference of two; None where there is no such number."""
        if metric == "diverged":
            return float(self.status == "diverged")
        if metric in ("parameters", "cell_parameters", "updates", "seconds"):
            return getattr(self, metric)
        scores = self.best if pick == "best" else self.last
        first, minus, second = difference(metric)
        value = _finite(scores.get(first))
        if not minus or value is None:
            return value
        other = _finite(scores.get(second))
        return None if other is None else round(value - other, 12)


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One of the values that were tried, and what it gave; None where nothing was searched."""

    value: Any
    measured: Measured


@dataclasses.dataclass(frozen=True)
class SeedResult:
    """One run with one seed.

    Args:
        run, seed: which.
        settings: a digest of all that decided it, so that a study that has changed since is noticed.
        attempts: in the order they were made.
        chosen: the index of the one that is reported.
        date, environment: when and where.
    """

    run: str
    seed: int
    settings: str
    attempts: tuple[Attempt, ...]
    chosen: int
    date: str
    environment: Environment

    @property
    def measured(self) -> Measured:
        """What is reported."""
        return self.attempts[self.chosen].measured

    def value(self, metric: str, pick: str = "best") -> float | None:
        """As ``Measured.value``; "diverged" and "seconds" are over all attempts: the share of them, and their sum."""
        if metric in ("diverged", "seconds"):
            parts = [attempt.measured.value(metric) or 0.0 for attempt in self.attempts]
            return sum(parts) / len(parts) if metric == "diverged" else sum(parts)
        return self.measured.value(metric, pick)


@dataclasses.dataclass(frozen=True)
class StudyResult:
    """Every run of a study at one scale that has ended so far.

    Example:
        >>> StudyResult("s3/addition", "small").of("sgornn-500")
        ()
    """

    study: str
    scale: str
    results: tuple[SeedResult, ...] = ()

    def of(self, run: str) -> tuple[SeedResult, ...]:
        """The seeds of a run."""
        return tuple(result for result in self.results if result.run == run)

    def values(self, run: str, metric: str, pick: str = "best") -> list[float | None]:
        """A metric of a run, a value a seed."""
        return [result.value(metric, pick) for result in self.of(run)]


def difference(metric: str) -> tuple[str, bool, str]:
    """The two metrics of ``"a - b"``; a metric without a minus is the first alone.

    Example:
        >>> difference("train.loss - test.loss"), difference("test.loss")
        (('train.loss', True, 'test.loss'), ('test.loss', False, ''))
    """
    first, minus, second = metric.partition(" - ")
    return first.strip(), bool(minus), second.strip()


def read_result(path: str | Path) -> StudyResult | None:
    """The result in a file, or None if there is no such file.

    Example:
        >>> read_result("no-such-file.json") is None
        True
    """
    path = Path(path)
    if not path.is_file():
        return None
    try:
        table = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not JSON: {error}; remove it and run the study again: what is done is kept."
        ) from None
    result = structured(StudyResult, table, str(path))
    for entry in result.results:
        if not 0 <= entry.chosen < len(entry.attempts):
            raise ConfigError(f"{path}: {entry.run}, seed {entry.seed}: there is no attempt {entry.chosen}.")
    return result


def write_result(path: str | Path, result: StudyResult | Measured) -> None:
    """Write a result, whole or not at all; numbers that are none become null, curves keep six digits.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "result.json"
        >>> write_result(path, StudyResult("s3/addition", "small"))
        >>> read_result(path)
        StudyResult(study='s3/addition', scale='small', results=())
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _pretty(_clean(table_of(result))) + "\n")


def _clean(node: Any, curve: bool = False) -> Any:
    if isinstance(node, Mapping):
        return {name: _clean(part, curve or name == "curve") for name, part in node.items()}
    if isinstance(node, list):
        return [_clean(part, curve) for part in node]
    if isinstance(node, float):
        return (float(f"{node:.6g}") if curve else node) if math.isfinite(node) else None
    return node


def _pretty(node: Any, indent: int = 0) -> str:
    """JSON with a line a key, but lists of numbers on one: readable, and a small difference is a small diff."""
    inner, outer = " " * (indent + 1), " " * indent
    if isinstance(node, dict) and node:
        parts = [f"{inner}{json.dumps(name)}: {_pretty(part, indent + 1)}" for name, part in node.items()]
        return "{\n" + ",\n".join(parts) + f"\n{outer}}}"
    if isinstance(node, list) and any(isinstance(part, (dict, list)) for part in node):
        return "[\n" + ",\n".join(inner + _pretty(part, indent + 1) for part in node) + f"\n{outer}]"
    return json.dumps(node, allow_nan=False)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
