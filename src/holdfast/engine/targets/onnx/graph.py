"""ONNX nodes on their way: names are given, constants are kept once, and values can be added and multiplied.

    g = Graph()
    y = g.op("Tanh", g.constant(x) + 1.0)     two nodes of g.nodes, two entries of g.initializers

A body of a Scan is a ``Graph`` inside another: it has nodes of its own, and reads constants and values of the outer one
by name, as ONNX allows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

__all__ = ["Graph", "Value"]


@dataclasses.dataclass(frozen=True)
class Value:
    """A name in a graph.

    Example:
        >>> g = Graph()
        >>> x = Value(g, "x")
        >>> _ = 2.0 * x + x
        >>> [node.op_type for node in g.nodes]
        ['Mul', 'Add']
    """

    graph: Graph
    name: str

    def __add__(self, other: Value | float) -> Value:
        return self.graph.op("Add", self, other)

    def __sub__(self, other: Value | float) -> Value:
        return self.graph.op("Sub", self, other)

    def __mul__(self, other: Value | float) -> Value:
        return self.graph.op("Mul", self, other)

    def __truediv__(self, other: Value | float) -> Value:
        return self.graph.op("Div", self, other)

    def __radd__(self, other: float) -> Value:
        return self.graph.op("Add", other, self)

    def __rsub__(self, other: float) -> Value:
        return self.graph.op("Sub", other, self)

    def __rmul__(self, other: float) -> Value:
        return self.graph.op("Mul", other, self)

    def __rtruediv__(self, other: float) -> Value:
        return self.graph.op("Div", other, self)

    def __lt__(self, other: Value | float) -> Value:
        return self.graph.op("Less", self, other)

    def __gt__(self, other: Value | float) -> Value:
        return self.graph.op("Greater", self, other)

    def __le__(self, other: Value | float) -> Value:
        return self.graph.op("LessOrEqual", self, other)

    def __ge__(self, other: Value | float) -> Value:
        return self.graph.op("GreaterOrEqual", self, other)


class Graph:
    """Nodes in order.

    Args:
        outer: the graph that this one is a Scan's body in; names and constants are shared with it.

    Example:
        >>> g = Graph()
        >>> g.constant(np.float32([1, 2])).name == g.constant(np.float32([1, 2])).name, len(g.initializers)
        (True, 1)
    """

    def __init__(self, outer: Graph | None = None):
        self.nodes: list[NodeProto] = []
        self.root: Graph = self if outer is None else outer.root
        if outer is None:
            self.initializers: list[TensorProto] = []
            self._constants: dict[Any, str] = {}
            self._count = 0

    def fresh(self, word: str) -> str:
        """A name that no other value has."""
        self.root._count += 1
        return f"{word.lower()}.{self.root._count}"

    def value(self, name: str) -> Value:
        return Value(self, name)

    def constant(self, number: Any) -> Value:
        """A constant; a Python number is of float32."""
        array = np.asarray(number, dtype=np.float32) if isinstance(number, int | float) else np.asarray(number)
        root, key = self.root, (array.dtype.str, array.shape, array.tobytes())
        if key not in root._constants:
            root._constants[key] = self.fresh("constant")
            root.initializers.append(numpy_helper.from_array(array.copy(order="C"), root._constants[key]))
        return self.value(root._constants[key])

    def whole(self, *numbers: int) -> Value:
        """Whole numbers, as shapes and axes are given."""
        return self.constant(np.array(numbers, dtype=np.int64))

    def op(self, kind: str, *inputs: Value | float | None, **attributes: Any) -> Value:
        """A node with one output. None is an input that is left out."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: Value | float | None, **attributes: Any) -> list[Value]:
        """A node with several outputs."""
        names = []
        for given in inputs:
            given = self.constant(given) if isinstance(given, int | float) else given
            names.append("" if given is None else given.name)
        made = [self.fresh(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, names, made, name=f"{made[0]}.node", **attributes))
        return [self.value(name) for name in made]

    def where(self, mask: Value, yes: Value | float, no: Value | float) -> Value:
        return self.op("Where", mask, yes, no)

    def cast(self, value: Value, dtype: int) -> Value:
        return self.op("Cast", value, to=dtype)

    def concat(self, values: list[Value], axis: int) -> Value:
        return values[0] if len(values) == 1 else self.op("Concat", *values, axis=axis)

    def part(self, value: Value, start: int, end: int, axis: int) -> Value:
        """Entries ``start`` to ``end`` along an axis."""
        return self.op("Slice", value, self.whole(start), self.whole(end), self.whole(axis))
