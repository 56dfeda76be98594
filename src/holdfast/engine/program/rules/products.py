"""Products with weights, outer products, and plane rotations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from holdfast.engine.program.graph import Node, Unsupported
from holdfast.engine.program.rules.table import rule
from holdfast.engine.program.tiles import AngleSum, Cat, Constant, Outer, Product, Rotate, RotateBack, Tile
from holdfast.engine.program.values import Rows, Static, Total

if TYPE_CHECKING:
    from holdfast.engine.program.lower import Lowering

LARGEST = 1 << 16  # products of two values of each sample are written out up to this many terms
aten = torch.ops.aten


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


@rule("mm")
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
                one = low.reduce(Outer(low.gather(a.tile, left[:, i]), _sliced(low, b.tile, i, width)))
                total = one if total is None else low.finish.call(aten.add.Tensor, (total, one))
            assert total is not None
            return Total(total)
    raise Unsupported("a product other than of samples with a weight")


@rule("addmm")
def _addmm(low: Lowering, node: Node, bias: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Rows:
    product = _mm(low, node, a, b)
    if isinstance(product, Total):
        raise Unsupported(f"operator {node.target} on a sum over samples")
    product = product if alpha == 1 else low.pointwise("mul", product, alpha)
    if beta == 0:
        return product
    bias = bias if beta == 1 else low.pointwise("mul", bias, beta, shape=node.shape)
    return low.pointwise("add", product, bias, shape=node.shape)


@rule("mv")
def _mv(low: Lowering, node: Node, a: Any, b: Any) -> Any:
    a, b = _factors(low, node, a, b)
    match a, b:
        case Rows(axes=((None,), (depth,))), Static() if depth is not None:
            matrix = low.derive(b, aten.unsqueeze.default, 1, shape=(depth, 1))
            return Rows(Product(a.tile, low.weight(matrix), 1), ((None,),))
        case Rows(axes=((height,), (None,))), Rows(axes=((None,),)) if height is not None:
            return Total(low.finish.call(aten.reshape.default, (low.reduce(Outer(a.tile, b.tile)), [height])))
    raise Unsupported("a product other than of samples with a weight")


@rule("bmm")
def _bmm(low: Lowering, node: Node, a: Any, b: Any) -> Any:
    a, b = _factors(low, node, a, b)
    match a, b:
        case Rows(axes=((count,), (None,), (depth,))), Static() if count is not None and depth is not None:
            matrices = [low.derive(b, aten.select.int, 0, i, shape=b.shape[1:]) for i in range(count)]
            return Rows(_products(low, a.tile, matrices, depth), ((count,), (None,), (b.shape[2],)))
        case Static(), Rows(axes=((count,), (depth,), (None,))) if count is not None and depth is not None:
            matrices = [_turned(low, low.derive(a, aten.select.int, 0, i, shape=a.shape[1:])) for i in range(count)]
            return Rows(_products(low, b.tile, matrices, depth), ((count,), (a.shape[1],), (None,)))
        case (Rows(axes=((count,), (height,), (None,))), Rows(axes=((_,), (None,), (width,)))) if (
            count is not None and height is not None and width is not None
        ):
            sides = ((_sliced(low, a.tile, i, height), _sliced(low, b.tile, i, width)) for i in range(count))
            return Total(low.finish.call(aten.stack.default, ([low.reduce(Outer(*pair)) for pair in sides], 0)))
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


@rule("holdfast.rotate")
def _rotate(low: Lowering, node: Node, x: Any, angles: Any, permutations: Any) -> Rows:
    if not (isinstance(x, Rows) and isinstance(angles, Static) and isinstance(permutations, Static)):
        raise Unsupported("rotations by angles that are not a weight")
    return Rows(Rotate(x.tile, low.weight(angles), low.weight(permutations), x.tile.features), x.axes)


@rule("holdfast.rotate_backward")
def _rotate_backward(low: Lowering, node: Node, grad: Any, output: Any, angles: Any, permutations: Any) -> list[Any]:
    grad = low.rows(node.args[0])
    weights = low.weight(angles), low.weight(permutations)
    back = RotateBack(grad.tile, output.tile, *weights, grad.tile.features)
    return [Rows(back, grad.axes), Total(low.reduce(AngleSum(back)))]
