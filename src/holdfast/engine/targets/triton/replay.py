"""Many small launches as one: recorded in a CUDA graph the first time, replayed afterwards.

    replayed(records, key, run, tensors)  →  what ``run(*tensors)`` returns

A graph reads and writes fixed memory, so every call copies its tensors to the place of the first ones, and the results
out. Elsewhere than on a GPU ``run`` just runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

__all__ = ["MOST", "Record", "replayed"]

MOST = 4  # graphs of one plan that are kept: each holds the memory of a whole scan
Maybe = Sequence[Tensor | None]


@dataclasses.dataclass(eq=False)
class Record:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor | None]
    outputs: list[Tensor | None]


def replayed(
    records: dict[Hashable, Record], key: Hashable, run: Callable[..., Maybe], tensors: Maybe
) -> list[Tensor | None]:
    """``records``: what was recorded before, by ``key``, which names everything that ``run`` depends on but tensors."""
    if not any(t is not None and t.device.type == "cuda" for t in tensors) or torch.cuda.is_current_stream_capturing():
        return list(run(*tensors))
    whole = (key, tuple(None if t is None else (tuple(t.shape), t.stride(), t.dtype, t.device) for t in tensors))
    if whole not in records:
        while len(records) >= MOST:
            del records[next(iter(records))]
        records[whole] = _recorded(run, tensors)
    record = records[whole]
    for place, tensor in zip(record.inputs, tensors, strict=True):
        if place is not None and tensor is not None:
            place.copy_(tensor)
    record.graph.replay()
    return [None if t is None else t.clone() for t in record.outputs]


def _recorded(run: Callable[..., Maybe], tensors: Maybe) -> Record:
    inputs = [None if t is None else t.detach().clone() for t in tensors]
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # once for real, so that everything is compiled and loaded
        run(*inputs)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = list(run(*inputs))
    return Record(graph, inputs, outputs)
