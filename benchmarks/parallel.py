"""minGRU and minLSTM through time in three ways: fused loop, parallel form, plain loop. Writes a dated report.

    python benchmarks/parallel.py     about a minute; the machine should be idle

Forward and backward pass of one layer, B = 32, H = 128; the ways take turns in random order. Before they are timed,
their outputs and gradients are compared.
"""

from __future__ import annotations

import datetime
import os
import random
import statistics
import time
from pathlib import Path

import torch

import holdfast
from holdfast.runs.environment import environment

BATCH, INPUTS, HIDDEN, TURNS = 32, 16, 128, 9
WAYS = {"fused": "fused loop", "parallel": "parallel form", "reference": "plain loop"}


def once(layer: torch.nn.Module, xs: torch.Tensor, way: str) -> tuple[float, list[torch.Tensor]]:
    """Seconds of one forward and backward pass, and what came out."""
    layer.backend = way  # type: ignore[assignment]
    for weight in layer.parameters():
        weight.grad = None
    begin = time.perf_counter()
    output, _ = layer(xs)
    output.square().mean().backward()
    taken = time.perf_counter() - begin
    return taken, [output.detach(), *(weight.grad for weight in layer.parameters() if weight.grad is not None)]


def compared(name: str, steps: int) -> dict[str, float]:
    """Median seconds of each way."""
    torch.manual_seed(0)
    layer, xs = getattr(holdfast, name)(INPUTS, HIDDEN), torch.randn(steps, BATCH, INPUTS)
    results = {way: once(layer, xs, way)[1] for way in WAYS}
    for way in WAYS:
        torch.testing.assert_close(results[way], results["reference"], rtol=1e-3, atol=1e-5)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(TURNS):
        for way in random.sample(list(WAYS), len(WAYS)):
            times[way].append(once(layer, xs, way)[0])
    return {way: statistics.median(own) for way, own in times.items()}


def main() -> None:
    load, rows = os.getloadavg()[0], []
    for name in ("MinGRU", "MinLSTM"):
        for steps in (100, 1000):
            found = compared(name, steps)
            cells = " | ".join(f"{1e3 * found[way]:.1f}" for way in WAYS)
            ratios = " | ".join(f"{found[way] / found['fused']:.1f}" for way in ("parallel", "reference"))
            rows.append(f"| {name} | {steps:,} | {cells} | {ratios} |")
    date = datetime.date.today().isoformat()
    report = f"""# Parallel over time, {date}

{environment().sentence}; load before the run {load:.2f}.

One layer, B = {BATCH}, {INPUTS} inputs, H = {HIDDEN}, float32; forward and backward pass in milliseconds, medians of
{TURNS} turns in random order. Outputs and gradients of the three ways agree.
Written by `python benchmarks/parallel.py`.

| layer | T | {" | ".join(f"{what}, ms" for what in WAYS.values())} | parallel / fused | plain / fused |
| --- | --- | --- | --- | --- | --- | --- |
{chr(10).join(rows)}
"""
    (Path(__file__).parent / f"{date}-parallel.md").write_text(report)
    print(report)


if __name__ == "__main__":
    main()
