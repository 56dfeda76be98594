"""Data in memory as what a file gives: columns or arrays.

DataFrame of pandas or polars, pyarrow table        a table, as a .parquet file is                  (1)
array (cases, time, channels) or (cases, time),
list of arrays (time, channels) or (time,)          arrays x, lengths and y, as in a .npz file      (2)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import DataError, MissingExtraError
from holdfast.tasks.tables import Cases, Data, Table, table_of_arrow

__all__ = ["MEMORY", "as_data", "digest", "pad"]

MEMORY = Path("data")  # what errors call it


def as_data(x: Any, y: Any = None) -> Data:
    """``x``, and answers ``y`` where there are some, as columns (1) or arrays (2).

    Example:
        >>> arrays = as_data([np.zeros((3, 2)), np.zeros((5, 2))], ["a", "b"])
        >>> arrays["x"].shape, arrays["lengths"], arrays["y"]
        ((2, 5, 2), array([3, 5]), array(['a', 'b'], dtype='<U1'))
    """
    if isinstance(x, Table) or (isinstance(x, Mapping) and all(isinstance(part, np.ndarray) for part in x.values())):
        data: Data = x if isinstance(x, Table) else dict(x)
    elif hasattr(x, "__arrow_c_stream__") or type(x).__module__.partition(".")[0] in ("pandas", "pyarrow"):
        data = _table(x)
    else:
        data = _arrays(x)
    if y is None:
        return data
    answers = _plain(np.asarray(y), "y")
    if not isinstance(data, Table):
        return type(data)({**data, "y": answers})
    if answers.ndim != 1 or len(answers) != data.rows:
        raise DataError(f"y must have one answer per row, {data.rows}, got the shape {answers.shape}.")
    name = str(getattr(y, "name", None) or "target")
    if name in data.columns:
        raise DataError(f"y and a column of x are both called {name!r}; rename one of them, or leave y out.")
    return Table(data.path, {**data.columns, name: answers}, data.unusable)


def digest(data: Data) -> str:
    """The SHA-256 digest of columns or arrays: names, types, shapes and values.

    Example:
        >>> digest({"x": np.zeros(3)}) == digest({"x": np.zeros(3)}) != digest({"x": np.ones(3)})
        True
    """
    sha = hashlib.sha256()
    for name, array in (data.columns if isinstance(data, Table) else data).items():
        sha.update(f"{name!r} {array.dtype} {array.shape}\n".encode())
        sha.update(repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def _table(frame: Any) -> Table:
    try:
        import pyarrow
    except ImportError:
        raise MissingExtraError("Reading a DataFrame needs pyarrow: pip install 'holdfast[data]'.") from None
    if (
        hasattr(frame, "iloc") and frame.columns.is_unique and len(frame)
    ):  # pandas, with a Series in each cell, as in sktime
        nested = [name for name in frame.columns if hasattr(frame[name].iloc[0], "to_numpy")]
        frame = frame.assign(**{str(name): [list(cell) for cell in frame[name]] for name in nested})
    try:
        table = pyarrow.table(frame)
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            f"This {type(frame).__name__} is not a table of numbers and text: {' '.join(str(error).split())}"
        ) from None
    return table_of_arrow(table, MEMORY)


def _arrays(x: Any) -> dict[str, np.ndarray]:
    """(2). A list is of arrays (time, channels), which are padded."""
    if hasattr(x, "__array__") and (whole := np.asarray(x)).dtype != object:
        return {"x": _plain(whole, "x")}
    try:
        parts = list(x)
    except TypeError as error:
        raise DataError(
            "x must be an array (cases, time, channels) or (cases, time), a list of arrays (time, channels), a "
            f"DataFrame or a path, got a {type(x).__name__}: {error}."
        ) from None
    padded, lengths = pad(parts, "x")
    return Cases(x=padded, lengths=lengths)


def pad(parts: Sequence[Any], who: str) -> tuple[np.ndarray, np.ndarray]:
    """Sequences (time,) or (time, channels) as one array (cases, time, channels), zeros behind their ends; and lengths.

    Args:
        parts: anything that NumPy reads as numbers.
        who: speaks in errors.

    Example:
        >>> x, lengths = pad([[1.0, 2.0, 3.0], [4.0]], "example")
        >>> x.shape, lengths.tolist()
        ((2, 3, 1), [3, 1])
    """
    sequences: list[np.ndarray] = []
    for index, given in enumerate(parts):
        try:
            one = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"{who} expects numbers, but sequence {index} cannot be read as such: {error}.") from None
        one = one[:, None] if one.ndim == 1 else one
        if one.ndim != 2 or 0 in one.shape:
            raise DataError(
                f"{who} expects sequences of shape (time,) or (time, channels), got {np.shape(given)} at {index}."
            )
        if sequences and one.shape[1] != sequences[0].shape[1]:
            raise DataError(
                f"{who} expects the same channels everywhere: sequence 0 has {sequences[0].shape[1]}, sequence {index} "
                f"has {one.shape[1]}."
            )
        sequences.append(one)
    if not sequences:
        raise DataError(f"{who} expects at least one sequence, got 0 sample(s).")
    lengths = np.array([len(one) for one in sequences])
    padded = np.zeros((len(sequences), int(lengths.max()), sequences[0].shape[1]))
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.concatenate(sequences)
    return padded, lengths


def _plain(array: np.ndarray, name: str) -> np.ndarray:
    """Numbers, truth values or text; a list of text in an object array is text."""
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)
    if array.dtype.kind not in "biufU":
        raise DataError(f"{name} must hold numbers, truth values or text, got {array.dtype}.")
    return array
