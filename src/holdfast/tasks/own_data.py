"""Your own sequences, from a file. Settings that are not given are inferred from the data and reported.

    .npz                x (sequences, time, features) or (sequences, time); lengths and y where there are some   (1)
                        or, where shape and smoothness tell so or ``order`` says so, (sequences, features, time)
    .csv, .parquet      one row per step with a column that names the sequence, or                               (2)
                        one row per sequence, its columns the steps (a target, no such column and no time), or   (3)
                        one long sequence (neither)                                                              (4)

An index column that was saved along and columns of time or date are not inputs unless named. With a target, the model
predicts one class or set of numbers per sequence, otherwise the next step of every feature. Splits are drawn by
sequence, with the same shares of classes. A single sequence is cut by time. Inputs are standardised on the training
split.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Container
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import DataError, SettingError
from holdfast.tasks._base import IGNORED, Arrays, Sequences, Spec
from holdfast.tasks.columns import ARRAY_NAMES, Columns, Flat, Impute, Layout, array_name, changing, labels_of
from holdfast.tasks.formats import data_digest, read_data
from holdfast.tasks.memory import MEMORY, as_data, digest
from holdfast.tasks.order import ORDERS, Order, order_of
from holdfast.tasks.preparation import IMPUTE, KINDS, Kind, Preparation, counted
from holdfast.tasks.tables import SEQUENCE_NAMES, Cases, Data, Table

__all__ = ["OwnData", "OwnTask", "in_memory"]

TIME_NAMES = ("time", "timestamp", "step", "datetime", "date", "timepoint", "timepoints", "ds")
CALENDAR_NAMES = ("year", "quarter", "month", "week", "day", "weekday", "hour", "minute", "second")
INDEX_NAMES = (
    "index",
    "idx",
    "row",
    "row_id",
    "row_number",
    "rownames",
    "number",
    "no",
    "nr",
    "#",
    "obs",
    *SEQUENCE_NAMES,
)
UNNAMED = re.compile(r"|unnamed: ?\d+|__index_level_\d+__", re.IGNORECASE)  # an index that pandas saved
TARGET_NAMES = ("target", "label", "class")  # not "y": in a table it is as often a coordinate
WINDOW = 100  # steps of a piece, where one long sequence has to be cut into several
MOST_CLASSES = 20  # whole numbers with more different values than this are taken for amounts


class OwnTask(Arrays):
    """Sequences from a user's file, with what was worked out about it.

    Args:
        spec, splits: as in ``Arrays``.
        preparation: to do the same with another file.
        choices: what was inferred, one sentence for each setting.
        sha256: of the file, or of the arrays in memory, so that a run that is resumed can tell whether it is the same.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/waves.npz"
        >>> np.savez(path, x=np.random.rand(30, 5, 1), y=np.arange(30) % 2)
        >>> OwnData(path).load().preparation.classes
        ('0', '1')
    """

    def __init__(
        self, spec: Spec, splits: dict[str, Sequences], preparation: Preparation, choices: list[str], sha256: str
    ):
        super().__init__(spec, splits)
        self.preparation, self.choices, self.sha256 = preparation, choices, sha256


@dataclasses.dataclass(frozen=True)
class OwnData:
    """Sequences of a file or a folder of files: see ``formats`` and ``tables`` for those that are read.

    Args:
        path: the file or folder.
        target: column or columns of the answer, or the name of the array; None: "target", "label" or "class" (or the
            array "y") if there is one, else the next step is predicted. Several columns are several numbers.
        sequence: column that says to which sequence a row belongs; None: "sequence", "id" and the like if there is one,
            or a column each of whose values fills one block of rows with one answer.
        time: column that orders the steps of a sequence; None: "time", "step" and the like, else the file's order.
        features: columns of the inputs; None: all other columns of numbers but row numbers and times, and columns of
            text with at most 20 different ones, as zeros and ones.
        kind: "classification", "regression", "next-step", "tagging" (a class at every step), or "auto": text, truth
            values and at most 20 different whole numbers are classes, at every step if they change inside sequences.
        layout: "long" (2), "rows" (3), "series" (4) or "auto".
        validation, test: parts of the sequences kept apart; 0 for no such split.
        seed: of the draw of the splits.
        window: number of steps in a piece, for next-step prediction; None: whole sequences, and 100 steps of a series.
        standardise: inputs and numbers to predict get mean 0 and deviation 1 on the training split.
        order: of the axes of an array behind the sequences: "time-first", "channels-first" (as in aeon and sktime), or
            "auto": worked out, and asked for where it is open.
        test_path: a file or folder of its own for the test split; ``test`` is not used then.
        weights: "balanced" multiplies the training loss of class k by n / (K n_k), n_k of its n sequences being of it;
            "auto" does so where one class has more than twice as many as another.
        impute: fill in missing numbers with the "mean" of their channel, the "last" one before them, or "zero"; another
            channel says where. "" refuses them.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "mine.csv")
        >>> rows = [f"{name},{name * step},{'up' if name % 2 else 'down'}" for name in range(20) for step in range(5)]
        >>> _ = path.write_text(chr(10).join(["id,x,label", *rows]))
        >>> task = OwnData(path, target="label").load()
        >>> task.spec.classes, task.train_batch(0, 4, seed=0).inputs.shape
        (('down', 'up'), torch.Size([5, 4, 1]))
        >>> print(task.choices[1])
        Sequences: 20, named by 'id', 5 steps each, in the order of the file.
    """

    path: str | Path
    target: str | tuple[str, ...] | None = None
    sequence: str | None = None
    time: str | None = None
    features: tuple[str, ...] | None = None
    kind: Kind | Literal["auto"] = "auto"
    layout: Literal["auto", "long", "rows", "series"] = "auto"
    validation: float = 0.15
    test: float = 0.15
    seed: int = 0
    window: int | None = None
    standardise: bool = True
    order: Order | Literal["auto"] = "auto"
    test_path: str | Path | None = None
    weights: Literal["auto", "balanced", "none"] = "auto"
    impute: Impute = ""

    def load(self) -> OwnTask:
        self._check()
        path = Path(self.path)
        if self.test_path is None:
            return self.of(read_data(path), data_digest(path))
        test = Path(self.test_path)
        both = hashlib.sha256(f"{data_digest(path)} {data_digest(test)}".encode()).hexdigest()
        return self.of(read_data(path), both, read_data(test))

    def of(self, data: Data, sha256: str, test: Data | None = None) -> OwnTask:
        """The task of data that have been read, and of those of ``test_path``; ``sha256`` is the digest of both."""
        self._check()
        path = Path(self.path)
        if isinstance(data, Table):
            columns, inputs = self._table_columns(data)
        else:
            columns, inputs = self._array_columns(data, path)
        flat = columns.gather(data, path)
        if len(flat) == 1 and columns.target and flat.tags is None:
            raise DataError(f"{path} has one sequence; a target needs several, one answer for each.")
        choices = [_contents(path, data), _sequences_sentence(columns, flat), inputs]
        kind, classes, sentence = self._kind(columns, flat, path)
        parts = (self if test is None else dataclasses.replace(self, test=0.0))._split(flat, kind, path)
        masked = tuple(np.array(columns.channels)[np.isnan(flat.steps).any(axis=0)].tolist())
        preparation = self._preparation(kind, columns, classes, parts["train"], masked, choices, path)
        if masked:
            share = f"{np.isnan(flat.steps).mean():.1%} of the numbers"
            how = {"mean": "the mean", "last": "the last one before", "zero": "zero"}[self.impute]
            choices.append(f"Missing: {share}, filled in with {how}; another channel says where for {_listed(masked)}.")
        choices.append(sentence)
        every_step = kind in ("next-step", "tagging")
        window = self.window or (WINDOW if len(flat) == 1 and every_step else None)
        splits = {split: preparation.of(part, path, window) for split, part in parts.items()}
        if test is not None:
            place = Path(self.test_path or MEMORY)
            splits["test"] = preparation.of(columns.gather(test, place), place, window)
        pieces = f"pieces of {window} steps" if every_step and window else "sequences"
        how = "cut by time" if len(flat) == 1 else f"drawn by sequence with seed {self.seed}"
        choices.append(
            f"Splits: {', '.join(f'{len(data):,} {name}' for name, data in splits.items())} ({pieces}), {how}"
            + (f"; test is {Path(self.test_path or MEMORY).name}." if test is not None else ".")
        )
        scored = splits.get("test") or splits.get("validation") or splits["train"]
        spec = preparation.spec(preparation.baseline(scored))
        if classes and (weights := self._class_weights(splits["train"].targets, len(classes))):
            spec = dataclasses.replace(spec, class_weights=weights)
            choices.append(
                f"Class weights in the training loss: {min(weights):.2g} to {max(weights):.2g}, as classes are unequal "
                "(weights='none' for none)."
            )
        choices.append(_scale_sentence(preparation, scored, spec))
        return OwnTask(spec, splits, preparation, choices, sha256)

    def _class_weights(self, targets: Tensor, classes: int) -> tuple[float, ...]:
        targets = targets[targets != IGNORED]
        counts = targets.bincount(minlength=classes)
        if self.weights == "none" or (self.weights == "auto" and counts.max() <= 2 * counts.min()):
            return ()
        there = counts > 0
        share = len(targets) / (int(there.sum()) * counts.clamp(min=1).double())
        return tuple(torch.where(there, share, 1.0).tolist())

    def _check(self) -> None:
        if self.weights not in ("auto", "balanced", "none"):
            raise SettingError(f"OwnData knows the weights auto, balanced and none; got {self.weights!r}.")
        if self.kind not in ("auto", *KINDS):
            raise SettingError(f"OwnData knows the kinds auto, {', '.join(KINDS)}; got {self.kind!r}.")
        if self.layout not in ("auto", "long", "rows", "series"):
            raise SettingError(f"OwnData knows the layouts auto, long, rows and series; got {self.layout!r}.")
        if self.impute not in ("", *IMPUTE):
            raise SettingError(f"OwnData knows impute {', '.join(IMPUTE)}, or nothing; got {self.impute!r}.")
        if self.order not in ("auto", *ORDERS):
            raise SettingError(f"OwnData knows the orders auto, {', '.join(ORDERS)}; got {self.order!r}.")
        if self.validation < 0 or self.test < 0 or not self.validation + self.test < 1:
            raise SettingError(
                "OwnData expects validation >= 0, test >= 0 and validation + test < 1, parts of the sequences; "
                f"got {self.validation} and {self.test}."
            )
        if self.window is not None and self.window < 1:
            raise SettingError(f"OwnData expects a window of at least 1 step, got {self.window}.")
        if self.seed < 0:
            raise SettingError(f"OwnData expects a seed of at least 0, got {self.seed}.")
        if self.kind == "next-step" and self.target is not None:
            raise SettingError("Next-step prediction answers with the features themselves; leave the target out.")

    def _targets(self) -> tuple[str, ...]:
        return () if self.target is None else (self.target,) if isinstance(self.target, str) else tuple(self.target)

    def _array_columns(self, arrays: dict[str, np.ndarray], path: Path) -> tuple[Columns, str]:
        for option in ("sequence", "time", "features"):
            if getattr(self, option) is not None:
                raise SettingError(f"{path} has arrays, not columns: {option} is for files with columns.")
        if self.layout != "auto":
            raise SettingError(f"{path} has arrays, not columns: layout is for files with columns.")
        targets = self._targets()
        if len(targets) > 1:
            raise SettingError(f"{path}: name one array as the target; it may have several columns. Got {targets}.")
        if targets or self.kind not in ("auto", "next-step"):
            targets = (array_name(arrays, path, "y", targets[0] if targets else None),)
        elif self.kind == "auto":
            try:
                targets = (array_name(arrays, path, "y"),)
            except DataError:  # no answers: the next step it is
                targets = ()
        name = array_name(arrays, path, "x")
        order: Order = "time-first" if self.order == "auto" else self.order
        features, axes = 1, ""
        if (x := arrays[name]).ndim == 3:
            if isinstance(arrays, Cases):
                order = "time-first"
            elif self.order == "auto" and x.dtype.kind in "biuf" and x.size:
                lengths = next((arrays[key] for key in arrays if key.lower() in ARRAY_NAMES["lengths"]), None)
                order = order_of(x, lengths, path, name)
            features = x.shape[2] if order == "time-first" else x.shape[1]
            axes, other = "(sequences, time, features)", "channels-first"
            if order == "channels-first":
                axes, other = "(sequences, features, time)", "time-first"
            axes = "" if isinstance(arrays, Cases) else f", read as {axes}; order={other!r} if it is not"
        inputs = f"Inputs: {name!r}, {features} feature{'s' if features > 1 else ''}{axes}."
        names = tuple(map(str, range(features)))
        return Columns("arrays", names, target=targets, order=order, impute=self.impute), inputs

    def _table_columns(self, table: Table) -> tuple[Columns, str]:
        targets = self._targets()
        for name in (*targets, self.sequence, self.time, *(self.features or ())):
            if name is not None:
                table[name]  # or an error that lists the columns
        taken: set[str | None] = {*targets, *(self.features or ()), self.sequence, self.time}
        if not targets and self.kind != "next-step" and (found := _named(table, TARGET_NAMES, taken)):
            targets = (found,)
        if not targets and self.kind in ("classification", "regression", "tagging"):
            known = ", ".join(table.columns)
            raise DataError(f"{table.path}: name the target for {self.kind}, target='NAME'; columns: {known}.")
        sequence = self.sequence or _named(table, SEQUENCE_NAMES, taken | {*targets})
        if sequence is None and targets and self.layout == "auto" and self.kind != "tagging":
            sequence = _blocks(table, targets, taken | {*targets})
        time = self.time or _named(table, TIME_NAMES, taken | {*targets})
        if time is None and not targets and (year := _named(table, ("year",), taken)):
            pairs = zip(table[sequence] if sequence else [0] * table.rows, table[year], strict=True)
            time = year if len({*pairs}) == table.rows else None
        layout = self._layout(table, targets, sequence, time)
        if layout == "rows":
            time = None
        roles: set[str | None] = {*targets, sequence, time}
        if self.features and (clash := [name for name in self.features if name in roles]):
            raise DataError(f"{table.path}: {clash[0]!r} cannot be a feature and something else as well.")
        passed = {name: _no_input(name, table[name], bool(targets)) for name in table.columns if name not in roles}
        numbers = [name for name, reason in passed.items() if not reason and table[name].dtype.kind in "biuf"]
        features = tuple(numbers) if self.features is None else self.features
        inputs = self.features or [name for name, reason in passed.items() if not reason]
        texts = [name for name in inputs if layout != "rows" and table[name].dtype == object]
        count = table.rows if layout == "series" or sequence is None else len(np.unique(table[sequence].astype(str)))
        levels = {name: _levels(table, name, count, asked=self.features is not None) for name in texts}
        levels = {name: found for name, found in levels.items() if found}
        features = tuple(name for name in features if name not in levels)
        if not features and not levels:
            known = ", ".join(map(repr, table.columns))
            raise DataError(
                f"{table.path} has no column of numbers left for the inputs; columns: {known}. Row numbers, times and "
                "dates are taken as inputs only if you name them, features=('NAME',)."
            )
        used = {*features, *roles, *levels}
        left = [name for name in (*table.columns, *table.unusable) if name not in used]
        inputs = f"Inputs: {_listed(features)}"
        if levels:
            shown = ", ".join(f"{name!r} ({len(found)} texts)" for name, found in levels.items())
            inputs += f"{', ' if features else ''}{shown}, as zeros and ones"
        inputs += f"; not used: {_listed(left, [passed.get(name, '') for name in left])}." if left else "."
        more: dict[str, Any] = {"text": tuple(levels), "levels": tuple(levels.values()), "impute": self.impute}
        return Columns(layout, features, None if layout == "series" else sequence, time, targets, **more), inputs

    def _layout(self, table: Table, targets: tuple[str, ...], sequence: str | None, time: str | None) -> Layout:
        layout, known, target = self.layout, ", ".join(table.columns), bool(targets)
        inputs = self.features or [name for name in table.columns if name not in (*targets, sequence, time)]
        if layout == "auto":
            repeated = sequence is not None and len(np.unique(table[sequence].astype(str))) < table.rows
            repeated |= table.path.is_dir()  # a file is a sequence, also if it has one step
            wide = (
                sum(table[name].dtype.kind in "biuf" and not _no_input(name, table[name], target) for name in inputs)
                > 1
            )
            rows = bool(targets) and time is None and wide and self.kind != "tagging"
            layout = "long" if self.sequence or repeated else "rows" if rows else "series"
        if layout == "long" and sequence is None:
            raise DataError(
                f"{table.path}: name the column that says whose sequence a row is, sequence='NAME'; columns: {known}."
            )
        if layout == "series" and target and (self.kind not in ("auto", "tagging") or not _is_class(table[targets[0]])):
            raise DataError(
                f"{table.path} is one sequence in time, and a target is one answer per sequence. Name the column that "
                "says of which sequence a row is, sequence='NAME', or take layout='rows' if every row is a sequence of "
                f"its own, or kind='tagging' for a class at every step, or kind='next-step' to predict the next row. "
                f"Columns: {known}."
            )
        if layout == "rows" and not target:
            raise DataError(
                f"{table.path}: with every row a sequence, name the target, target='NAME'; columns: {known}."
            )
        if layout == "rows" and self.time is not None:
            raise DataError(f"{table.path}: with every row a sequence there is no time column; got {self.time!r}.")
        return layout

    def _kind(self, columns: Columns, flat: Flat, path: Path) -> tuple[Kind, tuple[str, ...], str]:
        """The kind of task, the classes if it has some, and a sentence that says so."""
        if not columns.target:
            if not columns.features:
                raise DataError(
                    f"{path} has no column of numbers whose next step could be predicted: {_listed(columns.text)} is "
                    "text. Name a target, target='NAME', or add a column of numbers."
                )
            return "next-step", (), "Target: the next step of every input (next-step prediction)."
        names, first = _listed(columns.target), flat.targets[0] if flat.tags is None else flat.tags
        if flat.tags is not None and (self.kind not in ("auto", "tagging") or not _is_class(first)):
            odd = flat.tags != np.repeat(flat.targets[0], flat.lengths)
            index = int(np.searchsorted(np.cumsum(flat.lengths), odd.argmax(), side="right"))
            raise changing(path, columns.target[0], flat.ids[index])
        tagging = flat.tags is not None or self.kind == "tagging"
        numeric = all(y.dtype.kind in "iuf" for y in flat.targets)
        discrete = tagging or _discrete(first, flat)
        if self.kind == "regression" or (self.kind == "auto" and (len(flat.targets) > 1 or not discrete)):
            if any(y.dtype.kind not in "biuf" for y in flat.targets):
                raise DataError(f"{path}: the target {names} holds text; regression needs numbers.")
            hint = (
                "" if self.kind == "regression" or len(flat.targets) > 1 else "; kind='classification' if it is a class"
            )
            return "regression", (), f"Target: {names}, numbers (regression){hint}."
        if len(flat.targets) > 1:
            raise DataError(f"{path}: classification has one target, got {len(flat.targets)}: {names}.")
        values, counts = np.unique(np.array(labels_of(first)), return_counts=True)
        amounts = _amounts(values)
        order = sorted(range(len(values)), key=lambda index: (amounts[index], values[index]))
        classes = tuple(str(values[index]) for index in order)
        if len(values) < 2:
            raise DataError(f"{path}: the target {names} is {values[0]!s} everywhere; classification needs 2 classes.")
        if not tagging and len(values) > max(2, len(flat) // 2):
            raise DataError(
                f"{path}: the target {names} has {len(values):,} classes in {len(flat):,} sequences, too few of each; "
                "take kind='regression', or another column."
            )
        shares = ", ".join(f"{values[index]} ({counts[index]:,})" for index in order[:12])
        more = f" and {len(classes) - 12} more" if len(classes) > 12 else ""
        hint = "; kind='regression' if it is an amount" if numeric and self.kind == "auto" else ""
        if tagging:
            return (
                "tagging",
                classes,
                f"Target: {names} at every step, {len(classes)} classes: {shares}{more} (tagging).",
            )
        sentence = f"Target: {names}, {len(classes)} classes: {shares}{more} (classification){hint}."
        return "classification", classes, sentence

    def _split(self, flat: Flat, kind: Kind, path: Path) -> dict[str, Flat]:
        unit = flat.steps.shape[0] if (single := len(flat) == 1) else len(flat)
        what, least = ("steps", 2) if single else ("sequences", 1)
        sizes = {
            split: max(least, round(part * unit)) if part else 0
            for split, part in (("validation", self.validation), ("test", self.test))
        }
        kept = unit - sum(sizes.values())
        if kept < least or (kind == "classification" and kept < 2):
            raise DataError(
                f"{path} has {unit} {what}: not enough for a validation split of {sizes['validation']}, a test split "
                f"of {sizes['test']} and training; add data, or take validation=0 or test=0."
            )
        ends = {
            "train": (0, kept),
            "validation": (kept, kept + sizes["validation"]),
            "test": (unit - sizes["test"], unit),
        }
        ends = {split: (begin, end) for split, (begin, end) in ends.items() if end > begin}
        if single:  # by time: what comes later is not known yet
            return {split: flat.cut(begin, end) for split, (begin, end) in ends.items()}
        order = self._order(flat, kind)
        return {split: flat.take(np.sort(order[begin:end])) for split, (begin, end) in ends.items()}

    def _order(self, flat: Flat, kind: Kind) -> np.ndarray:
        """A random order in which every stretch has its share of each class."""
        random = np.random.default_rng(self.seed)
        shuffled = random.permutation(len(flat))
        if kind != "classification":
            return shuffled
        group = np.unique(np.array(labels_of(flat.targets[0]))[shuffled], return_inverse=True)[1]
        counts, seen = np.bincount(group), np.zeros(group.max() + 1)
        # the i-th of the n members of a class stands at i / n, so a class with one member stands at 0 and is trained on
        place = np.empty(len(flat))
        for index, which in enumerate(group):
            place[index] = seen[which] / counts[which]
            seen[which] += 1
        return shuffled[np.argsort(place, kind="stable")]

    def _preparation(
        self,
        kind: Kind,
        columns: Columns,
        classes: tuple[str, ...],
        train: Flat,
        masked: tuple[str, ...],
        choices: list[str],
        path: Path,
    ) -> Preparation:
        mean, std, constant = self._moments(train.steps, path)
        if (empty := np.isnan(mean)).any():
            raise DataError(f"{path}: {columns.channels[empty.argmax()]!r} has no number in the training split.")
        numbers = 1 if columns.layout == "rows" else len(columns.features)
        mean[numbers:], std[numbers:] = 0, 1  # zeros and ones of texts stay what they are
        if constant.any() and self.standardise:
            names = ("all steps",) if columns.layout == "rows" else columns.channels
            same = [names[index] for index in np.flatnonzero(constant)]
            choices.append(f"Constant in the training split: {_listed(same)}; it tells a model nothing.")
        target_mean = target_std = np.array([])
        if kind == "regression":
            values = np.stack([y.astype(np.float64) for y in train.targets], axis=1)
            target_mean, target_std, constant = self._moments(values, path)
            if constant.any():
                raise DataError(f"{path}: the target is {values[0][constant.argmax()]} in all of the training split.")
        mean, std, target_mean, target_std = (tuple(row.tolist()) for row in (mean, std, target_mean, target_std))
        return Preparation(kind, columns, mean, std, classes, target_mean, target_std, masked)

    def _moments(self, values: np.ndarray, path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean and deviation of each column, and which columns are constant; those keep a deviation of 1."""
        empty = np.isnan(values).all(axis=0)
        known = np.where(empty, 0.0, values) if empty.any() else values
        constant = (np.nanmin(known, axis=0) == np.nanmax(known, axis=0)) & ~empty
        if not self.standardise:
            return np.zeros(values.shape[1]), np.ones(values.shape[1]), constant
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            mean, std = np.nanmean(known, axis=0), np.nanstd(known, axis=0)
        std = np.where(constant | (std == 0), 1.0, std)
        mean = np.where(empty, np.nan, mean)
        if np.isinf(mean).any() or not np.isfinite(std).all() or (np.isnan(mean) & ~empty).any():
            raise DataError(
                f"{path}: some numbers are too large for their mean and deviation to be computed; rescale them."
            )
        return mean, std, constant


