"""Our scans beside PyTorch's own modules over a grid of sizes, and beside ONNX Runtime on one sequence.

    python benchmarks/grid.py --store grid.jsonl --seconds 200     measure for so long; call again to go on
    python benchmarks/grid.py --store grid.jsonl --report          write the dated report from what was measured
    python benchmarks/grid.py --quick                              a subset, printed; some three minutes
    python benchmarks/grid.py --only LSTM,inference,B=1            points whose name has all of these parts

The machine should be idle. Each point is measured alone: ours and PyTorch's take turns in random order, and the ratio
is that of their medians. RNN, LSTM and GRU are compared with the module of the same name, SGORNN and FastRNN with
``nn.RNN(relu)``. ``arithmetic`` is our time over the time that ``torch.mm`` of 2048 x 2048 takes for as many
floating-point operations, measured beside it. Sequences of ONNX Runtime are of one sample and 200 steps. In the points
named bfloat16, both times are ours.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import itertools
import json
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import holdfast as hf
from holdfast.runs.environment import environment

GATES = {"RNN": 1, "LSTM": 4, "GRU": 3, "SGORNN": 0, "FastRNN": 1}
BATCHES, HIDDEN, INPUTS = (1, 4, 16, 64, 256), (32, 64, 128, 256, 512, 1024), (8, 512)
QUICK = {"B": (1, 64), "H": (64, 256), "D": (8, 512)}
MOST, MEAN, ARITHMETIC, ONE, SMALL = 1.05, 0.45, 1.4, 1.0, 0.6  # targets


def points() -> Iterator[dict[str, Any]]:
    for cell, mode, batch, hidden, width in itertools.product(
        GATES, ("training", "inference"), BATCHES, HIDDEN, INPUTS
    ):
        yield {"cell": cell, "mode": mode, "B": batch, "H": hidden, "D": width, "T": 50 if hidden == 1024 else 200}
    for cell, hidden in itertools.product(("RNN", "GRU", "LSTM"), (64, 128, 256)):
        yield {"cell": cell, "mode": "sequence", "B": 1, "H": hidden, "D": hidden, "T": 200}
    for cell, batch, hidden in itertools.product(("RNN", "GRU", "LSTM"), (1, 64), (128, 512)):
        yield {"cell": cell, "mode": "bfloat16", "B": batch, "H": hidden, "D": 8, "T": 200}


def name_of(point: dict[str, Any]) -> str:
    return f"{point['cell']} {point['mode']} B={point['B']} H={point['H']} D={point['D']}"


def medians(ways: dict[str, Callable[[], object]], seconds: float, turns: int) -> dict[str, float]:
    """Median seconds of each way: at least three turns, at most ``turns``, in random order."""
    for run in ways.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in ways}
    names, end = list(ways), time.perf_counter() + seconds
    for turn in range(turns):
        random.shuffle(names)
        for name in names:
            start = time.perf_counter()
            ways[name]()
            times[name].append(time.perf_counter() - start)
        if turn >= 2 and time.perf_counter() > end:
            break
    return {name: statistics.median(found) for name, found in times.items()}


def medians_of_blocks(ways: dict[str, Callable[[], object]], blocks: int) -> dict[str, float]:
    """The same for calls so short that threads which still wait for work by spinning disturb the next way: each way has
    ten calls in a row, after a pause, and the first three do not count.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for _ in range(blocks):
        random.shuffle(names)
        for name in names:
            time.sleep(0.02)
            for turn in range(10):
                start = time.perf_counter()
                ways[name]()
                if turn >= 3:
                    times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def measured(point: dict[str, Any], seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    cell, hidden, width = point["cell"], point["H"], point["D"]
    ours = getattr(hf, cell)(width, hidden)
    theirs = nn.RNN(width, hidden, nonlinearity="relu") if GATES[cell] < 2 and cell != "RNN" else None
    theirs = theirs or getattr(nn, cell)(width, hidden)
    xs = torch.randn(point["T"], point["B"], width)
    if point["mode"] == "bfloat16":
        half = copy.deepcopy(ours).bfloat16()
        ways = {"ours": _training(half, xs.bfloat16()), "theirs": _training(ours, xs)}
        return point | {key: 1e3 * value for key, value in medians(ways, seconds, 41).items()}
    ways: dict[str, Callable[[], object]] = {}
    for name, module in (("ours", ours), ("theirs", theirs)):
        ways[name] = _inference(module, xs) if point["mode"] != "training" else _training(module, xs)
    if point["mode"] == "sequence":
        ways["onnx"] = _onnx(cell, ours.eval(), xs)
        stream = ours.stream()
        ways["stream"] = lambda: stream.run(xs)  # its weights are fixed, as those of a session are
    large = point["mode"] != "sequence" and point["B"] >= 64 and hidden >= 128
    if large:
        one, other = torch.randn(2, 2048, 2048)
        ways["mm"] = lambda: torch.mm(one, other)
    found = medians_of_blocks(ways, 15) if point["mode"] == "sequence" else medians(ways, seconds, 41)
    result = point | {key: 1e3 * value for key, value in found.items()}
    if large:
        sums = 2 * point["T"] * point["B"] * GATES[cell] * hidden * (hidden + width)
        times = 1 if point["mode"] == "inference" else (3 * hidden + 2 * width) / (hidden + width)  # no gradient of x
        result["arithmetic"] = found["ours"] / (found["mm"] * sums * times / (2 * 2048**3)) if sums else None
    return result


def _inference(module: Any, xs: torch.Tensor) -> Callable[[], object]:
    module.eval()

    def run() -> object:
        with torch.inference_mode():
            return module(xs)

    return run


def _training(module: Any, xs: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        module.zero_grad()
        module(xs)[0][-1].sum().backward()

    return run


def _onnx(cell: str, layer: Any, xs: torch.Tensor) -> Callable[[], object]:
    """ONNX Runtime's operator with the same weights; its answer is compared with ours first."""
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    order = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 3, 1, 2]}[cell]
    parts, hidden = {name: p.detach().numpy() for name, p in hf.to_torch(layer).named_parameters()}, layer.hidden_size

    def gates(name: str) -> np.ndarray:
        return parts[name].reshape(len(order), hidden, -1)[order].reshape(1, len(order) * hidden, -1)

    biases = np.concatenate([gates("bias_ih_l0"), gates("bias_hh_l0")], axis=1)[..., 0]
    values = {"W": gates("weight_ih_l0"), "R": gates("weight_hh_l0"), "B": biases}
    settings: dict[str, Any] = {"linear_before_reset": 1} if cell == "GRU" else {}
    graph = helper.make_graph(
        [helper.make_node(cell, ["x", *values], ["y"], hidden_size=hidden, **settings)],
        "sequence",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(xs.shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [len(xs), 1, 1, hidden])],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    feed = {"x": xs.numpy()}
    with torch.inference_mode():
        apart = np.abs(session.run(["y"], feed)[0].reshape(len(xs), -1) - layer(xs)[0][:, 0].numpy()).max()
    if not apart <= 1e-4:
        raise SystemExit(f"{cell} at H = {hidden}: ours and ONNX Runtime's differ by {apart:.1e}")
    return lambda: session.run(["y"], feed)


