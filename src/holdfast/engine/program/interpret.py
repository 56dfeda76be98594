"""A tile program run by PyTorch, for a batch of samples: what every target has to agree with.

    interpret(program, {slot: (batch, features)}, weights)  →  {slot: (batch, features)}

It is slow, needs no compiler, and can run a program with other weights than its cell's, such as rounded ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.engine.program.tiles import (
    Cat,
    Constant,
    Fold,
    Gather,
    Input,
    Operand,
    Pointwise,
    Product,
    Rotate,
    Running,
    Slice,
    Slot,
    StepProgram,
    Tile,
    Weight,
    in_order,
)
from holdfast.linalg.givens import rotate

__all__ = ["OPERATORS", "interpret"]

_SAME_NAME = (
    "add sub mul div neg abs sign square reciprocal sqrt rsqrt floor ceil round trunc maximum minimum relu sigmoid "
    "tanh exp exp2 expm1 log log2 log1p erf sin cos pow gt ge lt le eq ne isnan logical_and logical_or "
    "logical_xor logical_not where"
)
OPERATORS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in _SAME_NAME.split()},
    "softplus": lambda x, beta, threshold: functional.softplus(x, beta.item(), threshold.item()),
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "elu": lambda x, alpha, scale, input_scale: scale * torch.where(x <= 0, alpha * torch.expm1(x * input_scale), x),
    "leaky_relu": lambda x, slope: torch.where(x > 0, x, x * slope),
    "hardtanh": lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
    "nonzero": lambda x: x != 0,
    "same": lambda x: x,
    "number": lambda mask, one: torch.where(mask, one, torch.zeros_like(one)),
}


def interpret(
    program: StepProgram,
    inputs: Mapping[Slot, Tensor],
    weights: Sequence[Tensor],
    *,
    seen: Callable[[Product, Tensor], None] | None = None,
) -> dict[Slot, Tensor]:
    """The new states of a forward program.

    Args:
        program: of a step, as ``lower`` makes it.
        inputs: (batch, features) for each input.
        weights: by index.
        seen: called with each product and what it multiplies, (batch, features).

    Example:
        >>> from holdfast.cells import RNNCell
        >>> from holdfast.engine.program.lower import lower
        >>> from holdfast.engine.program.tiles import Kind
        >>> from holdfast.engine.program.trace import trace_step
        >>> cell = RNNCell(3, 4)
        >>> with torch.no_grad():
        ...     lowered = lower(trace_step(cell, cell.weights(), 3, fold=True, gradient=False), source_grad=False)
        ...     weights = lowered.prologue.run(*cell.weights(), *(cell.get_parameter(name) for name in lowered.own))
        ...     x, h = torch.randn(2, 3), torch.randn(2, 4)
        ...     new = interpret(lowered.forward, {Slot(Kind.SOURCE): x, Slot(Kind.STATE): h}, weights)
        ...     torch.allclose(new[Slot(Kind.STATE)], cell(x, h))
        True
    """
    batch = len(next(iter(inputs.values())))
    like = next(iter(inputs.values()))
    values: dict[Tile, Tensor] = {}

    def operand(node: Operand) -> Tensor:
        if isinstance(node, Constant):
            return torch.tensor(node.value, dtype=None if isinstance(node.value, bool) else like.dtype)
        return weights[node.index].reshape(-1) if isinstance(node, Weight) else values[node]

    for tile in in_order(program.roots):
        match tile:
            case Input(slot=slot):
                result = inputs[slot]
            case Pointwise(op=op, args=args):
                result = OPERATORS[op](*map(operand, args))
            case Slice(tile=of, start=start):
                result = values[of][:, start : start + tile.features]
            case Gather(tile=of, table=table):
                result = values[of][:, list(table)]
            case Cat(parts=parts):
                result = torch.cat([values[part] for part in parts], dim=1)
            case Product(tile=of, matrix=matrix):
                if seen is not None:
                    seen(tile, values[of])
                result = values[of] @ weights[matrix.index]
            case Fold(tile=of, size=size, op=op):
                groups = values[of].unflatten(1, (-1, size))
                result = groups.sum(dim=2) if op == "add" else groups.amax(dim=2)
            case Running(tile=of, size=size):
                result = values[of].unflatten(1, (-1, size)).cumsum(dim=2).flatten(1)
            case Rotate(tile=of, angles=angles, permutations=permutations):
                result = rotate(values[of], weights[angles.index], weights[permutations.index])
            case _:
                raise AssertionError(f"{tile} belongs to a gradient")
        values[tile] = result.expand(batch, tile.features)
    return {slot: values[tile] for slot, tile in program.outputs.items() if tile is not None}