def in_memory(x: Any, y: Any = None, **options: Any) -> OwnTask:
    """The task of sequences in memory, as ``OwnData(path, **options).load()`` is of those in a file.

    Args:
        x: arrays (time, channels) or (time,) in a list; an array (cases, time, channels), (cases, time) or (cases,
            channels, time), see ``order``; or a DataFrame of pandas or polars with the columns of a file.
        y: one answer per sequence, a class or numbers; None: a column of ``x``, or the next step.
        options: those of ``OwnData``; ``validation=0, test=0`` keeps everything for training.

    Example:
        >>> xs = [np.full((3 + case % 2, 2), case) for case in range(20)]
        >>> task = in_memory(xs, ["low"] * 10 + ["high"] * 10, validation=0, test=0)
        >>> task.spec.classes, task.data["train"].inputs.shape, task.data["train"].lengths[:3]
        (('high', 'low'), torch.Size([20, 4, 2]), tensor([3, 4, 3]))
    """
    data = as_data(x, y)
    if y is not None and isinstance(data, Table) and options.get("target") is None:
        options["target"] = list(data.columns)[-1]
    return OwnData(MEMORY, **options).of(data, digest(data))


def _sequences_sentence(columns: Columns, flat: Flat) -> str:
    low, high = int(flat.lengths.min()), int(flat.lengths.max())
    steps = f"{low:,} steps each" if low == high else f"{low:,} to {high:,} steps"
    order = f"in the order of {columns.time!r}" if columns.time else "in the order of the file"
    match columns.layout:
        case "rows":
            return f"Sequences: {len(flat):,}; every row is one, and its {high:,} inputs are the steps."
        case "series":
            return f"Sequences: all rows are one, {high:,} steps, {order}."
        case "arrays":
            return f"Sequences: {len(flat):,}, {steps}."
        case "long":
            return f"Sequences: {len(flat):,}, named by {columns.sequence!r}, {steps}, {order}."


