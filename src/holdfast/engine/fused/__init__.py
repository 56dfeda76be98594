"""The fused backend: a small compiler from a cell's ``step`` to one native loop over time.

trace.py     a cell's step and its gradient as graphs (graph.py) of ATen operators
lower.py     graphs to tile programs (program.py), operator by operator
schedule.py  what lives in memory, and which loop writes it
emit.py      LLVM assembly, in explicit vectors (vec.py, operators.py, elementary.py)
native.py    machine code in memory; cache.py keeps it on disk
run.py       blocks, threads, autograd; buffers.py uses memory again
"""

from holdfast.engine.fused.graph import Unsupported
from holdfast.engine.fused.run import fused_source, scan_fused

__all__ = ["Unsupported", "fused_source", "scan_fused"]
