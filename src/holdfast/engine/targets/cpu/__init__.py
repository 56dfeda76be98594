"""The fused backend: one native loop over time, by LLVM.

emit.py      a scheduled tile program as LLVM assembly, in explicit vectors (vec.py, operators.py, elementary.py)
native.py    machine code in memory; cache.py keeps it on disk
plan.py      a cell's step traced, lowered and compiled; trial.py compares a new kernel with the plain loop
call.py      one scan: blocks, threads, autograd; pack.py, team.py; buffers.py uses memory again
loops.py     loops over vectors that are written by hand
"""

from holdfast.engine.program.graph import Unsupported
from holdfast.engine.targets.cpu.call import scan_fused
from holdfast.engine.targets.cpu.plan import fused_source

__all__ = ["Unsupported", "fused_source", "scan_fused"]