def _scale_sentence(preparation: Preparation, scored: Sequences, spec: Spec) -> str:
    """What a score means: in which units, and what a simple answer gets."""
    if preparation.classes:
        return f"Score: accuracy; always the most frequent class has {spec.baseline:.3f}."
    if preparation.kind == "next-step":
        before = scored.inputs[..., : scored.targets.shape[-1]]
        repeat = float((counted(scored, scored.targets) - counted(scored, before)).square().mean())
        return (
            f"Score: mean squared error in units of each input's deviation; the mean has {spec.baseline:.3g}, "
            f"repeating the last step {repeat:.3g}."
        )
    deviations = ", ".join(f"{std:.4g}" for std in preparation.target_std)
    return (
        f"Score: mean squared error in units of the target's deviation ({deviations}); answering the mean has "
        f"{spec.baseline:.3g}. Predictions are in the target's own units."
    )


def _contents(path: Path, data: Data) -> str:
    if isinstance(data, Table):
        note = f" ({data.note})" if data.note else ""
        return f"{path.name}: {data.rows:,} rows{note}, columns {', '.join(data.columns)}."
    return f"{path.name}: arrays {', '.join(f'{name} {array.shape}' for name, array in data.items())}."


def _amounts(names: np.ndarray) -> list[float]:
    """What names of classes are as numbers, if all of them are numbers; else zeros."""
    try:
        return [float(name) for name in names]
    except ValueError:
        return [0.0] * len(names)


