"""Every cell on the same five tasks with about the same number of parameters: which one to choose.

    python benchmarks/cells.py                             train what is missing, then write the dated report
    python benchmarks/cells.py --tasks har --cells gru     some tasks and cells; --seeds 0 for some seeds
    python benchmarks/cells.py --scale 0.25                a quarter of the updates, kept apart from the full ones
    python benchmarks/cells.py --report                    write the report of what is there

Each cell has as many units as come nearest to 5,000 parameters with its readout, and the settings that it starts with,
or those of ``OPTIONS``. All are trained by Adam with the same batches, gradients clipped to length 1. The rate is the
best of three on seed 0 by validation score; the other seeds take it. Times and memory are measured by a process of its
own for each row.

Results are kept per task in benchmarks/cells/<task>.json, written after every run, so a stopped benchmark resumes and
several tasks can run side by side. Set OMP_NUM_THREADS=1 for times that do not depend on other processes.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from holdfast.errors import DivergedError
from holdfast.files import write_atomically
from holdfast.runs.environment import environment
from holdfast.tasks import HAR, Addition, Copying, PixelMNIST
from holdfast.train import LAYERS, ModelSettings, Training, build, evaluate, fit
from holdfast.train.checkpoint import load

HERE = Path(__file__).parent
KEPT = HERE / "cells"
PARAMETERS, BATCH, SEEDS, RATES, CLIP = 5_000, 32, (0, 1, 2), (1e-2, 3e-3, 1e-3), 1.0
SEARCHED = {"rrnn": "it searches for every sample and step"}  # only its cost is measured
TWO_LAYERS = {"indrnn", "mingru", "minlstm"}  # units that see each other, or gates that see states, in the next layer


class Options(NamedTuple):
    """Settings of a cell other than those that it starts with."""

    what: str
    of: Callable[[int, int], dict[str, Any]]  # from its units and the steps of a sequence


OPTIONS = {  # a cell, or a variant: "cell, name"
    "c-lstm": Options("as many filters as units", lambda units, _: {"filters": units}),
    "sgornn, horizon T": Options(
        "gates that span the T steps of a sequence from the start",
        lambda _, steps: {"gates": {"clip": "2alpha", "horizon": steps}},
    ),
    "exprnn, dtriv": Options("its base point moves after every 100 updates", lambda *_: {"rebase_every": 100}),
    "indrnn, horizon T": Options("no recurrent weight above 2^(1/T)", lambda _, steps: {"horizon": steps}),
}
CELLS = (*LAYERS, *(name for name in OPTIONS if name not in LAYERS))


class Problem(NamedTuple):
    """A task, its budget, and when it counts as solved."""

    title: str
    make: Callable[[], Any]
    updates: int
    metric: str
    solved: float | None = None


COPYING = Copying(delay=200, validation=320, test=320)
TASKS = {
    "addition-200": Problem(
        "Addition, T = 200", lambda: Addition(steps=200, validation=320, test=1000), 3000, "mse", 0.01
    ),
    "addition-1000": Problem(
        "Addition, T = 1,000", lambda: Addition(steps=1000, validation=160, test=500), 1500, "mse", 0.01
    ),
    "copying": Problem("Copying, delay 200", lambda: COPYING, 2000, "loss", 0.1 * (COPYING.load().spec.baseline or 0)),
    "mnist": Problem("Permuted MNIST, 14 × 14", lambda: PixelMNIST(permuted=True, pool=2), 3000, "accuracy"),
    "har": Problem("HAR, six activities", lambda: HAR(classes=6, validation=4), 1500, "accuracy"),
}
_loaded: dict[str, Any] = {}


def task_of(name: str) -> Any:
    if name not in _loaded:
        _loaded[name] = TASKS[name].make().load()
    return _loaded[name]


def sized(cell: str, task: Any) -> ModelSettings:
    """The even number of units whose model comes nearest to the budget."""
    steps, layer = len(task.train_batch(0, 1, 0).inputs), cell.partition(",")[0]

    def made(units: int) -> tuple[int, ModelSettings]:
        options = OPTIONS[cell].of(units, steps) if cell in OPTIONS else {}
        settings = ModelSettings(layer, units, layers=2 if layer in TWO_LAYERS else 1, options=options)
        with torch.random.fork_rng():
            return sum(weight.numel() for weight in build(settings, task.spec).parameters()), settings

    low, high = 2, 4
    while made(high)[0] <= PARAMETERS:  # the number grows with the units
        low, high = high, 2 * high
    while high - low > 2:
        middle = (low + high) // 4 * 2
        low, high = (middle, high) if made(middle)[0] <= PARAMETERS else (low, middle)
    return min((made(low), made(high)), key=lambda it: abs(it[0] - PARAMETERS))[1]


def one_run(cell: str, name: str, seed: int, lr: float, scale: float) -> dict[str, Any]:
    """Train one model; its best validation score, that model's test score, and when it was solved."""
    problem, task = TASKS[name], task_of(name)
    settings, updates = sized(cell, task), max(1, round(TASKS[name].updates * scale))
    training = Training(
        updates=updates, batch=BATCH, lr=lr, clip=CLIP, seed=seed, evaluate_every=max(1, updates // 30),
        stop_at=problem.solved,
    )  # fmt: skip
    torch.manual_seed(seed)
    model, begin = build(settings, task.spec), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcome = fit(model, task, training, folder, progress=False)
        except DivergedError as error:
            return {"status": "diverged", "reason": str(error), "cpu": time.process_time() - begin}
        model.load_state_dict(load(Path(folder) / "best.safetensors")["model"])
    return {
        "status": outcome.status,
        "updates": outcome.updates,
        "validation": outcome.best,
        "test": evaluate(model, task, "test")[problem.metric],
        "parameters": outcome.parameters,
        "units": settings.hidden_size,
        "cpu": time.process_time() - begin,
    }


def cost(cell: str, name: str) -> dict[str, float]:
    """CPU milliseconds of one update, and the megabytes that training adds, measured here: call it in a new process."""
    task = task_of(name)
    model = build(sized(cell, task), task.spec)
    optimiser, batch, times = torch.optim.Adam(model.parameters()), task.train_batch(0, BATCH, 0), []
    loss = nn.functional.mse_loss if task.spec.loss == "mse" else nn.functional.cross_entropy

    def update(steps: int) -> None:
        optimiser.zero_grad()
        answers, targets = model(batch.inputs[:steps])[0], batch.targets
        ends = (answers.flatten(0, 1), targets[:steps].flatten()) if task.spec.every_step else (answers, targets)
        loss(*ends).backward()
        optimiser.step()

    for _ in range(3):
        update(2)  # compiles, and holds next to nothing
    before = forget_peak()
    for _ in range(6):
        begin = time.process_time()
        update(len(batch.inputs))
        times.append(time.process_time() - begin)
    return {"ms": 1e3 * statistics.median(times[1:]), "megabytes": memory("VmHWM") - before}


def memory(field: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at most since ``forget_peak``."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) / 1024


def forget_peak() -> float:
    """Give back what is free, and let the peak begin at what is held: the megabytes of that."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


class Kept:
    """The results of one task, on disk."""

    def __init__(self, name: str, scale: float):
        self.path = KEPT / f"{name}{'' if scale == 1 else f'-{scale:g}'}.json"
        self.data = json.loads(self.path.read_text()) if self.path.is_file() else {}

    def __call__(self, key: str, made: Callable[[], Any]) -> Any:
        """What is kept under ``key``, or what ``made`` returns, which is kept from now on."""
        if key not in self.data:
            self.data[key] = made()
            KEPT.mkdir(exist_ok=True)
            write_atomically(self.path, json.dumps(self.data, indent=1, sort_keys=True) + "\n")
        return self.data[key]


def best_rate(name: str, kept: dict[str, Any], cell: str) -> float | None:
    """The rate with the best validation score of seed 0; None if all diverged."""
    scores = {lr: kept.get(f"{cell}/0/{lr:g}", {}).get("validation") for lr in RATES}
    found = {lr: score for lr, score in scores.items() if score is not None}
    runs = {lr: kept[f"{cell}/0/{lr:g}"] for lr in found}
    solved = {lr: it["updates"] for lr, it in runs.items() if it["status"] == "stopped"}
    if solved:  # the fewest updates
        return min(solved, key=lambda lr: solved[lr])
    rising = TASKS[name].metric == "accuracy"
    return (max if rising else min)(found, key=lambda lr: found[lr]) if found else None


def train(cell: str, name: str, seeds: list[int], scale: float) -> None:
    kept = Kept(name, scale)

    def run(seed: int, lr: float) -> None:
        key = f"{cell}/{seed}/{lr:g}"
        done = kept(key, lambda: one_run(cell, name, seed, lr, scale))
        print(f"{name}: {key}: {done['status']}, test {done.get('test')}, {done['cpu']:.0f} s", flush=True)

    if cell not in SEARCHED:
        for lr in RATES:
            run(0, lr)
        lr = best_rate(name, kept.data, cell)
        for seed in seeds:
            if seed and lr is not None:
                run(seed, lr)
    argv = [sys.executable, __file__, "--cost", cell, name]
    kept(
        f"{cell}/cost",
        lambda: json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()[-1]),
    )


def row(name: str, kept: dict[str, Any], cell: str) -> str | None:
    """One line of the report; None if nothing was run."""
    lr = best_rate(name, kept, cell)
    first = [kept[key] for lr in RATES if (key := f"{cell}/0/{lr:g}") in kept]
    spent = kept.get(f"{cell}/cost")
    if not first and spent is None:
        return None
    price = " | " if spent is None else f"{spent['ms']:.1f} | {spent['megabytes']:.0f}"
    if not first:
        return f"| {cell} | | | {'not trained' if cell in SEARCHED else 'not run'} | | {price} |"
    if lr is None:
        return f"| {cell} | | | diverged at every rate | | {price} |"
    runs = [kept[key] for seed in SEEDS if (key := f"{cell}/{seed}/{lr:g}") in kept]
    scores = [it["test"] for it in runs if "test" in it]
    spread = f" ± {statistics.stdev(scores):.3f}" if len(scores) > 1 else ""
    size = next(f"{it['units']} | {it['parameters']:,}" for it in runs if "units" in it)
    solved = [it["updates"] for it in runs if it["status"] == "stopped"]
    when = "" if TASKS[name].solved is None else f"{len(solved)} of {len(runs)}"
    when += f", {statistics.median(solved):,.0f} updates" if solved else ""
    return f"| {cell} | {size} | {statistics.fmean(scores):.3f}{spread} ({len(scores)}) | {when} | {price} |"


def remarks(name: str, kept: dict[str, Any], scale: float) -> list[str]:
    """Why scores of the table are not there, and which runs diverged."""
    found, updates = [], round(TASKS[name].updates * scale)
    for cell, why in SEARCHED.items():
        if (spent := kept.get(f"{cell}/cost")) is not None:
            hours = spent["ms"] * updates / 3.6e6
            found.append(
                f"{cell} is not trained: {why}, and one run of {updates:,} updates would take {hours:.1f} core-hours."
            )
    for cell in CELLS:
        lr = best_rate(name, kept, cell)
        runs = {seed: kept.get(f"{cell}/{seed}/{lr:g}", {}) for seed in SEEDS} if lr is not None else {}
        if lost := [str(seed) for seed, it in runs.items() if it.get("status") == "diverged"]:
            found.append(f"{cell} diverged with seed {' and '.join(lost)}.")
    return found


def report(scale: float) -> str:
    date, parts, total = datetime.date.today().isoformat(), [], 0.0
    for name, problem in TASKS.items():
        kept = Kept(name, scale).data
        rows = [line for cell in CELLS if (line := row(name, kept, cell)) is not None]
        if not rows:
            continue
        total += sum(it.get("cpu", 0.0) for it in kept.values())
        goal = "" if problem.solved is None else f" Solved: a validation score of {problem.solved:.3g} or less."
        missing = [cell for cell in CELLS if row(name, kept, cell) is None]
        left = f" Not run: {'; '.join(missing)}." if missing else ""
        parts.append(
            f"## {problem.title}\n\nTest {problem.metric}, at most {round(problem.updates * scale):,} updates."
            f"{goal}{left}\n\n| cell | units | parameters | score ± deviation (seeds) | solved | ms per update | MB |\n"
            "| --- | --- | --- | --- | --- | --- | --- |\n" + "\n".join(rows)
        )
        parts += [" ".join(found)] if (found := remarks(name, kept, scale)) else []
    text = f"""# Cells compared, {date}

{environment().sentence}.

Every cell with about {PARAMETERS:,} parameters, readout included, and the settings that it starts with; B = {BATCH},
Adam, gradients clipped to length {CLIP:g}, the best rate of {", ".join(f"{lr:g}" for lr in RATES)} on the first seed.
Other settings: {"; ".join(f"*{name}*, {it.what}" for name, it in OPTIONS.items())}.
{", ".join(sorted(TWO_LAYERS))} have two layers, since their units see each other in the next layer only. Times are CPU
time of one thread; MB is what training adds to the process. The runs shown took {total / 3600:.1f} core-hours.
Written by `python benchmarks/cells.py`.

""" + "\n\n".join(parts)
    path = HERE / f"{date}-cells{'' if scale == 1 else f'-{scale:g}'}.md"
    write_atomically(path, text + "\n")
    return path.name


def main() -> None:
    parser = argparse.ArgumentParser(description="Every cell on the same five tasks.")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=list(SEEDS))
    parser.add_argument("--scale", type=float, default=1.0, help="part of the updates, such as 0.25")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--cost", nargs=2, metavar=("CELL", "TASK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cost:
        print(json.dumps(cost(*options.cost)))
        return
    if not 0 < options.scale <= 1:
        parser.error(f"--scale expects a number in (0, 1], got {options.scale:g}")
    if not options.report:
        for name in options.tasks:
            for cell in options.cells:
                train(cell, name, options.seeds, options.scale)
    print(f"Wrote benchmarks/{report(options.scale)}.")


if __name__ == "__main__":
    main()
