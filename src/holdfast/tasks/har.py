"""Human activity recognition: nine motion signals of a phone at the waist, 128 steps of 20 ms.

    x ← (x - mean_c) / std_c          (1) for each channel c, over all steps of the training set
    y = 0 for the labels 2, 4, 6      (2) HAR-2: upstairs, sitting, laying
    y = 1 for the labels 1, 3, 5          walking, downstairs, standing

Data: Anguita et al. (2013), UCI. Sources: S3 §3.2; HAR-2 as in Kusupati et al. (2018), appendix.
"""

from __future__ import annotations

import dataclasses
import logging
import warnings
import zipfile
from typing import Literal

import numpy as np
import torch

from holdfast.errors import DataError, SettingError
from holdfast.files import cache_folder, whole_file
from holdfast.tasks._base import Arrays, Sequences, Spec, Task
from holdfast.tasks.fetch import Source, hash_of, locate

__all__ = ["HAR"]

CHANNELS = tuple(f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")  # sorted
ACTIVITIES = "walking", "upstairs", "downstairs", "sitting", "standing", "laying"
STEPS = 128
SOURCE = Source(
    "har/UCI HAR Dataset.zip",
    sha256="2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0",
    size=60_999_314,
    urls=(
        "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
        "https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",
    ),
    member="UCI HAR Dataset.zip",
    how="Put 'UCI HAR Dataset.zip' (UCI, Human Activity Recognition Using Smartphones; cite Anguita et al., 2013) into "
    "the folder har/ of HOLDFAST_DATA.",
    # the same windows without the 561 features, with recomputed accelerations: docs/usage/tasks.md
    also=("2891cd8965f07b59da9fff6db1c0e07e8ff7d14f4434682488e791c206172a5d",),
)
_FORMAT = "holdfast-har-1"
_log = logging.getLogger("holdfast.tasks")


@dataclasses.dataclass(frozen=True)
class HAR:
    """HAR-2, or all six activities: 7,352 training windows of 21 people and 2,947 test windows of 9 others.

    Args:
        classes: 2 for HAR-2 (2), 6 for the activities.
        validation: number of people of the training set to hold out, those with the highest numbers; 0 as in S3. Whole
            people, since neighbouring windows share half of their steps.

    Example:
        >>> [source.path for source in HAR().sources()]
        ['har/UCI HAR Dataset.zip']
    """

    classes: Literal[2, 6] = 2
    validation: int = 0

    def sources(self) -> tuple[Source, ...]:
        """The one archive with all data."""
        return (SOURCE,)

    def answers(self, split: str) -> int | None:
        """How many answers a score on a split counts; None if that takes reading the data.

        Example:
            >>> HAR().answers("train"), HAR().answers("test")
            (7352, 2947)
        """
        return 2947 if split == "test" else 7352 if split == "train" and not self.validation else None

    def load(self) -> Task:
        if self.classes not in (2, 6):
            raise SettingError(f"HAR expects classes to be 2 or 6, got {self.classes!r}.")
        (xs, labels, people), (test_xs, test_labels, _) = windows()
        everyone = np.unique(people)
        if not 0 <= self.validation < len(everyone):
            raise SettingError(f"HAR expects validation to be 0 to {len(everyone) - 1} people, got {self.validation}.")
        apart = np.isin(people, everyone[len(everyone) - self.validation :])
        mean = xs[~apart].mean(axis=(0, 1), dtype=np.float64)
        std = xs[~apart].std(axis=(0, 1), dtype=np.float64)
        parts = {"train": (xs[~apart], labels[~apart]), "test": (test_xs, test_labels)}
        if self.validation:
            parts = {"train": parts["train"], "validation": (xs[apart], labels[apart]), "test": parts["test"]}
        splits = {}
        for split, (signals, activities) in parts.items():
            standard = torch.from_numpy((signals - mean) / std).to(torch.get_default_dtype())  # (1)
            splits[split] = Sequences(standard, self._targets(activities))
        counts = np.bincount(self._targets(test_labels).long().flatten())
        baseline = float(counts.max() / counts.sum())
        if self.classes == 6:
            spec = Spec(9, 6, "cross_entropy", "accuracy", classes=ACTIVITIES, baseline=baseline)
        else:
            sides = "upstairs, sitting or laying", "walking, downstairs or standing"
            spec = Spec(9, 1, "binary_cross_entropy", "accuracy", classes=sides, baseline=baseline)
        return Arrays(spec, splits)

    def _targets(self, labels: np.ndarray) -> torch.Tensor:
        if self.classes == 6:
            return torch.from_numpy(labels - 1)
        return torch.from_numpy(labels % 2).to(torch.get_default_dtype()).unsqueeze(1)  # (2)


Windows = tuple[np.ndarray, np.ndarray, np.ndarray]


def windows() -> tuple[Windows, Windows]:
    """Signals (n, 128, 9), labels 1 to 6 and people of the training and the test set, as in the archive.

    Reading 190 MB of text takes seconds, so the arrays are kept in the cache under the archive's hash.
    """
    kept = cache_folder("data") / "har" / f"{_FORMAT}-{hash_of(SOURCE)[:16]}.npz"
    names = [f"{split}_{part}" for split in ("train", "test") for part in ("x", "y", "people")]
    try:
        with kept.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = [stored[name] for name in names]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # not there, or damaged
        path = locate(SOURCE)
        try:
            with zipfile.ZipFile(path) as archive:
                arrays = [*_split(archive, "train"), *_split(archive, "test")]
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{path} is not UCI's archive: {error}. {SOURCE.how}") from error
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(kept) as file:
                np.savez(file, allow_pickle=False, **dict(zip(names, arrays, strict=True)))
        except OSError as error:  # without the cache, the next call parses the text again
            _log.info("parsed signals could not be kept: %s", error)
    return (arrays[0], arrays[1], arrays[2]), (arrays[3], arrays[4], arrays[5])


def _split(archive: zipfile.ZipFile, split: str) -> Windows:
    folder = f"UCI HAR Dataset/{split}"
    labels = _numbers(archive, f"{folder}/y_{split}.txt", np.int64)
    people = _numbers(archive, f"{folder}/subject_{split}.txt", np.int64)
    if len(labels) != len(people) or not np.isin(labels, range(1, 7)).all():
        raise ValueError(f"{len(labels)} labels in {split}, {len(people)} people; or a label outside 1 to 6")
    xs = np.empty((len(labels), STEPS, len(CHANNELS)), np.float32)  # the text has 7 digits
    for index, channel in enumerate(CHANNELS):
        name = f"{folder}/Inertial Signals/{channel}_{split}.txt"
        xs[..., index] = _numbers(archive, name, np.float64).reshape(len(labels), STEPS)
    if not np.isfinite(xs).all():
        raise ValueError(f"a signal of {split} has a non-finite value")
    return xs, labels, people


def _numbers(archive: zipfile.ZipFile, name: str, dtype: type) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # NumPy raises it for text that is not numbers
        try:
            return np.fromstring(archive.read(name), dtype=dtype, sep=" ")
        except DeprecationWarning as error:
            raise ValueError(f"{name} has a value that is not a number") from error
