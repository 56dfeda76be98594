"""From a file to what a model takes in, the same way for the data it was trained on and for data that comes later.

    x ← (x - mean_c) / std_c    (1) a feature c at a time; mean and std are those of the training split
    y ← (y - mean) / std        (2) numbers to predict; answers go back by y · std + mean
    x ← mean_c, 0, or the last  (3) where a number is missing; a channel of ones and zeros says where

A ``Preparation`` is what a model file has to remember of its data: columns, classes, means and deviations.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import DataError
from holdfast.tasks._base import IGNORED, Sequences, Spec
from holdfast.tasks.columns import Columns, Flat, changing, labels_of
from holdfast.tasks.formats import read_data
from holdfast.tasks.memory import MEMORY, as_data
from holdfast.tasks.order import ORDERS
from holdfast.tasks.tables import Table

__all__ = ["Kind", "Preparation", "Prepared"]

Kind = Literal["classification", "regression", "next-step", "tagging"]
KINDS = "classification", "regression", "next-step", "tagging"
IMPUTE = "mean", "last", "zero"
LAYOUTS = "long", "rows", "series", "arrays"


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Sequences ready for a model, and their names.

    Args:
        ids: a name for each.
        inputs: (n, time, features), standardised (1), zeros behind the end of shorter sequences.
        lengths: (n,), or None if all are equally long.

    Example:
        >>> len(Prepared(("a", "b"), torch.zeros(2, 5, 1), None))
        2
    """

    ids: tuple[str, ...]
    inputs: Tensor
    lengths: Tensor | None

    def __len__(self) -> int:
        return len(self.inputs)


