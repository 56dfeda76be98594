"""What the training loop costs over the bare forward, backward and step. Writes a dated report beside this file.

    python benchmarks/loop.py     about two minutes; the machine should be idle

Both train SGORNN on the addition problem at T = 500, B = 64, H = 128, in turns; the bare side is timed on one batch
and on batches drawn anew. Medians over the turns.
"""

from __future__ import annotations

import datetime
import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from holdfast.studies.environment import environment
from holdfast.studies.schema import table_of
from holdfast.tasks import Addition
from holdfast.train import Network, Training, build, fit

STEPS, BATCH, HIDDEN, UPDATES, TURNS = 500, 64, 128, 150, 9
TARGET = 1.05


class Clocked:
    """A progress that notes the time of every update: the loop's own pace, without its start and its end."""

    def __init__(self):
        self.times: list[float] = []

    def start(self, updates: int, done: int) -> None: ...

    def update(self, done: int, loss: float, gradient_norm: float) -> None:
        self.times.append(time.perf_counter())

    def evaluated(self, done: int, score: str) -> None: ...

    def stop(self) -> None: ...


def bare(task, drawn: bool) -> float:
    """Milliseconds an update of forward, backward and step, written out."""
    model = build(Network("sgornn", HIDDEN), task.spec)
    optimiser = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    fixed, times = task.train_batch(0, BATCH, 0), []
    for update in range(UPDATES):
        batch = task.train_batch(update, BATCH, 0) if drawn else fixed
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(batch.inputs)[0], batch.targets).backward()
        optimiser.step()
        times.append(time.perf_counter())
    return pace(times)


def loop(task) -> float:
    model, clocked = build(Network("sgornn", HIDDEN), task.spec), Clocked()
    training = Training(updates=UPDATES, batch=BATCH, optimiser="rmsprop", lr=1e-3, evaluate_every=UPDATES)
    fit(model, task, training, tempfile.mkdtemp(), progress=clocked)
    return pace(clocked.times)


def pace(times: list[float]) -> float:
    return 1e3 * statistics.median(after - before for before, after in itertools.pairwise(times[20:]))


def main() -> None:
    task, load = Addition(steps=STEPS, validation=64).load(), os.getloadavg()[0]
    rows = [(bare(task, False), bare(task, True), loop(task)) for _ in range(TURNS)]
    without, with_data, ours = (statistics.median(column) for column in zip(*rows, strict=True))
    date = datetime.date.today().isoformat()
    setting = ", ".join(f"{name} {value}" for name, value in table_of(environment()).items())
    report = f"""# The training loop, {date}

{setting}; load before the run {load:.2f}. SGORNN, addition problem, T = {STEPS}, B = {BATCH}, H = {HIDDEN}; medians of
{TURNS} turns of {UPDATES} updates. Written by `python benchmarks/loop.py`.

| what | ms an update | of the bare update |
| --- | --- | --- |
| forward, backward, step on one batch | {without:.2f} | 1.000 |
| the same, drawing a new batch each time | {with_data:.2f} | {with_data / without:.3f} |
| `holdfast.train.fit` | {ours:.2f} | {ours / without:.3f} |

Target: at most {TARGET} of the bare update. The loop also draws the batch, measures the gradient's norm, looks for
numbers that are none, watches for signals, reports progress and saves every 30 seconds.
"""
    path = Path(__file__).parent / f"{date}-loop.md"
    path.write_text(report)
    print(report)


if __name__ == "__main__":
    main()
