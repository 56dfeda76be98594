"""Test scores of the reservoir, of simple baselines and of a plain GRU, with MiniRocket's beside them.

    python benchmarks/sequence_scores.py SETS_FOLDER [--columns reservoir baselines gru auto] [--only SET ...] [--busy]

SETS_FOLDER is what benchmarks/sequence_sets.py writes. Scores of each set go to results/sequences/scores.json as soon
as they are known; ``python tools/pages.py`` makes docs/sequences.md of them. They are accuracies, or for numbers the
mean squared error per that of the training mean. Nothing is chosen here: settings come from the development sets.
Columns that are not named keep what the file has.
"""

from __future__ import annotations

import argparse
import json
import time
import types
from pathlib import Path

import numpy as np
import torch
from sequence_sets import DEVELOPMENT, FINAL, Sequences, load
from sklearn.linear_model import RidgeClassifierCV, RidgeCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import holdfast
from holdfast.estimators import choice, trained
from holdfast.runs.environment import environment

SEEDS = 3
PENALTIES = np.logspace(-3, 3, 13)


def sequences(pair: tuple[torch.Tensor, torch.Tensor]) -> list[np.ndarray]:
    """As people hold them: a list of arrays (time, channels)."""
    return [row[:length].numpy() for row, length in zip(*pair, strict=True)]


def estimator(data: Sequences, model: str, seed: int, minutes: float = 5.0) -> tuple[float, str, str]:
    """The test score of an estimator, what it chose, and from what."""
    kind = holdfast.SequenceRegressor if data.regression else holdfast.SequenceClassifier
    made = kind(model, minutes=minutes, random_state=seed).fit(sequences(data.train), data.y)
    answers = made.predict(sequences(data.test))
    return _score(data, answers), made.chosen_, made.summary()


def raw(data: Sequences, kind: str) -> float:
    """The nearest neighbour, or a ridge, on the raw series: padded with zeros, cut to the longest training one."""
    steps = data.train[0].shape[1]
    x, x_test = (
        nn.functional.pad(pair[0], (0, 0, 0, max(0, steps - pair[0].shape[1])))[:, :steps].flatten(1).numpy()
        for pair in (data.train, data.test)
    )
    made = {
        ("nearest", False): KNeighborsClassifier(1),
        ("nearest", True): KNeighborsRegressor(1),
        ("ridge", False): make_pipeline(StandardScaler(), RidgeClassifierCV(PENALTIES)),
        ("ridge", True): make_pipeline(StandardScaler(), RidgeCV(PENALTIES)),
    }[kind, data.regression]
    return _score(data, made.fit(x, data.y).predict(x_test))


def gru(data: Sequences, seed: int, updates: int = 500, seconds: float = 120.0) -> float:
    """A plain GRU: 128 units, the last state, Adam at 0.001, batches of 32; at most so many seconds of computing."""
    torch.manual_seed(seed)
    (x, lengths), classes = data.train, np.unique(data.y)
    mean, std = x.mean(dim=(0, 1)), x.std(dim=(0, 1))
    target = torch.tensor(data.targets, dtype=torch.float32)
    layer, readout = holdfast.GRU(x.shape[2], 128, batch_first=True), nn.Linear(128, target.shape[1])
    optimiser = torch.optim.Adam([*layer.parameters(), *readout.parameters()])

    def outputs(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence((x - mean) / std, lengths, batch_first=True, enforce_sorted=False)
        return readout(layer(packed, need_output=False)[1][-1])

    began, done = time.process_time(), 0
    while done < updates and time.process_time() - began < seconds:
        for rows in torch.randperm(len(x)).split(32):
            z = outputs(x[rows], lengths[rows])
            loss = (
                nn.functional.mse_loss(z, target[rows])
                if data.regression
                else nn.functional.cross_entropy(z, target[rows].argmax(dim=1))
            )
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*layer.parameters(), *readout.parameters()], 1.0)
            optimiser.step()
            done += 1
    with torch.no_grad():
        z = torch.cat([outputs(*part) for part in zip(*(t.split(64) for t in data.test), strict=True)])
    if data.regression:
        return data.error(z[:, 0].double().numpy() * data.y.std() + data.y.mean())
    return float((classes[z.argmax(dim=1).numpy()] == data.y_test).mean())


def _score(data: Sequences, answers: np.ndarray) -> float:
    return data.error(answers) if data.regression else float((answers == data.y_test).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results/sequences/scores.json")
    parser.add_argument(
        "--columns", nargs="*", default=["reservoir", "baselines", "gru"], help="add auto for the choice"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of the automatic choice, per set")
    parser.add_argument("--busy", action="store_true", help="count --minutes by computing time: for a busy machine")
    parser.add_argument("--only", nargs="*", default=[*DEVELOPMENT, *FINAL])
    arguments = parser.parse_args()
    if arguments.busy:  # the journal's clock, and that of planned updates
        choice.time = trained.time = types.SimpleNamespace(monotonic=time.process_time)  # type: ignore[assignment]
    rocket = json.loads((arguments.sets / "minirocket.json").read_text())
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"sets": {}}
    found["environment"] = environment().sentence
    for name in arguments.only:
        data = load(arguments.sets / f"{name}.npz")
        row = found["sets"].setdefault(name, {})
        row |= {
            "regression": data.regression,
            "train": len(data.y),
            "test": len(data.y_test),
            "steps": int(data.train[1].max()),
            "channels": data.train[0].shape[2],
            "MiniRocket": rocket[name],
        }
        if "reservoir" in arguments.columns:
            row["reservoir"] = [estimator(data, "reservoir", seed)[0] for seed in range(SEEDS)]
        if "baselines" in arguments.columns:
            row["nearest neighbour"] = [raw(data, "nearest")]
            row["ridge on the raw series"] = [raw(data, "ridge")]
        if "gru" in arguments.columns:
            row["plain GRU"] = [gru(data, 0)]
        if "auto" in arguments.columns:
            score, chosen, summary = estimator(data, "auto", 0, arguments.minutes)
            row |= {"automatic": [score], "chosen": chosen, "minutes": arguments.minutes}
            row |= {"clock": "computing" if arguments.busy else "wall", "cells": ", ".join(choice.CELLS)}
            row["compared"] = {"on the training set": summary.splitlines()}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
        print(
            name,
            {key: np.round(value, 3).tolist() for key, value in row.items() if isinstance(value, list)},
            flush=True,
        )


if __name__ == "__main__":
    main()
