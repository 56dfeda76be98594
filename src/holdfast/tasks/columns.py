"""Where in a file the sequences are, and those sequences end to end.

long     a row is a step; a column says of which sequence    (1)
rows     a row is a sequence; its columns are the steps      (2)
series   all rows are one sequence                           (3)
arrays   x of shape (sequences, time, features), in a .npz   (4) or with features before time
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np

from holdfast.errors import DataError
from holdfast.tasks.order import Order
from holdfast.tasks.tables import Cases, Data, Table

__all__ = ["Columns", "Flat", "Impute", "Layout", "array_name", "changing", "labels_of"]

Layout = Literal["long", "rows", "series", "arrays"]

Impute = Literal["", "mean", "last", "zero"]

ARRAY_NAMES = {
    "x": ("x", "inputs", "input", "data", "sequences"),
    "y": ("y", "targets", "target", "labels", "label"),
    "lengths": ("lengths", "length"),
}


@dataclasses.dataclass(frozen=True)
class Flat:
    """Sequences end to end.

    Args:
        ids: their names.
        steps: (all steps, features).
        lengths: (n,) steps of each.
        targets: columns of answers, (n,) each, as they stand in the file.
        tags: (all steps,) the answer at every step, where it changes inside of sequences; else None.

    Example:
        >>> flat = Flat(("a", "b"), np.arange(5.0)[:, None], np.array([2, 3]))
        >>> flat.take(np.array([1])).steps[:, 0]
        array([2., 3., 4.])
    """

    ids: tuple[str, ...]
    steps: np.ndarray
    lengths: np.ndarray
    targets: tuple[np.ndarray, ...] = ()
    tags: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def begins(self) -> np.ndarray:
        """Where each sequence begins."""
        return np.cumsum(self.lengths) - self.lengths

    def take(self, which: np.ndarray) -> Flat:
        """Some of the sequences."""
        lengths = self.lengths[which]
        inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = np.repeat(self.begins[which], lengths) + inside
        ids, targets = tuple(self.ids[index] for index in which), tuple(y[which] for y in self.targets)
        return Flat(ids, self.steps[rows], lengths, targets, None if self.tags is None else self.tags[rows])

    def cut(self, begin: int, end: int) -> Flat:
        """A part of the one sequence there is."""
        tags = None if self.tags is None else self.tags[begin:end]
        return Flat(self.ids, self.steps[begin:end], np.array([end - begin]), tags=tags)


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns or arrays of a file are what.

    Args:
        layout: (1) to (4).
        features: columns of the inputs, or names for the features of the array.
        sequence, time: column with the sequence's name, and column that orders its steps; None if there is none.
        target: columns of the answer, or the name of the array.
        order: of the axes of an array, behind the sequences.
        text, levels: columns of text among the inputs, and the texts of each; each is a channel of zeros and ones.
        impute: how missing numbers are filled in, see ``Preparation``; "" if they are refused.

    Example:
        >>> table = Table(Path("a.csv"), {"id": np.array([7, 8, 7]), "x": np.array([1.0, 2.0, 3.0])})
        >>> flat = Columns("long", ("x",), sequence="id").gather(table, table.path)
        >>> flat.ids, flat.lengths, flat.steps[:, 0]
        (('7', '8'), array([2, 1]), array([1., 3., 2.]))
    """

    layout: Layout
    features: tuple[str, ...]
    sequence: str | None = None
    time: str | None = None
    target: tuple[str, ...] = ()
    order: Order = "time-first"
    text: tuple[str, ...] = ()
    levels: tuple[tuple[str, ...], ...] = ()
    impute: Impute = ""

    @property
    def channels(self) -> tuple[str, ...]:
        """The numbers of a step, by name: features, then the levels of text columns."""
        levels = (f"{name}={level}" for name, known in zip(self.text, self.levels, strict=True) for level in known)
        return (("value",) if self.layout == "rows" else self.features) + tuple(levels)

    def gather(self, data: Data, path: Path) -> Flat:
        """The sequences of a file, with their targets if ``target`` names some."""
        if isinstance(data, Table) == (self.layout == "arrays"):
            wanted, got = ("arrays", "columns") if self.layout == "arrays" else ("columns", "arrays")
            raise DataError(f"{path} holds {got}, but the training data were {wanted}; give the same kind of file.")
        if isinstance(data, Table):
            return self._rows(data) if self.layout == "rows" else self._steps(data)
        return self._arrays(data, path)

    def _rows(self, table: Table) -> Flat:  # (2)
        steps = np.stack([_numbers(table, name, self.impute) for name in self.features], axis=1)
        ids = labels_of(_present(table, self.sequence)) if self.sequence else map(str, range(table.rows))
        targets = tuple(_present(table, name) for name in self.target)
        return Flat(tuple(ids), steps.reshape(-1, 1), np.full(table.rows, len(self.features)), targets)

    def _steps(self, table: Table) -> Flat:  # (1), (3)
        parts = [_numbers(table, name, self.impute)[:, None] for name in self.features]
        parts += [
            _one_hot(table, name, levels, self.impute) for name, levels in zip(self.text, self.levels, strict=True)
        ]
        steps = np.concatenate(parts, axis=1)
        if self.layout == "series" or self.sequence is None:
            ids, group = (table.path.stem,), np.zeros(table.rows, dtype=np.intp)
        else:
            ids, group = _groups(_present(table, self.sequence))
        when = np.arange(table.rows)
        if self.time is not None:
            when = np.unique(_present(table, self.time), return_inverse=True)[1].reshape(-1)
        order, lengths = np.lexsort((when, group)), np.bincount(group, minlength=len(ids))
        group, when = group[order], when[order]
        if (same := (when[1:] == when[:-1]) & (group[1:] == group[:-1])).any():
            raise DataError(
                f"{table.path}: the sequence {ids[group[same.argmax()]]!r} has two steps with the same {self.time!r}, "
                "so their order is open; make it different, or name another time column."
            )
        targets, tags, first = [], None, np.cumsum(lengths) - lengths
        for name in self.target:
            values = _present(table, name)[order]
            if (odd := values != np.repeat(values[first], lengths)).any():
                if len(self.target) > 1:
                    raise changing(table.path, name, ids[group[odd.argmax()]])
                tags = values
            targets.append(values[first])
        return Flat(ids, steps[order], lengths, tuple(targets), tags)

    def _arrays(self, arrays: dict[str, np.ndarray], path: Path) -> Flat:  # (4)
        name = array_name(arrays, path, "x")
        x = arrays[name]
        if x.dtype.kind not in "biuf" or x.ndim not in (1, 2, 3) or x.size == 0:
            raise DataError(
                f"{path}: expected {name!r} to hold numbers of shape (sequences, time, features), (sequences, time) or "
                f"(time,), got {x.dtype} of shape {x.shape}."
            )
        x = x[None, :, None] if x.ndim == 1 else x[..., None] if x.ndim == 2 else x
        if self.order == "channels-first" and arrays[name].ndim == 3 and not isinstance(arrays, Cases):
            x = x.swapaxes(1, 2)
        if x.shape[2] != len(self.features):
            axes = "(sequences, time, features)" if self.order == "time-first" else "(sequences, features, time)"
            raise DataError(
                f"{path}: expected {len(self.features)} features a step, got {x.shape[2]}: {name!r} has the shape "
                f"{arrays[name].shape} and is read as {axes}."
            )
        lengths = _array_lengths(arrays, path, *x.shape[:2])
        steps = x[np.arange(x.shape[1]) < lengths[:, None]].astype(np.float64)
        finite = (~np.isinf(steps) if self.impute else np.isfinite(steps)).all(axis=1)
        if not finite.all():
            index = int(np.searchsorted(np.cumsum(lengths), finite.argmin(), side="right"))
            raise DataError(
                f"{path}: {name!r} holds NaN or infinity, first in sequence {index}; fill it in, or take "
                "impute='mean', impute='last' or impute='zero', or, if it is padding, add an array 'lengths'."
            )
        return Flat(tuple(map(str, range(len(x)))), steps, lengths, self._array_targets(arrays, path, len(x)))

    def _array_targets(self, arrays: dict[str, np.ndarray], path: Path, count: int) -> tuple[np.ndarray, ...]:
        if not self.target:
            return ()
        y = arrays[array_name(arrays, path, "y", self.target[0])]
        if y.ndim not in (1, 2) or len(y) != count or y.size == 0:
            shapes = f"({count},) or ({count}, answers)"
            raise DataError(f"{path}: expected {self.target[0]!r} to have the shape {shapes}, got {y.shape}.")
        if y.dtype.kind == "f" and not np.isfinite(y).all():
            raise DataError(f"{path}: {self.target[0]!r} holds NaN or infinity; leave those sequences out.")
        return tuple(y.reshape(count, -1).T)


