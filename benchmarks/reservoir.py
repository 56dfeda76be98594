"""What a reservoir costs: time and peak memory of a fit. Writes a dated report here.

    python benchmarks/reservoir.py            10,000 sequences of 500 steps, and fewer; the machine should be idle
    python benchmarks/reservoir.py --quick    few sequences, to see that it runs

Each fit runs in a process of its own, from arrays to a fitted ``SequenceClassifier``, with compiled loops from the
cache if they are there. Peak memory is the largest resident set of the process. The automatic choice is measured with
its default of five minutes, on sequences whose classes overlap, so that it does not end early; also as the command
``holdfast train --data FILE``, from the file to the run folder and its pictures.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CASES = (
    (10_000, 500, "reservoir"),
    (1_000, 500, "reservoir"),
    (1_000, 100, "reservoir"),
    (1_000, 100, "auto"),
    (1_000, 100, "command"),
)


def one(n: int, steps: int, model: str) -> None:
    """Fit, and print seconds, megabytes and the score on as many new sequences (at most 1,000)."""
    import torch

    from holdfast import SequenceClassifier

    torch.set_num_threads(os.cpu_count() or 1)
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(4, size=n)
        phase, noise = rng.random((n, 1)), rng.normal(size=(n, steps)).astype(np.float32)
        return np.sin(0.1 * (2 + y[:, None]) * (np.arange(steps) + 60 * phase)) + 2.0 * noise, y

    X, y = draw(n)
    if model == "command":
        return command(X, y, *draw(min(n, 1000)))
    began = time.perf_counter()
    fitted = SequenceClassifier(model).fit(X, y)
    seconds = time.perf_counter() - began
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(seconds, megabytes, fitted.score(*draw(min(n, 1000))), fitted.chosen_)
    return None


def command(X: np.ndarray, y: np.ndarray, new: np.ndarray, answers: np.ndarray) -> None:
    """The same for ``holdfast train --data FILE``; all sequences are trained on."""
    import holdfast
    from holdfast.cli import main as holdfast_main

    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/data.npz", x=X, y=y)
        words = ["train", "--data", f"{folder}/data.npz", "--set", "task.test=0", "--run", f"{folder}/run", "-q"]
        began = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr):
            code = holdfast_main(words)
        seconds = time.perf_counter() - began
        if code:
            raise SystemExit(code)
        run = holdfast.load_run(f"{folder}/run")
        score = (run.predict(new) == answers.astype(str)).mean()
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(seconds, megabytes, score, run.settings.network.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few sequences")
    parser.add_argument("--output", type=Path, help="where to write the report; default: a dated file in benchmarks/")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        return one(int(arguments.one[0]), int(arguments.one[1]), arguments.one[2])
    from holdfast.runs.environment import environment

    today, load = datetime.date.today().isoformat(), os.getloadavg()[0]
    lines = [
        f"# Fitting a reservoir, {today}",
        "",
        f"{environment().sentence}; load before the run {load:.2f}.",
        "",
        "One channel, four classes, one fit each in a process of its own. The targets are 120 s and 4,096 MB for "
        "10,000 sequences of 500 steps, and 300 s for the automatic choice on 1,000 sequences of 100 steps. Written by "
        "`python benchmarks/reservoir.py`.",
        "",
        "| sequences | steps | model | seconds | peak memory, MB | accuracy on new sequences | chosen |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for n, steps, model in (CASES[0], CASES[-1]) if arguments.quick else CASES:
        n = n // 50 if arguments.quick else n
        command = [sys.executable, __file__, "--one", str(n), str(steps), model]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, megabytes, score, chosen = done.stdout.split()
        measured = f"{float(seconds):.1f} | {float(megabytes):,.0f} | {float(score):.3f}"
        lines.append(f"| {n:,} | {steps} | {model} | {measured} | {chosen} |")
        print(lines[-1], flush=True)
    if not arguments.quick or arguments.output:
        target = arguments.output or Path(__file__).parent / f"{today}-reservoir.md"
        target.write_text("\n".join(lines) + "\n")
        print(f"written to {target}")
    return None


if __name__ == "__main__":
    main()