# -- report ----------------------------------------------------------------------------------------------------------


def summary(found: list[dict[str, Any]]) -> list[str]:
    grid = [p for p in found if p["mode"] in ("training", "inference")]
    if not grid:
        return []
    ratios = {name_of(p): p["ours"] / p["theirs"] for p in grid}
    over = sorted(((r, n) for n, r in ratios.items() if r > MOST), reverse=True)
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    slow = [p for p in grid if p.get("arithmetic")]
    above = sorted(((p["arithmetic"], name_of(p)) for p in slow if p["arithmetic"] > ARITHMETIC), reverse=True)
    lines = [
        f"{len(grid)} points. Geometric mean of the ratios: **{mean:.3f}** (target: at most {MEAN}). "
        f"Above {MOST}: {len(over)} points (target: none)"
        + (": " + ", ".join(f"{n} {r:.2f}" for r, n in over) + "." if over else "."),
        "",
    ]
    if slow:
        mean = math.exp(statistics.fmean(math.log(p["arithmetic"]) for p in slow))
        lines += [
            f"B of 64 or more, H of 128 or more, {len(slow)} points with products: {mean:.2f} times `torch.mm`'s time "
            f"for the same operations in the geometric mean; above {ARITHMETIC}: {len(above)} (target: none)"
            + (": " + ", ".join(f"{n} {r:.2f}" for r, n in above) + "." if above else "."),
            "",
        ]
    return lines


