"""Print the spectral radius and norms of a recurrent matrix over a training.

    python tools/radius.py RUN ...                  of the checkpoints in run folders, copies for rewinds included
    python tools/radius.py --train 400 30000 3      of S2's addition problem: T, updates and seed, as in s2/addition

    ρ(U), the next |λ|, how many |λ| > 1.001, ‖U‖₂, ‖U‖_F, and log₁₀ ρ(U)ᵀ                    (1)

ρ(U) does not change under a rescaling of units; the two norms do. ρ(U)ᵀ is no gradient: units that are off take their
part out of the product, at every step.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import DivergedError
from holdfast.tasks import Addition
from holdfast.train import LRSchedule, ModelSettings, Training, build, fit
from holdfast.train.checkpoint import load
from holdfast.train.log import read_log
from holdfast.train.spikes import EVERY

HEAD = "| update | loss | rewinds | ρ(U) | next | above 1.001 | ‖U‖₂ | ‖U‖_F | log₁₀ ρ(U)ᵀ |\n" + "| --- " * 9 + "|"


def row(update: int | str, loss: float | None, rewinds: int | str, U: Tensor, steps: int) -> str:
    """One line with (1)."""
    sizes = torch.linalg.eigvals(U.detach().double()).abs().sort(descending=True).values.tolist()
    norms = [torch.linalg.matrix_norm(U.detach().double(), ord=order).item() for order in (2, "fro")]
    above = sum(size > 1.001 for size in sizes)
    power = steps * math.log10(sizes[0]) if sizes[0] > 0 else -math.inf
    mean = "" if loss is None else f"{loss:.3g}"
    entries = [f"{size:.4f}" for size in sizes[:2]] + [str(above)] + [f"{norm:.3f}" for norm in norms]
    return f"| {update} | {mean} | {rewinds} | {' | '.join(entries)} | {power:.1f} |"


def recurrent(weights: dict[str, Any]) -> Tensor:
    return next(weight for name, weight in weights.items() if name.endswith("weight_hh"))


def of_run(folder: Path) -> None:
    """(1) of best.safetensors, of the copies that spikes may put back, and of last.safetensors."""
    settings = json.loads((folder / "settings.json").read_text())
    steps, last = settings["task"]["steps"], load(folder / "last.safetensors")
    print(f"\n{folder}, T = {steps}: copies are numbered in updates that were not undone\n\n{HEAD}")
    best = load(folder / "best.safetensors")
    print(row(f"{best['update']} (best)", best["score"], "", recurrent(best["model"]), steps))
    for one in last.get("rewind", {}).get("kept", ()):
        print(row(f"{one['number'] * EVERY} (copy)", one["mean"], "", recurrent(one["model"]), steps))
    position = last["position"]
    rewinds = last.get("rewind", {}).get("count", "")
    print(row(f"{position['update']} (last)", None, rewinds, recurrent(last["model"]), steps))


def of_training(steps: int, updates: int, seed: int, evaluations: int = 30) -> None:
    """(1) at every evaluation of the run invariant-``steps`` of s2/addition at scale small; loss: validation."""
    task = Addition(steps=steps, validation=512).load()
    start = {"recurrent": "identity", "others": 0.01}
    torch.manual_seed(seed)
    model = build(ModelSettings("rnn", 100, options={"nonlinearity": "relu", "start": start}), task.spec)
    every, found = max(1, updates // evaluations), {}
    training = Training(
        optimiser="path-adam", lr=6e-3, batch=16, updates=updates, seed=seed, evaluate_every=every, spikes="rewind",
        options={"steps": steps, "invariant": True}, spike_at=1000.0,
        schedule=LRSchedule("step", at=(0.7, 0.85, 0.95), factor=0.3, warmup=500),
    )  # fmt: skip

    def watch(update: int) -> None:
        if update % every == 0:
            found[update] = recurrent(dict(model.named_parameters())).detach().clone()

    with tempfile.TemporaryDirectory() as folder:
        try:
            fit(model, task, training, folder, progress=False, watch=watch)
        except DivergedError as error:
            print(error)
        print(f"T = {steps}, seed {seed}\n\n{HEAD}")
        for entry in read_log(Path(folder) / "log.jsonl"):
            if entry["update"] in found:
                loss = entry["validation"]["mse"]
                print(row(entry["update"], loss, entry["rewinds"], found[entry["update"]], steps))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--train"]:
        of_training(*map(int, sys.argv[2:5]))
    else:
        for name in sys.argv[1:]:
            if (Path(name) / "last.safetensors").exists():
                of_run(Path(name))
