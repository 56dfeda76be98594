"""A tile program to ONNX nodes.

A tile becomes a tensor whose last axis holds its features: (batch, features) inside a loop, (time, batch, features)
outside it. All nodes work on the last axis, so the same code writes both, and what does not depend on a state is
computed for all steps at once, outside.

    Product   MatMul with a constant
    Rotate    MatMul with the orthogonal matrix that its angles and permutations make: one product instead of 6 k nodes
    Slice, Gather, Cat, Fold, Running    Slice, Gather, Concat, ReduceSum or ReduceMax, CumSum
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.engine.program.tiles import (
    Cat,
    Constant,
    Fold,
    Gather,
    Input,
    Kind,
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
    read_by,
)
from holdfast.engine.targets.onnx.graph import Graph, Value
from holdfast.engine.targets.onnx.operators import OPERATORS
from holdfast.errors import UnsupportedError
from holdfast.linalg.givens import rotation_matrix

__all__ = ["TileWriter", "ahead_of_loop"]


def ahead_of_loop(program: StepProgram) -> list[Tile]:
    """The tiles that the loop reads and that need x but no state, so that they are computed outside, for all steps."""
    need, given = set[Tile](), set[Tile]()
    order = in_order(program.roots)
    for tile in order:
        if isinstance(tile, Input):
            (need if tile.slot.kind is Kind.STATE else given).add(tile)
        elif any(part in need for part in read_by(tile)):
            need.add(tile)
        elif any(part in given for part in read_by(tile)):
            given.add(tile)
    roots = set(program.roots)
    read = {part for tile in order if tile not in given for part in read_by(tile)} | roots
    return [tile for tile in order if tile in given and tile in read]


class TileWriter:
    """Writes tiles into a graph, each once.

    Args:
        graph: where to.
        weights: what the program's ``Weight``s are.
        known: values that are there already: inputs, and tiles from outside the loop.
        like: a value whose axes before the last are those of every tile, ``axes`` of them.
        who: the cell, for messages.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Sequence[Tensor],
        known: dict[Tile, Value],
        like: Value,
        axes: int,
        who: str,
    ):
        self.graph, self.weights, self.like, self.axes, self.who = graph, weights, like, axes, who
        self._done = dict(known)

    def write(self, roots: Sequence[Tile]) -> list[Value]:
        """The values of these tiles; what they are made of is written as far as it is not there."""
        todo = [root for root in roots if root not in self._done]
        for tile in self._missing(todo):
            self._done[tile] = self._tile(tile)
        return [self._done[root] for root in roots]

    def _missing(self, roots: Sequence[Tile]) -> list[Tile]:
        """As ``in_order``, but stopping at what is known."""
        order, seen, stack = list[Tile](), set[Tile](), [(root, False) for root in reversed(roots)]
        while stack:
            tile, ready = stack.pop()
            if ready:
                order.append(tile)
            elif tile not in seen and tile not in self._done:
                seen.add(tile)
                stack.append((tile, True))
                stack += [(part, False) for part in reversed(read_by(tile))]
        return order

    def _tile(self, tile: Tile) -> Value:
        g = self.graph
        match tile:
            case Pointwise(op=op, args=args):
                if op not in OPERATORS:
                    raise UnsupportedError(
                        f"ONNX has nothing for the operator {op!r} of {self.who}; write its step with other operators."
                    )
                return self._full(OPERATORS[op](*(self._operand(arg) for arg in args)), tile)
            case Slice(tile=inner, start=start, features=features):
                return g.part(self._done[inner], start, start + features, -1)
            case Gather(tile=inner, table=table):
                return g.op("Gather", self._done[inner], g.whole(*table), axis=-1)
            case Cat(parts=parts):
                return g.concat([self._done[part] for part in parts], axis=-1)
            case Product(tile=inner, matrix=matrix):
                return g.op("MatMul", self._done[inner], self._operand(matrix))
            case Rotate(tile=inner, angles=angles, permutations=permutations):
                turn = rotation_matrix(self.weights[angles.index].double(), self.weights[permutations.index])
                return g.op("MatMul", self._done[inner], g.constant(turn.mT.float().numpy()))
            case Fold(tile=inner, size=size, op=op):
                kind = {"add": "ReduceSum", "maximum": "ReduceMax"}[op]
                return g.op(kind, self._grouped(inner, size), g.whole(-1), keepdims=0)
            case Running(tile=inner, size=size):
                sums = g.op("CumSum", self._grouped(inner, size), g.constant(np.array(-1, np.int64)))
                return g.op("Reshape", sums, g.whole(*[0] * self.axes, inner.features))
            case Input(slot=Slot(kind=Kind.NOISE)):
                raise UnsupportedError(
                    f"{self.who} draws random numbers at every step, which a graph for other runtimes cannot repeat; "
                    "draw them in training only."
                )
            case _:
                raise UnsupportedError(f"ONNX has nothing for {type(tile).__name__} of {self.who}.")

    def _grouped(self, tile: Tile, size: int) -> Value:
        """(..., groups · size) as (..., groups, size)."""
        return self.graph.op("Reshape", self._done[tile], self.graph.whole(*[0] * self.axes, -1, size))

    def _operand(self, operand: Operand) -> Value:
        if isinstance(operand, Constant):
            return self.graph.constant(np.array(operand.value, bool if isinstance(operand.value, bool) else np.float32))
        if isinstance(operand, Weight):
            weight = self.weights[operand.index].detach()
            return self.graph.constant((weight.float() if weight.dtype != torch.bool else weight).numpy())
        return self._done[operand]

    def _full(self, value: Value, tile: Pointwise) -> Value:
        """With the axes and features of its tile, also if it is made of numbers or of one feature alone."""
        parts = [part.features for part in read_by(tile)]
        weights = [arg.shape[0] for arg in tile.args if isinstance(arg, Weight) and arg.shape]
        if parts and max(parts + weights) == tile.features:
            return value
        g = self.graph
        ahead = g.op("Shape", self.like, end=self.axes)
        return g.op("Expand", value, g.concat([ahead, g.whole(tile.features)], axis=0))
