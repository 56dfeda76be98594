"""Speed of the triton backend on a GPU, against PyTorch in the same run. Writes a dated report here.

    python benchmarks/gpu.py            everything; how long that takes is not known
    python benchmarks/gpu.py --quick    one size, few rounds, no report

Peers: cuDNN's LSTM and GRU and nn.RNN (``torch.nn``), the plain loop, and the plain loop under ``torch.compile``. Times
are medians of forward + backward in milliseconds, in turns in random order. Nobody has run this yet.
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import holdfast as hf
from holdfast.runs.environment import environment

STEPS, BATCHES, SIZES = 256, (64, 512), (32, 64, 128, 256, 512)
CELLS: dict[str, tuple[type[hf.Cell], type[nn.Module] | None]] = {
    "RNN": (hf.RNNCell, nn.RNN),
    "LSTM": (hf.LSTMCell, nn.LSTM),
    "GRU": (hf.GRUCell, nn.GRU),
    "FastRNN": (hf.FastRNNCell, None),
    "SGORNN": (hf.SGORNNCell, None),
}


def ways(name: str, size: int, xs: torch.Tensor) -> dict[str, Callable[[], None]]:
    """Forward + backward of a cell, by everything that can do it."""
    own, theirs = CELLS[name]
    cell = own(size, size).to(xs)

    def by(scan: Callable[..., tuple[torch.Tensor, object]]) -> Callable[[], None]:
        def run() -> None:
            cell.zero_grad()
            scan(cell, xs)[0].square().mean().backward()

        return run

    def backend(which: str) -> Callable[..., tuple[torch.Tensor, object]]:
        return lambda cell, xs: hf.scan(cell, xs, backend=which)  # type: ignore[return-value]

    found = {
        "triton": by(backend("triton")),
        "plain loop": by(backend("reference")),
        "torch.compile": by(torch.compile(backend("reference"), dynamic=False)),
    }
    if theirs is not None:
        module = theirs(size, size).to(xs)

        def run() -> None:
            module.zero_grad()
            module(xs)[0].square().mean().backward()

        found["torch.nn"] = run
    return found


def medians_ms(found: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """The median of each way by the GPU's clock, all of them once a round, after two rounds to warm up."""
    times: dict[str, list[float]] = {name: [] for name in found}
    for round_ in range(rounds + 2):
        for name in random.sample(list(found), len(found)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            found[name]()
            end.record()
            torch.cuda.synchronize()
            if round_ >= 2:
                times[name].append(start.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one size and few rounds, to see that it runs")
    parser.add_argument("--output", type=Path, help="where to write the report; default: a dated file in benchmarks/")
    parser.add_argument("--rounds", type=int, default=11, help="measurements of each way; default: 11")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            "benchmarks/gpu.py needs a GPU that PyTorch finds, and measured nothing. benchmarks/triton.py needs none."
        )
        return
    torch.manual_seed(0)
    batches, sizes, rounds = (BATCHES, SIZES, arguments.rounds) if not arguments.quick else ((64,), (64,), 2)
    today, columns = datetime.date.today().isoformat(), ["triton", "torch.nn", "plain loop", "torch.compile"]
    lines = [
        f"# Scans on a GPU, {today}",
        "",
        f"{environment().sentence}.",
        "",
        f"T = {STEPS}, as many inputs as units, float32, TF32 {torch.backends.cuda.matmul.allow_tf32}; forward + "
        f"backward, medians of {rounds} rounds in ms, and in brackets the part of torch.nn's time, or else of the "
        "plain loop's. Written by `python benchmarks/gpu.py`.",
        "",
        f"| cell | H | B | {' | '.join(columns)} |",
        f"| --- | --- | --- |{' --- |' * len(columns)}",
    ]
    for name in CELLS:
        for size in sizes:
            for batch in batches:
                torch.compiler.reset()
                xs = torch.randn(STEPS, batch, size, device="cuda")
                found = medians_ms(ways(name, size, xs), rounds)
                base = found.get("torch.nn", found["plain loop"])
                entries = [f"{found[c]:.2f} ({found[c] / base:.2f})" if c in found else "" for c in columns]
                lines.append(f"| {name} | {size} | {batch} | {' | '.join(entries)} |")
                print(lines[-1], flush=True)
    if not arguments.quick or arguments.output:
        target = arguments.output or Path(__file__).parent / f"{today}-gpu.md"
        target.write_text("\n".join(lines) + "\n")
        print(f"written to {target}")


if __name__ == "__main__":
    main()
