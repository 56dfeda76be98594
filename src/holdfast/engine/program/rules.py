"""What each ATen operator becomes: one rule an operator, found by its name.

A rule is called with the lowering, the node, and the node's arguments as values (values.py). A keyword argument that a
rule does not name is refused, so nothing that changes a result is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from holdfast.engine.program.graph import Node, Unsupported
from holdfast.engine.program.tiles import Cat, Constant, Product, Rotate, RotateBack, Running, Tile
from holdfast.engine.program.trace import Batch
from holdfast.engine.program.values import Rows, Static, Total

if TYPE_CHECKING:
    from holdfast.engine.program.lower import Lowering

__all__ = ["RULES", "joined"]

Number = int | float
LARGEST = 1 << 16  # products of two values of each sample are written out up to this many terms
SIXTH = float(np.float32(1 / 6))  # PyTorch's, whatever the number type
RULES: dict[str, Callable[..., Any]] = {}
aten = torch.ops.aten


def _rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


# -- elementwise -----------------------------------------------------------------------------------------------------


def _elementwise(arguments: int, names: str) -> None:
    """Operators of so many arguments that ``operators.py`` has under the same name."""
    for name in names.split():

        def rule(low: Lowering, node: Node, *args: Any, _name: str = name) -> Rows:
            if len(args) != arguments:
                raise Unsupported(f"operator {node.target} with {len(args)} arguments")
            return low.pointwise(_name, *args, shape=node.shape)

        RULES[name] = rule


_elementwise(1, "neg abs sign square reciprocal sqrt rsqrt floor ceil trunc relu sigmoid tanh exp exp2 expm1 log log2")
_elementwise(1, "log1p erf sin cos silu isnan")
_elementwise(2, "mul maximum minimum gt ge lt le eq ne pow sigmoid_backward tanh_backward silu_backward")
_elementwise(3, "where threshold_backward")
RULES["_neg_view"] = lambda low, node, x: low.pointwise("neg", x, shape=node.shape)
RULES["resolve_neg"] = lambda low, node, x: x
RULES["sgn"] = lambda low, node, x: low.pointwise("sign", x)


@_rule("div")
def _div(low: Lowering, node: Node, a: Any, b: Any, rounding_mode: str | None = None) -> Rows:
    quotient = low.pointwise("div", a, b, shape=node.shape)
    if rounding_mode == "floor":
        raise Unsupported(f"operator {node.target} with rounding_mode='floor'")
    return quotient if rounding_mode is None else low.pointwise("trunc", quotient)


@_rule("add", "sub", "rsub")
def _add(low: Lowering, node: Node, a: Any, b: Any, alpha: Number = 1) -> Rows:
    name = node.name.removesuffix("_")
    if name == "rsub":
        a, b, name = b, a if alpha == 1 else low.pointwise("mul", a, alpha), "sub"
    elif alpha != 1:
        b = b * alpha if isinstance(b, int | float) else low.pointwise("mul", b, alpha, shape=node.shape)
    return low.pointwise(name, a, b, shape=node.shape)


@_rule("round")
def _round(low: Lowering, node: Node, x: Any, decimals: int = 0) -> Rows:
    if decimals:
        raise Unsupported(f"operator {node.target} with decimals={decimals}")
    return low.pointwise("round", x)


@_rule("clamp", "hardtanh", "clamp_min", "clamp_max")
def _clamp(low: Lowering, node: Node, x: Any, min: Any = None, max: Any = None) -> Rows:
    name = node.name.removesuffix("_")
    if name == "hardtanh":
        min, max = -1.0 if min is None else min, 1.0 if max is None else max
    elif name == "clamp_max":
        min, max = None, min if max is None else max
    if min is not None:  # of two equal ones the second, x: -0 stays
        x = low.pointwise("maximum", min, x, shape=node.shape)
    return x if max is None else low.pointwise("minimum", max, x, shape=node.shape)


@_rule("hardtanh_backward")
def _hardtanh_backward(low: Lowering, node: Node, grad: Any, x: Any, low_end: Number, high_end: Number) -> Rows:
    return low.pointwise("hardtanh_backward", grad, x, low_end, high_end)


@_rule("softplus")
def _softplus(low: Lowering, node: Node, x: Any, beta: Number = 1, threshold: Number = 20) -> Rows:
    return low.pointwise("softplus", x, beta, threshold)


@_rule("softplus_backward")
def _softplus_backward(low: Lowering, node: Node, grad: Any, x: Any, beta: Number, threshold: Number) -> Rows:
    return low.pointwise("softplus_backward", grad, x, beta, threshold)


@_rule("gelu")
def _gelu(low: Lowering, node: Node, x: Any, approximate: str = "none") -> Rows:
    return low.pointwise("gelu_tanh" if approximate == "tanh" else "gelu", x)


@_rule("gelu_backward")
def _gelu_backward(low: Lowering, node: Node, grad: Any, x: Any, approximate: str = "none") -> Rows:
    return low.pointwise("gelu_tanh_backward" if approximate == "tanh" else "gelu_backward", grad, x)


@_rule("elu")
def _elu(low: Lowering, node: Node, x: Any, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Rows:
    return low.pointwise("elu", x, alpha, scale, input_scale)


@_rule("elu_backward")
def _elu_backward(
    low: Lowering, node: Node, grad: Any, alpha: Number, scale: Number, input_scale: Number, is_result: bool, saved: Any
) -> Rows:
    op = "elu_backward_of_result" if is_result else "elu_backward"
    return low.pointwise(op, grad, alpha, scale, input_scale, saved)


@_rule("leaky_relu")
def _leaky_relu(low: Lowering, node: Node, x: Any, slope: Number = 0.01) -> Rows:
    return low.pointwise("leaky_relu", x, slope)


@_rule("leaky_relu_backward")
def _leaky_relu_backward(low: Lowering, node: Node, grad: Any, x: Any, slope: Number, is_result: bool) -> Rows:
    return low.pointwise("leaky_relu_backward", grad, x, slope)


@_rule("lerp")
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


@_rule("addcmul", "addcdiv")
def _addcmul(low: Lowering, node: Node, x: Any, a: Any, b: Any, value: Number = 1) -> Rows:
    scaled = a if value == 1 else low.pointwise("mul", a, value, shape=node.shape)
    term = low.pointwise("mul" if node.name.startswith("addcmul") else "div", scaled, b, shape=node.shape)
    return low.pointwise("add", x, term, shape=node.shape)


@_rule("celu")
def _celu(low: Lowering, node: Node, x: Any, alpha: Number = 1) -> Rows:
    return low.pointwise("elu", x, alpha, 1.0, 1.0 / alpha)


@_rule("hardsigmoid", "hardswish")
def _hardsigmoid(low: Lowering, node: Node, x: Any) -> Rows:
    raised = low.pointwise("minimum", low.pointwise("maximum", low.pointwise("add", x, 3.0), 0.0), 6.0)
    raised = raised if node.name.startswith("hardsigmoid") else low.pointwise("mul", x, raised)
    return low.pointwise("div", raised, 6.0)


@_rule("hardsigmoid_backward")
def _hardsigmoid_backward(low: Lowering, node: Node, grad: Any, x: Any) -> Rows:
    inside = low.pointwise("logical_and", low.pointwise("gt", x, -3.0), low.pointwise("lt", x, 3.0))
    return low.pointwise("where", inside, low.pointwise("mul", grad, SIXTH), 0.0)


@_rule("hardswish_backward")
def _hardswish_backward(low: Lowering, node: Node, grad: Any, x: Any) -> Rows:
    slope = low.pointwise("add", low.pointwise("div", x, 3.0), 0.5)
    upper = low.pointwise("where", low.pointwise("ge", x, 3.0), grad, low.pointwise("mul", grad, slope))
    return low.pointwise("where", low.pointwise("le", x, -3.0), 0.0, upper)


@_rule("log_sigmoid_forward")
def _log_sigmoid(low: Lowering, node: Node, x: Any) -> list[Any]:
    """min(0, x) - log1p(exp(-|x|)), and exp(-|x|) for the gradient."""
    buffer = low.pointwise("exp", low.pointwise("neg", low.pointwise("abs", x)))
    return [low.pointwise("sub", low.pointwise("minimum", x, 0.0), low.pointwise("log1p", buffer)), buffer]


@_rule("log_sigmoid_backward")
def _log_sigmoid_backward(low: Lowering, node: Node, grad: Any, x: Any, buffer: Any) -> Rows:
    negative = low.pointwise("lt", x, 0.0)
    top, sign = low.pointwise("number", negative, 1.0), low.pointwise("where", negative, 1.0, -1.0)
    share = low.pointwise("div", buffer, low.pointwise("add", buffer, 1.0))
    return low.pointwise("mul", grad, low.pointwise("sub", top, low.pointwise("mul", sign, share)))


@_rule(
    "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"
)
def _logical(low: Lowering, node: Node, *args: Any) -> Rows:
    if node.dtype != torch.bool:
        raise Unsupported(f"operator {node.target} on numbers of {node.dtype}")
    return low.pointwise(node.name.removesuffix("_").replace("bitwise", "logical"), *args, shape=node.shape)


@_rule("masked_fill")
def _masked_fill(low: Lowering, node: Node, x: Any, mask: Any, value: Any) -> Rows:
    return low.pointwise("where", mask, value, x, shape=node.shape)


@_rule("detach", "clone", "alias", "contiguous", "lift_fresh", "lift_fresh_copy", "positive")
def _same(low: Lowering, node: Node, x: Any) -> Any:
    return x


@_rule("_to_copy")
def _to_copy(low: Lowering, node: Node, x: Any) -> Any:
    if isinstance(x, Constant):
        return Constant(bool(x.value) if node.dtype == torch.bool else float(x.value))
    rows = x if isinstance(x, Rows) else low.pointwise("same", x, shape=node.shape)
    if node.dtype == torch.bool:
        return rows if rows.tile.is_mask else low.pointwise("nonzero", rows)
    return low.pointwise("number", rows, 1.0) if rows.tile.is_mask else rows


# -- constants -------------------------------------------------------------------------------------------------------


@_rule("zeros", "zeros_like", "new_zeros", "zero")
def _zeros(low: Lowering, node: Node, *_: Any) -> Constant:
    return Constant(0.0)


@_rule("ones", "ones_like", "new_ones")
def _ones(low: Lowering, node: Node, *_: Any) -> Constant:
    return Constant(1.0)


@_rule("empty", "empty_like", "new_empty")
def _empty(low: Lowering, node: Node, *_: Any) -> Constant:
    return Constant(math.nan)  # whatever it holds is written over, or is anything in PyTorch too


@_rule("full", "full_like", "fill")
def _full(low: Lowering, node: Node, _: Any, value: Any) -> Any:
    return _number(low, node, value)


@_rule("new_full")
def _new_full(low: Lowering, node: Node, _: Any, size: Any, value: Any) -> Any:
    return _number(low, node, value)


@_rule("scalar_tensor")
def _scalar_tensor(low: Lowering, node: Node, value: Any) -> Any:
    return _number(low, node, value)


def _number(low: Lowering, node: Node, value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return Constant(value)
    return value if isinstance(value, Constant) else low.pointwise("same", value, shape=node.shape)


# -- shapes ----------------------------------------------------------------------------------------------------------


@_rule("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "flatten", "unflatten", "_reshape_alias")
def _view(low: Lowering, node: Node, x: Any, *_: Any) -> Any:
    return x if isinstance(x, Constant) else low.viewed(_rows(node, x), node.shape)


@_rule("expand")
def _expand(low: Lowering, node: Node, x: Any, size: Any, implicit: bool = False) -> Any:
    return x if isinstance(x, Constant) else low.pointwise("same", x, shape=node.shape)


@_rule("t", "transpose", "permute")
def _permute(low: Lowering, node: Node, x: Any, *dims: Any) -> Any:
    if isinstance(x, Constant):
        return x
    rows = _rows(node, x)
    order = np.arange(len(rows.axes))
    match node.name:
        case "t":
            order = order[::-1]
        case "transpose":
            order[[dims[0], dims[1]]] = order[[dims[1], dims[0]]]
        case _:
            order = order[list(dims[0])]
    places, count = list[list[int]](), 0  # of each axis among the sizes: an axis may hold several, or none
    for axis in rows.axes:
        size = sum(n is not None for n in axis)
        places.append(list(range(count, count + size)))
        count += size
    table = np.arange(rows.tile.features).reshape(rows.sizes).transpose([p for d in order for p in places[d]])
    return low.reindexed(rows, table, tuple(rows.axes[d] for d in order))


@_rule("repeat")
def _repeat(low: Lowering, node: Node, x: Any, repeats: Sequence[int]) -> Any:
    if isinstance(x, Constant):
        return x
    rows = low.viewed(_rows(node, x), [1] * (len(repeats) - len(node.args[0].shape)) + list(node.args[0].shape))
    return _indexed(low, node, rows, np.tile(rows.table(), repeats))


@_rule("flip")
def _flip(low: Lowering, node: Node, x: Any, dims: Sequence[int]) -> Any:
    return x if isinstance(x, Constant) else _indexed(low, node, _rows(node, x), np.flip(x.table(), tuple(dims)), dims)


@_rule("roll")
def _roll(low: Lowering, node: Node, x: Any, shifts: Any, dims: Any = ()) -> Any:
    if isinstance(x, Constant):
        return x
    if not dims:
        raise Unsupported(f"operator {node.target} without dims")
    return _indexed(low, node, _rows(node, x), np.roll(x.table(), tuple(shifts), tuple(dims)), dims)


@_rule("select")
def _select(low: Lowering, node: Node, x: Any, dim: int, index: int) -> Any:
    if isinstance(x, Constant):
        return x
    rows = _rows(node, x)
    _features_only(node, rows, [dim])
    axes = list(rows.axes)
    del axes[dim % len(axes)]
    return low.reindexed(rows, np.take(rows.table(), index, axis=dim), tuple(axes))


@_rule("slice")
def _slice(low: Lowering, node: Node, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if isinstance(x, Constant) or node.shape == node.args[0].shape:
        return x
    cut: list[Any] = [slice(None)] * len(node.shape)
    cut[dim] = slice(start, end, step)
    return _indexed(low, node, _rows(node, x), x.table()[tuple(cut)], [dim])


@_rule("narrow")
def _narrow(low: Lowering, node: Node, x: Any, dim: int, start: int, length: int) -> Any:
    return _slice(low, node, x, dim, start, start + length)


@_rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes")
def _split(low: Lowering, node: Node, x: Any, sizes: Any, dim: int = 0) -> list[Any]:
    rows = _rows(node, x)
    _features_only(node, rows, [dim])
    table = rows.table()
    width = table.shape[dim]
    widths = sizes if isinstance(sizes, list | tuple) else [sizes] * math.ceil(width / sizes)
    parts, start = list[Any](), 0
    for n in widths:
        part = np.take(table, range(start, min(start + n, width)), axis=dim)
        parts.append(_indexed(low, node, rows, part, [dim]))
        start += n
    return parts


@_rule("unbind")
def _unbind(low: Lowering, node: Node, x: Any, dim: int = 0) -> list[Any]:
    return [_select(low, node, x, dim, i) for i in range(_rows(node, x).table().shape[dim])]


@_rule("cat")
def _cat(low: Lowering, node: Node, parts: Any, dim: int = 0) -> Rows:
    shapes = [arg.shape for arg in node.args[0]]
    given = [
        (low.filled(p, shape) if isinstance(p, Constant) else _rows(node, p))
        for p, shape in zip(parts, shapes, strict=True)
        if shape[dim if len(shape) > 1 else 0] != 0
    ]
    return joined(low, node, given, dim)


@_rule("stack")
def _stack(low: Lowering, node: Node, parts: Any, dim: int = 0) -> Rows:
    shapes = [list(arg.shape) for arg in node.args[0]]
    for shape in shapes:
        shape.insert(dim % len(node.shape), 1)
    given = [
        low.filled(p, shape) if isinstance(p, Constant) else low.viewed(_rows(node, p), shape)
        for p, shape in zip(parts, shapes, strict=True)
    ]
    return joined(low, node, given, dim)


def joined(low: Lowering, node: Node, parts: list[Rows], dim: int) -> Rows:
    tables, start = list[np.ndarray](), 0
    for part in parts:
        _features_only(node, part, [dim])
        tables.append(part.table() + start)
        start += part.tile.features
    if len(parts) == 1:
        return parts[0]
    tiles = tuple(low.as_kind(part.tile, mask=False) for part in parts)
    whole = Rows(Cat(tiles, start), parts[0].axes)
    joined = _indexed(low, node, whole, np.concatenate(tables, axis=dim), [dim])
    return low.pointwise("nonzero", joined) if node.dtype == torch.bool else joined


@_rule("slice_backward")
def _slice_backward(low: Lowering, node: Node, grad: Any, sizes: Any, dim: int, start: int, end: int, step: int) -> Any:
    if node.args[0].shape == node.shape:  # of a slice that was the whole
        return grad
    cut: list[Any] = [slice(None)] * len(node.shape)
    cut[dim] = slice(start, end, step)
    return _placed(low, node, grad, tuple(cut), [dim])


@_rule("select_backward")
def _select_backward(low: Lowering, node: Node, grad: Any, sizes: Any, dim: int, index: int) -> Any:
    cut: list[Any] = [slice(None)] * len(node.shape)
    cut[dim] = index
    return _placed(low, node, grad, tuple(cut), [dim])


def _placed(low: Lowering, node: Node, grad: Any, where: Any, dims: Sequence[int]) -> Any:
    """Zeros of the node's shape with ``grad`` put at ``where``."""
    if isinstance(grad, Constant) and grad.value == 0:
        return grad
    rows = low.rows(node.args[0])
    shape = [1 if isinstance(n, Batch) else n for n in node.shape]
    result = Rows(rows.tile, tuple((None,) if isinstance(n, Batch) else (n,) for n in node.shape))
    _features_only(node, result, dims)
    table = np.full(shape, -1)
    table[where] = rows.table()
    flat = table.reshape(-1)
    edges = np.flatnonzero(flat >= 0)
    if len(edges) and np.array_equal(flat[edges[0] : edges[-1] + 1], np.arange(len(edges))):  # zeros on both sides
        zeros = [low.filled(Constant(0.0), (Batch(), int(n))).tile for n in (edges[0], len(flat) - 1 - edges[-1])]
        tiles = [t for t in (zeros[0], rows.tile, zeros[1]) if t.features]
        return Rows(Cat(tuple(tiles), len(flat)) if len(tiles) > 1 else rows.tile, result.axes)
    padded = Cat((rows.tile, low.filled(Constant(0.0), (Batch(), 1)).tile), rows.tile.features + 1)
    return Rows(low.gather(padded, np.where(flat < 0, rows.tile.features, flat)), result.axes)


