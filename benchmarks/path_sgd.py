"""What Path-SGD costs: a step beside one of SGD, and how κ⁽¹⁾ and κ⁽²⁾ grow. Writes a dated report beside this file.

    python benchmarks/path_sgd.py            everything, some two minutes on two cores; the machine should be idle
    python benchmarks/path_sgd.py --quick    the steps alone

A step is forward, backward and update on the fused scan. The optimisers take turns in an order drawn anew, so that
whatever else the machine does meets all of them; ratios are medians over the turns.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.engine.kernels import flow
from holdfast.optim import PathAdam, PathNetwork, PathSGD, kappa_first, kappa_second, path_network
from holdfast.optim.flow import krylov_rows
from holdfast.runs.environment import environment

INPUT = 2
SIZES = [*((128, steps) for steps in (50, 100, 200, 400, 800)), *((hidden, 200) for hidden in (32, 64, 256, 512))]


class Model(nn.Module):
    def __init__(self, hidden: int, layers: int = 1, *, last_only: bool = True, words: int = 0, width: int = INPUT):
        super().__init__()
        self.embedding = nn.Embedding(words, width) if words else None
        self.rnn = hf.RNN(width, hidden, layers, nonlinearity="relu", init="identity")
        self.readout, self.last_only = nn.Linear(hidden, words or 1), last_only
        for cell in self.rnn.cells:
            nn.init.uniform_(cell.weight_ih, -0.1, 0.1)

    def forward(self, xs: Tensor) -> Tensor:
        xs = xs if self.embedding is None else self.embedding(xs)
        output, h_n = self.rnn(xs, need_output=not self.last_only)
        return self.readout(h_n[-1] if self.last_only else output)


def stepper(model: nn.Module, optimiser: torch.optim.Optimizer, xs: Tensor) -> Callable[[], None]:
    def step() -> None:
        optimiser.zero_grad()
        y = model(xs)
        loss = (
            y.square().mean() if xs.is_floating_point() else nn.functional.cross_entropy(y.flatten(0, 1), xs.flatten())
        )
        loss.backward()
        optimiser.step()

    return step


def taking_turns(runs: list[Callable[[], None]], repeats: int, budget: float = 8.0) -> list[list[float]]:
    """Seconds of each run in each turn."""
    for run in runs:
        run()
        run()
    times: list[list[float]] = [[] for _ in runs]
    order = random.Random(0)
    end = time.perf_counter() + budget
    while len(times[0]) < repeats and (len(times[0]) < 5 or time.perf_counter() < end):
        for index in order.sample(range(len(runs)), len(runs)):  # what ran before leaves its mark on the caches
            start = time.perf_counter()
            runs[index]()
            times[index].append(time.perf_counter() - start)
    return times


def steps_table(lines: list[str]) -> None:
    lines += [
        "## A step",
        "",
        "Milliseconds of a step, medians, and the medians of the turns' ratios to SGD. κ⁽¹⁾ is computed anew at every "
        "step, but for two columns.",
        "",
        "| network | T | B | SGD | PathSGD | ratio | every 10 steps | with κ⁽²⁾ | invariant PathAdam | every 4 steps | "
        "target |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    cases: list[tuple[str, Callable[[], Model], int, int, str]] = [
        ("H = 128", lambda: Model(128), 100, 32, "1.30"),
        ("H = 128", lambda: Model(128), 100, 128, "1.10"),
        ("H = 128, every step read", lambda: Model(128, last_only=False), 100, 32, ""),
        ("H = 128, 2 layers", lambda: Model(128, 2), 100, 32, ""),
        ("H = 100 (addition)", lambda: Model(100), 400, 16, "1.15 (invariant)"),
        ("H = 100 (addition)", lambda: Model(100), 750, 16, ""),
        ("H = 200, 10,000 words", lambda: Model(200, last_only=False, words=10_000, width=200), 20, 32, ""),
        ("H = 512", lambda: Model(512), 100, 64, ""),
    ]
    for name, build, steps, batch, target in cases:
        torch.manual_seed(0)
        models = [build() for _ in range(6)]
        words = models[0].readout.out_features
        xs = torch.randint(0, words, (steps, batch)) if words > 1 else torch.rand(steps, batch, INPUT)
        options = ({}, {"every": 10}, {"second": True})
        optimisers = [torch.optim.SGD(models[0].parameters(), lr=1e-6)]
        optimisers += [
            PathSGD(m.parameters(), m, lr=1e-15, steps=steps, **option)
            for m, option in zip(models[1:4], options, strict=True)
        ]
        optimisers += [
            PathAdam(m.parameters(), m, lr=1e-9, steps=steps, invariant=True, every=every)
            for m, every in zip(models[4:], (1, 4), strict=True)
        ]
        times = taking_turns([stepper(m, o, xs) for m, o in zip(models, optimisers, strict=True)], repeats=200)
        sgd, path = (1e3 * statistics.median(own) for own in times[:2])
        ratios = [statistics.median(a / b for a, b in zip(own, times[0], strict=True)) for own in times[1:]]
        for index in (2, 5):  # one in ten or four is slow: the mean counts
            ratios[index - 1] = statistics.fmean(times[index]) / statistics.fmean(times[0])
        lines.append(
            f"| {name} | {steps} | {batch} | {sgd:.2f} | {path:.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} | "
            f"{ratios[2]:.2f} | {ratios[3]:.2f} | {ratios[4]:.2f} | {target} |"
        )
    lines.append("")


def loop_first(network: PathNetwork, steps: int) -> Tensor:
    """κ⁽¹⁾(U) with a product with a vector a step, in Python."""
    layer = network.layers[0]
    tensors = (layer.weight_hh, layer.weight_ih, *layer.biases, network.decoder[0].tensors[0])
    U, W, b, V = (tensor.detach().double().square() for tensor in tensors if tensor is not None)
    drive, f, g = W.sum(1) + b, [W.sum(1) + b], [V.sum(0)]
    for _ in range(steps - 2):
        f.append(torch.addmv(drive, U, f[-1]))
        g.append(U.mT @ g[-1])
    return torch.stack(g[::-1]).mT @ torch.stack(f)


def doubled_first(network: PathNetwork, steps: int) -> None:
    """κ⁽¹⁾ by block doubling, which sizes above 256 always take."""
    largest, flow.LARGEST = flow.LARGEST, 0
    try:
        kappa_first(network, steps)
    finally:
        flow.LARGEST = largest


def footnote_3(U: Tensor, f: Tensor, g: Tensor) -> Tensor:
    """κ⁽²⁾(U) by S2's footnote 3, its index set right: a power of U and a correlation of f and g for every lag."""
    steps, total, power = len(g), torch.zeros_like(U), torch.eye(len(U), dtype=U.dtype)
    for lag in range(steps - 1):
        total += power.mT * (g[lag + 1 :].mT @ f[: steps - 1 - lag])
        power = power @ U
    return 2 * U * total


