"""Speed and memory of the scan engine, against PyTorch in the same run. Writes a dated report beside this file.

    python benchmarks/scan.py            everything, some six minutes on two cores; the machine should be idle
    python benchmarks/scan.py --quick    the main table alone

Times are medians of forward + backward in milliseconds. Peers that are not installed are left out: they are
``pip install edgeml-pytorch jax``.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib.metadata
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import holdfast as hf
from holdfast.runs.environment import environment

STEPS, BATCH, HIDDEN, INPUT = 500, 64, 128, 2
REBASE = 100  # K of dtriv

CELLS: dict[str, tuple[Callable[[], hf.Cell], str]] = {  # by the row of the main table, with its target
    "SGORNN, 14 rotations": (lambda: hf.SGORNNCell(INPUT, HIDDEN), "0.25 RNN, 0.08 LSTM"),
    "VPRNN, 14 rotations": (lambda: hf.VPRNNCell(INPUT, HIDDEN), "0.25 RNN, 0.08 LSTM"),
    "RNN relu": (lambda: hf.RNNCell(INPUT, HIDDEN, nonlinearity="relu"), "0.4 RNN"),
    "RNN tanh": (lambda: hf.RNNCell(INPUT, HIDDEN), "0.4 RNN"),
    "LinearRNN": (lambda: hf.LinearCell(INPUT, HIDDEN), ""),
    "FastRNN": (lambda: hf.FastRNNCell(INPUT, HIDDEN), "0.4 RNN"),
    "SGORNN, exp": (lambda: hf.SGORNNCell(INPUT, HIDDEN, recurrent="exp"), "0.4 RNN"),
    "SGORNN, Cayley": (lambda: hf.SGORNNCell(INPUT, HIDDEN, recurrent="cayley"), "0.4 RNN"),
    "ExpRNN": (lambda: hf.ExpRNNCell(INPUT, HIDDEN), ""),
    "ExpRNN, dtriv": (lambda: hf.ExpRNNCell(INPUT, HIDDEN, rebase_every=REBASE), ""),
    "ScoRNN": (lambda: hf.ScoRNNCell(INPUT, HIDDEN), ""),
    "AntisymmetricRNN": (lambda: hf.AntisymmetricRNNCell(INPUT, HIDDEN), ""),
    "URNN, 64 complex units": (lambda: hf.URNNCell(INPUT, HIDDEN), ""),
    "EUNN, 64 complex units, capacity 2": (lambda: hf.EUNNCell(INPUT, HIDDEN), ""),
    "GORU, capacity 2": (lambda: hf.GORUCell(INPUT, HIDDEN), ""),
    "LSTM": (lambda: hf.LSTMCell(INPUT, HIDDEN), "0.6 LSTM"),
    "GRU, PyTorch's": (lambda: hf.GRUCell(INPUT, HIDDEN), "0.6 GRU"),
    "GRU, reset before": (lambda: hf.GRUCell(INPUT, HIDDEN, reset="before"), "0.6 GRU"),
    "FastGRNN": (lambda: hf.FastGRNNCell(INPUT, HIDDEN), ""),
    "FastGRNN, rank 16": (lambda: hf.FastGRNNCell(INPUT, HIDDEN, recurrent_rank=16), ""),
    "CoRNN": (lambda: hf.CoRNNCell(INPUT, HIDDEN), ""),
    "LEM": (lambda: hf.LEMCell(INPUT, HIDDEN), ""),
    "IndRNN": (lambda: hf.IndRNNCell(INPUT, HIDDEN), ""),
    "MinGRU": (lambda: hf.MinGRUCell(INPUT, HIDDEN), ""),
    "MinLSTM": (lambda: hf.MinLSTMCell(INPUT, HIDDEN), ""),
}


class OwnCell(hf.Cell):
    """Not in the package: fifteen elementwise operators, two products."""

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.randn(2 * hidden_size, input_size) * 0.1)
        self.weight_hh = nn.Parameter(torch.randn(2 * hidden_size, hidden_size) * 0.05)
        self.weight_hc = nn.Parameter(torch.randn(hidden_size, hidden_size) * 0.05)
        self.leak = nn.Parameter(torch.tensor(0.9))
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def drive(self, x):
        return x @ self.weight_ih.mT

    def weights(self):
        return self.weight_hh, self.weight_hc, self.leak, self.bias

    def step(self, drive, state, weights):
        (h,), (weight_hh, weight_hc, leak, bias) = state, weights
        a, b = (drive + h @ weight_hh.mT).chunk(2, dim=1)
        gate = torch.sigmoid(a + bias)
        candidate = torch.tanh((gate * h) @ weight_hc.mT + b)
        candidate = torch.where(candidate > 0, candidate, 0.1 * candidate)
        h = leak * (gate * candidate + (1 - gate) * h) + (1 - leak) * torch.relu(b)
        return (h / torch.sqrt(1 + h * h),)


def median_ms(run: Callable[[], None], repeats: int = 11, budget: float = 6.0) -> float:
    run()
    run()
    times: list[float] = []
    end = time.perf_counter() + budget
    while len(times) < repeats and (len(times) < 3 or time.perf_counter() < end):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def theirs(module: nn.Module, xs: torch.Tensor) -> float:
    def run() -> None:
        module.zero_grad()
        module(xs)[0][-1].sum().backward()

    return median_ms(run)


def ours(cell: hf.Cell, xs: torch.Tensor, backend: str = "fused", repeats: int = 11) -> float:
    def run() -> None:
        cell.zero_grad()
        _, state = hf.scan(cell, xs, need_output=False, backend=backend)
        state[0].sum().backward()

    return median_ms(run, repeats)


def main_table(lines: list[str]) -> None:
    xs = torch.randn(STEPS, BATCH, INPUT)
    rnn = theirs(nn.RNN(INPUT, HIDDEN, nonlinearity="relu"), xs)
    lstm, gru = theirs(nn.LSTM(INPUT, HIDDEN), xs), theirs(nn.GRU(INPUT, HIDDEN), xs)
    lines += [
        f"PyTorch's: `torch.nn.RNN(relu)` {rnn:.1f} ms, `torch.nn.LSTM` {lstm:.1f} ms, `torch.nn.GRU` {gru:.1f} ms.",
        "",
        "| cell | ms | of RNN(relu) | of LSTM | of GRU | target |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, (make, asked) in CELLS.items():
        ms = ours(make(), xs)
        lines.append(f"| {name} | {ms:.1f} | {ms / rnn:.3f} | {ms / lstm:.3f} | {ms / gru:.3f} | {asked} |")
    move = 1e3 * timed(hf.DynamicExponential(HIDDEN, every=REBASE).rebase, 11)
    own = OwnCell(INPUT, HIDDEN)
    fused, plain = ours(own, xs), ours(own, xs, "reference", repeats=5)
    lines += [
        "",
        f"dtriv is timed without the move of its base point, {move:.1f} ms, once in {REBASE} updates.",
        "",
        f"A cell that is not in the package (`OwnCell` in the script): {fused:.1f} ms fused, {plain:.1f} ms on "
        f"reference, {fused / plain:.3f} of it; target: 0.125.",
        "",
    ]
    short, long = (
        ours(hf.SGORNNCell(INPUT, HIDDEN), xs),
        ours(hf.SGORNNCell(INPUT, HIDDEN), torch.randn(5000, BATCH, INPUT)),
    )
    lines += [
        f"SGORNN at T = 5000: {long:.1f} ms, {long / short:.1f} times T = 500 ({short:.1f} ms); target: at most 12.",
        "",
    ]


TREES, WORDS = 32, 20


def layers(lines: list[str]) -> None:
    """Layers that are more than a cell over time, against what one would write with PyTorch for the same numbers."""
    lines += [
        "## Layers",
        "",
        f"`CLSTM` is timed as the cells are. `TreeLSTM` reads {TREES} random binary trees of {WORDS} words, with H = "
        f"{HIDDEN}, inputs of width {HIDDEN}, and the loss on the roots.",
        "",
        "| layer | ms | in PyTorch | its ms | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    torch.manual_seed(0)
    layer, xs = hf.CLSTM(INPUT, HIDDEN), torch.randn(STEPS, BATCH, INPUT)
    plain = hf.to_torch(layer.lstm)

    def convolved() -> torch.Tensor:
        rows = nn.functional.pad(xs.permute(1, 2, 0), (layer.window - 1, 0))
        return plain(torch.relu(layer.convolution(rows)).permute(2, 0, 1))[1][0]

    rows = {
        f"CLSTM, {layer.filters} filters": (
            lambda: layer(xs, need_output=False)[1][0],
            "`torch.nn.Conv1d`, `torch.nn.LSTM`",
            convolved,
        )
    }
    children, roots = forest(TREES, WORDS)
    words, table = torch.randn(len(children), HIDDEN), torch.tensor(children)
    for name, tree, step in (
        ("TreeLSTM, binary", hf.TreeLSTM(HIDDEN, HIDDEN, arity=2), binary),
        ("TreeLSTM, child-sum", hf.TreeLSTM(HIDDEN, HIDDEN), child_sum),
    ):
        rows[name] = (
            lambda tree=tree: tree(words, table)[0][roots],
            "recursion over the nodes",
            lambda tree=tree, step=step: torch.stack([recursion(tree, step, words, children, it)[0] for it in roots]),
        )
    for name, (mine, what, other) in rows.items():
        torch.testing.assert_close(mine(), other(), rtol=1e-4, atol=1e-5)
        ms, instead = (median_ms(lambda made=made: made().sum().backward(), 7) for made in (mine, other))
        lines.append(f"| {name} | {ms:.1f} | {what} | {instead:.1f} | {ms / instead:.3f} |")
    lines.append("")


def forest(trees: int, words: int) -> tuple[list[list[int]], list[int]]:
    """The children of all nodes of random binary trees, children first, and the roots."""
    rng, children, roots = random.Random(0), [], []
    for _ in range(trees):
        waiting = []
        for _ in range(words):
            waiting.append(len(children))
            children.append([-1, -1])
        while len(waiting) > 1:  # neighbours are joined
            place = rng.randrange(len(waiting) - 1)
            pair = [waiting.pop(place), waiting.pop(place)]
            waiting.insert(place, len(children))
            children.append(pair)
        roots += waiting
    return children, roots


Node = tuple[torch.Tensor, torch.Tensor]  # h and c


def recursion(layer: hf.TreeLSTM, step: Callable, xs: torch.Tensor, children: list[list[int]], node: int) -> Node:
    """A Tree-LSTM as a recursive function, which is what its equations look like."""
    below = [recursion(layer, step, xs, children, child) for child in children[node] if child >= 0]
    if not below:
        below = 2 * [(xs.new_zeros(layer.hidden_size),) * 2]
    return step(layer.weight_ih @ xs[node] + layer.bias, layer.weight_hh, *below)


def binary(drive: torch.Tensor, weight_hh: torch.Tensor, left: Node, right: Node) -> Node:
    i, f, u, o = drive.chunk(4)
    from_i, from_left, from_right, from_u, from_o = (weight_hh @ torch.cat((left[0], right[0]))).chunk(5)
    kept = torch.sigmoid(f + from_left) * left[1] + torch.sigmoid(f + from_right) * right[1]
    c = torch.sigmoid(i + from_i) * torch.tanh(u + from_u) + kept
    return torch.sigmoid(o + from_o) * torch.tanh(c), c


def child_sum(drive: torch.Tensor, weight_hh: torch.Tensor, left: Node, right: Node) -> Node:
    i, f, u, o = drive.chunk(4)
    weight_i, weight_f, weight_u, weight_o = weight_hh.chunk(4)
    total = left[0] + right[0]
    kept = sum(torch.sigmoid(f + weight_f @ h) * c for h, c in (left, right))
    c = torch.sigmoid(i + weight_i @ total) * torch.tanh(u + weight_u @ total) + kept
    return torch.sigmoid(o + weight_o @ total) * torch.tanh(c), c


def sizes(lines: list[str]) -> None:
    """Where who wins, over hidden sizes and batches."""
    lines += [
        "## Sizes",
        "",
        "T = 100, input width 2; ms forward + backward, fused / PyTorch's module (for SGORNN, fused / reference).",
        "",
        "| H | B | SGORNN fused / reference | RNN relu | LSTM | GRU |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for hidden in (32, 128, 512):
        for batch in (1, 16, 64, 256):
            xs = torch.randn(100, batch, INPUT)
            sgornn = hf.SGORNNCell(INPUT, hidden)
            entries = [f"{ours(sgornn, xs, repeats=5):.2f} / {ours(sgornn, xs, 'reference', repeats=3):.1f}"]
            for cell, module in (
                (hf.RNNCell(INPUT, hidden, nonlinearity="relu"), nn.RNN(INPUT, hidden, nonlinearity="relu")),
                (hf.LSTMCell(INPUT, hidden), nn.LSTM(INPUT, hidden)),
                (hf.GRUCell(INPUT, hidden), nn.GRU(INPUT, hidden)),
            ):
                mine, other = ours(cell, xs, repeats=5), theirs(module, xs)
                entries.append(f"{mine:.2f} / {other:.2f} = {mine / other:.2f}")
            lines.append(f"| {hidden} | {batch} | {' | '.join(entries)} |")
    lines.append("")


MEMORY = """
import json, pathlib, torch, holdfast as hf
cell, xs = hf.SGORNNCell(2, 128), torch.randn(50000, 64, 2)
def infer(steps):
    with torch.inference_mode():
        hf.scan(cell, xs[:steps], need_output=False, backend="fused")