@_rule("constant_pad_nd")
def _pad(low: Lowering, node: Node, x: Any, pad: Sequence[int], value: Number = 0) -> Rows:
    rows = _rows(node, x)
    table, widths = rows.table(), [(0, 0)] * len(rows.axes)
    for i in range(len(pad) // 2):
        widths[-1 - i] = (pad[2 * i], pad[2 * i + 1])
    _features_only(node, rows, [d for d, width in enumerate(widths) if width != (0, 0)])
    table = table[tuple(slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(widths, table.shape, strict=True))]
    widths = [(max(0, a), max(0, b)) for a, b in widths]
    if not any(map(any, widths)):
        return _indexed(low, node, rows, table)
    end = low.filled(Constant(float(value)), (Batch(), 1)).tile
    padded = Rows(Cat((rows.tile, end), rows.tile.features + 1), rows.axes)
    return _indexed(low, node, padded, np.pad(table, widths, constant_values=rows.tile.features))


def _rows(node: Node, value: Any) -> Rows:
    if isinstance(value, Rows):
        return value
    raise Unsupported(f"operator {node.target} without one row per sample")


def _features_only(node: Node, rows: Rows, dims: Sequence[int]) -> None:
    if any(None in rows.axes[d] for d in dims):
        raise Unsupported(f"operator {node.target} across samples")


def _indexed(low: Lowering, node: Node, rows: Rows, table: np.ndarray, dims: Sequence[int] = ()) -> Rows:
    """Features of ``rows`` in the order and shape of ``table``; ``dims`` are the axes that change."""
    _features_only(node, rows, dims)
    axes = tuple((None,) if axis == (None,) else (n,) for axis, n in zip(rows.axes, table.shape, strict=True))
    if table.size == 0 or any(axis == (None,) and n != 1 for axis, n in zip(rows.axes, table.shape, strict=True)):
        raise Unsupported(f"operator {node.target} across samples")
    return low.reindexed(rows, table, axes)


# -- products --------------------------------------------------------------------------------------------------------


def _sliced(low: Lowering, tile: Tile, part: int, width: int) -> Tile:
    return low.gather(tile, np.arange(part * width, (part + 1) * width))


def _products(low: Lowering, tile: Tile, matrices: list[Static], depth: int) -> Tile:
    """Each ``depth`` features of a tile times a matrix of their own, side by side."""
    parts = list[Tile]()
    for i, matrix in enumerate(matrices):
        parts.append(Product(_sliced(low, tile, i, depth), low.weight(matrix), matrix.shape[1]))
    return parts[0] if len(parts) == 1 else Cat(tuple(parts), sum(p.features for p in parts))


def _turned(low: Lowering, matrix: Static) -> Static:
    return low.derive(matrix, aten.t.default, shape=matrix.shape[::-1])


def _factors(low: Lowering, node: Node, *values: Any) -> list[Any]:
    """The last arguments of a product, numbers written out."""
    nodes = node.args[-len(values) :]
    return [low.filled(v, n.shape) if isinstance(v, Constant) else v for v, n in zip(values, nodes, strict=True)]


@_rule("mm")
def _mm(low: Lowering, node: Node, a: Any, b: Any) -> Any:
    a, b = _factors(low, node, a, b)
    match a, b:
        case Rows(axes=(rows, (depth,))), Static() if None in rows and depth is not None:
            count = math.prod(n for n in rows if n is not None)
            return Rows(_products(low, a.tile, [b] * count, depth), (rows, (b.shape[1],)))
        case Static(), Rows(axes=((depth,), (None,))) if depth is not None:
            return Rows(_products(low, b.tile, [_turned(low, a)], depth), ((a.shape[0],), (None,)))
        case Rows(axes=((height,), rows)), Rows(axes=(others, (width,))) if rows == others and None in rows:
            if height is None or width is None:
                raise Unsupported("a product of samples with samples")
            count, total = math.prod(n for n in rows if n is not None), None
            left = np.arange(a.tile.features).reshape(height, count)
            for i in range(count):
                one = low.outer(low.gather(a.tile, left[:, i]), _sliced(low, b.tile, i, width))
                total = one if total is None else low.finish.call(aten.add.Tensor, (total, one))
            assert total is not None
            return Total(total)
    raise Unsupported("a product other than of samples with a weight")


@_rule("addmm")
def _addmm(low: Lowering, node: Node, bias: Any, a: Any, b: Any, beta: Number = 1, alpha: Number = 1) -> Rows:
    product = _mm(low, node, a, b)
    if isinstance(product, Total):
        raise Unsupported(f"operator {node.target} on a sum over samples")
    product = product if alpha == 1 else low.pointwise("mul", product, alpha)
    if beta == 0:
        return product
    bias = bias if beta == 1 else low.pointwise("mul", bias, beta, shape=node.shape)
    return low.pointwise("add", product, bias, shape=node.shape)


@_rule("mv")
def _mv(low: Lowering, node: Node, a: Any, b: Any) -> Any:
    a, b = _factors(low, node, a, b)
    match a, b:
        case Rows(axes=((None,), (depth,))), Static() if depth is not None:
            matrix = low.derive(b, aten.unsqueeze.default, 1, shape=(depth, 1))
            return Rows(Product(a.tile, low.weight(matrix), 1), ((None,),))
        case Rows(axes=((height,), (None,))), Rows(axes=((None,),)) if height is not None:
            return Total(low.finish.call(aten.reshape.default, (low.outer(a.tile, b.tile), [height])))
    raise Unsupported("a product other than of samples with a weight")


@_rule("bmm")
def _bmm(low: Lowering, node: Node, a: Any, b: Any) -> Any:
    a, b = _factors(low, node, a, b)
    match a, b:
        case Rows(axes=((count,), (None,), (depth,))), Static() if count is not None and depth is not None:
            matrices = [low.derive(b, aten.select.int, 0, i, shape=b.shape[1:]) for i in range(count)]
            return Rows(_products(low, a.tile, matrices, depth), ((count,), (None,), (b.shape[2],)))
        case Static(), Rows(axes=((count,), (depth,), (None,))) if count is not None and depth is not None:
            matrices = [_turned(low, low.derive(a, aten.select.int, 0, i, shape=a.shape[1:])) for i in range(count)]
            return Rows(_products(low, b.tile, matrices, depth), ((count,), (a.shape[1],), (None,)))
        case (
            Rows(axes=((count,), (height,), (None,))),
            Rows(axes=((_,), (None,), (width,))),
        ) if count is not None and height is not None and width is not None:
            parts = [low.outer(_sliced(low, a.tile, i, height), _sliced(low, b.tile, i, width)) for i in range(count)]
            return Total(low.finish.call(aten.stack.default, (parts, 0)))
        case Rows(axes=(rows, (height,), (depth,))), Rows(axes=(others, _, (width,))) if (
            rows == others and None in rows
        ):
            return _each_product(low, a, b, rows, height or 1, depth or 1, width or 1)
    raise Unsupported("a product other than of samples with a weight")


def _each_product(low: Lowering, a: Rows, b: Rows, rows: Any, height: int, depth: int, width: int) -> Rows:
    """A matrix product for each sample, its terms written out."""
    count = math.prod(n for n in rows if n is not None)
    if count * height * depth * width > LARGEST:
        raise Unsupported(f"a product of {height} × {depth} by {depth} × {width} values of each sample")
    shape = (count, height, width, depth)
    left = np.arange(a.tile.features).reshape(count, height, 1, depth)
    right = np.arange(b.tile.features).reshape(count, depth, width).transpose(0, 2, 1)[:, None]
    axes = ((None,), *((n,) for n in shape))
    terms = low.pointwise(
        "mul",
        Rows(low.gather(a.tile, np.broadcast_to(left, shape)), axes),
        Rows(low.gather(b.tile, np.broadcast_to(right, shape)), axes),
    )
    return Rows(low.fold(terms, [4], "add", keepdim=False).tile, (rows, (height,), (width,)))


# -- over features ---------------------------------------------------------------------------------------------------


@_rule("sum", "mean")
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


@_rule("amax", "amin")
def _amax(low: Lowering, node: Node, x: Any, dim: Any = (), keepdim: bool = False) -> Any:
    rows = _rows(node, x)
    dims = list(dim) or list(range(len(rows.axes)))
    _features_only(node, rows, dims)
    if node.name == "amin":
        return low.pointwise("neg", low.fold(low.pointwise("neg", rows), dims, "maximum", keepdim=keepdim))
    return low.fold(rows, dims, "maximum", keepdim=keepdim)


@_rule("var")
def _var(low: Lowering, node: Node, x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Rows:
    rows = _rows(node, x)
    dims = list(range(len(rows.axes))) if dim is None else list(dim)
    _features_only(node, rows, dims)
    squares = low.pointwise("square", low.pointwise("sub", rows, _mean(low, rows, dims)))
    total = low.fold(squares, dims, "add", keepdim=keepdim)
    count = rows.tile.features // total.tile.features - (1 if correction is None else correction)
    if count <= 0:
        raise Unsupported(f"operator {node.target} of too few features")
    return low.pointwise("div", total, float(count))


@_rule("cumsum")
def _cumsum(low: Lowering, node: Node, x: Any, dim: int) -> Rows:
    rows = _rows(node, x)
    _features_only(node, rows, [dim])
    table = np.moveaxis(rows.table(), dim, -1)
    running = Running(low.gather(rows.tile, table), table.shape[-1])
    back = np.moveaxis(np.arange(running.features).reshape(table.shape), -1, dim)
    return Rows(low.gather(running, back), rows.axes)


@_rule("_softmax", "_log_softmax")
def _softmax(low: Lowering, node: Node, x: Any, dim: int, half_to_float: bool) -> Rows:
    rows = _rows(node, x)
    _features_only(node, rows, [dim])
    centred = low.pointwise("sub", rows, low.fold(rows, [dim], "maximum", keepdim=True))
    powers = low.pointwise("exp", centred)
    total = low.fold(powers, [dim], "add", keepdim=True)
    if node.name == "_softmax":
        return low.pointwise("div", powers, total)
    return low.pointwise("sub", centred, low.pointwise("log", total))


@_rule("_softmax_backward_data")
def _softmax_backward(low: Lowering, node: Node, grad: Any, result: Any, dim: int, input_dtype: Any) -> Rows:
    weighted = low.pointwise("mul", grad, result, shape=node.shape)
    total = low.fold(weighted, [dim], "add", keepdim=True)
    return low.pointwise("sub", weighted, low.pointwise("mul", result, total))


@_rule("_log_softmax_backward_data")
def _log_softmax_backward(low: Lowering, node: Node, grad: Any, result: Any, dim: int, input_dtype: Any) -> Rows:
    grad = low.rows(node.args[0])
    total = low.fold(grad, [dim], "add", keepdim=True)
    return low.pointwise("sub", grad, low.pointwise("mul", low.pointwise("exp", result), total))


@_rule("logsumexp")
def _logsumexp(low: Lowering, node: Node, x: Any, dim: Any, keepdim: bool = False) -> Rows:
    rows = _rows(node, x)
    _features_only(node, rows, dim)
    largest = low.fold(rows, dim, "maximum", keepdim=True)
    bounded = low.pointwise("where", low.pointwise("eq", low.pointwise("abs", largest), math.inf), 0.0, largest)
    total = low.fold(low.pointwise("exp", low.pointwise("sub", rows, bounded)), dim, "add", keepdim=True)
    result = low.pointwise("add", low.pointwise("log", total), bounded)
    return low.viewed(result, node.shape)


@_rule("linalg_vector_norm")
def _vector_norm(low: Lowering, node: Node, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> Rows:
    rows = _rows(node, x)
    dims = list(range(len(rows.axes))) if dim is None else list(dim)
    _features_only(node, rows, dims)
    if ord not in (1, 2):
        raise Unsupported(f"operator {node.target} of order {ord}")
    sizes = low.pointwise("square" if ord == 2 else "abs", rows)
    total = low.fold(sizes, dims, "add", keepdim=keepdim)
    return low.pointwise("sqrt", total) if ord == 2 else total


@_rule("native_layer_norm")
def _layer_norm(low: Lowering, node: Node, x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> list[Rows]:
    rows = _rows(node, x)
    dims = _last(node, rows, len(shape))
    mean = _mean(low, rows, dims)
    centred = low.pointwise("sub", rows, mean)
    inverse = low.pointwise("rsqrt", low.pointwise("add", _mean(low, low.pointwise("square", centred), dims), eps))
    result = low.pointwise("mul", centred, inverse)
    result = result if weight is None else low.pointwise("mul", result, weight)
    return [result if bias is None else low.pointwise("add", result, bias), mean, inverse]


@_rule("native_layer_norm_backward")
def _layer_norm_backward(
    low: Lowering, node: Node, grad: Any, x: Any, shape: Any, mean: Any, inverse: Any, weight: Any, bias: Any, mask: Any
) -> list[Any]:
    grad, dims = low.rows(node.args[0]), _last(node, _rows(node, x), len(shape))
    scaled = low.pointwise("mul", low.pointwise("sub", x, mean), inverse)
    return _norm_backward(low, grad, scaled, inverse, weight, bias, shape, dims, mask, centred=True)


@_rule("_fused_rms_norm")
def _rms_norm(low: Lowering, node: Node, x: Any, shape: Any, weight: Any, eps: float | None) -> list[Rows]:
    rows = _rows(node, x)
    dims = _last(node, rows, len(shape))
    eps = torch.finfo(low.dtype).eps if eps is None else eps
    mean = _mean(low, low.pointwise("square", rows), dims)
    inverse = low.pointwise("rsqrt", low.pointwise("add", mean, eps))
    result = low.pointwise("mul", rows, inverse)
    return [result if weight is None else low.pointwise("mul", result, weight), inverse]


@_rule("_fused_rms_norm_backward")
def _rms_norm_backward(
    low: Lowering, node: Node, grad: Any, x: Any, shape: Any, inverse: Any, weight: Any, mask: Any
) -> list[Any]:
    grad, dims = low.rows(node.args[0]), _last(node, _rows(node, x), len(shape))
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
    others = {d for d in range(len(grad.axes)) if d not in dims}
    weighted = grad if weight is None else low.pointwise("mul", grad, weight)
    spread = low.pointwise("mul", scaled, _mean(low, low.pointwise("mul", weighted, scaled), dims))
    back = low.pointwise("sub", weighted, spread)
    back = low.pointwise("sub", back, _mean(low, weighted, dims)) if centred else back
    return [
        low.pointwise("mul", back, inverse) if mask[0] else None,
        low.row_total(low.pointwise("mul", grad, scaled), others, shape) if mask[1] and weight is not None else None,
        low.row_total(grad, others, shape) if mask[2] and bias is not None else None,
    ]


def _last(node: Node, rows: Rows, count: int) -> list[int]:
    dims = list(range(len(rows.axes) - count, len(rows.axes)))
    _features_only(node, rows, dims)
    return dims


def _mean(low: Lowering, rows: Rows, dims: list[int]) -> Rows:
    total = low.fold(rows, dims, "add", keepdim=True)
    return low.pointwise("div", total, float(rows.tile.features // total.tile.features))


# -- ours ------------------------------------------------------------------------------------------------------------


@_rule("holdfast.rotate")
def _rotate(low: Lowering, node: Node, x: Any, angles: Any, permutations: Any) -> Rows:
    if not (isinstance(x, Rows) and isinstance(angles, Static) and isinstance(permutations, Static)):
        raise Unsupported("rotations by angles that are not a weight")
    return Rows(Rotate(x.tile, low.weight(angles), low.weight(permutations), x.tile.features), x.axes)


@_rule("holdfast.rotate_backward")
def _rotate_backward(low: Lowering, node: Node, grad: Any, output: Any, angles: Any, permutations: Any) -> list[Any]:
    grad = low.rows(node.args[0])
    weights = low.weight(angles), low.weight(permutations)
    back = RotateBack(grad.tile, output.tile, *weights, grad.tile.features)
    return [Rows(back, grad.axes), low.angle_total(back)]
