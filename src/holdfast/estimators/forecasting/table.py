"""Series to forecast, from a file of columns.

Rows are steps. A column of times orders them, and one of names says to which series a row belongs. Rows at the end of a
series in which the columns to forecast are empty belong to the future: they bring values of the columns known ahead.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from holdfast.errors import DataError
from holdfast.estimators.forecasting.panel import check_times
from holdfast.estimators.forecasting.times import dates_of
from holdfast.tasks.columns import labels_of
from holdfast.tasks.formats import read_data
from holdfast.tasks.own_data import CALENDAR_NAMES, TIME_NAMES
from holdfast.tasks.tables import SEQUENCE_NAMES, Table

__all__ = ["Roles", "SeriesTable", "read_roles", "read_series"]


@dataclasses.dataclass(frozen=True)
class Roles:
    """Which columns are what.

    Args:
        forecast: to forecast.
        known: known for the future too.
        past: known for the past only.
        time, sequence: order of the steps, and names of the series; None if there is none.
    """

    forecast: tuple[str, ...]
    known: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    time: str | None = None
    sequence: str | None = None


@dataclasses.dataclass(frozen=True)
class SeriesTable:
    """Series by name: columns to forecast, of the past, known ahead (past and future), and times of the past if any."""

    names: tuple[str, ...]
    values: list[np.ndarray]
    past: list[np.ndarray]
    known: list[np.ndarray]
    times: list[np.ndarray | None]


def read_roles(
    path: Path, forecast: tuple[str, ...], known: tuple[str, ...], time: str | None, sequence: str | None
) -> tuple[Roles, list[str]]:
    """The roles of all columns, and a sentence for each that was found and not given."""
    table = _table(path)
    forecast, known = (tuple(_column(table, name) for name in names) for names in (forecast, known))
    time, sequence = (name if name is None else _column(table, name) for name in (time, sequence))
    given = [*forecast, *known, *(name for name in (time, sequence) if name is not None)]
    if twice := sorted({name for name in given if given.count(name) > 1}):
        raise DataError(
            f"{path}: the column {twice[0]!r} has two roles; --forecast, --known, --time and --sequence differ."
        )
    others = [name for name in table.columns if name not in given]
    lower = {name.lower(): name for name in reversed(others)}
    said = []
    if sequence is None:
        sequence = next(
            (lower[name] for name in SEQUENCE_NAMES if name in lower and _repeats(table[lower[name]])), None
        )
        if sequence is not None:
            said.append(f"Series are named by {sequence!r} (--sequence).")
    if time is None:
        named = [lower[name] for name in TIME_NAMES if name in lower]
        dated = [name for name in others if table[name].dtype.kind in "OUM" and dates_of(table[name]) is not None]
        years = [lower["year"]] if "year" in lower and _tells_apart(table, lower["year"], sequence) else []
        time = next((name for name in (*named, *dated, *years) if name != sequence), None)
        if time is not None:
            said.append(f"Steps are ordered by {time!r} (--time).")
    passed = {*given, time, sequence}
    past = tuple(
        name
        for name in others
        if name not in passed
        and table[name].dtype.kind in "biuf"
        and name.strip()
        and name.lower() not in (*CALENDAR_NAMES, *TIME_NAMES, *SEQUENCE_NAMES)
        and not _counts(table[name])
    )
    return Roles(forecast, known, past, time, sequence), said


def read_series(path: Path, roles: Roles) -> SeriesTable:
    """The series of a file; without the columns to forecast, all of its rows belong to the future."""
    table = _table(path)
    if roles.sequence is None:
        group, names = np.zeros(table.rows, dtype=np.intp), (path.stem,)
    else:
        column = table[roles.sequence]
        empty = np.array([value is None or value != value for value in column])
        if empty.any():
            raise DataError(
                f"{path}: the column {roles.sequence!r} names the series and is empty in row {empty.argmax() + 1:,}; "
                "fill it in."
            )
        found, first, number = np.unique(np.array(labels_of(column)), return_index=True, return_inverse=True)
        order = np.argsort(first)
        group, names = np.argsort(order)[number.reshape(-1)], tuple(map(str, found[order]))
    when = None if roles.time is None else _when(table, roles.time)
    parts: list[list[np.ndarray]] = [[], [], []]
    times: list[np.ndarray | None] = []
    future_only = not any(name in table.columns for name in roles.forecast)
    for index, name in enumerate(names):
        rows = np.flatnonzero(group == index)
        who = f"{path}" + (f", series {name!r}" if roles.sequence is not None else "")
        if when is not None:
            rows = rows[np.argsort(when[rows], kind="stable")]
            check_times(when[rows], who)
        values = (
            np.zeros((0, len(roles.forecast)))
            if future_only
            else np.stack([_numbers(table, column)[rows] for column in roles.forecast], axis=1)
        )
        there = np.atleast_1d(np.isfinite(values).all(axis=1))
        steps = 0 if not there.any() else int(np.flatnonzero(there)[-1]) + 1
        if not there[:steps].all():
            bad = rows[:steps][~there[:steps]] + 1
            shown = ", ".join(map(str, bad[:10])) + (", …" if len(bad) > 10 else "")
            raise DataError(
                f"{who}: {', '.join(map(repr, roles.forecast))} has no value in {len(bad):,} rows before the last: row "
                f"{shown}; fill them in."
            )
        known = _side(table, roles.known, rows, who)
        past = np.zeros((0, len(roles.past))) if future_only else _side(table, roles.past, rows[:steps], who)
        for part, array in zip(parts, (values[:steps], past, known), strict=True):
            part.append(array)
        times.append(None if when is None else when[rows[:steps]])
    return SeriesTable(names, parts[0], parts[1], parts[2], times)


def _table(path: Path) -> Table:
    data = read_data(path)
    if isinstance(data, Table):
        return data
    raise DataError(f"{path}: --forecast names a column, and this file has none; save it as .csv, .parquet or .xlsx.")


def _column(table: Table, name: str) -> str:
    """A column by its name, in any case of letters where only one fits."""
    alike = [column for column in table.columns if column.lower() == name.lower()]
    name = alike[0] if name not in table.columns and len(alike) == 1 else name
    table[name]  # or an error that lists the columns
    return name


def _repeats(column: np.ndarray) -> bool:
    return len(np.unique(column.astype(str))) < len(column)


def _tells_apart(table: Table, time: str, sequence: str | None) -> bool:
    """Whether no series has a time twice."""
    names = table[sequence].astype(str) if sequence else np.zeros(table.rows, dtype=str)
    return len(set(zip(names, table[time].astype(str), strict=True))) == table.rows


def _counts(column: np.ndarray) -> bool:
    """Whether a column numbers the rows."""
    return len(column) > 2 and column.dtype.kind in "iu" and bool((np.diff(column) == 1).all())


def _when(table: Table, name: str) -> np.ndarray:
    column = table[name]
    dates = dates_of(column)
    if dates is not None:
        return dates
    if column.dtype.kind not in "iuf" or not np.isfinite(column.astype(np.float64)).all():
        raise DataError(
            f"{table.path}: the time column {name!r} must hold dates or numbers without gaps, got {column[0]!r}; write "
            "dates as 2024-12-31, or leave the rows in order and rename the column."
        )
    return column


def _numbers(table: Table, name: str) -> np.ndarray:
    column = table[name]
    if column.dtype.kind not in "biuf":
        raise DataError(f"{table.path}: the column {name!r} holds {column[0]!r}, not numbers.")
    return column.astype(np.float64)


def _side(table: Table, columns: tuple[str, ...], rows: np.ndarray, who: str) -> np.ndarray:
    """Other columns, all filled in."""
    if not columns:
        return np.zeros((len(rows), 0))
    values = np.stack([_numbers(table, column)[rows] for column in columns], axis=1)
    if (bad := ~np.isfinite(values)).any():
        row, column = np.argwhere(bad)[0]
        raise DataError(f"{who}: the column {columns[column]!r} has no value in row {rows[row] + 1:,}; fill it in.")
    return values
