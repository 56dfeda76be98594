"""Public sets of sequences that the packages aeon and sktime ship: their official splits, and MiniRocket's scores.

    python benchmarks/sequence_sets.py FOLDER              # with aeon and sktime installed, not necessarily Holdfast

writes one ``<set>.npz`` per set and ``minirocket.json`` into FOLDER. Sequences are (n, time, channels), with zeros
behind the end of shorter ones. MiniRocket needs equal lengths: it reads these zeros, cut to the longest training one.

The packages ship six official splits besides the development sets. Two more sets come from labelled recordings: the
segments of ElectricDevices (which one a window of 48 steps is from; first half of each to train) and the marked
steps of mitdb (whether a window of 30 steps has one; every second pair of windows to train). Four have numbers to
predict from windows of series, the first half to train: solar generation over the next 12 half-hours from the last 48,
the next quarter's change of US consumption from 12 quarters of all five columns, and the next month of two monthly
series (drivers killed or injured in Great Britain; subsidised prescriptions in Australia) from the last 24.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

DEVELOPMENT = (
    "ItalyPowerDemand", "GunPoint", "ArrowHead", "OSULeaf", "JapaneseVowels", "BasicMotions", "ACSF1", "Tecator",
)  # fmt: skip
FINAL = (
    "PLAID", "PickupGestureWiimoteZ", "UnitTest", "Covid3Month_disc", "ElectricDevices", "mitdb", "CardanoSentiment",
    "Covid3Month", "solar", "Uschange", "seatbelts", "PBS_dataset",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Sequences:
    """A set: ``train`` and ``test`` are pairs (x, lengths) of tensors, y and y_test what belongs to them."""

    train: tuple[Any, Any]
    y: np.ndarray
    test: tuple[Any, Any]
    y_test: np.ndarray

    @property
    def regression(self) -> bool:
        return self.y.dtype.kind == "f"

    @property
    def targets(self) -> np.ndarray:
        """±1 for each class, or standardised numbers: (n, outputs)."""
        if self.regression:
            return ((self.y - self.y.mean()) / self.y.std())[:, None]
        return np.where(self.y[:, None] == np.unique(self.y), 1.0, -1.0)

    def score(self, answers: np.ndarray) -> float:
        """Of answers to the test sequences, as ``targets``: the accuracy, or the squared error per variance."""
        if self.regression:
            return self.error(answers[:, 0] * self.y.std() + self.y.mean())
        return float((np.unique(self.y)[answers.argmax(axis=1)] == self.y_test).mean())

    def error(self, predicted: np.ndarray) -> float:
        """Mean squared error of numbers, per that of the training mean."""
        return float(((predicted - self.y_test) ** 2).mean() / ((self.y.mean() - self.y_test) ** 2).mean())


def load(path: Path) -> Sequences:
    """A set that ``main`` wrote."""
    import torch

    with np.load(path) as f:
        pairs = [
            (torch.tensor(f[f"x_{s}"], dtype=torch.float32), torch.tensor(f[f"lengths_{s}"])) for s in ("train", "test")
        ]
        return Sequences(pairs[0], f["y_train"], pairs[1], f["y_test"])


def _official(name: str) -> dict[str, np.ndarray]:
    import aeon.datasets
    import sktime.datasets

    homes = [Path(package.__file__).parent / "data" / name for package in (aeon.datasets, sktime.datasets)]
    home, arrays = next(home for home in homes if home.is_dir()), {}
    for split in ("train", "test"):
        x, y = aeon.datasets.load_from_ts_file(home / f"{name}_{split.upper()}.ts")[:2]
        x = [np.asarray(one, dtype=float).T for one in x]
        lengths = np.array([len(one) for one in x])
        padded = np.zeros((len(x), lengths.max(), x[0].shape[1]))
        for row, one in zip(padded, x, strict=True):
            row[: len(one)] = one
        arrays |= {f"x_{split}": padded, f"lengths_{split}": lengths, f"y_{split}": np.asarray(y)}
    return arrays


def _windows(series: np.ndarray, labels: list[Any], size: int, train: np.ndarray) -> dict[str, np.ndarray]:
    x, y = series[: len(labels) * size].reshape(len(labels), size, 1), np.array(labels)
    arrays = {}
    for split, rows in (("train", train), ("test", ~train)):
        arrays |= {f"x_{split}": x[rows], f"lengths_{split}": np.full(rows.sum(), size), f"y_{split}": y[rows]}
    return arrays


def _electric_devices() -> dict[str, np.ndarray]:
    from aeon.datasets import load_electric_devices_segmentation

    series, _, ends = load_electric_devices_segmentation()
    size, bounds, pieces, labels, train = 48, [0, *ends, len(series)], [], [], []
    for segment, (begin, end) in enumerate(itertools.pairwise(bounds)):
        count = (end - begin) // size
        pieces.append(np.asarray(series)[begin : begin + count * size])
        labels += [f"s{segment}"] * count
        train += [k < count / 2 for k in range(count)]
    return _windows(np.concatenate(pieces), labels, size, np.array(train))


def _mitdb() -> dict[str, np.ndarray]:
    import sktime.datasets

    path, size = Path(sktime.datasets.__file__).parent / "data" / "mitdb" / "mitdb.csv", 30
    values, marks = np.loadtxt(path, delimiter=",", skiprows=1, unpack=True)
    count = len(values) // size
    labels = np.where(marks[: count * size].reshape(count, size).any(axis=1), "marked", "unmarked").tolist()
    return _windows(values, labels, size, np.arange(count) // 2 % 2 == 0)


def _ahead(series: np.ndarray, column: int, size: int, horizon: int, stride: int) -> dict[str, np.ndarray]:
    """Windows of ``size`` steps, and the mean of a column over the next ``horizon`` steps."""
    starts = np.arange(0, len(series) - size - horizon + 1, stride)
    x = np.stack([series[start : start + size] for start in starts])
    y = np.array([series[start + size : start + size + horizon, column].mean() for start in starts])
    train, first = starts + size + horizon <= len(series) // 2, starts >= len(series) // 2  # no step is in both
    arrays = {}
    for split, rows in (("train", train), ("test", first)):
        arrays |= {f"x_{split}": x[rows], f"lengths_{split}": np.full(rows.sum(), size), f"y_{split}": y[rows]}
    return arrays


def _table(name: str, columns: list[str]) -> np.ndarray:
    import pandas
    import sktime.datasets

    path = Path(sktime.datasets.__file__).parent / "data" / name / f"{name}.csv"
    return pandas.read_csv(path)[columns].dropna().to_numpy(float)


def _solar() -> dict[str, np.ndarray]:
    return _ahead(_table("solar", ["solar_gen"]), 0, size=48, horizon=12, stride=2)


def _uschange() -> dict[str, np.ndarray]:
    columns = ["Consumption", "Income", "Production", "Savings", "Unemployment"]
    return _ahead(_table("Uschange", columns), 0, size=12, horizon=1, stride=1)


def _seatbelts() -> dict[str, np.ndarray]:
    return _ahead(_table("seatbelts", ["KSI"]), 0, size=24, horizon=1, stride=1)


def _prescriptions() -> dict[str, np.ndarray]:
    return _ahead(_table("PBS_dataset", ["Scripts"]), 0, size=24, horizon=1, stride=1)


MADE = {
    "ElectricDevices": _electric_devices, "mitdb": _mitdb, "solar": _solar, "Uschange": _uschange,
    "seatbelts": _seatbelts, "PBS_dataset": _prescriptions,
}  # fmt: skip


def _minirocket(arrays: dict[str, np.ndarray], seed: int) -> float:
    from aeon.classification.convolution_based import MiniRocketClassifier
    from aeon.regression.convolution_based import MiniRocketRegressor

    steps = max(9, arrays["x_train"].shape[1])  # its kernels have 9 weights

    def cut(x: np.ndarray) -> np.ndarray:
        x = x[:, :steps]
        return np.pad(x, ((0, 0), (0, steps - x.shape[1]), (0, 0))).transpose(0, 2, 1)

    y, y_test = arrays["y_train"], arrays["y_test"]
    kind = MiniRocketRegressor if y.dtype.kind == "f" else MiniRocketClassifier
    answers = kind(random_state=seed).fit(cut(arrays["x_train"]), y).predict(cut(arrays["x_test"]))
    if kind is MiniRocketRegressor:
        return float(((answers - y_test) ** 2).mean() / ((y.mean() - y_test) ** 2).mean())
    return float((answers == y_test).mean())


def main(folder: Path, *names: str) -> None:
    """Write the sets and MiniRocket's scores, three seeds each."""
    folder.mkdir(parents=True, exist_ok=True)
    scores_file = folder / "minirocket.json"
    scores = json.loads(scores_file.read_text()) if scores_file.exists() else {}
    for name in names or (*DEVELOPMENT, *FINAL):
        arrays = MADE[name]() if name in MADE else _official(name)
        np.savez(folder / f"{name}.npz", **arrays)
        began = time.perf_counter()
        scores[name] = [round(_minirocket(arrays, seed), 4) for seed in range(3)]
        shape = {split: arrays[f"x_{split}"].shape for split in ("train", "test")}
        print(name, shape, scores[name], f"{(time.perf_counter() - began) / 3:.1f} s", flush=True)
        scores_file.write_text(json.dumps(scores, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