def train(steps):
    hf.scan(cell, xs[:steps], need_output=False, backend="fused")[1][0].sum().backward()
def memory(key):
    return 1024 * int(next(l for l in open("/proc/self/status") if l.startswith(key)).split()[1])
def grown(run, steps):
    for _ in range(3):
        run(50)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = memory("VmRSS")
    run(steps)
    run(steps)
    return memory("VmHWM") - before
print(json.dumps([grown(infer, steps) for steps in (500, 5000, 50000)] + [grown(train, 5000)]))
"""


def memory(lines: list[str]) -> None:
    """Peak resident memory above the start, in a process of its own; Linux only."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    *infer, train = json.loads(done.stdout)
    unit = 5000 * BATCH * HIDDEN * 4
    kept = ", ".join(f"{m / 2**20:.1f} MiB at T = {t}" for m, t in zip(infer, (500, 5000, 50000), strict=True))
    lines += [
        "## Memory",
        "",
        f"Training SGORNN at T = 5000, B = 64, H = 128: {train / 2**20:.0f} MiB above the start, "
        f"{train / unit:.2f} × T·B·H·4 bytes (target: at most 4).",
        "",
        f"Forward only under `inference_mode`, last state only, the input aside: {kept} (target: no growth).",
        "",
    ]


FIRST = """
import time, torch, holdfast as hf
layer, xs = hf.{name}(2, 128), torch.randn(500, 64, 2)
start = time.perf_counter()
layer(xs)[1]{pick}.sum().backward()
print(time.perf_counter() - start)
"""


