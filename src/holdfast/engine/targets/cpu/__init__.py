"""The fused backend: one native loop over time, by LLVM.

emit.py      a scheduled tile program as LLVM assembly; statements.py and expressions.py write what is inside a step
builder.py   what every kernel is written with; tile_builder.py adds tiles; vec.py, operators.py, elementary.py
native.py    machine code in memory; cache.py keeps it on disk, team.py runs it on threads
plan.py      a cell's step traced, lowered and emitted; trial.py compares a new kernel with the plain loop
step_kernel.py  one step with lanes over features; step.py binds it to its memory, bound.py a scan, for streams
scan.py      one scan; ways.py chooses how, from what machine.py knows; narrow.py does bfloat16 in float32
call.py      lanes over samples: autograd around kernels; arguments.py, pack.py, shape.py; kept.py keeps packed
             weights between calls, buffers.py memory
feature_*.py lanes over features, for few samples: builder, kernels, call; panels.py packs matrices for both
"""

from holdfast.engine.program.graph import Unsupported
from holdfast.engine.targets.cpu.bound import bind_scan
from holdfast.engine.targets.cpu.narrow import NARROW, scan_narrow
from holdfast.engine.targets.cpu.scan import scan_fused
from holdfast.engine.targets.cpu.step import bind_step, step_rows
from holdfast.engine.targets.cpu.vec import WIDTH
from holdfast.engine.targets.cpu.ways import fused_source

__all__ = [
    "NARROW",
    "WIDTH",
    "Unsupported",
    "bind_scan",
    "bind_step",
    "fused_source",
    "scan_fused",
    "scan_narrow",
    "step_rows",
]