def _named(table: Table, names: tuple[str, ...], taken: Container[str | None]) -> str | None:
    """The column that goes by one of the names, in any case of letters."""
    there = {name.lower(): name for name in reversed(table.columns) if name not in taken}
    return next((there[name] for name in names if name in there), None)


def _blocks(table: Table, targets: tuple[str, ...], taken: Container[str | None]) -> str | None:
    """A column that names sequences though not by its own name: each value fills one block of rows with one answer.

    There are more blocks than answers, or the column may be the answer in other words.
    """
    found: dict[str, int] = {}
    for name, values in table.columns.items():
        if name in taken or values.dtype.kind not in "iuO" or _no_input(name, values, True):
            continue
        begins = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
        lengths = np.diff(np.r_[begins, len(values)])
        if lengths.min() < 2 or len({*values[begins].tolist()}) < len(begins):
            continue
        answers = [(table[it][begins], table[it]) for it in targets]
        if all((np.repeat(own, lengths) == y).all() and len({*own.tolist()}) < len(begins) for own, y in answers):
            found[name] = len(begins)
    return max(found, key=found.__getitem__) if found else None


def _no_input(name: str, values: np.ndarray, target: bool) -> str:
    """Why a column is no input although it may hold numbers: it numbers the rows, or says when they were; else ""."""
    low = name.strip().lower()
    if UNNAMED.fullmatch(low):
        return "an index"
    if low in INDEX_NAMES and values.dtype.kind in "iu" and (values == values[0] + np.arange(len(values))).all():
        return "row numbers" if values[0] in (0, 1) else ""
    return "time" if low in TIME_NAMES or (not target and low in CALENDAR_NAMES) else ""