def tables(found: list[dict[str, Any]]) -> list[str]:
    lines = []
    for mode, width in itertools.product(("training", "inference"), INPUTS):
        here = {(p["cell"], p["B"], p["H"]): p for p in found if p["mode"] == mode and p["D"] == width}
        if not here:
            continue
        sizes = sorted({h for _, _, h in here})
        lines += [f"## {mode.capitalize()}, D = {width}", "", f"| cell | B | {' | '.join(f'H={h}' for h in sizes)} |"]
        lines.append("| --- " * (2 + len(sizes)) + "|")
        for cell, batch in itertools.product(GATES, BATCHES):
            row = [here.get((cell, batch, h)) for h in sizes]
            if any(row):
                entries = [f"{p['ours'] / p['theirs']:.2f}" if p else "" for p in row]
                lines.append(f"| {cell} | {batch} | {' | '.join(entries)} |")
        lines.append("")
    ones = [p for p in found if p["mode"] == "sequence"]
    if ones:
        lines += [
            "## One sequence of 200 steps",
            "",
            "`stream.run(xs)` has its weights packed once, as a session of ONNX Runtime has; the layer looks at them "
            "again at every call.",
            "",
            "| cell | H | stream, ms | layer, ms | PyTorch | ONNX Runtime | stream / ONNX | layer / ONNX | target |",
            "| --- " * 9 + "|",
        ]
        for p in ones:
            lines.append(
                f"| {p['cell']} | {p['H']} | {p['stream']:.3f} | {p['ours']:.3f} | {p['theirs']:.3f} | "
                f"{p['onnx']:.3f} | {p['stream'] / p['onnx']:.2f} | {p['ours'] / p['onnx']:.2f} | "
                f"{SMALL if p['H'] == 64 else ONE} |"
            )
        lines.append("")
    halves = [p for p in found if p["mode"] == "bfloat16"]
    if halves:
        lines += ["## bfloat16", "", "Training, D = 8; ours in bfloat16 beside ours in float32.", ""]
        lines += ["| cell | B | H | bfloat16, ms | float32, ms | ratio |", "| --- | --- | --- | --- | --- | --- |"]
        for p in halves:
            ratio = p["ours"] / p["theirs"]
            row = p["cell"], p["B"], p["H"], f"{p['ours']:.2f}", f"{p['theirs']:.2f}", f"{ratio:.2f}"
            lines.append(f"| {' | '.join(map(str, row))} |")
        lines.append("")
    return lines


def report(found: list[dict[str, Any]]) -> str:
    today = datetime.date.today().isoformat()
    lines = [
        f"# The grid, {today}",
        "",
        f"{environment().sentence}.",
        "",
        "Time of ours / time of PyTorch's module, float32, T = 200 (50 at H = 1024), medians in turns; training is "
        "forward and backward. Written by `python benchmarks/grid.py`.",
        "",
        *summary(found),
        *tables(found),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="lines of JSON: points that are there are not measured again")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after the point during which this ends")
    parser.add_argument("--each", type=float, default=0.5, help="seconds for a point")
    parser.add_argument("--only", default="", help="parts of a point's name, with commas between")
    parser.add_argument("--quick", action="store_true", help="a subset of the grid")
    parser.add_argument("--report", action="store_true", help="write the report, measure nothing")
    parser.add_argument("--output", type=Path, help="where to write the report; default: a dated file in benchmarks/")
    arguments = parser.parse_args()
    found = []
    if arguments.store and arguments.store.exists():
        found = [json.loads(line) for line in arguments.store.read_text().splitlines()]
    if not arguments.report:
        todo = [p for p in points() if set(filter(None, arguments.only.split(","))) <= set(name_of(p).split())]
        if arguments.quick:
            todo = [
                p
                for p in todo
                if p["mode"] not in ("training", "inference") or all(p[key] in QUICK[key] for key in QUICK)
            ]
        random.seed(0)
        random.shuffle(todo)  # a part that was measured is a sample of the whole
        known, end = {name_of(p) for p in found}, time.perf_counter() + arguments.seconds
        for point in todo:
            if name_of(point) in known:
                continue
            if time.perf_counter() > end:
                break
            result = measured(point, arguments.each) | {"load": round(os.getloadavg()[0], 2)}
            found.append(result)
            extra = "".join(f", {k} {result[k]:.2f}" for k in ("onnx", "stream", "arithmetic") if result.get(k))
            ratio = result["ours"] / result["theirs"]
            print(f"{name_of(point):40} {result['ours']:9.3f} {result['theirs']:9.3f} = {ratio:.2f}{extra}", flush=True)
            if arguments.store:
                with arguments.store.open("a") as file:
                    file.write(json.dumps(result) + "\n")
    order = {name_of(p): i for i, p in enumerate(points())}
    found.sort(key=lambda p: order[name_of(p)])
    print("\n".join(summary(found)))
    if arguments.report:
        target = arguments.output or Path(__file__).parent / f"{datetime.date.today().isoformat()}-grid.md"
        target.write_text(report(found).rstrip("\n") + "\n")
        print(f"written to {target}")


if __name__ == "__main__":
    main()
