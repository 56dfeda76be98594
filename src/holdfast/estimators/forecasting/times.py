"""Times of steps: read from the ways people write them, and continued into the future."""

from __future__ import annotations

import datetime
import re

import numpy as np

__all__ = ["dates_of", "next_times"]

_QUARTER = re.compile(r"(\d{4})[ -]?Q([1-4])", re.IGNORECASE)
_FORMATS = ("%Y %b", "%b %Y", "%b-%Y", "%Y %B", "%B %Y", "%b-%d-%Y", "%b %d, %Y", "%Y/%m/%d", "%Y/%m", "%d.%m.%Y")


def dates_of(values: np.ndarray) -> np.ndarray | None:
    """A column as dates: of dates, of text that reads as dates, or of numbers such as 19991231. None if it is not.

    Dates with day and month in doubt (3/4/2020) are not read.

    Example:
        >>> dates_of(np.array(["1991 Jul", "1991 Aug"], dtype=object))
        array(['1991-07-01', '1991-08-01'], dtype='datetime64[D]')
        >>> dates_of(np.array(["1970 Q1", "1970 Q2"], dtype=object))
        array(['1970-01', '1970-04'], dtype='datetime64[M]')
        >>> dates_of(np.array([1.5, 2.5])) is None
        True
    """
    if values.dtype.kind == "M":
        return None if np.isnat(values).any() else values
    if values.dtype.kind in "iu" and len(values) and values.min() >= 1500_01_01 and values.max() <= 2500_12_31:
        values = values.astype(str).astype(object)
        return _parsed(values, lambda text: np.datetime64(datetime.datetime.strptime(text, "%Y%m%d").date()))
    if values.dtype.kind not in "OU" or not all(isinstance(value, str) for value in values):
        return None
    if _QUARTER.fullmatch(values[0].strip()):
        return _parsed(values, _quarter)
    found = _parsed(values, lambda text: np.datetime64(re.sub(r"(Z|[+-]00:?00)$", "", text)))
    for form in _FORMATS:
        if found is None:
            found = _parsed(
                values, lambda text, form=form: np.datetime64(datetime.datetime.strptime(text, form).date())
            )
    return found


def next_times(times: np.ndarray, steps: int) -> np.ndarray:
    """The times after the last: months, quarters and years by the calendar, else by the usual distance.

    Example:
        >>> next_times(np.array(["2020-11-01", "2020-12-01", "2021-01-01"], dtype="datetime64[D]"), 2)
        array(['2021-02-01', '2021-03-01'], dtype='datetime64[D]')
        >>> next_times(np.array([1990, 1991]), 2)
        array([1992, 1993])
    """
    ahead = np.arange(1, steps + 1)
    if len(times) < 2:
        return ahead
    if times.dtype.kind == "M":
        months, days = times.astype("datetime64[M]"), times - times.astype("datetime64[M]").astype(times.dtype)
        apart = np.diff(months.astype(np.int64))
        if (days == days[0]).all() and (apart == apart[0]).all() and apart[0] > 0:
            return (months[-1] + apart[0] * ahead).astype(times.dtype) + days[0]
    distance = np.sort(np.diff(times))[(len(times) - 1) // 2]  # the median, of whatever type
    return times[-1] + distance * ahead


def _quarter(text: str) -> np.datetime64:
    match = _QUARTER.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return np.datetime64(f"{match[1]}-{3 * int(match[2]) - 2:02}")


def _parsed(values: np.ndarray, parse) -> np.ndarray | None:
    try:
        return np.array([parse(value.strip()) for value in values])
    except ValueError:
        return None
