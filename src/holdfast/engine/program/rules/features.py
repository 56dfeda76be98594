"""Sums, maxima and normalisations over features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from holdfast.engine.program.graph import Node, Unsupported
from holdfast.engine.program.rules.table import features_of, rule
from holdfast.engine.program.tiles import Running
from holdfast.engine.program.values import Rows

if TYPE_CHECKING:
    from holdfast.engine.program.lower import Lowering


@rule("sum", "mean")
def _sum(low: Lowering, node: Node, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    rows = low.rows(node.args[0])
    if node.dtype not in (low.dtype, torch.int64, low.dtype.to_complex()):
        raise Unsupported(f"operator {node.target} to {node.dtype}")
    every = range(len(rows.axes))
    dims = {d % len(rows.axes) for d in (every if dim in (None, []) else dim)}
    if any(None in rows.axes[d] for d in dims):
        if node.name != "sum" or node.dtype == torch.int64:
            raise Unsupported(f"operator {node.target} across samples")
        return low.row_total(rows, dims, node.shape)
    total = low.fold(rows, dims, "add", keepdim=keepdim)
    size = rows.tile.features // total.tile.features
    return total if node.name == "sum" else low.pointwise("div", total, float(size))


@rule("amax", "amin")
def _amax(low: Lowering, node: Node, x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    rows, dims = features_of(node, x, list(dim) or None)
    if node.name == "amin":
        return low.pointwise("neg", low.fold(low.pointwise("neg", rows), dims, "maximum", keepdim=keepdim))
    return low.fold(rows, dims, "maximum", keepdim=keepdim)


@rule("var")
def _var(low: Lowering, node: Node, x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Rows:
    rows, dims = features_of(node, x, dim)
    squares = low.pointwise("square", low.pointwise("sub", rows, _mean(low, rows, dims)))
    total = low.fold(squares, dims, "add", keepdim=keepdim)
    count = rows.tile.features // total.tile.features - (1 if correction is None else correction)
    if count <= 0:
        raise Unsupported(f"operator {node.target} of too few features")
    return low.pointwise("div", total, float(count))


@rule("cumsum")
def _cumsum(low: Lowering, node: Node, x: Any, dim: int) -> Rows:
    rows, _ = features_of(node, x, dim)
    table = np.moveaxis(rows.table(), dim, -1)
    running = Running(low.gather(rows.tile, table), table.shape[-1])
    back = np.moveaxis(np.arange(running.features).reshape(table.shape), -1, dim)
    return Rows(low.gather(running, back), rows.axes)


@rule("_softmax", "_log_softmax")
def _softmax(low: Lowering, node: Node, x: Any, dim: int, half_to_float: bool) -> Rows:
    rows, dims = features_of(node, x, dim)
    centred = low.pointwise("sub", rows, low.fold(rows, dims, "maximum", keepdim=True))
    powers = low.pointwise("exp", centred)
    total = low.fold(powers, dims, "add", keepdim=True)
    if node.name == "_softmax":
        return low.pointwise("div", powers, total)
    return low.pointwise("sub", centred, low.pointwise("log", total))


@rule("_softmax_backward_data")
def _softmax_backward(low: Lowering, node: Node, grad: Any, result: Any, dim: int, input_dtype: Any) -> Rows:
    weighted = low.pointwise("mul", grad, result, shape=node.shape)
    total = low.fold(weighted, [dim], "add", keepdim=True)
    return low.pointwise("sub", weighted, low.pointwise("mul", result, total))


@rule("_log_softmax_backward_data")
def _log_softmax_backward(low: Lowering, node: Node, grad: Any, result: Any, dim: int, input_dtype: Any) -> Rows:
    grad = low.rows(node.args[0])
    total = low.fold(grad, [dim], "add", keepdim=True)
    return low.pointwise("sub", grad, low.pointwise("mul", low.pointwise("exp", result), total))


@rule("logsumexp")
def _logsumexp(low: Lowering, node: Node, x: Any, dim: Any, keepdim: bool = False) -> Rows:
    rows, dims = features_of(node, x, dim)
    largest = low.fold(rows, dims, "maximum", keepdim=True)
    bounded = low.pointwise("where", low.pointwise("eq", low.pointwise("abs", largest), math.inf), 0.0, largest)
    total = low.fold(low.pointwise("exp", low.pointwise("sub", rows, bounded)), dims, "add", keepdim=True)
    return low.viewed(low.pointwise("add", low.pointwise("log", total), bounded), node.shape)


@rule("linalg_vector_norm")
def _vector_norm(low: Lowering, node: Node, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> Rows:
    rows, dims = features_of(node, x, dim)
    if ord not in (1, 2):
        raise Unsupported(f"operator {node.target} of order {ord}")
    sizes = low.pointwise("square" if ord == 2 else "abs", rows)
    total = low.fold(sizes, dims, "add", keepdim=keepdim)
    return low.pointwise("sqrt", total) if ord == 2 else total


@rule("native_layer_norm")
def _layer_norm(low: Lowering, node: Node, x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> list[Rows]:
    rows, dims = features_of(node, x, _last(shape))
    mean = _mean(low, rows, dims)
    centred = low.pointwise("sub", rows, mean)
    inverse = low.pointwise("rsqrt", low.pointwise("add", _mean(low, low.pointwise("square", centred), dims), eps))
    result = low.pointwise("mul", centred, inverse)
    result = result if weight is None else low.pointwise("mul", result, weight)
    return [result if bias is None else low.pointwise("add", result, bias), mean, inverse]


@rule("native_layer_norm_backward")
def _layer_norm_backward(
    low: Lowering, node: Node, grad: Any, x: Any, shape: Any, mean: Any, inverse: Any, weight: Any, bias: Any, mask: Any
) -> list[Any]:
    grad, dims = low.rows(node.args[0]), features_of(node, x, _last(shape))[1]
    scaled = low.pointwise("mul", low.pointwise("sub", x, mean), inverse)
    return _norm_backward(low, grad, scaled, inverse, weight, bias, shape, dims, mask, centred=True)


@rule("_fused_rms_norm")
def _rms_norm(low: Lowering, node: Node, x: Any, shape: Any, weight: Any, eps: float | None) -> list[Rows]:
    rows, dims = features_of(node, x, _last(shape))
    eps = torch.finfo(low.dtype).eps if eps is None else eps
    mean = _mean(low, low.pointwise("square", rows), dims)
    inverse = low.pointwise("rsqrt", low.pointwise("add", mean, eps))
    result = low.pointwise("mul", rows, inverse)
    return [result if weight is None else low.pointwise("mul", result, weight), inverse]


@rule("_fused_rms_norm_backward")
def _rms_norm_backward(
    low: Lowering, node: Node, grad: Any, x: Any, shape: Any, inverse: Any, weight: Any, mask: Any
) -> list[Any]:
    grad, dims = low.rows(node.args[0]), features_of(node, x, _last(shape))[1]
    scaled = low.pointwise("mul", x, inverse)
    return _norm_backward(low, grad, scaled, inverse, weight, None, shape, dims, [*mask, False], centred=False)


def _norm_backward(
    low: Lowering,
    grad: Rows,
    scaled: Rows,
    inverse: Rows,
    weight: Any,
    bias: Any,
    shape: Any,
    dims: list[int],
    mask: Any,
    *,
    centred: bool,
) -> list[Any]:
    """Y = x̂ w + b, x̂ = (x - μ) s: dx = s (g w - mean(g w) - x̂ mean(g w x̂)), without the second term if μ = 0."""
    others = set(range(len(grad.axes) - len(shape)))
    weighted = grad if weight is None else low.pointwise("mul", grad, weight)
    spread = low.pointwise("mul", scaled, _mean(low, low.pointwise("mul", weighted, scaled), dims))
    back = low.pointwise("sub", weighted, spread)
    back = low.pointwise("sub", back, _mean(low, weighted, dims)) if centred else back
    return [
        low.pointwise("mul", back, inverse) if mask[0] else None,
        low.row_total(low.pointwise("mul", grad, scaled), others, shape) if mask[1] and weight is not None else None,
        low.row_total(grad, others, shape) if mask[2] and bias is not None else None,
    ]


def _last(shape: Sequence[int]) -> list[int]:
    """The last axes, as many as ``shape`` has."""
    return list(range(-len(shape), 0))


def _mean(low: Lowering, rows: Rows, dims: list[int]) -> Rows:
    total = low.fold(rows, dims, "add", keepdim=True)
    return low.pointwise("div", total, float(rows.tile.features // total.tile.features))
