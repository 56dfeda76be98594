"""What a person hands over as series, as one form: a list of (time, channels) arrays, all finite.

1-D array: one series of one channel. 2-D array or DataFrame: one series, a column per channel. A list of those: several
series, of any lengths, with the same columns. Dates (the index, or a column of dates) order the steps and are no input.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np

from holdfast.errors import DataError

__all__ = ["Panel", "check_times", "read_panel"]


@dataclasses.dataclass(frozen=True)
class Panel:
    """Series with the same columns.

    Args:
        values: (time, channels) of each.
        names: of the channels.
        times: of the steps of each series, or None.
        several: whether a list was given.
        flat: whether a series was 1-D.

    Example:
        >>> panel = read_panel([[1.0, 2.0, 3.0], [4.0, 5.0]], "series")
        >>> [y.shape for y in panel.values], panel.several
        ([(3, 1), (2, 1)], True)
    """

    values: list[np.ndarray]
    names: tuple[str, ...]
    times: list[np.ndarray | None]
    several: bool
    flat: bool

    @property
    def channels(self) -> int:
        return len(self.names)


def read_panel(given: Any, what: str) -> Panel:
    """``given`` as a panel; ``what`` is its name in errors.

    Example:
        >>> read_panel([1.0, float("nan"), 3.0], "series")
        Traceback (most recent call last):
        holdfast.errors.DataError: series has NaN or infinity in 1 of 3 rows, counted from 0: 1; fill them in first.
    """
    several = isinstance(given, list | tuple) and len(given) > 0 and (_is_table(given[0]) or np.ndim(given[0]) > 0)
    parts = list(given) if several else [given]
    values, names, times, flats = [], [], [], []
    for index, part in enumerate(parts):
        who = f"{what}[{index}]" if several else what
        array, name, when = _table(part, who) if _is_table(part) else _array(part, who)
        flats.append(array.ndim == 1)
        if not array.size:
            raise DataError(f"{who} is empty.")
        array = array.reshape(len(array), -1)
        if (bad := ~np.isfinite(array).all(axis=1)).any():
            rows = np.flatnonzero(bad)
            shown = ", ".join(map(str, rows[:10])) + (", …" if len(rows) > 10 else "")
            raise DataError(
                f"{who} has NaN or infinity in {len(rows):,} of {len(array):,} rows, counted from 0: {shown}; "
                "fill them in first."
            )
        if (most := np.abs(array).max()) > 1e100:  # squares must be finite
            raise DataError(f"{who} has values up to {most:.3g}; rescale it to below 1e100.")
        if when is not None:
            check_times(when, who)
        if values and array.shape[1] != values[0].shape[1]:
            raise DataError(
                f"{who} has {array.shape[1]} columns, the first series {values[0].shape[1]}; expected the same."
            )
        if names and name is not None and names[0] is not None and name != names[0]:
            raise DataError(f"{who} has the columns {', '.join(name)}, the first series {', '.join(names[0])}.")
        values.append(array)
        names.append(name)
        times.append(when)
    width = values[0].shape[1]
    return Panel(values, names[0] or tuple(map(str, range(width))), times, several, flats[0])


def check_times(times: np.ndarray, who: str) -> None:
    """Raise unless times ascend; warn where their distances are unequal, months, quarters and years aside."""
    steps = np.diff(times.astype("datetime64[s]").astype(np.int64) if times.dtype.kind == "M" else times)
    if len(steps) and (steps <= 0).any():
        row = int(np.argmax(steps <= 0)) + 1
        kind = "appears twice" if steps[row - 1] == 0 else f"comes after {times[row - 1]}"
        raise DataError(
            f"{who}: the time {times[row]} in row {row} (counted from 0) {kind}; sort the rows, one per time."
        )
    if len(steps) and steps.max() > 1.2 * steps.min():
        row = int(steps.argmax())
        warnings.warn(
            f"{who}: the steps are not equally spaced; the largest distance is from {times[row]} to {times[row + 1]}. "
            "Forecasts count steps, not time. Fill the gaps in, or resample.",
            UserWarning,
            stacklevel=2,
        )


def _is_table(part: Any) -> bool:
    return hasattr(part, "columns") and hasattr(part, "__getitem__")


def _table(frame: Any, who: str) -> tuple[np.ndarray, tuple[str, ...], np.ndarray | None]:
    """A pandas or polars DataFrame: its columns of numbers, their names, and its dates."""
    when, columns = _dates(np.asarray(frame.index)) if hasattr(frame, "index") else None, {}
    for name in frame.columns:
        column = np.asarray(frame[name])
        if column.dtype.kind == "M":
            when = column
        elif column.dtype.kind in "biuf":
            columns[str(name)] = column.astype(np.float64)
        else:
            raise DataError(f"{who}: the column {name!r} holds {column.dtype}, not numbers; leave it out.")
    if not columns:
        raise DataError(f"{who} has no column of numbers.")
    return np.stack(list(columns.values()), axis=1), tuple(columns), when


def _array(part: Any, who: str) -> tuple[np.ndarray, tuple[str, ...] | None, np.ndarray | None]:
    try:
        array = np.asarray(part, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"{who} must hold numbers, in an array, a DataFrame or a list of those; got {part!r:.80}."
        ) from None
    if array.ndim not in (1, 2):
        raise DataError(f"{who} must have the shape (time,) or (time, channels), got {array.shape}.")
    index = getattr(part, "index", None)  # of a pandas Series
    return array, None, _dates(np.asarray(index)) if index is not None and not callable(index) else None


def _dates(index: np.ndarray) -> np.ndarray | None:
    return index if index.dtype.kind == "M" else None
