"""One step at a time as a model takes it in: what ``Preparation.apply`` does to sequences, for streams.

x ← mean_c, 0, or the last  where a number is missing, as the preparation says
x ← (x - mean_c) / std_c    then ones and zeros that say where something was missing
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.errors import DataError
from holdfast.tasks.preparation import Preparation

__all__ = ["Steps"]


class Steps:
    """Raw steps of some sequences side by side, made into a model's inputs.

    Law: the rows are those of ``preparation.apply`` for the whole sequences.

    Args:
        preparation: of the training data.
        batch: how many sequences.

    Example:
        >>> from holdfast.tasks.columns import Columns
        >>> columns = Columns("long", ("x", "y"), sequence="id", target=("z",))
        >>> steps = Steps(Preparation("regression", columns, (1.0, 0.0), (2.0, 1.0), (), (0.0,), (1.0,)), batch=1)
        >>> steps([5.0, 3.0]), steps({"y": 3.0, "x": 5.0})
        (array([[2., 3.]]), array([[2., 3.]]))
    """

    def __init__(self, preparation: Preparation, batch: int):
        self.preparation, self.batch = preparation, batch
        columns = preparation.columns
        self.names = ("value",) if columns.layout == "rows" else columns.features
        self._mean, self._std = np.array(preparation.mean), np.array(preparation.std)
        self._masked = [columns.channels.index(name) for name in preparation.masked]
        self.reset()

    def reset(self) -> None:
        """Begin new sequences: nothing has been seen."""
        self.last = np.full((self.batch, len(self._mean)), np.nan)  # the last numbers, for impute="last"

    def none(self) -> np.ndarray:
        """(0, batch, inputs): no steps."""
        return np.empty((0, self.batch, len(self._mean) + len(self._masked)))

    def is_single(self, x: Any) -> bool:
        """Whether ``x`` is a step of one sequence, without a batch around it."""
        return self.batch == 1 and (isinstance(x, Mapping) or np.ndim(x) == 0 or (np.ndim(x) == 1 and not _tables(x)))

    def __call__(self, x: Any) -> np.ndarray:
        """(batch, inputs) of one step: an array (batch, channels), or a dict per sequence, by the columns' names."""
        values = self._numbers(x)
        missing = np.isnan(values)
        if missing.any():
            impute = self.preparation.columns.impute
            if not impute:
                name = self.preparation.columns.channels[int(missing.any(axis=0).argmax())]
                raise DataError(
                    f"This step has no number for {name!r}, and the training data had none missing; fill it in, or "
                    "train with impute='mean', impute='last' or impute='zero'."
                )
            fill: Any = np.zeros_like(self._mean) if impute == "zero" else self._mean
            if impute == "last":
                fill = np.where(np.isnan(self.last), self._mean, self.last)
            self.last = np.where(missing, self.last, values)
            values = np.where(missing, fill, values)
        else:
            self.last = values
        standard = (values - self._mean) / self._std
        return np.concatenate([standard, missing[:, self._masked]], axis=1) if self._masked else standard

    def _numbers(self, x: Any) -> np.ndarray:
        """(batch, channels), NaN where a number is missing."""
        text = self.preparation.columns.text
        tables = [x] if isinstance(x, Mapping) else list(x) if _tables(x) else None
        if tables is not None:
            values = np.array([self._row(table) for table in tables])
        else:
            if text:
                raise DataError(
                    f"The training data had columns of text ({', '.join(text)}); give each step as a dict by the "
                    f"columns' names: {', '.join((*self.names, *text))}."
                )
            try:
                values = np.asarray(x, dtype=np.float64)
            except (TypeError, ValueError) as error:
                raise DataError(
                    f"A step holds numbers, or is a dict by the columns' names; got {x!r} ({error})."
                ) from None
            values = values.reshape(1, -1) if self.batch == 1 and values.ndim < 2 else values
        if values.shape != (self.batch, len(self._mean)):
            raise DataError(
                f"A step has the shape ({self.batch}, {len(self._mean)}): {self.batch} sequences and the channels "
                f"{', '.join(self.preparation.columns.channels)}; got {values.shape}."
            )
        if np.isinf(values).any():
            raise DataError("A step holds an infinite number; leave it out or correct it.")
        return values

    def _row(self, table: Any) -> list[float]:
        columns = self.preparation.columns
        known = (*self.names, *columns.text)
        wrong = sorted(map(str, set(known) ^ set(table))) if isinstance(table, Mapping) else [repr(table)]
        if wrong:
            raise DataError(f"A step is a dict with the columns {', '.join(known)}; wrong: {', '.join(wrong)}.")
        row: list[float] = []
        for name in self.names:
            value = table[name]
            if value is not None and not isinstance(value, int | float | np.integer | np.floating | np.bool_):
                raise DataError(f"A step has a number in the column {name!r}, got {value!r}.")
            row.append(np.nan if value is None else float(value))
        for name, levels in zip(columns.text, columns.levels, strict=True):
            value = table[name]
            if (value is None and not columns.impute) or (value is not None and str(value) not in levels):
                raise DataError(f"unknown text {value!r} in the column {name!r}; known: {', '.join(levels)}.")
            row += [float(value is not None and str(value) == level) for level in levels]
        return row


def _tables(x: Any) -> bool:
    return isinstance(x, list | tuple) and len(x) > 0 and isinstance(x[0], Mapping)
