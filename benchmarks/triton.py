"""What the Triton kernels of every cell take of a GPU, without a GPU. Writes a dated report here.

    python benchmarks/triton.py            every built-in cell at H = 32 to 256 for three GPUs; it takes long
    python benchmarks/triton.py --quick    two cells at H = 32 for one GPU, to see that it runs

Triton's own compiler makes the kernels ahead of time, and its assembler reports registers, spills and shared memory.
These are counts, not times: the machine need not be idle. Triton caches what it compiles, so a second run is short.
"""

# ruff: noqa: E402 - the path and the environment come before Triton

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


Row = tuple[str, int, str, str, str, int, int, int, int, str, int]


def rows(name: str, size: int, target: str) -> list[Row]:
    """Forward and backward of a cell."""
    cell = CELLS[name](size, size)
    plan = plan_for(cell, tuple(cell.weights()), gradient=True, kind=TritonPlan)
    goal, lowered, failures, best = resources.TARGETS[target], plan.lowered(not plan.fold), 0, None
    for shape in ways.candidates(plan, masked=False):
        made = tuple(ways.kernels(plan, shape))
        uses = resources.resources(made, goal)
        failures += uses is None
        best = (shape, made, uses) if uses is not None else best
        if ways.fits(uses, goal):
            break
    if best is None:
        raise SystemExit(f"Triton compiles no way of {name} with {size} units for {target}.")
    shape, made, uses = best
    found = list[Row]()
    for direction, program in (("forward", lowered.forward), ("backward", lowered.backward)):
        assert program is not None
        own = [use for kernel, use in zip(made, uses, strict=True) if kernel.name == direction]
        registers, spills, shared = (max(getattr(u, what) for u in own) for what in ("registers", "spills", "shared"))
        work = f"{intensity(plan, program, shape):.1f}"
        found.append((name, size, target, direction, shape.way, shape.warps, registers, spills, shared, work, failures))
        print(line(found[-1]), flush=True)
    return found


def line(row: Row) -> str:
    return f"| {' | '.join(map(str, row))} |"


def report(found: list[Row]) -> str:
    sizes = sorted({row[1] for row in found})
    small = [row for row in found if row[1] <= 128]
    lines = [
        f"# Triton kernels, compiled ahead of time, {datetime.date.today().isoformat()}",
        "",
        f"Triton {triton.__version__}, PyTorch {torch.__version__}, float32, {sizes[0]} to {sizes[-1]} units and as "
        "many inputs, all outputs and gradients. No GPU took part: these are the compiler's counts, and nothing here "
        "says how fast a kernel is. Written by `python benchmarks/triton.py`.",
        "",
        "A scan takes the first way that compiles without spills in both directions: `held` keeps the weights on the "
        "chip through all steps, `streamed` reads them at every step, `steps` launches every step and leaves products "
        "to PyTorch. Registers are those of a thread. Spills are bytes of a thread's stack (NVIDIA) or registers "
        "(AMD). Shared memory is in bytes per program. flop/byte estimates floating-point operations per byte of "
        "memory traffic. The last column counts the ways before this one that Triton's compiler could not compile: it "
        "ended with a failed assertion of its own.",
        "",
        f"Kernels at H ≤ 128: {len(small)}, with spills: {sum(row[7] > 0 for row in small)}.",
        "",
        "| cell | H | GPU | direction | way | warps | registers | spills | shared | flop/byte | not compiled |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(line, found),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two cells, one size, one GPU; no report")
    parser.add_argument("--output", type=Path, help="where to write the report; default: a dated file in benchmarks/")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="units; default: 32 64 128 256")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    names, sizes, targets = list(CELLS), arguments.sizes, list(resources.TARGETS)
    if arguments.quick:
        names, sizes, targets = ["RNN", "VPRNN"], (32,), ["sm_80"]
    place = arguments.output or Path(__file__).parent / f"{datetime.date.today().isoformat()}-triton.md"
    found = list[Row]()
    for size in sizes:
        for target in targets:
            for name in names:
                found += rows(name, size, target)
        if not arguments.quick or arguments.output:
            place.write_text(report(found))
            print(f"written to {place}", flush=True)


if __name__ == "__main__":
    main()
