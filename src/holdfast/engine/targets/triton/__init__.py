"""The triton backend: kernels for GPUs, written from the same tile programs as the CPU's loops.

emit.py       a tile program as Triton source: what happens between steps; blocks.py writes what is inside a step
operators.py  elementwise operators as text; functions.py has what kernels call
plan.py       a cell's step traced, lowered and emitted; ways.py decides how its steps are launched (shape.py)
resources.py  registers, spills and shared memory, as Triton's own compiler counts them; needs no GPU
call.py       one scan; pack.py turns tensors into parameters, replay.py records launches in a CUDA graph

Tracing, lowering, autograd and the trial of a new kernel are the CPU target's own (targets/cpu).
"""

from holdfast.engine.program.graph import Unsupported
from holdfast.engine.targets.triton.call import fused_source, runs_on, scan_triton

__all__ = ["Unsupported", "fused_source", "runs_on", "scan_fused"]

scan_fused = scan_triton
