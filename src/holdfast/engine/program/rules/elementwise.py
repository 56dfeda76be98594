"""Elementwise operators, and numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from holdfast.engine.program.graph import Node, Unsupported
from holdfast.engine.program.rules.table import RULES, rule
from holdfast.engine.program.tiles import Constant
from holdfast.engine.program.values import Rows

if TYPE_CHECKING:
    from holdfast.engine.program.lower import Lowering

GELU = {"none": "gelu", "tanh": "gelu_tanh"}
SIXTH = float(np.float32(1 / 6))  # PyTorch's, whatever the number type


def _same_name(arguments: int, names: str) -> None:
    """Operators of this number of arguments that a tile program has under the same name."""
    for name in names.split():

        def made(low: Lowering, node: Node, *args: Any, _name: str = name) -> Rows:
            if len(args) != arguments:
                raise Unsupported(f"operator {node.target} with {len(args)} arguments")
            return low.pointwise(_name, *args, shape=node.shape)

        RULES[name] = made


_same_name(1, "neg abs sign square reciprocal sqrt rsqrt floor ceil trunc relu sigmoid tanh exp exp2 expm1 log log2")
_same_name(1, "log1p erf sin cos silu isnan")
_same_name(2, "mul maximum minimum gt ge lt le eq ne pow sigmoid_backward tanh_backward silu_backward")
_same_name(3, "where threshold_backward")

# PyTorch's names of arguments and its defaults
# fmt: off
RULES |= {
    "_neg_view": lambda low, node, x: low.pointwise("neg", x, shape=node.shape),
    "sgn": lambda low, node, x: low.pointwise("sign", x),
    "softplus": lambda low, node, x, beta=1, threshold=20: low.pointwise("softplus", x, beta, threshold),
    "softplus_backward": lambda low, node, grad, x, beta, threshold:
        low.pointwise("softplus_backward", grad, x, beta, threshold),
    "hardtanh_backward": lambda low, node, grad, x, low_end, high_end:
        low.pointwise("hardtanh_backward", grad, x, low_end, high_end),
    "gelu": lambda low, node, x, approximate="none": low.pointwise(GELU[approximate], x),
    "gelu_backward": lambda low, node, grad, x, approximate="none":
        low.pointwise(f"{GELU[approximate]}_backward", grad, x),
    "elu": lambda low, node, x, alpha=1, scale=1, input_scale=1: low.pointwise("elu", x, alpha, scale, input_scale),
    "elu_backward": lambda low, node, grad, alpha, scale, input_scale, is_result, saved:
        low.pointwise(f"elu_backward{'_of_result' * is_result}", grad, alpha, scale, input_scale, saved),
    "celu": lambda low, node, x, alpha=1: low.pointwise("elu", x, alpha, 1.0, 1.0 / alpha),
    "leaky_relu": lambda low, node, x, slope=0.01: low.pointwise("leaky_relu", x, slope),
    "leaky_relu_backward": lambda low, node, grad, x, slope, is_result:
        low.pointwise("leaky_relu_backward", grad, x, slope),
    "masked_fill": lambda low, node, x, mask, value: low.pointwise("where", mask, value, x, shape=node.shape),
    "new_full": lambda low, node, x, size, value: _number(low, node, value),
    "scalar_tensor": lambda low, node, value: _number(low, node, value),
}
# fmt: on
rule("detach", "clone", "alias", "contiguous", "lift_fresh", "lift_fresh_copy")(lambda low, node, x: x)
rule("positive", "resolve_neg")(lambda low, node, x: x)
rule("zeros", "zeros_like", "new_zeros", "zero")(lambda low, node, *_: Constant(0.0))
rule("ones", "ones_like", "new_ones")(lambda low, node, *_: Constant(1.0))
rule("full", "full_like", "fill")(lambda low, node, _, value: _number(low, node, value))
# what an empty tensor holds is written over, or is anything in PyTorch too
rule("empty", "empty_like", "new_empty")(lambda low, node, *_: Constant(math.nan))


def _number(low: Lowering, node: Node, value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return Constant(value)
    return value if isinstance(value, Constant) else low.pointwise("same", value, shape=node.shape)


@rule("div")
def _div(low: Lowering, node: Node, a: Any, b: Any, rounding_mode: str | None = None) -> Rows:
    quotient = low.pointwise("div", a, b, shape=node.shape)
    if rounding_mode == "floor":
        raise Unsupported(f"operator {node.target} with rounding_mode='floor'")
    return quotient if rounding_mode is None else low.pointwise("trunc", quotient)


@rule("add", "sub", "rsub")
def _add(low: Lowering, node: Node, a: Any, b: Any, alpha: float = 1) -> Rows:
    name = node.name.removesuffix("_")
    if name == "rsub":
        a, b, name = b, a if alpha == 1 else low.pointwise("mul", a, alpha), "sub"
    elif alpha != 1:
        b = b * alpha if isinstance(b, int | float) else low.pointwise("mul", b, alpha, shape=node.shape)
    return low.pointwise(name, a, b, shape=node.shape)


@rule("round")
def _round(low: Lowering, node: Node, x: Any, decimals: int = 0) -> Rows:
    if decimals:
        raise Unsupported(f"operator {node.target} with decimals={decimals}")
    return low.pointwise("round", x)


@rule("clamp", "hardtanh", "clamp_min", "clamp_max")
def _clamp(low: Lowering, node: Node, x: Any, min: Any = None, max: Any = None) -> Rows:
    name = node.name.removesuffix("_")
    if name == "hardtanh":
        min, max = -1.0 if min is None else min, 1.0 if max is None else max
    elif name == "clamp_max":
        min, max = None, min if max is None else max
    if min is not None:  # of two equal ones the second, x: -0 stays
        x = low.pointwise("maximum", min, x, shape=node.shape)
    return x if max is None else low.pointwise("minimum", max, x, shape=node.shape)


@rule("lerp")
def _lerp(low: Lowering, node: Node, a: Any, b: Any, weight: Any) -> Rows:
    """As PyTorch: from whichever end is nearer."""
    step = low.pointwise("sub", b, a, shape=node.shape)
    near = low.pointwise("add", a, low.pointwise("mul", weight, step, shape=node.shape), shape=node.shape)
    rest = low.pointwise("sub", 1.0, weight, shape=node.shape) if not isinstance(weight, int | float) else 1.0 - weight
    far = low.pointwise("sub", b, low.pointwise("mul", rest, step, shape=node.shape), shape=node.shape)
    if isinstance(weight, int | float):
        return near if abs(weight) < 0.5 else far
    small = low.pointwise("lt", low.pointwise("abs", weight, shape=node.shape), 0.5)
    return low.pointwise("where", small, near, far)


@rule("addcmul", "addcdiv")
def _addcmul(low: Lowering, node: Node, x: Any, a: Any, b: Any, value: float = 1) -> Rows:
    scaled = a if value == 1 else low.pointwise("mul", a, value, shape=node.shape)
    term = low.pointwise("mul" if node.name.startswith("addcmul") else "div", scaled, b, shape=node.shape)
    return low.pointwise("add", x, term, shape=node.shape)


@rule("hardsigmoid", "hardswish")
def _hardsigmoid(low: Lowering, node: Node, x: Any) -> Rows:
    raised = low.pointwise("minimum", low.pointwise("maximum", low.pointwise("add", x, 3.0), 0.0), 6.0)
    raised = raised if node.name.startswith("hardsigmoid") else low.pointwise("mul", x, raised)
    return low.pointwise("div", raised, 6.0)


@rule("hardsigmoid_backward")
def _hardsigmoid_backward(low: Lowering, node: Node, grad: Any, x: Any) -> Rows:
    inside = low.pointwise("logical_and", low.pointwise("gt", x, -3.0), low.pointwise("lt", x, 3.0))
    return low.pointwise("where", inside, low.pointwise("mul", grad, SIXTH), 0.0)


@rule("hardswish_backward")
def _hardswish_backward(low: Lowering, node: Node, grad: Any, x: Any) -> Rows:
    slope = low.pointwise("add", low.pointwise("div", x, 3.0), 0.5)
    upper = low.pointwise("where", low.pointwise("ge", x, 3.0), grad, low.pointwise("mul", grad, slope))
    return low.pointwise("where", low.pointwise("le", x, -3.0), 0.0, upper)


@rule("log_sigmoid_forward")
def _log_sigmoid(low: Lowering, node: Node, x: Any) -> list[Any]:
    """min(0, x) - log1p(exp(-|x|)), and exp(-|x|) for the gradient."""
    buffer = low.pointwise("exp", low.pointwise("neg", low.pointwise("abs", x)))
    return [low.pointwise("sub", low.pointwise("minimum", x, 0.0), low.pointwise("log1p", buffer)), buffer]


@rule("log_sigmoid_backward")
def _log_sigmoid_backward(low: Lowering, node: Node, grad: Any, x: Any, buffer: Any) -> Rows:
    negative = low.pointwise("lt", x, 0.0)
    top, sign = low.pointwise("number", negative, 1.0), low.pointwise("where", negative, 1.0, -1.0)
    share = low.pointwise("div", buffer, low.pointwise("add", buffer, 1.0))
    return low.pointwise("mul", grad, low.pointwise("sub", top, low.pointwise("mul", sign, share)))


@rule(
    "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"
)
def _logical(low: Lowering, node: Node, *args: Any) -> Rows:
    if node.dtype != torch.bool:
        raise Unsupported(f"operator {node.target} on numbers of {node.dtype}")
    return low.pointwise(node.name.removesuffix("_").replace("bitwise", "logical"), *args, shape=node.shape)


@rule("_to_copy")
def _to_copy(low: Lowering, node: Node, x: Any) -> Any:
    if isinstance(x, Constant):
        return Constant(bool(x.value) if node.dtype == torch.bool else float(x.value))
    rows = x if isinstance(x, Rows) else low.pointwise("same", x, shape=node.shape)
    if node.dtype == torch.bool:
        return rows if rows.tile.is_mask else low.pointwise("nonzero", rows)
    return low.pointwise("number", rows, 1.0) if rows.tile.is_mask else rows