def array_name(arrays: dict[str, np.ndarray], path: Path, role: str, name: str | None = None) -> str:
    """The name that an array has: the one asked for, or the first of the usual ones for its role.

    Example:
        >>> array_name({"X": np.zeros(3), "Labels": np.zeros(3)}, Path("a.npz"), "y")
        'Labels'
    """
    there = {key.lower(): key for key in reversed(arrays)}
    for candidate in (name.lower(),) if name else ARRAY_NAMES[role]:
        if candidate in there:
            return there[candidate]
    if role == "x" and len(arrays) == 1:
        return next(iter(arrays))
    wanted = repr(name) if name else " or ".join(ARRAY_NAMES[role])
    raise DataError(f"{path} holds the arrays {', '.join(arrays)}; expected one named {wanted}.")


def labels_of(values: np.ndarray) -> list[str]:
    """Values as the names of classes or sequences: 1 and 1.0 are both "1".

    Example:
        >>> labels_of(np.array([1.0, 2.5])), labels_of(np.array([True])), labels_of(np.array(["a"]))
        (['1', '2.5'], ['true'], ['a'])
    """
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values]
    if values.dtype.kind == "f":
        return [str(int(value)) if value.is_integer() else repr(value) for value in values.tolist()]
    return [str(value) for value in values]