@dataclasses.dataclass(frozen=True)
class Preparation:
    """What was worked out from a training file, to be done again with the next one.

    Args:
        kind: "classification", "regression", "next-step", or "tagging", a class at every step.
        columns: where the sequences are.
        mean, std: of the features (1).
        classes: their names, in the order of the model's outputs.
        target_mean, target_std: of the numbers to predict (2).
        masked: channels with numbers missing in the training data: each has one more that says where (3).

    Example:
        >>> columns = Columns("long", ("x",), sequence="id", target=("y",))
        >>> preparation = Preparation("regression", columns, (1.0,), (2.0,), (), (10.0,), (4.0,))
        >>> Preparation.from_json(preparation.to_json()) == preparation
        True
        >>> preparation.answers(torch.tensor([[0.5]]))
        array([[12.]])
    """

    kind: Kind
    columns: Columns
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    target_mean: tuple[float, ...] = ()
    target_std: tuple[float, ...] = ()
    masked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        columns = self.columns
        if len(columns.text) != len(columns.levels) or columns.impute not in ("", *IMPUTE):
            raise DataError("A preparation has levels for each column of text, and a known way to impute.")
        features = len(columns.channels)
        if {*self.masked} - {*columns.channels}:
            raise DataError(f"A preparation masks channels of its own, got {self.masked}.")
        targets = len(self.target_mean)
        if self.kind not in KINDS or self.columns.layout not in LAYOUTS or self.columns.order not in ORDERS:
            known = "; ".join(", ".join(names) for names in (KINDS, LAYOUTS, ORDERS))
            raise DataError(f"A preparation is of a kind, a layout and an order ({known}).")
        if not features or not features == len(self.mean) == len(self.std):
            raise DataError(f"A preparation of {features} features needs as many means and deviations.")
        if not all(map(math.isfinite, (*self.mean, *self.std, *self.target_mean, *self.target_std))):
            raise DataError("A preparation's means and deviations are finite numbers.")
        if targets != len(self.target_std) or min((*self.std, *self.target_std)) <= 0:
            raise DataError("A preparation's deviations are positive, one for each mean.")
        if (self.kind in ("classification", "tagging")) != bool(self.classes) or (self.kind == "regression") != bool(
            targets
        ):
            raise DataError(
                f"A preparation for {self.kind} has {len(self.classes)} classes and {targets} target means."
            )
        if (self.kind == "next-step") == bool(self.columns.target):
            raise DataError(f"A preparation for {self.kind} has the target {self.columns.target}.")

    def to_json(self) -> str:
        """As text, for ``from_json``."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Preparation:
        """The preparation that ``to_json`` wrote; anything else is a DataError."""
        try:
            fields = dict(json.loads(text))
            columns = dict(fields.pop("columns"))
            for table in (fields, columns):
                for name, value in table.items():
                    table[name] = _plain(name, value)
            return Preparation(columns=Columns(**columns), **fields)
        except DataError:
            raise
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise DataError(f"This is not a preparation that Holdfast wrote ({reason}).") from error

    def apply(self, x: Any) -> Prepared:
        """New sequences, prepared as those of the training data were; they need no target.

        Args:
            x: a file like the training file; or a DataFrame like it; or an array or a list of arrays, whatever the
                training file was: (cases, time, channels), (cases, time), or arrays (time, channels). Where training
                was on an array of channels before time, so is an array here.
        """
        flat, path = self._gathered(x, dataclasses.replace(self.columns, target=()))
        return Prepared(flat.ids, self._padded(flat, flat.begins, flat.lengths, path), _lengths(flat.lengths))

    def sequences(self, x: Any, y: Any = None) -> Sequences:
        """New sequences with their targets, to score a model on: ``x`` as in ``apply``, the targets in it or ``y``."""
        flat, path = self._gathered(x, self.columns, y)
        return self.of(flat, path)

    def _gathered(self, x: Any, columns: Columns, y: Any = None) -> tuple[Flat, Path]:
        if isinstance(x, str | Path):
            return columns.gather(read_data(path := Path(x)), path), path
        data = as_data(x, y)
        if not isinstance(data, Table) and columns.layout != "arrays":  # a model takes arrays, wherever it comes from
            features = columns.features[:1] if columns.layout == "rows" else columns.features
            columns = Columns("arrays", features, target=("y",) if columns.target else ())
        return columns.gather(data, MEMORY), MEMORY

    def spec(self, baseline: float | None = None) -> Spec:
        """What a model must take in and give out."""
        inputs, every = len(self.mean) + len(self.masked), self.kind in ("next-step", "tagging")
        if self.classes:
            scored: Any = {"loss": "cross_entropy", "metric": "accuracy", "classes": self.classes}
            return Spec(inputs, len(self.classes), every_step=every, baseline=baseline, **scored)
        outputs = len(self.target_mean) or len(self.columns.features)
        return Spec(inputs, outputs, "mse", "mse", every_step=every, baseline=baseline)

    def baseline(self, data: Sequences) -> float:
        """The score of the best constant answer on these sequences."""
        if self.classes:
            targets = data.targets[data.targets != IGNORED]
            return float(targets.bincount().max()) / len(targets)
        values = counted(data, data.targets) if self.kind == "next-step" else data.targets
        return float(values.double().var(dim=0, correction=0).mean())

    def of(self, flat: Flat, path: Path, window: int | None = None) -> Sequences:
        """Gathered sequences as a model takes them in; for next-step prediction in pieces of ``window`` steps."""
        if self.kind == "tagging":
            begins, counts = _windows(flat, window, 0)
            inside = np.arange(counts.max()) < counts[:, None]
            targets = torch.full(inside.shape, IGNORED)
            tags = np.repeat(flat.targets[0], flat.lengths) if flat.tags is None else flat.tags
            rows = (begins[:, None] + np.arange(counts.max()))[inside]
            targets[torch.from_numpy(inside)] = self._indices(tags, path)[torch.from_numpy(rows)]
            return Sequences(self._padded(flat, begins, counts, path), targets, _lengths(counts))
        if self.kind != "next-step":
            if flat.tags is not None:
                odd = flat.tags != np.repeat(flat.targets[0], flat.lengths)
                index = int(np.searchsorted(np.cumsum(flat.lengths), odd.argmax(), side="right"))
                raise changing(path, self.columns.target[0], flat.ids[index])
            inputs = self._padded(flat, flat.begins, flat.lengths, path)
            return Sequences(inputs, self._targets(flat, path), _lengths(flat.lengths))
        if (short := flat.lengths < 2).any():
            raise DataError(f"{path}: the sequence {flat.ids[short.argmax()]!r} has 1 step and so no next step.")
        begins, counts = _windows(flat, window, 1)
        inputs, targets = (self._padded(flat, begins + later, counts, path) for later in (0, 1))
        return Sequences(inputs, targets[..., : len(self.columns.features)], _lengths(counts))

    def answers(self, outputs: Tensor) -> list[str] | np.ndarray:
        """What a model's outputs say, in the data's own words: names of classes, or numbers in original units."""
        values = outputs.detach().double().cpu()
        if self.classes:
            return [self.classes[index] for index in values.argmax(dim=-1).flatten().tolist()]
        mean, std = self.target_mean, self.target_std
        if self.kind == "next-step":
            mean, std = (row[: len(self.columns.features)] for row in (self.mean, self.std))
        return values.numpy() * np.array(std) + np.array(mean)  # (2)

    def _targets(self, flat: Flat, path: Path) -> Tensor:
        if self.kind == "classification":
            return self._indices(flat.targets[0], path)
        if any(y.dtype.kind not in "biuf" for y in flat.targets) or len(flat.targets) != len(self.target_mean):
            raise DataError(
                f"{path}: expected {len(self.target_mean)} columns of numbers as the target {self.columns.target}."
            )
        values = np.stack([y.astype(np.float64) for y in flat.targets], axis=1)
        return _finite((values - np.array(self.target_mean)) / np.array(self.target_std), path)  # (2)

    def _indices(self, values: np.ndarray, path: Path) -> Tensor:
        index, names = {name: index for index, name in enumerate(self.classes)}, labels_of(values)
        if unknown := sorted(set(names) - set(index)):
            raise DataError(f"{path}: unknown class {unknown[0]!r}; known: {', '.join(self.classes)}.")
        return torch.tensor([index[name] for name in names])

    def _standard(self, flat: Flat) -> np.ndarray:
        """(all steps, inputs): (3), then (1), then where the masked channels had nothing."""
        steps, missing = flat.steps, np.isnan(flat.steps)
        if missing.any():
            if self.columns.impute == "last":
                row = np.where(missing, -1, np.arange(len(steps))[:, None])
                row = np.maximum.accumulate(row, axis=0)  # the last row with a number, also of sequences before
                here = row >= np.repeat(flat.begins, flat.lengths)[:, None]
                steps = np.where(here, np.take_along_axis(steps, np.maximum(row, 0), axis=0), np.nan)
            fill = 0.0 if self.columns.impute == "zero" else np.array(self.mean)
            steps = np.where(np.isnan(steps), fill, steps)
        with np.errstate(over="ignore"):  # caught by _finite
            standard = (steps - np.array(self.mean)) / np.array(self.std)  # (1)
        which = [self.columns.channels.index(name) for name in self.masked]
        return np.concatenate([standard, missing[:, which]], axis=1) if which else standard

    def _padded(self, flat: Flat, begins: np.ndarray, counts: np.ndarray, path: Path) -> Tensor:
        """(n, time, features): ``counts`` standardised steps from ``begins`` on, then zeros."""
        longest, features = int(counts.max()), flat.steps.shape[1] + len(self.masked)
        if (total := 8 * len(counts) * longest * features) > max(2**30, 64 * flat.steps.nbytes):
            raise DataError(
                f"{path}: padding {len(counts):,} sequences to the longest, {longest:,} steps, takes "
                f"{total / 2**30:.0f} GiB; cut the long ones into pieces."
            )
        inside = np.arange(longest) < counts[:, None]
        padded = np.zeros((len(counts), longest, features))
        padded[inside] = self._standard(flat)[(begins[:, None] + np.arange(longest))[inside]]
        return _finite(padded, path)


def counted(data: Sequences, values: Tensor) -> Tensor:
    """(all true steps, features)."""
    if data.lengths is None:
        return values.flatten(0, 1)
    steps = values.shape[1]
    return values[data.lengths.new_tensor(range(steps)) < data.lengths[:, None]]


def _windows(flat: Flat, window: int | None, ahead: int) -> tuple[np.ndarray, np.ndarray]:
    """Begin and number of input steps of every piece. With targets one step ``ahead``, the last step is no input."""
    lengths = flat.lengths - ahead
    if window is None:
        return flat.begins, lengths
    pieces = -(-lengths // window)
    inside = (np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * window
    return np.repeat(flat.begins, pieces) + inside, np.minimum(window, np.repeat(lengths, pieces) - inside)


def _lengths(counts: np.ndarray) -> Tensor | None:
    return None if (counts == counts[0]).all() else torch.from_numpy(counts.astype(np.int64))


def _finite(values: np.ndarray, path: Path) -> Tensor:
    tensor = torch.from_numpy(values).to(torch.get_default_dtype())
    if not torch.isfinite(tensor).all():
        raise DataError(f"{path}: some numbers are too large for {tensor.dtype}; rescale the column.")
    return tensor


def _plain(name: str, value: Any) -> Any:
    """A field from JSON: text or nothing for the single ones, a list of only texts or only numbers for the others."""
    if name in ("kind", "layout", "sequence", "time", "order", "impute"):
        if value is None or isinstance(value, str):
            return value
    elif isinstance(value, list):
        if name == "levels" and all(
            isinstance(one, list) and all(isinstance(text, str) for text in one) for one in value
        ):
            return tuple(map(tuple, value))
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        if all(isinstance(item, int | float) and not isinstance(item, bool) for item in value):
            return tuple(map(float, value))
    raise TypeError(f"{name} cannot be {value!r}")
