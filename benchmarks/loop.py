"""What the training loop costs over the bare forward, backward and step. Writes a dated report beside this file.

    python benchmarks/loop.py     about a minute; the machine should be idle

Both train SGORNN on the addition problem at T = 500, B = 64, H = 128, update by update in turns: a bare one on one
batch, a bare one on a batch drawn anew, one of the loop. So a machine that slows down does so for all three.
"""

from __future__ import annotations

import datetime
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from holdfast.runs.environment import environment
from holdfast.tasks import Addition
from holdfast.train import ModelSettings, Training, build, fit

STEPS, BATCH, HIDDEN, UPDATES, WARM, TURNS = 500, 64, 128, 200, 20, 7
TARGET = 1.05


class Turns:
    """Times the loop's update and then gives the bare ones their turn."""

    def __init__(self, bare: list[Callable[[int], None]]):
        self.bare = bare
        self.times: list[list[float]] = [[] for _ in range(1 + len(bare))]  # the loop's last
        self.begin = time.perf_counter()

    def __call__(self, done: int) -> None:
        self.times[-1].append(time.perf_counter() - self.begin)
        for bare, times in zip(self.bare, self.times, strict=False):
            begin = time.perf_counter()
            bare(done)
            times.append(time.perf_counter() - begin)
        self.begin = time.perf_counter()


def bare(task, drawn: bool) -> Callable[[int], None]:
    """Forward, backward and step, written out."""
    model = build(ModelSettings("sgornn", HIDDEN), task.spec)
    optimiser = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    fixed = task.train_batch(0, BATCH, 0)

    def update(number: int) -> None:
        batch = task.train_batch(number, BATCH, 0) if drawn else fixed
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(batch.inputs)[0], batch.targets).backward()
        optimiser.step()

    return update


def turn(task) -> list[tuple[float, float]]:
    """Of each of the three: milliseconds an update, and its part of the first one's; models are made anew."""
    turns = Turns([bare(task, drawn=False), bare(task, drawn=True)])
    training = Training(updates=UPDATES, batch=BATCH, optimiser="rmsprop", lr=1e-3, evaluate_every=UPDATES)
    with tempfile.TemporaryDirectory() as folder:
        fit(build(ModelSettings("sgornn", HIDDEN), task.spec), task, training, folder, progress=False, watch=turns)
    columns = [times[WARM:] for times in turns.times]
    return [
        (1e3 * statistics.median(own), statistics.median(a / b for a, b in zip(own, columns[0], strict=True)))
        for own in columns
    ]


def main() -> None:
    task, load = Addition(steps=STEPS, validation=64).load(), os.getloadavg()[0]
    found = [turn(task) for _ in range(TURNS)]
    names = (
        "forward, backward, step on one batch",
        "the same, drawing a new batch each time",
        "`holdfast.train.fit`",
    )
    rows = [
        (name, *(statistics.median(one[which][part] for one in found) for part in (0, 1)))
        for which, name in enumerate(names)
    ]
    ratios = ", ".join(f"{one[-1][1]:.3f}" for one in found)
    date = datetime.date.today().isoformat()
    table = "\n".join(f"| {what} | {median:.2f} | {ratio:.3f} |" for what, median, ratio in rows)
    report = f"""# The training loop, {date}

{environment().sentence}; load before the run {load:.2f}.

SGORNN, addition problem, T = {STEPS}, B = {BATCH}, H = {HIDDEN}; medians
of {TURNS} runs of {UPDATES - WARM} updates, the three taking turns update by update. Models are made anew for each
run, since where their memory lies moves a ratio by a tenth. Written by `python benchmarks/loop.py`.

| what | ms an update | of the bare update |
| --- | --- | --- |
{table}

The loop's ratio run by run: {ratios}.

Target: at most {TARGET} of the bare update. The loop also draws the batch, measures the gradient's norm, looks for
numbers that are none, watches for signals, reports progress and saves every 30 seconds.
"""
    path = Path(__file__).parent / f"{date}-loop.md"
    path.write_text(report)
    print(report)


if __name__ == "__main__":
    main()
