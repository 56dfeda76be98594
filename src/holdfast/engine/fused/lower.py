"""ATen graphs to tile programs: the second stage of the compiler.

    lower(traced)  →  Lowered(forward, backward, ...)

A node whose value has a row a sample becomes a tile; a node of weights alone (in the backward graph, a transpose) is
left to PyTorch; a node that sums over samples becomes a reduction, and what follows it is linear and is done by
PyTorch after the loop, on the sums over all steps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.engine.fused.graph import Graph, Node, Unsupported
from holdfast.engine.fused.operators import MASKS
from holdfast.engine.fused.program import (
    AngleSum,
    Cat,
    Constant,
    FeatureSum,
    Input,
    Operand,
    Outer,
    Pointwise,
    Product,
    Reduction,
    Rotate,
    RotateBack,
    RowSum,
    Slice,
    StepProgram,
    Tile,
    Weight,
    operands,
    reachable,
)
from holdfast.engine.fused.trace import BATCH, Traced

__all__ = ["Lowered", "lower"]

TILES = (Input, Pointwise, Slice, Cat, Product, FeatureSum, Rotate, RotateBack)


@dataclasses.dataclass(frozen=True)
class Lowered:
    """Both directions of a step, and the PyTorch around them.

    Attributes:
        forward: inputs "x", "s0", "s1", ...; outputs "s0", "s1", ... (new states).
        backward: inputs "x", "s*" (old states), "n*" (new states), "k*" (what forward saved), "g*" (cotangents of the
            new states); outputs "x", "s*" (gradients).
        derived: more weights for backward, from those of forward.
        finish: the reductions, then all weights, to gradients of the weights (None where zero).
    """

    forward: StepProgram
    backward: StepProgram | None
    derived: Graph | None
    finish: Graph | None


@dataclasses.dataclass(frozen=True, eq=False)
class _Transposed:
    tile: Tile


@dataclasses.dataclass(frozen=True, eq=False)
class _Reduced:
    """A value of the graph that runs after the loop."""

    node: Node


def lower(traced: Traced, *, source_grad: bool) -> Lowered:
    """Lower both graphs; ``source_grad`` says whether the gradient of x (or the drive) is wanted."""
    x = Input("x", traced.source_features)
    states = [Input(f"s{i}", size) for i, size in enumerate(traced.state_sizes)]
    weights = [Weight(i, shape) for i, shape in enumerate(traced.weights)]
    inputs: list[Operand] = [x, *states, *weights]
    ahead = _Lowering(traced.forward, inputs)
    news = [ahead.tile(value) for value in ahead.outputs]
    if traced.vjp is None:
        program = StepProgram({t.name: t for t in (x, *states)}, {f"s{i}": n for i, n in enumerate(news)})
        return Lowered(program, None, None, None)

    cotangents = [Input(f"g{i}", size) for i, size in enumerate(traced.state_sizes)]
    back = _Lowering(traced.vjp, [*inputs, *cotangents])
    grads = dict(zip(traced.wanted, back.outputs, strict=True))
    tiles = {"x": grads.get(0) if source_grad else None}
    tiles |= {f"s{i}": grads.get(1 + i) for i in range(len(states))}
    outputs = {name: None if grad is None else back.tile(grad) for name, grad in tiles.items()}
    weight_grads = [grads.get(1 + len(states) + i) for i in range(len(weights))]
    finish = back.finish(weight_grads)
    return _join(traced, ahead, back, news, x, states, cotangents, outputs, finish)


def _join(
    traced: Traced,
    ahead: _Lowering,
    back: _Lowering,
    news: list[Tile],
    x: Input,
    states: list[Input],
    cotangents: list[Input],
    outputs: dict[str, Tile | None],
    finish: Graph,
) -> Lowered:
    """Let backward read what forward can keep instead of computing it again: new states, products and rotations."""
    pairs = list(zip(ahead.order, back.twins(ahead), strict=True))
    twin: dict[Tile, Tile] = {}  # a tile of backward to the same value in forward
    for node, other in pairs:
        mine, theirs = ahead.env.get(node), back.env.get(other)
        if isinstance(mine, TILES) and isinstance(theirs, TILES):
            twin[theirs] = mine
    replaced: dict[Tile, Input] = {}
    inputs = {t.name: t for t in (x, *states, *cotangents)}
    for i, new in enumerate(news):
        for theirs, mine in twin.items():
            if mine is new and not isinstance(theirs, Input):
                inputs[f"n{i}"] = replaced.setdefault(theirs, Input(f"n{i}", new.features))
    saved: list[Tile] = []
    for theirs, mine in twin.items():
        costly = isinstance(theirs, Rotate) or (isinstance(theirs, Product) and not theirs.is_narrow)
        if costly and theirs not in replaced:
            replaced[theirs] = Input(f"k{len(saved)}", mine.features)
            saved.append(mine)
    memo: dict[Any, Any] = {}

    def rewrite(node: Any) -> Any:
        if node in memo:
            return memo[node]
        result = replaced.get(node)
        if result is None:
            result = node
            if any(isinstance(arg, TILES) for arg in operands(node)):
                result = _with_operands(node, [rewrite(arg) for arg in operands(node)])
        memo[node] = result
        return result

    order = [v for v in back.env.values() if isinstance(v, TILES)]
    for node in order:  # oldest first, so that recursion stays shallow
        rewrite(node)
    outputs = {name: None if tile is None else rewrite(tile) for name, tile in outputs.items()}
    reductions: list[Reduction] = []
    for reduction in back.reductions:
        match reduction:
            case RowSum(tile=tile):
                reductions.append(RowSum(rewrite(tile)))
            case Outer(left=left, right=right):
                reductions.append(Outer(rewrite(left), rewrite(right)))
            case AngleSum(source=source):
                reductions.append(AngleSum(rewrite(source)))
    live = reachable([*(t for t in outputs.values() if t is not None), *reductions])
    kept = [i for i, _ in enumerate(saved) if any(isinstance(t, Input) and t.name == f"k{i}" for t in live)]
    inputs |= {t.name: t for t in replaced.values() if t in live}
    inputs = {name: tile for name, tile in inputs.items() if tile in live}
    renamed = {f"k{i}": f"k{j}" for j, i in enumerate(kept)}
    if any(old != new for old, new in renamed.items()):
        for old, new in renamed.items():
            object.__setattr__(inputs[old], "name", new)
        inputs = {tile.name: tile for tile in inputs.values()}
    forward = StepProgram(
        {t.name: t for t in (x, *states)},
        {f"s{i}": new for i, new in enumerate(news)},
        saved=tuple(saved[i] for i in kept),
    )
    backward = StepProgram(inputs, outputs, tuple(reductions))
    return Lowered(forward, backward, back.derived, finish)


def _with_operands(node: Tile, args: list[Any]) -> Tile:
    if all(new is old for new, old in zip(args, operands(node), strict=True)):
        return node
    match node:
        case Pointwise():
            return dataclasses.replace(node, args=tuple(args))
        case Slice() | FeatureSum():
            return dataclasses.replace(node, tile=args[0])
        case Cat():
            return dataclasses.replace(node, parts=tuple(args))
        case Product() | Rotate():
            return dataclasses.replace(node, tile=args[0])
        case RotateBack():
            return dataclasses.replace(node, grad=args[0], output=args[1])
    raise AssertionError(node)


class _Lowering:
    """One graph on its way: each live node gets an operand, a transposed tile, or a place after the loop."""

    def __init__(self, graph: Graph, inputs: list[Operand]):
        self.env: dict[Node, Any] = dict(zip(graph.inputs, inputs, strict=True))
        self.batch = graph.inputs[0].shape[0]
        self.reductions: list[Reduction] = []
        self.after = Graph()  # what PyTorch does with the reductions
        self.derived = Graph()  # what PyTorch makes of weights alone
        self._derived: dict[Node, Node] = {}
        for node, operand in self.env.items():
            if isinstance(operand, Weight):
                self._derived[node] = self.derived.input()
        # What runs, in order; detach is left out, since autograd adds it where it saves a value.
        self.order = [node for node in graph.nodes if node.name != "detach"]
        live = graph.live(graph.outputs)
        for node in graph.nodes:
            if node not in live:
                continue
            self.env[node] = self._lower(node)
        self.outputs = [None if node is None else self.env[node] for node in graph.outputs]

    def twins(self, ahead: _Lowering) -> list[Node]:
        """For each operator of the forward graph, the node of this graph that computes the same: they come in order."""
        found = self.order[: len(ahead.order)]
        if [node.target for node in found] != [node.target for node in ahead.order]:
            raise Unsupported("its gradient cannot be traced beside its value")
        return found

    def tile(self, value: Any) -> Tile:
        if isinstance(value, TILES):
            return value
        raise Unsupported("its step does not return one row a sample")

    # -- what PyTorch does before and after the loop ----------------------------------------------------------------

    def finish(self, grads: list[Any]) -> Graph:
        for grad in grads:
            if grad is not None and not isinstance(grad, _Reduced):
                raise Unsupported("a weight's gradient is not a sum over samples")
        self.after.outputs = [None if grad is None else grad.node for grad in grads]
        return self.after

    def reduce(self, reduction: Reduction) -> Node:
        self.reductions.append(reduction)
        return self.after.input()

    def _then(self, node: Node) -> _Reduced:
        """An operator on a sum over samples: it is linear, so it may as well come after the sum over steps."""
        if node.name not in _LINEAR:
            raise Unsupported(f"operator {node.name} on a sum over samples")

        def place(arg: Node) -> Node:
            value = self.env[arg]
            if isinstance(value, _Reduced):
                return value.node
            raise Unsupported(f"operator {node.name} of a sum over samples and something else")

        return _Reduced(self.after.copy(node, place))

    # -- one node -------------------------------------------------------------------------------------------------

    def _lower(self, node: Node) -> Any:
        if node.name == "getitem":
            return self.env[node.args[0]][node.args[1]]
        values = [self.env[arg] for arg in node.inputs]
        if any(isinstance(v, _Reduced) for v in values):
            return self._then(node)
        of_weights = bool(values) and all(isinstance(v, Weight) for v in values)
        if of_weights and isinstance(node.value, Tensor) and self.batch not in node.shape:
            return self._weight_of(node)
        name = node.name if node.name.startswith("_") else node.name.removesuffix("_")
        if name not in _RULES:
            raise Unsupported(f"operator {node.target}")
        kwargs = {k: v for k, v in node.kwargs.items() if k in _KWARGS}
        return _RULES[name](self, node, *(self._argument(a) for a in node.args), **kwargs)

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, Node):
            return self.env[arg]
        if isinstance(arg, list | tuple):
            return [self._argument(a) for a in arg]
        return arg

    def _weight_of(self, node: Node) -> Weight:
        """A node of weights alone: PyTorch computes it before the loop."""
        if node.name in ("detach", "alias"):
            self._derived[node] = self._derived[node.args[0]]
            return self.env[node.args[0]]
        self._derived[node] = self.derived.copy(node, self._derived.__getitem__)
        self.derived.outputs.append(self._derived[node])
        return Weight(len(self.derived.inputs) + len(self.derived.outputs) - 1, node.shape)

    def pointwise(self, node: Node, op: str, *args: Any, features: int | None = None) -> Pointwise:
        made = tuple(Constant(a) if isinstance(a, bool | int | float) else a for a in args)
        if features is None:
            if len(node.shape) != 2 or node.shape[0] != self.batch:
                raise Unsupported(f"operator {node.target} with a result of shape {node.shape}")
            features = node.shape[1]
        for arg in made:
            width = arg.features if isinstance(arg, TILES) else None
            if isinstance(arg, Weight):
                width = arg.shape[-1] if arg.shape else 1
                if math.prod(arg.shape) != width:
                    raise Unsupported(f"operator {op} between samples and a weight of shape {arg.shape}")
            elif not isinstance(arg, (*TILES, Constant)):
                raise Unsupported(f"operator {op} on a transposed value")
            if width not in (None, 1, features):
                raise Unsupported(f"operator {op} between {width} and {features} features")
        return Pointwise(op, made, features, is_mask=op in MASKS)


# -- the rules, one an operator --------------------------------------------------------------------------------------

_KWARGS = {"alpha", "beta", "approximate", "dtype", "dim"}
_LINEAR = {
    "t",
    "transpose",
    "permute",
    "view",
    "_unsafe_view",
    "reshape",
    "expand",
    "squeeze",
    "unsqueeze",
    "sum",
    "clone",
}
_LINEAR |= {"detach", "alias", "neg", "add", "slice_backward", "cat", "slice"}
_RULES: dict[str, Callable[..., Any]] = {}


def _rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _elementwise(*names: str) -> None:
    for name in names:
        _RULES[name] = lambda low, node, *args, _name=name, **_: low.pointwise(node, _name, *args)


_elementwise(
    "mul", "div", "neg", "abs", "sign", "square", "reciprocal", "sqrt", "rsqrt", "floor", "ceil", "trunc", "relu"
)
_elementwise(
    "maximum", "minimum", "sigmoid", "tanh", "exp", "exp2", "expm1", "log", "log2", "log1p", "erf", "sin", "cos"
)
_elementwise("silu", "leaky_relu", "gt", "ge", "lt", "le", "eq", "ne", "isnan", "where")
_elementwise("threshold_backward", "sigmoid_backward", "tanh_backward", "silu_backward", "pow")


@_rule("add", "sub")
def _add(low: _Lowering, node: Node, a: Any, b: Any, alpha: float = 1) -> Tile:
    scaled = b if alpha == 1 else b * alpha if isinstance(b, int | float) else low.pointwise(node, "mul", b, alpha)
    return low.pointwise(node, node.name.rstrip("_"), a, scaled)


@_rule("rsub")
def _rsub(low: _Lowering, node: Node, a: Any, b: Any, alpha: float = 1) -> Tile:
    return low.pointwise(node, "sub", b, a if alpha == 1 else low.pointwise(node, "mul", a, alpha))


@_rule("round")
def _round(low: _Lowering, node: Node, x: Any) -> Tile:
    return low.pointwise(node, "round", x)


@_rule("sgn")
def _sgn(low: _Lowering, node: Node, x: Any) -> Tile:
    return low.pointwise(node, "sign", x)


@_rule("clamp", "hardtanh")
def _clamp(low: _Lowering, node: Node, x: Any, low_end: Any = None, high_end: Any = None) -> Tile:
    if node.name.startswith("hardtanh"):
        low_end, high_end = -1.0 if low_end is None else low_end, 1.0 if high_end is None else high_end
    if low_end is not None:
        x = low.pointwise(node, "maximum", x, low_end)
    return x if high_end is None else low.pointwise(node, "minimum", x, high_end)


@_rule("clamp_min")
def _clamp_min(low: _Lowering, node: Node, x: Any, end: Any) -> Tile:
    return low.pointwise(node, "maximum", x, end)


@_rule("clamp_max")
def _clamp_max(low: _Lowering, node: Node, x: Any, end: Any) -> Tile:
    return low.pointwise(node, "minimum", x, end)


@_rule("hardtanh_backward")
def _hardtanh_backward(low: _Lowering, node: Node, grad: Any, x: Any, low_end: float, high_end: float) -> Tile:
    return low.pointwise(node, "hardtanh_backward", grad, x, low_end, high_end)


@_rule("softplus")
def _softplus(low: _Lowering, node: Node, x: Any, beta: float = 1, threshold: float = 20) -> Tile:
    return low.pointwise(node, "softplus", x, beta, threshold)


@_rule("softplus_backward")
def _softplus_backward(low: _Lowering, node: Node, grad: Any, x: Any, beta: float, threshold: float) -> Tile:
    return low.pointwise(node, "softplus_backward", grad, x, beta, threshold)


@_rule("gelu")
def _gelu(low: _Lowering, node: Node, x: Any, approximate: str = "none") -> Tile:
    return low.pointwise(node, "gelu_tanh" if approximate == "tanh" else "gelu", x)


@_rule("gelu_backward")
def _gelu_backward(low: _Lowering, node: Node, grad: Any, x: Any, approximate: str = "none") -> Tile:
    return low.pointwise(node, "gelu_tanh_backward" if approximate == "tanh" else "gelu_backward", grad, x)


@_rule("elu")
def _elu(low: _Lowering, node: Node, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tile:
    return low.pointwise(node, "elu", x, alpha, scale, input_scale)


@_rule("elu_backward")
def _elu_backward(
    low: _Lowering, node: Node, grad: Any, alpha: float, scale: float, input_scale: float, is_result: bool, saved: Any
) -> Tile:
    op = "elu_backward_of_result" if is_result else "elu_backward"
    return low.pointwise(node, op, grad, alpha, scale, input_scale, saved)


@_rule("leaky_relu_backward")
def _leaky_relu_backward(low: _Lowering, node: Node, grad: Any, x: Any, slope: float, _is_result: bool) -> Tile:
    return low.pointwise(node, "leaky_relu_backward", grad, x, slope)


_RULES["leaky_relu"] = lambda low, node, x, slope=0.01: low.pointwise(node, "leaky_relu", x, slope)


@_rule(
    "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_not", "bitwise_not"
)
def _logical(low: _Lowering, node: Node, *args: Any) -> Tile:
    name = node.name.rstrip("_").replace("bitwise", "logical")
    return low.pointwise(node, name, *(_as_mask(low, node, a) for a in args))


def _as_mask(low: _Lowering, node: Node, arg: Any) -> Any:
    if isinstance(arg, TILES) and not arg.is_mask:
        return low.pointwise(node, "nonzero", arg)
    if isinstance(arg, Weight):
        raise Unsupported("a weight used as a mask")
    return arg


@_rule("masked_fill")
def _masked_fill(low: _Lowering, node: Node, x: Any, mask: Any, value: Any) -> Tile:
    return low.pointwise(node, "where", mask, value, x)


@_rule("detach", "clone", "alias", "contiguous", "lift_fresh", "lift_fresh_copy", "positive")
def _same(low: _Lowering, node: Node, x: Any) -> Any:
    return x


@_rule("_to_copy")
def _to_copy(low: _Lowering, node: Node, x: Any, dtype: torch.dtype | None = None) -> Any:
    before, after = node.args[0].value.dtype, node.value.dtype
    if before == after:
        return x
    if before == torch.bool and after.is_floating_point:
        return low.pointwise(node, "number", x, 1.0)
    if after == torch.bool:
        return low.pointwise(node, "nonzero", x)
    raise Unsupported(f"conversion from {before} to {after}")


@_rule("view", "_unsafe_view", "reshape", "expand")
def _view(low: _Lowering, node: Node, x: Any, size: list[Any], **_: Any) -> Any:
    before, after = node.args[0].shape, node.shape
    if before == after:
        return x
    if node.name == "expand" and len(after) == 2 and after[0] == low.batch:
        return low.pointwise(node, "add", x, 0.0) if isinstance(x, TILES) else low.pointwise(node, "mul", x, 1.0)
    raise Unsupported(f"operator {node.target} from {before} to {after}")


@_rule(
    "zeros_like",
    "ones_like",
    "full_like",
    "zeros",
    "ones",
    "full",
    "new_zeros",
    "new_ones",
    "new_full",
    "scalar_tensor",
)
def _constant(low: _Lowering, node: Node, first: Any, second: Any = 0, **_: Any) -> Any:
    name = node.name
    value = 0.0 if "zeros" in name else 1.0 if "ones" in name else second
    if name == "scalar_tensor":
        return Constant(first)
    if name == "new_full":
        value = node.args[2]
    shape = node.shape
    if node.value.dtype == torch.bool:
        raise Unsupported(f"operator {node.target} of truth values")
    if shape == ():
        return Constant(float(value))
    if len(shape) != 2 or shape[0] not in (low.batch, 1):
        raise Unsupported(f"operator {node.target} of shape {shape}")
    return Pointwise("add", (Constant(float(value)), Constant(0.0)), shape[1])


@_rule("slice")
def _slice(low: _Lowering, node: Node, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    shape = node.args[0].shape
    if node.shape == shape:
        return x
    if dim % 2 != 1 or step != 1 or not isinstance(x, TILES):
        raise Unsupported("slices other than of features")
    start, _, _ = slice(start, end).indices(shape[1])
    return Slice(x, start, node.shape[1])


@_rule("narrow")
def _narrow(low: _Lowering, node: Node, x: Any, dim: int, start: int, length: int) -> Any:
    return _slice(low, node, x, dim, start, start + length)


@_rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk")
def _split(low: _Lowering, node: Node, x: Any, sizes: Any, dim: int = 0) -> list[Tile]:
    if dim % 2 != 1 or not isinstance(x, TILES):
        raise Unsupported("a split other than of features")
    if node.name == "chunk":
        raise Unsupported(f"operator {node.target}")
    widths = sizes if isinstance(sizes, list) else [sizes] * math.ceil(x.features / sizes)
    starts = [sum(widths[:i]) for i in range(len(widths))]
    return [Slice(x, start, min(width, x.features - start)) for start, width in zip(starts, widths, strict=True)]


@_rule("cat")
def _cat(low: _Lowering, node: Node, parts: list[Any], dim: int = 0) -> Tile:
    parts = [p for p in parts if not (isinstance(p, TILES) and p.features == 0)]
    if dim % 2 != 1 or not all(isinstance(p, TILES) and not p.is_mask for p in parts):
        raise Unsupported("cat other than of features of samples")
    return Cat(tuple(parts), sum(p.features for p in parts))


@_rule("slice_backward")
def _slice_backward(
    low: _Lowering, node: Node, grad: Any, sizes: list[Any], dim: int, start: int, end: int, step: int
) -> Tile:
    features = node.shape[1] if len(node.shape) == 2 else 0
    if sizes[0] is not BATCH or step != 1:
        raise Unsupported("the gradient of a slice other than of features")
    if grad.features == features:
        return grad
    if dim % 2 != 1:
        raise Unsupported("the gradient of a slice other than of features")
    start, end, _ = slice(start, end).indices(features)
    edges = [(start, Constant(0.0)), (end - start, grad), (features - end, Constant(0.0))]
    parts = [p if isinstance(p, TILES) else Pointwise("add", (p, Constant(0.0)), width) for width, p in edges if width]
    return Cat(tuple(parts), features)


@_rule("t", "transpose", "permute")
def _transpose(low: _Lowering, node: Node, x: Any, *dims: Any) -> Any:
    if node.shape == node.args[0].shape:
        return x
    return x.tile if isinstance(x, _Transposed) else _Transposed(x)


@_rule("mm")
def _mm(low: _Lowering, node: Node, a: Any, b: Any) -> Any:
    if isinstance(a, TILES) and isinstance(b, Weight):
        return Product(a, b, b.shape[1])
    if isinstance(a, _Transposed) and isinstance(b, TILES):
        return _Reduced(low.reduce(Outer(a.tile, b)))
    raise Unsupported("a product other than of samples with a weight")


@_rule("addmm")
def _addmm(low: _Lowering, node: Node, bias: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Tile:
    if beta != 1 or alpha != 1:
        raise Unsupported("addmm with factors")
    return low.pointwise(node, "add", _mm(low, node, a, b), bias)


@_rule("sum", "mean")
def _sum(low: _Lowering, node: Node, x: Any, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if not isinstance(x, TILES) or x.is_mask:
        raise Unsupported(f"operator {node.target} on a transposed value")
    dims = {d % 2 for d in (range(2) if dims in (None, []) else dims)}
    shape = list(node.shape)
    if dims == {1} and keepdim:
        total = FeatureSum(x)
        return total if node.name == "sum" else low.pointwise(node, "mul", total, 1 / x.features)
    if node.name != "sum" or 0 not in dims:
        raise Unsupported(f"operator {node.target} over dimensions {sorted(dims)}")
    total = low.reduce(RowSum(x))
    if dims == {0, 1}:
        total = low.after.call(torch.ops.aten.sum.default, (total,))
    return _Reduced(low.after.call(torch.ops.aten.reshape.default, (total, shape)))


@_rule("holdfast.rotate")
def _rotate(low: _Lowering, node: Node, x: Any, angles: Any, permutations: Any) -> Tile:
    if not (isinstance(x, TILES) and isinstance(angles, Weight) and isinstance(permutations, Weight)):
        raise Unsupported("rotations by angles that are not a weight")
    return Rotate(x, angles, permutations, x.features)


@_rule("holdfast.rotate_backward")
def _rotate_backward(low: _Lowering, node: Node, grad: Any, output: Any, angles: Any, permutations: Any) -> list[Any]:
    back = RotateBack(grad, output, angles, permutations, grad.features)
    return [back, _Reduced(low.reduce(AngleSum(back)))]
