"""Which weights to keep when few sequences validate: test scores of four ways to end a training.

    python benchmarks/few_validation.py SETS_FOLDER [--only SET ...] [--seeds 3]

SETS_FOLDER is what benchmarks/sequence_sets.py writes; only development sets are used. Every run has the defaults of
``holdfast train --data FILE --cell CELL``, skips updates of a non-finite gradient, and ends in one of these ways:

    best              constant rate, the weights of the best validation score
    last              constant rate, the last weights
    falling           a rate that falls to zero, the last weights
    everything        the same, and the validation sequences are trained on as well

Scores go to results/sequences/few_validation.json as soon as they are known, and what is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from sequence_sets import DEVELOPMENT

from holdfast.files import write_atomically
from holdfast.runs import Request, choose, evaluate_run, train_run
from holdfast.runs.environment import environment

SETS = [name for name in DEVELOPMENT if name not in ("OSULeaf", "ACSF1", "Tecator")]  # two are long, one has no classes
CELLS = ("sgornn", "gru")
FALLING = 'train.schedule={kind = "linear"}'
RUNS = {  # how it is trained, and the names of the weights that are scored
    ('train.schedule={kind = "constant"}', "train.weights=best"): {"best": "best", "last": "last"},
    (FALLING, "train.weights=last"): {"falling": "last"},
    (FALLING, "train.weights=last", "task.validation=0", 'train.evaluate_on=["train"]'): {"everything": "last"},
}


def as_files(source: Path, folder: Path) -> tuple[Path, Path]:
    """Training and test sequences as a person would save them: two .npz files with x, y and lengths."""
    paths = folder / "train.npz", folder / "test.npz"
    with np.load(source) as held:
        for path, split in zip(paths, ("train", "test"), strict=True):
            x, lengths, y = (held[f"{part}_{split}"] for part in ("x", "lengths", "y"))
            np.savez(path, x=x[:, : held["x_train"].shape[1]], y=y, lengths=lengths.clip(max=held["x_train"].shape[1]))
    return paths


def scores_of(source: Path, cell: str, seed: int) -> dict[str, float]:
    """Test accuracy by the name of the way to end, and how many sequences validated."""
    scores: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        train, test = as_files(source, Path(scratch))
        for number, (changes, kept) in enumerate(RUNS.items()):
            options = {
                "task.test_path": str(test),
                "train.patience": None,
                "train.nonfinite": "skip",
                "train.seed": seed,
                "task.seed": seed,
            }
            chosen = choose(Request(data=train, cells=(cell,), options=options, set=changes))
            folder = Path(scratch, str(number))
            train_run(chosen.settings[0], folder, task=chosen.tasks[0], progress=False)
            for name, which in kept.items():
                scores[name] = evaluate_run(folder, "test", which=which).scores["accuracy"]  # type: ignore[arg-type]
            if number == 0:
                scores["validation sequences"] = len(chosen.tasks[0].data["validation"])
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results/sequences/few_validation.json")
    parser.add_argument("--only", nargs="*", default=SETS)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"runs": {}}
    found["environment"] = environment().sentence
    torch.set_num_threads(1)
    for seed in range(arguments.seeds):
        for name in arguments.only:
            for cell in CELLS:
                key = f"{name}, {cell}, seed {seed}"
                if key in found["runs"]:
                    continue
                found["runs"][key] = scores_of(arguments.sets / f"{name}.npz", cell, seed)
                write_atomically(arguments.out, json.dumps(found, indent=1) + "\n")
                print(key, {it: round(value, 3) for it, value in found["runs"][key].items()}, flush=True)


if __name__ == "__main__":
    main()
