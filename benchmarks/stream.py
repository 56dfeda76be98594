"""One step at a time: our streams beside ONNX Runtime and PyTorch's own cells. Writes a dated report here.

    python benchmarks/stream.py            everything, about a minute; the machine should be idle
    python benchmarks/stream.py --quick    few calls, to see that it runs

A call takes one input of one sequence and the state, and gives the new state, through Python, on one thread. ONNX
Runtime runs the same step with the same weights, state in and out; its answers are compared with ours first. Each time
is a median over calls; the ways are timed call after call in random order, so that a busy moment hits them alike.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import holdfast as hf
from holdfast.runs.environment import environment

SIZES, CALLS, TARGET, OPSET = (64, 128, 256), 4000, 1.5, 17
LAYERS = {"RNN": hf.RNN, "GRU": hf.GRU, "LSTM": hf.LSTM, "SGORNN": hf.SGORNN}


def session(nodes: list[Any], weights: dict[str, np.ndarray], size: int, states: list[str], shape: list[int]) -> Any:
    """The ONNX step as a session: inputs x and states, outputs named after the states."""
    kind = TensorProto.FLOAT
    x_shape = [1, 1, size] if len(shape) == 3 else [1, size]
    inputs = [helper.make_tensor_value_info("x", kind, x_shape)]
    inputs += [helper.make_tensor_value_info(name, kind, shape) for name in states]
    outputs = [helper.make_tensor_value_info(f"{name}_new", kind, shape) for name in states]
    initial = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "step", inputs, outputs, initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def native(operator: str, order: list[int], layer: Any, size: int) -> tuple[Any, list[str], list[int]]:
    """PyTorch's gates in the order that the operator of ONNX has them."""
    torch_layer = hf.to_torch(layer)
    parts = {name: value.detach().numpy() for name, value in torch_layer.named_parameters()}

    def gates(name: str) -> np.ndarray:
        blocks = parts[name].reshape(len(order), size, -1)
        return blocks[order].reshape(1, len(order) * size, -1)

    biases = np.concatenate([gates("bias_ih_l0"), gates("bias_hh_l0")], axis=1)[..., 0]
    weights = {"W": gates("weight_ih_l0"), "R": gates("weight_hh_l0"), "B": biases}
    states = ["h", "c"] if operator == "LSTM" else ["h"]
    settings: dict[str, Any] = {"linear_before_reset": 1} if operator == "GRU" else {}
    node = helper.make_node(
        operator, ["x", "W", "R", "B", "", *states], ["", *(f"{s}_new" for s in states)], hidden_size=size, **settings
    )
    return session([node], weights, size, states, [1, 1, size]), states, [1, 1, size]


def sgornn(layer: hf.SGORNN, size: int) -> tuple[Any, list[str], list[int]]:
    """(α φ(W x + U h + b) + β h) as plain operators, the rotations as the dense matrix U."""
    cell: Any = layer.cells[0]
    with torch.no_grad():
        drive = cell.drive(torch.zeros(1, size))
        W, U = cell.drive(torch.eye(size)) - drive, cell.recurrent.matrix().mT
        *_, alpha, beta = cell.weights()
    weights = {
        "W": W.numpy(), "U": U.detach().numpy(), "b": drive.numpy(),
        "alpha": alpha.detach().reshape(1).numpy(), "beta": beta.detach().reshape(1).numpy(),
    }  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["wx"]),
        helper.make_node("MatMul", ["h", "U"], ["uh"]),
        helper.make_node("Add", ["wx", "b"], ["wxb"]),
        helper.make_node("Add", ["wxb", "uh"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["c"]),
        helper.make_node("Mul", ["c", "alpha"], ["ac"]),
        helper.make_node("Mul", ["h", "beta"], ["bh"]),
        helper.make_node("Add", ["ac", "bh"], ["h_new"]),
    ]
    return session(nodes, weights, size, ["h"], [1, size]), ["h"], [1, size]


def onnx_step(name: str, layer: Any, size: int) -> Callable[[np.ndarray], np.ndarray]:
    orders = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 3, 1, 2]}
    made = sgornn(layer, size) if name == "SGORNN" else native(name, orders[name], layer, size)
    runner, states, shape = made
    feed: dict[str, np.ndarray] = {state: np.zeros(shape, dtype=np.float32) for state in states}
    outputs = [f"{state}_new" for state in states]

    def step(x: np.ndarray) -> np.ndarray:
        feed["x"] = x
        feed.update(zip(states, runner.run(outputs, feed), strict=True))
        return feed["h"]

    step.x_shape = [1, 1, size] if len(shape) == 3 else [1, size]  # type: ignore[attr-defined]
    return step


