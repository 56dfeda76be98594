"""Tensors as a kernel's arguments: addresses and strides, weights in the order that kernels read them, sums.

weight_arguments(schedule, shape, weights)  →  what to keep alive, {name: address}
sums(schedule, ...), total(reduction, sums) →  memory for the sums over time, and what they come to
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from holdfast.engine.program.schedule import Schedule, narrow_side
from holdfast.engine.program.tiles import (
    AngleSum,
    Outer,
    Product,
    Rotate,
    RotateBack,
    RowSum,
    Weight,
    operands,
    reachable,
)
from holdfast.engine.targets.cpu.emit import Shape, outer_size, panel_rows

__all__ = ["product", "rows", "state_argument", "sums", "total", "weight_arguments"]


def rows(tensor: Tensor) -> Tensor:
    """The tensor with features side by side in memory, as kernels read them."""
    if tensor.stride(-1) == 1 or tensor.shape[-1] == 1:
        return tensor.detach()
    return tensor.detach().contiguous()


def state_argument(name: str, tensor: Tensor, b: int, shape: Shape) -> dict[str, int]:
    row = tensor.stride(0)
    return {name: tensor.data_ptr() + tensor.element_size() * row * b * shape.lanes, f"{name}_row": row}


def product(left: Tensor, right: Tensor) -> Tensor:
    """Σ over steps and samples of left ⊗ right."""
    return left.reshape(-1, left.shape[2]).mT @ right.reshape(-1, right.shape[2])


def weight_arguments(
    plan: Schedule, shape: Shape, weights: Any, dtype: torch.dtype
) -> tuple[list[Tensor], dict[str, int]]:
    """Weights in the order that kernels read them, and their addresses."""
    held: list[Tensor] = []
    arguments: dict[str, int] = {}

    def put(name: str, tensor: Tensor) -> None:
        held.append(tensor)
        arguments[name] = tensor.data_ptr()

    singles, narrow, wide, turns = _users(plan)
    for index in singles:
        put(f"w{index}", weights[index].detach().to(dtype).contiguous())
    for index in narrow:
        put(f"m{index}", weights[index].detach().mT.contiguous())
    for index in wide:
        put(f"p{index}", _panels(weights[index].detach(), panel_rows(shape)))
    for turn in turns:
        angles, permutations = weights[turn.angles.index].detach(), weights[turn.permutations.index]
        pairs, starts = _pairs(permutations)
        put(f"pairs{turn.angles.index}", pairs * shape.lanes)
        put(f"starts{turn.angles.index}", starts * shape.lanes)
        put(f"turns{turn.angles.index}", torch.stack([angles.cos(), angles.sin()], dim=-1).flip(0).contiguous())
    return held, arguments


@functools.lru_cache(maxsize=512)
def _users(plan: Schedule) -> tuple[list[int], list[int], list[int], list[Rotate | RotateBack]]:
    """Weights read entry by entry, matrices of narrow products, of wide ones, and rotations."""
    outputs = [tile for tile in plan.program.outputs.values() if tile is not None]
    seen = reachable([*outputs, *plan.memory, *plan.program.reductions])
    matrices = [n for n in seen if isinstance(n, Product)]
    turns = {n.angles.index: n for n in seen if isinstance(n, Rotate | RotateBack)}
    singles = {
        arg.index
        for n in seen
        if not isinstance(n, Product | Rotate | RotateBack)
        for arg in operands(n)
        if isinstance(arg, Weight)
    }
    narrow = {n.matrix.index for n in matrices if n.is_narrow}
    wide = {n.matrix.index for n in matrices if not n.is_narrow}
    return sorted(singles), sorted(narrow), sorted(wide), list(turns.values())


def _panels(matrix: Tensor, height: int) -> Tensor:
    """(k, features) as (panel, k, row): what a panel of rows of the product reads, in the order it reads it."""
    depth, features = matrix.shape
    panels = math.ceil(features / height)
    padded = torch.nn.functional.pad(matrix, (0, panels * height - features))
    return padded.view(depth, panels, height).permute(1, 0, 2).contiguous()


_pair_tables = WeakIdKeyDictionary()  # permutations to (version, pairs, starts)


def _pairs(permutations: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows turn together, in order, and where each feature starts. Note [Rotations in place], emit.py."""
    known = _pair_tables.get(permutations)
    version = None if permutations.is_inference() else permutations._version
    if known is None or version is None or known[0] != version:
        sublayers, size = permutations.shape
        order, table = torch.arange(size), []
        for j in range(sublayers):  # from the last sublayer to turn to the first
            table.append(order.view(2, size // 2).mT)
            before = torch.empty_like(order)
            before[permutations[j]] = order
            order = before
        pairs = torch.stack(table[::-1]).contiguous() if table else torch.empty(0, size // 2, 2, dtype=torch.int64)
        known = (version, pairs, order)
        _pair_tables[permutations] = known
    return known[1], known[2]


def sums(plan: Schedule, workers: int, shape: Shape, dtype: torch.dtype) -> dict[int, Tensor]:
    """Zeros for each sum inside the loop: (worker, shape of the sum, vector); a matrix for a wide outer product."""
    made = {}
    for i, reduction in enumerate(plan.program.reductions):
        if reduction in plan.products:
            continue
        match reduction:
            case RowSum(tile=tile):
                size: tuple[int, ...] = (tile.features, shape.vector)
            case Outer() if narrow_side(reduction) is None:
                size = outer_size(reduction, shape)
            case Outer(left=left, right=right):
                pair = (left.features, right.features)
                size = (*(pair if narrow_side(reduction) == "right" else pair[::-1]), shape.vector)
            case AngleSum(source=source):
                size = (*source.angles.shape, shape.vector)
        # whole cache lines for each worker, so that threads do not write to the same one
        count = math.ceil(math.prod(size) / 16) * 16
        flat = torch.zeros(workers * count + 16, dtype=dtype)
        start = -flat.data_ptr() % 64 // flat.element_size()
        made[i] = flat[start:][: workers * count].view(workers, count)[:, : math.prod(size)].unflatten(1, size)
    return made


def total(reduction: Any, parts: Tensor) -> Tensor:
    """The lanes' and workers' sums added up, in the shape that the reduction has in PyTorch."""
    if isinstance(reduction, Outer) and narrow_side(reduction) is None:
        return parts.sum(dim=0)[: reduction.left.features, : reduction.right.features]
    whole = parts.sum(dim=(0, -1))
    if isinstance(reduction, AngleSum):
        return whole.flip(0)
    return whole.mT if isinstance(reduction, Outer) and narrow_side(reduction) == "left" else whole
