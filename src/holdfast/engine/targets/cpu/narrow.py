"""bfloat16 on the CPU: weights, inputs and states are stored in 16 bits, and the fused scan computes in float32.

    scan_narrow(cell, xs, state, weights, ...)  →  outputs, last state, in bfloat16

A cell of bfloat16 weights has a twin: the same modules and settings, whose tensors are those of the cell in float32.
What comes out is rounded once, where it leaves the scan, so sums over features and over time are sums of float32.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.cells import Cell
from holdfast.engine.program.graph import Unsupported
from holdfast.engine.program.trace import own_tensors
from holdfast.engine.targets.cpu.plan import plan_for, share_plans
from holdfast.engine.targets.cpu.scan import scan_fused
from holdfast.types import State

__all__ = ["NARROW", "scan_narrow"]

NARROW = torch.bfloat16


def scan_narrow(
    cell: Cell, xs: Tensor, state: State, weights: tuple[Tensor, ...], **options: Any
) -> tuple[Tensor | None, State]:
    """``scan_fused`` of a cell whose weights are of bfloat16."""
    for tensor in (*weights, *own_tensors(cell).values()):
        if tensor.is_floating_point() and tensor.dtype != NARROW:
            raise Unsupported(f"it mixes {NARROW} with {tensor.dtype}")
    wide = twin(cell)
    share_plans(cell, wide)
    given = tuple(map(_wide, weights))
    if plan_for(wide, given, gradient=False).lowered(True).noises:
        raise Unsupported(f"it draws random numbers of {NARROW}")
    output, last = scan_fused(wide, _wide(xs), tuple(map(_wide, state)), given, **options)
    return None if output is None else output.to(NARROW), tuple(entry.to(NARROW) for entry in last)


def twin(cell: Cell) -> Cell:
    """The cell with its tensors in float32: parameters are results of a conversion, through which gradients go back."""
    wide: dict[int, Tensor] = {}

    def converted(tensors: dict[str, Any]) -> dict[str, Any]:
        for tensor in tensors.values():
            if tensor is not None and id(tensor) not in wide:
                wide[id(tensor)] = _wide(tensor)
        return {name: None if tensor is None else wide[id(tensor)] for name, tensor in tensors.items()}

    def copied(module: nn.Module) -> Any:
        new = copy.copy(module)
        content = vars(new)
        for kind in ("_parameters", "_buffers"):
            content[kind] = converted(content[kind])
        content["_modules"] = {name: child and copied(child) for name, child in content["_modules"].items()}
        return new

    return copied(cell)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == NARROW else tensor
