"""Graphs of ATen operators, recorded by running a function once on real tensors.

    record(function, inputs)  →  Graph: nodes in the order they ran, each with an example of its value
    graph.run(*inputs)        →  the same operators again, on other tensors; autograd sees them as usual

PyTorch's own tracer would do, but the first trace costs more than a second in imports and each operator milliseconds; a
cell's step is a handful of operators, and this is all that it takes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.linalg.givens import rotate

__all__ = ["Graph", "Node", "Unsupported", "record"]


class Unsupported(Exception):
    """The fused backend cannot run this cell; the message names the operator or the reason."""


class Node:
    """One value: an input, a tensor from outside ("own"), an operator's result, or one entry of such a result."""

    __slots__ = ("args", "kind", "kwargs", "target", "value")

    def __init__(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any):
        self.kind, self.target, self.args, self.kwargs, self.value = kind, target, args, kwargs, value

    @property
    def name(self) -> str:
        """``mul`` for torch.ops.aten.mul.Tensor, ``holdfast.rotate`` for ours, ``getitem`` for an entry."""
        if self.kind != "call":
            return self.kind
        if self.target is operator.getitem:
            return "getitem"
        namespace, name = self.target._schema.name.split("::")
        return name if namespace == "aten" else f"{namespace}.{name}"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def inputs(self) -> list[Node]:
        return list(_nodes((self.args, self.kwargs)))

    def __repr__(self) -> str:
        return f"{self.name}{self.shape if isinstance(self.value, Tensor) else ''}"


class Graph:
    """Nodes in order. ``inputs`` are given to ``run``; ``outputs`` come out of it, None where there is no value."""

    def __init__(self) -> None:
        self.inputs: list[Node] = []
        self.nodes: list[Node] = []
        self.outputs: list[Node | None] = []

    def input(self, value: Any = None) -> Node:
        node = Node("input", None, (), {}, value)
        self.inputs.append(node)
        return node

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, value: Any = None) -> Node:
        self.nodes.append(Node("call", target, args, kwargs or {}, value))
        return self.nodes[-1]

    def copy(self, node: Node, place: Callable[[Node], Node]) -> Node:
        """The same operator in this graph, on ``place`` of its arguments."""
        args, kwargs = _mapped((node.args, node.kwargs), place)
        return self.call(node.target, args, kwargs, node.value)

    def live(self, roots: Iterable[Node | None]) -> set[Node]:
        """What the roots are made of."""
        found = {root for root in roots if root is not None}
        for node in reversed(self.nodes):
            if node in found:
                found.update(node.inputs)
        return found

    def run(self, *inputs: Tensor) -> tuple[Any, ...]:
        values: dict[Node, Any] = dict(zip(self.inputs, inputs, strict=True))
        live = self.live(self.outputs)
        for node in self.nodes:
            if node in live:
                args, kwargs = _mapped((node.args, node.kwargs), values.__getitem__)
                # a rotation by the function, which has every derivative, rather than by the operator that a trace sees
                target = rotate if node.name == "holdfast.rotate" else node.target
                values[node] = target(*args, **kwargs)
        return tuple(None if node is None else values[node] for node in self.outputs)


def record(
    function: Callable[..., Sequence[Tensor | None]], inputs: Sequence[Tensor], own: Sequence[Tensor] = ()
) -> Graph:
    """Run ``function`` on ``inputs`` and write down every operator.

    Tensors of ``own`` may be read besides the inputs: they become nodes of kind "own" whose target is their position.
    Any other tensor from outside is refused, as is a number read out of a tensor: a graph could not follow its changes.
    """
    recorder = _Recorder(inputs, own)
    with recorder:
        outputs = function(*inputs)
    recorder.graph.outputs = [None if t is None else recorder.node(t) for t in outputs]
    return recorder.graph


class _Recorder(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return (
            False  # Note [Left alone by torch.compile], scan.py: the caller sees to it, without importing torch._dynamo
        )

    def __init__(self, inputs: Sequence[Tensor], own: Sequence[Tensor]):
        super().__init__()
        self.graph = Graph()
        self._known: dict[int, Node] = {}
        self._held: list[Any] = [*inputs, *own]  # an id says nothing once its tensor is gone
        self._own = {id(t): i for i, t in enumerate(own)}
        for tensor in inputs:
            self._known[id(tensor)] = self.graph.input(tensor.detach())

    def node(self, tensor: Tensor) -> Node:
        known = self._known.get(id(tensor))
        if known is None:
            if id(tensor) not in self._own:
                raise Unsupported("its step reads a tensor that is neither in weights() nor a parameter or buffer")
            known = Node("own", self._own[id(tensor)], (), {}, tensor.detach())
            self._known[id(tensor)] = known
            self.graph.nodes.append(known)
        return known

    def _refuse_shared(self, written: Tensor) -> None:
        """A graph has values, not memory: what is written in place must be seen under one name only."""
        if self.node(written).kind != "call":
            raise Unsupported("its step changes its arguments in place")
        memory = written.untyped_storage().data_ptr()
        for held in self._held:
            for tensor in held if isinstance(held, list | tuple) else (held,):
                if tensor is not written and tensor.untyped_storage().data_ptr() == memory:
                    raise Unsupported("its step writes in place where another value is a view")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            self._refuse_shared(args[0])
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
            raise Unsupported("its step reads a number out of a tensor, so its course may change")
        if func is torch.ops.aten.lift_fresh.default and id(args[0]) not in self._known and args[0].dim() == 0:
            node = self.graph.call(torch.ops.aten.scalar_tensor.default, (args[0].item(),), {"dtype": args[0].dtype})
        else:
            node_args, node_kwargs = _tensors_to_nodes((args, kwargs), self.node)
            node = self.graph.call(func, node_args, node_kwargs)
        result = func(*args, **kwargs)
        self._held.append(result)
        if isinstance(result, Tensor):
            node.value = result.detach()
            self._known[id(result)] = node
        elif isinstance(result, list | tuple):
            node.value = tuple(t.detach() for t in result)
            for i, entry in enumerate(result):
                self._known[id(entry)] = self.graph.call(operator.getitem, (node, i), value=entry.detach())
        return result


def _tensors_to_nodes(value: Any, node: Callable[[Tensor], Node]) -> Any:
    if isinstance(value, Tensor):
        return node(value)
    if isinstance(value, list | tuple):
        return type(value)(_tensors_to_nodes(v, node) for v in value)
    if isinstance(value, dict):
        return {k: _tensors_to_nodes(v, node) for k, v in value.items()}
    return value


def _mapped(value: Any, place: Callable[[Node], Any]) -> Any:
    if isinstance(value, Node):
        return place(value)
    if isinstance(value, list | tuple):
        return type(value)(_mapped(v, place) for v in value)
    if isinstance(value, dict):
        return {k: _mapped(v, place) for k, v in value.items()}
    return value


def _nodes(value: Any) -> Iterable[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _nodes(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from _nodes(v)
