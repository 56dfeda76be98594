"""The fused backend: a small compiler from a cell's ``step`` to one native loop over time.

trace.py     a cell's step and its gradient as one graph (graph.py) of ATen operators
settings.py  what the step reads from Python: how long a trace holds
lower.py     the graph to tile programs (program.py), operator by operator (rules.py, values.py)
schedule.py  what lives in memory, and which loop writes it
emit.py      LLVM assembly, in explicit vectors (vec.py, operators.py, elementary.py)
native.py    machine code in memory; cache.py keeps it on disk
plan.py      all of these for one cell; trial.py compares a new kernel with the plain loop
call.py      one scan: blocks, threads, autograd; pack.py, team.py; buffers.py uses memory again
"""

from holdfast.engine.fused.call import scan_fused
from holdfast.engine.fused.graph import Unsupported
from holdfast.engine.fused.plan import fused_source

__all__ = ["Unsupported", "fused_source", "scan_fused"]
