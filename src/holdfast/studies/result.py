"""The result of a study, as in ``result.json``."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.files import shipped_folder, write_atomically
from holdfast.runs.environment import Environment
from holdfast.runs.measured import Measured
from holdfast.runs.schema import read_file, structured, table_of

__all__ = ["Attempt", "SeedResult", "StudyResult", "read_result", "result_folder", "write_result"]


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
        """As ``Measured.value``; "diverged" and seconds are over all attempts: the share of them, and their sum."""
        if metric in ("diverged", "seconds", "cpu_seconds"):
            parts = [attempt.measured.value(metric) for attempt in self.attempts]
            there = [part for part in parts if part is not None]
            if len(there) < len(parts):
                return None
            return sum(there) / len(there) if metric == "diverged" else sum(there)
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
        """A metric of a run, one value per seed."""
        return [result.value(metric, pick) for result in self.of(run)]


def result_folder(study: str, scale: str, results: str | Path | None = None) -> Path:
    """The folder with the result of a study at a scale.

    Args:
        study, scale: their names.
        results: of all studies. None: ``results`` in the current folder if it has this one, else those that come with
            Holdfast.

    Example:
        >>> result_folder("s3/tiny", "small", "results").as_posix()
        'results/s3/tiny/small'
    """
    here = Path(results or "results") / study / scale
    return here if results is not None or here.is_dir() else shipped_folder("results") / study / scale


def read_result(path: str | Path) -> StudyResult | None:
    """The result in a file, or None if there is no such file.

    Example:
        >>> read_result("no-such-file.json") is None
        True
    """
    path = Path(path)
    if not path.is_file():
        return None
    hint = "Delete it and run the study again; finished runs are kept."
    result = structured(StudyResult, read_file(path, hint), str(path))
    for entry in result.results:
        if not 0 <= entry.chosen < len(entry.attempts):
            raise ConfigError(f"{path}: {entry.run}, seed {entry.seed}: there is no attempt {entry.chosen}.")
    return result


def write_result(path: str | Path, result: StudyResult | Measured) -> None:
    """Write a result, whole or not at all; non-finite numbers become null, curves keep six digits.

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
    """JSON with one line per key and lists of numbers on one line: readable, with small diffs."""
    inner, outer = " " * (indent + 1), " " * indent
    if isinstance(node, dict) and node:
        parts = [f"{inner}{json.dumps(name)}: {_pretty(part, indent + 1)}" for name, part in node.items()]
        return "{\n" + ",\n".join(parts) + f"\n{outer}}}"
    if isinstance(node, list) and any(isinstance(part, (dict, list)) for part in node):
        return "[\n" + ",\n".join(inner + _pretty(part, indent + 1) for part in node) + f"\n{outer}]"
    return json.dumps(node, allow_nan=False)
