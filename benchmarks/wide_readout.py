"""A loss over thousands of words: ours, PyTorch's, and its products alone. Writes a dated report beside this file.

    python benchmarks/wide_readout.py     about two minutes; the machine should be idle

Forward and backward of the readout and its cross-entropy, in turns of random order. "products" are the three matrix
products that no way can do without: logits, and the gradients of the hidden rows and of the weights.
"""

from __future__ import annotations

import datetime
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from holdfast.runs.environment import environment
from holdfast.train.wide_readout import linear_cross_entropy

SIZES = ((700, 10_000, 256), (6_000, 10_000, 256), (700, 33_278, 256), (20_000, 10_000, 256))  # rows, words, features
TURNS = 7
NAMES = ("products", "plain", "torch", "ours")


def ways(rows: int, words: int, features: int) -> dict[str, Callable[[], None]]:
    hidden = torch.randn(rows, features, requires_grad=True)
    readout, targets = nn.Linear(features, words), torch.randint(0, words, (rows,))
    weight, bias = readout.weight, readout.bias

    def products() -> None:
        with torch.no_grad():
            logits = hidden @ weight.mT
            torch.mm(logits, weight)
            torch.mm(logits.mT, hidden)

    def trained(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def way() -> None:
            hidden.grad = weight.grad = bias.grad = None
            loss().backward()

        return way

    found = {
        "products": products,
        "plain": trained(lambda: nn.functional.cross_entropy(readout(hidden), targets, reduction="sum")),
        "ours": trained(lambda: linear_cross_entropy(hidden, weight, bias, targets)),
    }
    chunked = getattr(nn, "LinearCrossEntropyOptions", None)  # PyTorch 2.13 has it, 2.6 does not
    if chunked is not None:
        found["torch"] = trained(
            lambda: nn.functional.linear_cross_entropy(
                hidden, weight, targets, linear_bias=bias, reduction="sum", options=chunked()
            )
        )
    return found


def main() -> None:
    load, lines = os.getloadavg()[0], []
    for size in SIZES:
        timed = ways(*size)
        times: dict[str, list[float]] = {name: [] for name in timed}
        for turn in range(TURNS + 1):
            for name in random.sample(list(timed), len(timed)):
                begin = time.perf_counter()
                timed[name]()
                if turn:  # the first one warms up
                    times[name].append(time.perf_counter() - begin)
        middle = {name: 1e3 * statistics.median(own) for name, own in times.items()}
        cells = [f"{middle[name]:.0f}" if name in middle else "" for name in NAMES]
        ratios = f"{middle['ours'] / middle['plain']:.2f} | {middle['ours'] / middle['products']:.2f}"
        megabytes = f"{4e-6 * size[0] * size[1]:.0f} | {4e-6 * min(512, size[0]) * size[1]:.0f}"
        lines.append(f"| {size[0]:,} | {size[1]:,} | {' | '.join(cells)} | {ratios} | {megabytes} |")
        print(lines[-1], flush=True)
    today = datetime.date.today().isoformat()
    report = f"""# The loss over thousands of words, {today}

{environment().sentence}; load before the run {load:.2f}.

Forward and backward of a readout of 256 features and its cross-entropy, float32, ms, median of {TURNS} turns in random
order. *Plain* writes all logits out, *torch* is PyTorch's chunked `linear_cross_entropy`, *ours* is
`holdfast.train.wide_readout`, *products* are its three matrix products alone.

| rows | words | products | plain | torch | ours | ours / plain | ours / products | MB of logits, plain | ours |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{chr(10).join(lines)}

Written by `python benchmarks/wide_readout.py`.
"""
    Path(__file__).with_name(f"{today}-wide-readout.md").write_text(report)


if __name__ == "__main__":
    main()
