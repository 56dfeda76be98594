"""Complex numbers as pairs of reals: what each ATen operator does to both parts.

A step reaches complex numbers by ``view_as_complex`` of pairs of features, ``torch.complex``, ``torch.polar`` or
complex weights. A value is then a ``Pair``. An operator that moves entries does so to both parts, and those that
compute have a rule below.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from holdfast.engine.program.graph import Node, Unsupported, mapped
from holdfast.engine.program.rules import RULES
from holdfast.engine.program.rules.shapes import joined
from holdfast.engine.program.rules.table import Rule, enter
from holdfast.engine.program.tiles import Constant
from holdfast.engine.program.values import Pair, Rows, Static, Total

if TYPE_CHECKING:
    from holdfast.engine.program.lower import Lowering

__all__ = ["is_complex", "lower_complex"]

aten = torch.ops.aten
MOVES = {
    "view", "_unsafe_view", "reshape", "expand", "permute", "t", "transpose", "slice", "select", "split", "cat",
    "stack", "split_with_sizes", "squeeze", "unsqueeze", "slice_backward", "select_backward", "sum", "mean", "flip",
    "roll", "neg", "repeat", "detach", "clone", "alias", "zeros_like", "zeros", "new_zeros", "masked_fill",
    "unbind", "cumsum",
}  # fmt: skip


def is_complex(node: Node, values: list[Any]) -> bool:
    whole = [node.dtype, *(arg.dtype for arg in node.inputs)]
    return any(dtype is not None and dtype.is_complex for dtype in whole) or any(isinstance(v, Pair) for v in values)


def lower_complex(low: Lowering, node: Node) -> Any:
    """The value of a node that makes or takes complex numbers."""
    name = node.name if node.name.startswith("_") else node.name.removesuffix("_")
    if name in _RULES:
        args = [mapped(a, low.env.__getitem__) for a in node.args]
        return _RULES[name](low, node, *args, **mapped(node.kwargs, low.env.__getitem__))
    if name not in MOVES:
        raise Unsupported(f"operator {node.target} on complex numbers")
    parts = []
    for place in range(2):
        here = {arg: _parts(low, low.env[arg])[place] for arg in node.inputs}
        args, kwargs = mapped((node.args, {k: v for k, v in node.kwargs.items() if k == "dim"}), here.__getitem__)
        kept = {arg: low.env[arg] for arg in node.inputs}
        low.env.update(here)
        try:
            parts.append(RULES[name](low, node, *args, **kwargs))
        finally:
            low.env.update(kept)
    if isinstance(parts[0], list):
        return [Pair(*both) for both in zip(*parts, strict=True)]
    if isinstance(parts[0], Total):
        return Total(low.finish.call(aten.complex.default, (parts[0].node, parts[1].node)))
    return Pair(*parts)


def _parts(low: Lowering, value: Any) -> tuple[Any, Any]:
    """The real and the imaginary part."""
    match value:
        case Pair(real=real, imag=imag):
            return real, imag
        case Static(node=node) if node.dtype is not None and node.dtype.is_complex:
            plain = low.derive(value, aten.resolve_conj.default, shape=value.shape)
            pairs = low.derive(plain, aten.view_as_real.default, shape=(*value.shape, 2))
            pairs.node.dtype = low.dtype
            found = [low.derive(pairs, aten.select.int, -1, i, shape=value.shape) for i in range(2)]
            return found[0], found[1]
        case complex():
            return value.real, value.imag
        case Constant(value=complex() as number):
            return Constant(number.real), Constant(number.imag)
        case _:
            return value, 0.0


_RULES: dict[str, Rule] = {}
_rule = functools.partial(enter, _RULES)


@_rule("view_as_complex")
def _view_as_complex(low: Lowering, node: Node, x: Any) -> Pair:
    return Pair(RULES["select"](low, node, x, -1, 0), RULES["select"](low, node, x, -1, 1))


@_rule("view_as_real")
def _view_as_real(low: Lowering, node: Node, z: Any) -> Rows:
    parts = []
    for part in _parts(low, z):
        rows = low.pointwise("same", part, shape=node.shape[:-1])
        parts.append(low.viewed(rows, (*node.shape[:-1], 1)))
    return joined(low, node, parts, len(node.shape) - 1)


@_rule("complex")
def _complex(low: Lowering, node: Node, real: Any, imag: Any) -> Pair:
    return Pair(*(low.pointwise("same", part, shape=node.shape) for part in (real, imag)))


@_rule("polar")
def _polar(low: Lowering, node: Node, size: Any, angle: Any) -> Pair:
    turn = (low.pointwise(op, angle, shape=node.shape) for op in ("cos", "sin"))
    return Pair(*(low.pointwise("mul", size, part, shape=node.shape) for part in turn))


@_rule("_conj", "conj_physical")
def _conj(low: Lowering, node: Node, z: Any) -> Pair:
    real, imag = _parts(low, z)
    match imag:
        case Constant(value=value):
            return Pair(real, Constant(-value))
        case Static():
            return Pair(real, low.derive(imag, aten.neg.default, shape=imag.shape))
        case _:
            return Pair(real, -imag if isinstance(imag, float) else low.pointwise("neg", imag))


@_rule("resolve_conj", "_to_copy", "positive")
def _same(low: Lowering, node: Node, z: Any, dtype: Any = None) -> Any:
    return Pair(*_parts(low, z))


@_rule("add", "sub")
def _add(low: Lowering, node: Node, a: Any, b: Any, alpha: Any = 1) -> Pair:
    if alpha != 1:
        raise Unsupported(f"operator {node.target} with alpha")
    pairs = zip(_parts(low, a), _parts(low, b), strict=True)
    return Pair(*(low.pointwise(node.name.removesuffix("_"), x, y, shape=node.shape) for x, y in pairs))


@_rule("mul")
def _mul(low: Lowering, node: Node, a: Any, b: Any) -> Pair:
    (ar, ai), (br, bi) = _parts(low, a), _parts(low, b)

    def times(x: Any, y: Any) -> Any:
        return low.pointwise("mul", x, y, shape=node.shape)

    return Pair(low.pointwise("sub", times(ar, br), times(ai, bi)), low.pointwise("add", times(ar, bi), times(ai, br)))


@_rule("div")
def _div(low: Lowering, node: Node, a: Any, b: Any) -> Pair:
    if is_complex(node.args[1], [b]) if isinstance(node.args[1], Node) else isinstance(b, complex):
        raise Unsupported(f"operator {node.target} by a complex number")
    return Pair(*(low.pointwise("div", part, b, shape=node.shape) for part in _parts(low, a)))


@_rule("abs")
def _abs(low: Lowering, node: Node, z: Any) -> Rows:
    squares = [low.pointwise("square", part, shape=node.shape) for part in _parts(low, z)]
    return low.pointwise("sqrt", low.pointwise("add", *squares))


@_rule("sgn")
def _sgn(low: Lowering, node: Node, z: Any) -> Pair:
    size = _abs(low, node, z)
    zero = low.pointwise("eq", size, 0.0)
    parts = (low.pointwise("div", part, size, shape=node.shape) for part in _parts(low, z))
    return Pair(*(low.pointwise("where", zero, 0.0, part) for part in parts))


@_rule("exp")
def _exp(low: Lowering, node: Node, z: Any) -> Pair:
    real, imag = _parts(low, z)
    size = low.pointwise("exp", real, shape=node.shape)
    return Pair(*(low.pointwise("mul", size, low.pointwise(op, imag, shape=node.shape)) for op in ("cos", "sin")))