def _array_lengths(arrays: dict[str, np.ndarray], path: Path, count: int, longest: int) -> np.ndarray:
    try:
        name = array_name(arrays, path, "lengths")
    except DataError:  # all whole
        return np.full(count, longest)
    lengths = arrays[name]
    right = lengths.shape == (count,) and lengths.dtype.kind in "iu"
    if not right or lengths.min() < 1 or lengths.max() > longest:
        span = f" from {lengths.min()} to {lengths.max()}" if right else ""
        raise DataError(
            f"{path}: expected {name!r} to hold {count} whole numbers from 1 to {longest}, "
            f"got {lengths.dtype} of shape {lengths.shape}{span}."
        )
    return lengths.astype(np.int64)


def _groups(values: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Names in the order in which they first appear, and for every row the number of its name."""
    names, first, group = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return tuple(labels_of(names[order])), rank[group.reshape(-1)]


def changing(path: Path, name: str, sequence: str) -> DataError:
    """The error about a target that is not one per sequence."""
    return DataError(
        f"{path}: the target {name!r} changes inside the sequence {sequence!r}; expected one answer per sequence. Take "
        "kind='tagging' for a class at every step, cut the sequences where it changes, or leave the target out to "
        "predict the next step."
    )


def _one_hot(table: Table, name: str, levels: tuple[str, ...], impute: str) -> np.ndarray:
    """(rows, levels): 1 where the text is that level."""
    values = table[name] if impute else _present(table, name)
    texts = np.array([None if value is None else str(value) for value in values.tolist()], dtype=object)
    if unknown := sorted({text for text in texts if text is not None} - {*levels}):
        raise DataError(
            f"{table.path}: unknown text {unknown[0]!r} in the column {name!r}; known: {', '.join(levels)}."
        )
    return np.stack([texts == level for level in levels], axis=1).astype(np.float64)


def _present(table: Table, name: str) -> np.ndarray:
    """A column without missing values."""
    values = table[name]
    match values.dtype.kind:
        case "O":
            missing = np.array([value is None for value in values])
        case "f":
            missing = ~np.isfinite(values)
        case "M":
            missing = np.isnat(values)
        case _:
            return values
    if missing.any():
        raise DataError(
            f"{table.path}: the column {name!r} has no value, NaN or infinity in row {missing.argmax() + 1:,} "
            f"({missing.sum():,} of {table.rows:,} rows); fill them in or leave those rows out, or, in an input, take "
            "impute='mean', impute='last' or impute='zero'."
        )
    return values


def _numbers(table: Table, name: str, impute: str) -> np.ndarray:
    """A column of numbers, all finite; with ``impute`` some may be missing."""
    if (kind := table[name].dtype.kind) not in "biuf":
        raise DataError(
            f"{table.path}: the column {name!r} holds {'times' if kind == 'M' else 'text'}, not numbers; leave it out "
            "of the features, or turn it into numbers."
        )
    if impute and kind == "f" and not np.isinf(table[name]).any():
        return table[name].astype(np.float64)
    return _present(table, name).astype(np.float64)