def growth_table(lines: list[str]) -> None:
    lines += [
        "## How κ grows",
        "",
        "Milliseconds for one layer, last step read, input width 2. κ⁽¹⁾ is one compiled loop up to H = 256 and block "
        "doubling beyond; loop: a product with a vector a step, in Python. Footnote 3: κ⁽²⁾ as S2 computes it, the "
        "flows given.",
        "",
        "| H | T | κ⁽¹⁾ | doubling | loop | κ⁽²⁾ | footnote 3 | footnote 3 / κ⁽²⁾ |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    seconds: dict[tuple[int, int], float] = {}
    for hidden, steps in SIZES:
        model = Model(hidden)
        network = path_network(model)
        U = model.rnn.l0.weight_hh.detach().double().square()
        f, g = krylov_rows([U.mT], U.sum(1), steps).cumsum(0), krylov_rows([U], U.sum(0), steps).flip(0)
        runs = [
            lambda n=network, s=steps: kappa_first(n, s),
            lambda n=network, s=steps: doubled_first(n, s),
            lambda n=network, s=steps: loop_first(n, s),
            lambda n=network, s=steps: kappa_second(n, s),
            lambda U=U, f=f, g=g: footnote_3(U, f, g),
        ]
        *first, second, footnote = (1e3 * statistics.median(own) for own in taking_turns(runs, 15, budget=4.0))
        seconds[hidden, steps] = second
        entries = [*(f"{ms:.2f}" for ms in first), f"{second:.1f}", f"{footnote:.1f}", f"{footnote / second:.1f}"]
        lines.append(f"| {hidden} | {steps} | {' | '.join(entries)} |")
    in_T = math.log(seconds[128, 800] / seconds[128, 100]) / math.log(8)
    in_H = math.log(seconds[512, 200] / seconds[128, 200]) / math.log(4)
    lines += [
        "",
        f"κ⁽²⁾ grows as T^{in_T:.2f} from T = 100 to 800 at H = 128 (√T to T is predicted, T to T² for footnote 3) "
        f"and as H^{in_H:.2f} from H = 128 to 512 at T = 200 (at most H³ is predicted).",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the steps alone")
    parser.add_argument("--output", type=Path, help="where to write the report; default: a dated file in benchmarks/")
    arguments = parser.parse_args()
    today = datetime.date.today().isoformat()
    lines = [
        f"# Path-SGD, {today}",
        "",
        f"{environment().sentence}; load before the run {os.getloadavg()[0]:.2f}.",
        "",
        "Weights in float32; κ in float32 in the steps of recurrent networks, and in float64 below. Written by "
        "`python benchmarks/path_sgd.py`.",
        "",
    ]
    target = arguments.output or Path(__file__).parent / f"{today}-path-sgd.md"
    printed = 0
    for section in [steps_table] if arguments.quick else [steps_table, growth_table]:
        section(lines)
        print("\n".join(lines[printed:]), flush=True)
        printed = len(lines)
    if not arguments.quick or arguments.output:
        target.write_text("\n".join(lines))
        print(f"written to {target}")


if __name__ == "__main__":
    main()
