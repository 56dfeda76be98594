"""When a truncated model is faster than its recurrence, and what a projection costs. Writes a dated report here.

    python benchmarks/truncate.py            everything, some ten minutes on two cores; the machine should be idle
    python benchmarks/truncate.py --quick    short sequences, to see that it runs

One thread a core. Times are medians in milliseconds; the ways of one row are timed in turns, so that a busy moment
hits them alike. The recurrence is ``holdfast.scan`` as a layer calls it: the fused loop.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import holdfast as hf
from holdfast.constraints.spectral import clip_spectral, shrink_spectral
from holdfast.runs.environment import environment
from holdfast.stability import contraction_rate, project_, truncate

STEPS, HIDDEN, WINDOW = 100_000, 64, 64
STRIDES = (1, 16, 64, 256)


def medians_ms(ways: dict[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """The median of each way, all of them once a round, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            if round_:
                times[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def inference(module: torch.nn.Module, xs: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return module(xs)[0]

    return run


def training(module: torch.nn.Module, xs: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        module.zero_grad()
        return module(xs)[0].square().mean().backward()

    return run


def layers() -> dict[str, hf.Recurrent]:
    return {
        "RNN, tanh": project_(hf.RNN(HIDDEN, HIDDEN), rate=0.9),
        "SGORNN, 12 rotations": hf.SGORNN(HIDDEN, HIDDEN),
        "LSTM": hf.LSTM(HIDDEN, HIDDEN),
    }


def main_table(lines: list[str], steps: int, rounds: int) -> None:
    xs = torch.randn(steps, 1, HIDDEN)
    columns = ["recurrence", *(f"stride {s}" for s in STRIDES)]
    lines += [
        "## One long sequence",
        "",
        f"T = {steps:,}, B = 1, H = {HIDDEN}, input width {HIDDEN}, k = {WINDOW}, float32. ms, in brackets the part "
        "of the recurrence's time: below 1 the truncated model is faster. With stride 1 an output depends on the last "
        f"{WINDOW} inputs exactly; with stride s, on the last {WINDOW} to {WINDOW - 1} + s. Training: loss on all "
        "outputs.",
        "",
        f"| cell | what | {' | '.join(columns)} |",
        f"| --- | --- |{' --- |' * len(columns)}",
    ]
    for name, layer in layers().items():
        for what, timed in (("inference", inference), ("training step", training)):
            ways: dict[str, Callable[[], object]] = {"recurrence": timed(layer, xs)}
            ways |= {f"stride {s}": timed(truncate(layer, WINDOW, stride=s), xs) for s in STRIDES}
            found = medians_ms(ways, rounds)
            base = found["recurrence"]
            entries = [f"{base:.0f}", *(f"{found[c]:.0f} ({found[c] / base:.2f})" for c in columns[1:])]
            lines.append(f"| {name} | {what} | {' | '.join(entries)} |")
            gc.collect()
    lines.append("")


def batches(lines: list[str], steps: int, rounds: int) -> None:
    """The same number of steps in all, in more sequences at a time: the recurrence fills its vectors by itself."""
    lines += [
        "## More sequences at a time",
        "",
        f"RNN, tanh, H = {HIDDEN}, k = {WINDOW}, inference, T · B = {steps:,}. ms, and the part of the recurrence's "
        "time.",
        "",
        "| B | recurrence | stride 1 | stride 64 |",
        "| --- | --- | --- | --- |",
    ]
    layer = layers()["RNN, tanh"]
    for batch in (1, 4, 16, 64):
        xs = torch.randn(steps // batch, batch, HIDDEN)
        ways = {"recurrence": inference(layer, xs)}
        ways |= {f"{s}": inference(truncate(layer, WINDOW, stride=s), xs) for s in (1, 64)}
        found = medians_ms(ways, rounds)
        base = found["recurrence"]
        entries = [f"{found[s]:.0f} ({found[s] / base:.2f})" for s in ("1", "64")]
        lines.append(f"| {batch} | {base:.0f} | {' | '.join(entries)} |")
    lines.append("")


def windows(lines: list[str], steps: int, rounds: int) -> None:
    """What ε costs: the window that is proved, and the time it takes."""
    lines += [
        "## What ε costs",
        "",
        f"RNN, tanh, λ = 0.9, H = {HIDDEN}, inputs of length at most 1, T = {steps:,}, B = 1, inference, stride = k.",
        "",
        "| ε | proved k | error bound | measured error | of the recurrence's time |",
        "| --- | --- | --- | --- | --- |",
    ]
    layer, xs = layers()["RNN, tanh"], torch.randn(steps, 1, HIDDEN)
    xs /= xs.norm(dim=2, keepdim=True)
    for eps in (1e-1, 1e-3, 1e-6):
        short = truncate(layer, eps=eps, input_bound=1.0)
        short = truncate(layer, short.k, input_bound=1.0, stride=short.k)
        found = medians_ms({"recurrence": inference(layer, xs), "short": inference(short, xs)}, rounds)
        with torch.inference_mode():
            error = (short(xs)[0] - layer(xs)[0]).norm(dim=2).max().item()
        ratio = found["short"] / found["recurrence"]
        lines.append(f"| {eps:g} | {short.k} | {short.error_bound:.2g} | {error:.2g} | {ratio:.2f} |")
    lines.append("")


def projections(lines: list[str], sizes: tuple[int, ...], rounds: int) -> None:
    lines += [
        "## Projections",
        "",
        'float32; a matrix whose spectral norm is 1.05 and is brought to 1, and one of 0.95 that is left alone. "svd" '
        'is nearest, "fast" scales, and is proved to land inside. ms, and the part of the time of "svd".',
        "",
        "| size | outside, svd | outside, fast | inside, svd | inside, fast |",
        "| --- | --- | --- | --- | --- |",
    ]
    for size in sizes:
        W = torch.randn(size, size)
        W *= 1.05 / torch.linalg.matrix_norm(W, 2)
        inside = W * (0.95 / 1.05)
        ways: dict[str, Callable[[], object]] = {
            "out svd": lambda W=W: clip_spectral(W, 1.0),
            "out fast": lambda W=W: shrink_spectral(W, 1.0),
            "in svd": lambda W=inside: clip_spectral(W, 1.0),
            "in fast": lambda W=inside: shrink_spectral(W, 1.0),
        }
        found = medians_ms(ways, rounds)
        entries = []
        for where in ("out", "in"):
            svd, fast = found[f"{where} svd"], found[f"{where} fast"]
            entries += [f"{svd:.2f}", f"{fast:.2f} ({fast / svd:.2f})"]
        lines.append(f"| {size} | {' | '.join(entries)} |")
    lines.append("")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short sequences and small matrices")
    parser.add_argument("--output", type=Path, help="where to write the report; default: a dated file in benchmarks/")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: one a core")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each way; default: 5")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    today, load = datetime.date.today().isoformat(), os.getloadavg()[0]
    steps, rounds = (5_000, 1) if arguments.quick else (STEPS, arguments.rounds)
    rate = contraction_rate(layers()["RNN, tanh"])
    lines = [
        f"# Truncated models and projections, {today}",
        "",
        f"{environment().sentence}; load before the run {load:.2f}.",
        "",
        f"Medians of {rounds} rounds, the ways of a row in turns. The RNN has λ = {rate:.2f}. Written by "
        "`python benchmarks/truncate.py`.",
        "",
    ]
    printed = 0
    for section, options in (
        (main_table, (steps, rounds)),
        (batches, (steps, rounds)),
        (windows, (steps, rounds)),
        (projections, ((64, 256) if arguments.quick else (64, 256, 512, 1024), rounds)),
    ):
        section(lines, *options)
        print("\n".join(lines[printed:]), flush=True)
        printed = len(lines)
    if not arguments.quick or arguments.output:
        target = arguments.output or Path(__file__).parent / f"{today}-truncate.md"
        target.write_text("\n".join(lines) + "\n")
        print(f"written to {target}")


if __name__ == "__main__":
    main()
