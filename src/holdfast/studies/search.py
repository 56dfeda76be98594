"""The ``sweep`` table of a study file: the ranges to search and the objective.

[sweep]
objective = { metric = "validation.mse", direction = "minimise" }
"cell.hidden_size" = { low = 16, high = 256, step = 16 }
"train.lr" = { low = 1e-4, high = 1e-1, log = true }
"train.optimiser" = { choices = ["adam", "rmsprop"] }
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import ConfigError, SettingError
from holdfast.runs.schema import listed, structured
from holdfast.studies.study import Study
from holdfast.train.metrics import HIGHER_IS_BETTER
from holdfast.train.settings import check_range

if TYPE_CHECKING:
    import optuna

__all__ = ["Objective", "Range", "Search", "read_search"]


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a sweep optimises.

    Args:
        metric: a split and a score, ``"validation.mse"``.
        direction: "minimise" or "maximise"; by the metric's name if left out.
        pick: the "best" evaluation of a run, or its "last".

    Example:
        >>> Objective("validation.accuracy").maximise
        True
    """

    metric: str
    direction: Literal["minimise", "maximise"] | None = None
    pick: Literal["best", "last"] = "best"

    def __post_init__(self) -> None:
        split, _, score = self.metric.partition(".")
        if not split or not score or "." in score:
            raise SettingError(f'metric must be a split and a score, such as "validation.mse"; got {self.metric!r}.')

    @property
    def maximise(self) -> bool:
        """Whether higher is better."""
        if self.direction is not None:
            return self.direction == "maximise"
        return self.metric.partition(".")[2] in HIGHER_IS_BETTER

    def value(self, log: list[dict[str, Any]]) -> float | None:
        """The objective of a run with this log; None if no evaluation gave a finite number.

        Example:
            >>> Objective("validation.mse").value([{"validation": {"mse": 0.3}}, {"validation": {"mse": 0.2}}])
            0.2
        """
        split, _, score = self.metric.partition(".")
        values = [entry.get(split, {}).get(score) for entry in log]
        if self.pick == "last":
            return values[-1] if values else None
        finite = [value for value in values if value is not None and math.isfinite(value)]
        return (max if self.maximise else min)(finite, default=None)


@dataclasses.dataclass(frozen=True)
class Range:
    """The range of one setting: numbers from ``low`` to ``high``, both included, or one of a few values.

    Args:
        low, high: the ends; whole numbers if both are written without a decimal point.
        step: only ``low`` plus multiples of it.
        log: as many trials between 1 and 10 as between 10 and 100.
        choices: instead of ends: values of any kind, also tables.

    Example:
        >>> Range(low=16, high=256, step=16).whole, Range(low=0.1, high=1, log=True).whole
        (True, False)
    """

    low: int | float | None = None
    high: int | float | None = None
    step: int | float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.choices:
            if self.low is not None or self.high is not None or self.step is not None or self.log:
                raise SettingError("give low and high, or choices, not both.")
            return
        if self.low is None or self.high is None:
            raise SettingError("give low and high, or choices.")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise SettingError(f"low must be finite and at most high, got {self.low} and {self.high}.")
        if self.log and (self.low <= 0 or self.step is not None):
            raise SettingError("log = true needs low greater than 0 and no step.")
        check_range(self, ("step",), 0, above=True)

    @property
    def whole(self) -> bool:
        """Whether it is a range of whole numbers."""
        return all(isinstance(end, int) for end in (self.low, self.high, self.step) if end is not None)

    @property
    def ends(self) -> tuple[Any, ...]:
        """Some of its values, for a check before the sweep starts."""
        return self.choices or (self.low, self.high)

    @property
    def every(self) -> tuple[Any, ...] | None:
        """All its values as a storage holds them; None if they cannot be counted.

        Example:
            >>> Range(low=2, high=6, step=2).every, Range(low=0.1, high=1.0).every
            ((2, 4, 6), None)
        """
        if self.choices:
            return tuple(_label(choice) for choice in self.choices)
        if not self.whole or self.log or self.low is None or self.high is None:
            return None
        return tuple(range(int(self.low), int(self.high) + 1, int(self.step or 1)))

    def draw(self, trial: optuna.Trial, name: str) -> Any:
        """The value of this setting in a trial."""
        if self.choices:
            return self.meant(trial.suggest_categorical(name, [_label(choice) for choice in self.choices]))
        assert self.low is not None
        assert self.high is not None
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)

    def meant(self, stored: Any) -> Any:
        """The value that a storage holds as ``stored``.

        Example:
            >>> Range(choices=({"kind": "linear"}, "none")).meant('{"kind": "linear"}')
            {'kind': 'linear'}
        """
        return next((choice for choice in self.choices if _label(choice) == stored), stored)


@dataclasses.dataclass(frozen=True)
class Search:
    """The ``sweep`` table of a study.

    Args:
        objective: what to optimise.
        ranges: by dotted key, at least one.
        run: the run whose settings every trial starts from; the study's defaults if empty.
    """

    objective: Objective
    ranges: dict[str, Range]
    run: str = ""


def read_search(study: Study) -> Search:
    """The search that a study describes.

    Example:
        >>> ranges = {"objective": {"metric": "validation.mse"}, "train.lr": {"low": 1e-4, "high": 0.1, "log": True}}
        >>> read_search(Study("Tiny", sweep=ranges)).ranges["train.lr"].high
        0.1
        >>> read_search(Study("Tiny", sweep={**ranges, "train.clip": {"lo": 1}}))
        Traceback (most recent call last):
        holdfast.errors.ConfigError: study: unknown key 'lo' in sweep.train.clip; known: choices, high, log, low, step.
    """
    if not study.sweep:
        raise ConfigError(f"{study.name} has no [sweep] table, so there is nothing to search.")
    table = dict(study.sweep)
    if "objective" not in table:
        raise ConfigError(f'{study.name}: sweep.objective is missing, such as {{ metric = "validation.mse" }}.')
    objective = structured(Objective, table.pop("objective"), study.name, "sweep.objective")
    run = table.pop("run", "")
    if run not in ("", *(one.name for one in study.run)):
        raise ConfigError(f"{study.name}: unknown sweep.run {run!r}; known: {listed(one.name for one in study.run)}.")
    ranges = {name: structured(Range, part, study.name, f"sweep.{name}") for name, part in _flat(table)}
    if not ranges:
        raise ConfigError(
            f'{study.name}: sweep has no range, such as "train.lr" = {{ low = 1e-4, high = 1e-1, log = true }}.'
        )
    return Search(objective, ranges, run)


def _flat(table: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Ranges by dotted key, from dotted keys and from nested tables alike."""
    fields = {field.name for field in dataclasses.fields(Range)}
    for name, part in table.items():
        dotted = f"{where}{name}"
        inside = isinstance(part, Mapping) and part and all(isinstance(deeper, Mapping) for deeper in part.values())
        if inside and not fields & part.keys():
            yield from _flat(part, f"{dotted}.")
        else:
            yield dotted, part


def _label(choice: Any) -> Any:
    """A choice as a storage can hold it: tables and lists become text."""
    plain = choice is None or isinstance(choice, bool | int | float | str)
    return choice if plain else json.dumps(choice, sort_keys=True)