def torch_cell(name: str, layer: Any, size: int) -> Callable[[torch.Tensor], object] | None:
    """PyTorch's cell with the same weights."""
    if name == "SGORNN":
        return None
    cell = {"RNN": nn.RNNCell, "GRU": nn.GRUCell, "LSTM": nn.LSTMCell}[name](size, size)
    weights = {key.removesuffix("_l0"): value for key, value in hf.to_torch(layer).state_dict().items()}
    cell.load_state_dict(weights)
    state: Any = None

    def step(x: torch.Tensor) -> object:
        nonlocal state
        with torch.inference_mode():
            state = cell(x, state)
        return state

    return step


def module(layer: Any) -> Callable[[torch.Tensor], object]:
    """A torch.nn module, or a layer of ours, called on sequences of one step."""
    state: Any = None

    def step(x: torch.Tensor) -> object:
        nonlocal state
        with torch.inference_mode():
            output, state = layer(x.unsqueeze(0), state)
        return output

    return step


def agree(name: str, layer: Any, size: int) -> float:
    """The largest difference between our stream and ONNX Runtime over 50 steps; more than 1e-5 is an error."""
    stream, other, worst = layer.stream(), onnx_step(name, layer, size), 0.0
    for x in torch.randn(50, 1, size):
        theirs = other(x.numpy().reshape(other.x_shape))  # type: ignore[attr-defined]
        worst = max(worst, float(np.abs(stream.step(x).numpy() - theirs.reshape(1, -1)).max()))
    if not worst <= 1e-5:
        raise SystemExit(f"{name} at H = {size}: ours and ONNX Runtime's differ by {worst:.1e}")
    return worst


def medians_us(ways: dict[str, Callable[[], object]], calls: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    names, clock = list(ways), time.perf_counter_ns
    for _ in range(calls // 20):
        random.shuffle(names)
        for name in names:
            run = ways[name]
            for _ in range(20):
                start = clock()
                run()
                times[name].append(clock() - start)
    return {name: statistics.median(values[len(values) // 10 :]) / 1e3 for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few calls and one size, to see that it runs")
    parser.add_argument("--output", type=Path, help="where to write the report; default: a dated file in benchmarks/")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    today, load = datetime.date.today().isoformat(), os.getloadavg()[0]
    lines = [
        f"# Streams, {today}",
        "",
        f"{environment().sentence}; load before the run {load:.2f}.",
        "",
        "Microseconds for one step of one sequence through Python, float32, one thread, inputs as wide as the state; "
        f"medians. ONNX Runtime {onnxruntime.__version__}: `session.run` of the same step, opset {OPSET}, state in and "
        "out. The modules and our layer are called on sequences of one step. The ratio is ours to ONNX Runtime's; the "
        f"target is at most {TARGET} at H = 128. Written by `python benchmarks/stream.py`.",
        "",
        "| layer | H | stream | ONNX Runtime | ratio | torch.nn cell | torch.nn module | our layer | difference |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    missed = []
    for size in (64,) if arguments.quick else SIZES:
        for name, kind in LAYERS.items():
            layer = kind(size, size).eval()
            worst = agree(name, layer, size)
            x = torch.randn(1, size)
            stream, runtime, plain = layer.stream(), onnx_step(name, layer, size), module(layer)
            array = x.numpy().reshape(runtime.x_shape)  # type: ignore[attr-defined]
            ways: dict[str, Callable[[], object]] = {
                "stream": lambda stream=stream, x=x: stream.step(x),
                "onnx": lambda runtime=runtime, array=array: runtime(array),
                "layer": lambda run=plain, x=x: run(x),
            }
            cell = torch_cell(name, layer, size)
            if cell is not None:
                ways["cell"] = lambda cell=cell, x=x: cell(x)
                theirs = module(hf.to_torch(layer))
                ways["module"] = lambda run=theirs, x=x: run(x)
            found = medians_us(ways, 200 if arguments.quick else CALLS)
            ratio = found["stream"] / found["onnx"]
            if size == 128 and ratio > TARGET:
                missed.append(name)
            others = [f"{found[way]:.1f}" if way in found else "-" for way in ("cell", "module", "layer")]
            lines.append(
                f"| {name} | {size} | {found['stream']:.1f} | {found['onnx']:.1f} | {ratio:.2f} | "
                f"{' | '.join(others)} | {worst:.0e} |"
            )
            print(lines[-1], flush=True)
    verdict = f"missed by {', '.join(missed)}" if missed else "met by all four"
    lines += ["", f"Target of {TARGET} at H = 128: {'not measured' if arguments.quick else verdict}."]
    if not arguments.quick or arguments.output:
        target = arguments.output or Path(__file__).parent / f"{today}-stream.md"
        target.write_text("\n".join(lines) + "\n")
        print(f"written to {target}")


if __name__ == "__main__":
    main()
