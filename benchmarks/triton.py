"""What the Triton kernels of every cell take of a GPU, without a GPU. Writes a dated report here.

    python benchmarks/triton.py            every built-in cell at H = 32 to 256 for three GPUs; half an hour on one core
    python benchmarks/triton.py --quick    two cells at H = 32 for one GPU, to see that it runs

Triton's own compiler makes the kernels ahead of time, and its assembler reports registers, spills and shared memory.
These are counts, not times: the machine need not be idle. Triton caches what it compiles, so a second run is short.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from functools import partial
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)  # the interpreter compiles nothing
sys.path = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).parent]  # this file is not Triton

import torch
import triton

import holdfast as hf
from holdfast.engine.program.tiles import Product, StepProgram, in_order
from holdfast.engine.targets.cpu.plan import plan_for
from holdfast.engine.targets.triton import resources, ways
from holdfast.engine.targets.triton.plan import TritonPlan
from holdfast.engine.targets.triton.shape import Shape, Way

CELLS = {
    "RNN": hf.RNNCell,
    "Linear": hf.LinearCell,
    "FastRNN": hf.FastRNNCell,
    "SGORNN": hf.SGORNNCell,
    "VPRNN": hf.VPRNNCell,
    "ExpRNN": hf.ExpRNNCell,
    "LSTM": hf.LSTMCell,
    "GRU, reset after": hf.GRUCell,
    "GRU, reset before": partial(hf.GRUCell, reset="before"),
}
SIZES = (32, 64, 128, 256)


def intensity(plan: TritonPlan, program: StepProgram, shape: Shape) -> float:
    """Floating-point operations per byte of memory traffic of one step of one program, an estimate.

    Operations: two for each weight of a product and one for each entry of every other tile. Bytes: what comes in and
    goes out at every step, and, where weights are not held, the weights.
    """
    lanes, tiles = shape.lanes, in_order([*program.saved, *program.roots])
    products = [tile for tile in tiles if isinstance(tile, Product)]
    weights = sum(p.tile.features * p.features for p in products)
    work = lanes * (2 * weights + sum(t.features for t in tiles if not isinstance(t, Product)))
    states = sum(plan.traced.state_sizes)
    moved = lanes * (sum(t.features for t in program.inputs.values()) + states + sum(t.features for t in program.saved))
    moved += 0 if shape.way is Way.HELD else weights
    return work / (plan.dtype.itemsize * moved)


def rows(name: str, size: int, target: str) -> list[str]:
    """The two lines of a cell: forward and backward."""
    cell = CELLS[name](size, size)
    plan = plan_for(cell, tuple(cell.weights()), gradient=True, kind=TritonPlan)
    shape = ways.settled(plan, resources.TARGETS[target])
    lowered, found = plan.lowered(not plan.fold), dict[str, list[resources.Resources]]()
    for kernel in ways.kernels(plan, shape):
        found.setdefault(kernel.name, []).append(resources.resources(kernel, resources.TARGETS[target]))
    lines = []
    for direction, program in (("forward", lowered.forward), ("backward", lowered.backward)):
        assert program is not None
        uses = found[direction]
        most = [max(getattr(use, what) for use in uses) for what in ("registers", "spills", "shared")]
        entries = [name, size, target, direction, shape.way, shape.warps, *most]
        lines.append(f"| {' | '.join(map(str, entries))} | {intensity(plan, program, shape):.1f} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two cells, one size, one GPU; no report")
    parser.add_argument("--output", type=Path, help="where to write the report; default: a dated file in benchmarks/")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    names, sizes, targets = list(CELLS), SIZES, list(resources.TARGETS)
    if arguments.quick:
        names, sizes, targets = ["RNN", "VPRNN"], (32,), ["sm_80"]
    lines = [line for size in sizes for target in targets for name in names for line in rows(name, size, target)]
    spilled = [line for line in lines if int(line.split("|")[8]) and int(line.split("|")[2]) <= 128]
    today = datetime.date.today().isoformat()
    report = [
        f"# Triton kernels, compiled ahead of time, {today}",
        "",
        f"Triton {triton.__version__}, PyTorch {torch.__version__}, float32, {sizes[0]} to {sizes[-1]} units and as "
        "many inputs, all outputs and gradients. No GPU took part: these are the compiler's counts, and nothing here "
        "says how fast a kernel is. Written by `python benchmarks/triton.py`.",
        "",
        "A scan takes the first way that compiles without spills in both directions: `held` keeps the weights on the "
        "chip through all steps, `streamed` reads them at every step, `steps` launches every step and leaves products "
        "to PyTorch. Registers are those of a thread. Spills are bytes of a thread (NVIDIA) or registers (AMD). Shared "
        "memory is in bytes per program of 16 samples. The last column estimates floating-point operations per byte of "
        "memory traffic.",
        "",
        f"Kernels with spills at H ≤ 128: {len(spilled)}.",
        "",
        "| cell | H | GPU | direction | way | warps | registers | spills | shared | flop/byte |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *lines,
    ]
    if not arguments.quick or arguments.output:
        target = arguments.output or Path(__file__).parent / f"{today}-triton.md"
        target.write_text("\n".join(report) + "\n")
        print(f"written to {target}")


if __name__ == "__main__":
    main()