def first_call(lines: list[str]) -> None:
    lines += ["## First call", "", "Seconds from the first call of a fresh process to its gradients.", ""]
    lines += ["| layer | no cache | with it |", "| --- | --- | --- |"]
    for name in ("SGORNN", "LSTM", "GRU"):
        with tempfile.TemporaryDirectory() as folder:
            code = FIRST.format(name=name, pick="[0]" if name == "LSTM" else "")
            times = []
            for _ in range(2):
                environment = os.environ | {"HOLDFAST_CACHE": folder}
                done = subprocess.run(
                    [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
                )
                times.append(float(done.stdout))
        lines.append(f"| {name} | {times[0]:.2f} | {times[1]:.2f} |")
    lines += ["", "target: at most 15 and 1.", ""]


TRUST = """
import statistics, sys, time, torch, holdfast as hf
from holdfast.engine.targets.cpu import trial
if "{trial}" == "no":
    trial._try = lambda *args, **options: None
cell, xs = hf.{name}Cell(2, 128), torch.randn(500, 64, 2)
hf.RNNCell(2, 3)(torch.zeros(1, 2))
start = time.perf_counter()
hf.scan(cell, xs, backend="fused")[1][0].sum().backward()
print(time.perf_counter() - start)
"""


def trust(lines: list[str]) -> None:
    """What it costs not to be wrong: the trial in a first call, and the checks before every scan."""
    from holdfast.engine.program.settings import settings_of
    from holdfast.engine.targets.cpu import plan as plans

    lines += [
        "## Trust",
        "",
        "First call without a cache, in seconds, with and without the trial of its kernels, medians of",
    ]
    lines += [
        "three processes in turns. Then the time before every scan in which the settings of the cell are compared,"
    ]
    lines += [
        f"and that in which the step is recorded again, once in {plans.AGAIN} scans, beside a scan of T = {STEPS}.",
        "",
    ]
    lines += ["| cell | trial | without | ratio | settings, µs | recorder, ms | of a scan, B = 64 | B = 1, inference |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name in ("SGORNN", "LSTM", "GRU"):
        times: dict[str, list[float]] = {"yes": [], "no": []}
        for _ in range(3):
            for with_trial, found in times.items():
                with tempfile.TemporaryDirectory() as folder:
                    code = TRUST.format(name=name, trial=with_trial)
                    environment = os.environ | {"HOLDFAST_CACHE": folder}
                    done = subprocess.run(
                        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
                    )
                    found.append(float(done.stdout))
        first, bare = (statistics.median(found) for found in times.values())
        cell, xs, one = (
            getattr(hf, f"{name}Cell")(INPUT, HIDDEN),
            torch.randn(STEPS, BATCH, INPUT),
            torch.randn(STEPS, 1, INPUT),
        )
        weights, training = tuple(cell.weights()), ours(cell, xs)
        settings, plan = settings_of(cell), plans.plan_for(cell, weights, gradient=True)
        compared = timed(settings.unchanged, 200)
        recorded = timed(lambda: plan.same_at(cell, weights, BATCH), 20)  # noqa: B023
        with torch.no_grad():
            hf.scan(cell, one, backend="fused")
            alone = timed(lambda: hf.scan(cell, one, backend="fused"), 20)  # noqa: B023
        shares = [(compared + recorded / plans.AGAIN) / whole for whole in (training / 1e3, alone)]
        lines.append(
            f"| {name} | {first:.2f} | {bare:.2f} | {first / bare:.2f} | {compared * 1e6:.0f} | {recorded * 1e3:.1f} | "
            f"{shares[0]:.2%} | {shares[1]:.2%} |"
        )
    lines += ["", "target: the trial at most 1.5 times the first call; the recorder at most 1% of a scan.", ""]


def timed(work: Callable[[], object], repeats: int) -> float:
    """The median of so many calls, in seconds."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def peers(lines: list[str]) -> None:
    """Other people's ways to run these cells, where they are installed."""
    xs = torch.randn(STEPS, BATCH, INPUT)
    lines += ["## Peers", "", "| cell | way | ms |", "| --- | --- | --- |"]
    lines.append(f"| FastRNN | holdfast, fused | {ours(hf.FastRNNCell(INPUT, HIDDEN), xs):.1f} |")
    plain = ours(hf.FastRNNCell(INPUT, HIDDEN), xs, "reference", repeats=5)
    lines.append(f"| FastRNN | holdfast, reference loop | {plain:.1f} |")
    sys.modules.setdefault(
        "fastgrnn_cuda", types.ModuleType("fastgrnn_cuda")
    )  # it imports this, and uses it on GPUs only
    try:
        from edgeml_pytorch.graph.rnn import BaseRNN as EdgeLoop
        from edgeml_pytorch.graph.rnn import FastRNNCell as EdgeCell
    except ImportError:
        lines.append("| FastRNN | edgeml-pytorch | not installed |")
    else:
        layer = EdgeLoop(EdgeCell(INPUT, HIDDEN), batch_first=False)
        lines.append(f"| FastRNN | edgeml-pytorch {version('edgeml-pytorch')} | {theirs_edge(layer, xs):.1f} |")
    lines.append(f"| FastRNN | TorchScript loop | {torchscript(xs):.1f} |")
    lines.append(f"| LSTM | holdfast, fused | {ours(hf.LSTMCell(INPUT, HIDDEN), xs):.1f} |")
    try:
        lines += jax_rows()
    except ImportError:
        lines.append("| FastRNN, LSTM | jax.lax.scan under jit | not installed |")
    lines.append("")


def theirs_edge(layer: nn.Module, xs: torch.Tensor) -> float:
    def run() -> None:
        layer.zero_grad()
        layer(xs)[-1].sum().backward()

    return median_ms(run, repeats=3)


def torchscript(xs: torch.Tensor) -> float:
    weight_ih, weight_hh = (torch.randn(HIDDEN, n) * 0.1 for n in (INPUT, HIDDEN))
    weights = [w.requires_grad_() for w in (weight_ih, weight_hh)]

    def loop(xs: torch.Tensor, weight_ih: torch.Tensor, weight_hh: torch.Tensor) -> torch.Tensor:
        drive = xs @ weight_ih.t()
        h = torch.zeros(xs.size(1), weight_hh.size(0))
        for t in range(xs.size(0)):
            h = 0.05 * torch.tanh(drive[t] + h @ weight_hh.t()) + 0.95 * h
        return h

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # TorchScript is deprecated, and still what PyTorch's own benchmark of custom cells uses
        scripted = torch.jit.script(loop)

    def run() -> None:
        torch.autograd.grad(scripted(xs, *weights).sum(), weights)

    return median_ms(run, repeats=5)


def jax_rows() -> list[str]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    xs = jnp.asarray(np.random.default_rng(0).normal(size=(STEPS, BATCH, INPUT)), dtype=jnp.float32)

    def weights(rows: int):
        rng = np.random.default_rng(1)
        return tuple(
            jnp.asarray(0.1 * rng.normal(size=shape), dtype=jnp.float32) for shape in ((rows, INPUT), (rows, HIDDEN))
        )

    def fastrnn(w, xs):
        drive = xs @ w[0].T

        def step(h, d):
            return 0.05 * jnp.tanh(d + h @ w[1].T) + 0.95 * h, None

        return jax.lax.scan(step, jnp.zeros((BATCH, HIDDEN)), drive)[0].sum()

    def lstm(w, xs):
        drive = xs @ w[0].T

        def step(state, d):
            h, c = state
            i, f, g, o = jnp.split(d + h @ w[1].T, 4, axis=1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        return jax.lax.scan(step, (jnp.zeros((BATCH, HIDDEN)),) * 2, drive)[0][0].sum()

    rows = []
    for name, function, count in (("FastRNN", fastrnn, HIDDEN), ("LSTM", lstm, 4 * HIDDEN)):
        grad, w = jax.jit(jax.grad(function)), weights(count)
        ms = median_ms(lambda grad=grad, w=w: jax.block_until_ready(grad(w, xs)), repeats=5)
        rows.append(f"| {name} | jax.lax.scan under jit, jax {version('jax')} | {ms:.1f} |")
    return rows


def version(package: str) -> str:
    return importlib.metadata.version(package)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the main table alone")
    parser.add_argument("--output", type=Path, help="where to write the report; default: a dated file in benchmarks/")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    today = datetime.date.today().isoformat()
    load = os.getloadavg()[0]
    lines = [
        f"# The scan engine, {today}",
        "",
        f"{environment().sentence}; load before the run {load:.2f}.",
        "",
        f"Forward + backward, float32, T = {STEPS}, B = {BATCH}, H = {HIDDEN}, input width {INPUT}, loss on the last "
        "state; medians of one run. Written by `python benchmarks/scan.py`.",
        "",
    ]
    sections = [main_table] if arguments.quick else [main_table, layers, first_call, trust, memory, sizes, peers]
    target = arguments.output or Path(__file__).parent / f"{today}-scan.md"
    printed = 0
    for section in sections:
        section(lines)
        gc.collect()
        print("\n".join(lines[printed:]), flush=True)
        printed = len(lines)
    if not arguments.quick or arguments.output:
        target.write_text("\n".join(lines) + "\n")
        print(f"written to {target}")


if __name__ == "__main__":
    main()