def _is_class(values: np.ndarray) -> bool:
    """Whether answers at every step look like classes."""
    if values.dtype.kind not in "iuf":
        return values.dtype.kind != "M"
    different = np.unique(values)
    return len(different) <= MOST_CLASSES and bool((different == np.round(different)).all())


def _levels(table: Table, name: str, sequences: int, *, asked: bool) -> tuple[str, ...]:
    """The different texts of a column that can be an input as zeros and ones; none if it cannot."""
    found = tuple(sorted({str(value) for value in table[name].tolist() if value is not None}))
    if asked and not 2 <= len(found) <= 100:
        raise DataError(
            f"{table.path}: the column {name!r} holds text, {len(found):,} different ones; an input may have 2 to 100."
        )
    return found if asked or 2 <= len(found) <= min(MOST_CLASSES, sequences // 2) else ()


def _discrete(values: np.ndarray, flat: Flat) -> bool:
    """Whether answers look like classes: text, truth values, or few different whole numbers."""
    if values.dtype.kind not in "iuf":
        return True
    different = np.unique(values)
    whole = values.dtype.kind != "f" or (different == np.round(different)).all()
    return bool(whole) and len(different) <= min(MOST_CLASSES, max(2, len(flat) // 2))


def _listed(names: tuple[str, ...] | list[str], reasons: list[str] | None = None) -> str:
    shown = ", ".join(
        f"{name!r}{f' ({reason})' if reason else ''}"
        for name, reason in list(zip(names, reasons or [""] * len(names), strict=True))[:12]
    )
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12:,} more"
