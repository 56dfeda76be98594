"""Graphs of ATen operators, recorded by running a function once on real tensors.

    with Recorder(inputs, own) as recorder:   every operator that runs is a node of recorder.graph, in order
        result = function(*inputs)
    recorder.node(result)                     the node of a tensor
    graph.run(*inputs)                        the same operators again, on other tensors

The recorder sits below autograd, so it sees what really ran: the operators inside a ``torch.autograd.Function``, those
under ``no_grad``, and, when autograd goes back, the gradient as autograd computes it.

PyTorch's own tracer would do, but the first trace costs more than a second in imports and each operator milliseconds. A
cell's step is a handful of operators, and this is all that it takes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Graph", "Node", "Recorder", "Unsupported", "mapped", "refuse_peeks"]


class Unsupported(Exception):
    """The fused backend cannot run this cell; the message names the operator or the reason."""


class Node:
    """One value: an input, a tensor of the cell ("own"), a constant, an operator's result, or an entry of one.

    ``shape`` holds whole numbers, and ``Batch`` where a trace at two batch sizes found one (trace.py).
    """

    __slots__ = ("args", "dtype", "kind", "kwargs", "shape", "target", "value")

    def __init__(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any = None):
        self.kind, self.target, self.args, self.kwargs = kind, target, args, kwargs
        self.shape: tuple[Any, ...] = ()
        self.dtype: torch.dtype | None = None
        self.value: Tensor | None = value if kind == "constant" else None
        if isinstance(value, Tensor):
            self.shape, self.dtype = tuple(value.shape), value.dtype

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
    def inputs(self) -> list[Node]:
        found: list[Node] = []
        mapped((self.args, self.kwargs), found.append)
        return found

    @property
    def is_random(self) -> bool:
        return self.kind == "call" and torch.Tag.nondeterministic_seeded in getattr(self.target, "tags", ())

    def __repr__(self) -> str:
        return f"{self.name}{self.shape}"


class Graph:
    """Nodes in order. ``inputs`` are given to ``run``; ``outputs`` come out of it, None where there is no value."""

    def __init__(self) -> None:
        self.inputs: list[Node] = []
        self.nodes: list[Node] = []
        self.outputs: list[Node | None] = []
        self._order: list[Node] | None = None

    def input(self, value: Any = None) -> Node:
        node = Node("input", None, (), {}, value)
        self.inputs.append(node)
        return node

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, value: Any = None) -> Node:
        self.nodes.append(Node("call", target, args, kwargs or {}, value))
        return self.nodes[-1]

    def copy(self, node: Node, place: Callable[[Node], Node]) -> Node:
        """The same operator in this graph, on ``place`` of its arguments."""
        if node.kind == "constant":
            self.nodes.append(node)
            return node
        copied = self.call(node.target, *mapped((node.args, node.kwargs), place))
        copied.shape, copied.dtype = node.shape, node.dtype
        return copied

    def live(self, roots: Iterable[Node | None]) -> set[Node]:
        """What the roots are made of."""
        found = {root for root in roots if root is not None}
        for node in reversed(self.nodes):
            if node in found:
                found.update(node.inputs)
        return found

    def run(self, *inputs: Tensor) -> tuple[Any, ...]:
        """The outputs for these inputs. A graph that has run must not be extended."""
        if self._order is None:
            live = self.live(self.outputs)
            self._order = [node for node in self.nodes if node in live]
        values: dict[Node, Any] = dict(zip(self.inputs, inputs, strict=True))
        for node in self._order:
            if node.kind == "constant":
                values[node] = node.value
            else:
                args = [values[a] if type(a) is Node else mapped(a, values.__getitem__) for a in node.args]
                kwargs = mapped(node.kwargs, values.__getitem__) if node.kwargs else {}
                values[node] = node.target(*args, **kwargs)
        return tuple(None if node is None else values[node] for node in self.outputs)


# What Python code can learn about a tensor without an operator that a recorder would see.
_METHODS = "numpy __array__ tolist data_ptr untyped_storage storage __dlpack__ register_hook retain_grad backward"
_ATTRIBUTES = "requires_grad grad_fn is_leaf grad data"
_PEEKS = {getattr(Tensor, name): f"{name}()" for name in f"{_METHODS} requires_grad_".split()}
_PEEKS |= {getattr(Tensor, name).__get__: name for name in _ATTRIBUTES.split()}
_PEEKS |= {getattr(Tensor, name).__set__: name for name in ("requires_grad", "data")}


class refuse_peeks(TorchFunctionMode):
    """Refuses Python code that looks past the operators: its course, or its side effects, could not be followed."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PEEKS:
            raise Unsupported(f"its step uses {_PEEKS[func]} of a tensor")
        return func(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Writes down every operator that runs inside ``with``.

    Tensors of ``own`` may be read besides ``inputs``: they become nodes of kind "own" whose target is their position.
    Any other tensor from outside is refused, as is a number read out of a tensor: a graph could not follow its changes.
    ``refused``: tensors whose reading is refused, with the reason.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # Note [Left alone by torch.compile], scan.py: the caller sees to it

    def __init__(
        self, inputs: Sequence[Tensor], own: Sequence[Tensor] = (), refused: Sequence[tuple[Tensor, str]] = ()
    ):
        super().__init__()
        self.graph, self.draws = Graph(), False
        self._refused = {id(tensor): reason for tensor, reason in refused}
        self._known: dict[int, Node] = {}
        self._held: list[Any] = [*inputs, *own]  # an id says nothing once its tensor is gone
        self._own = {id(t): i for i, t in enumerate(own)}
        for tensor in inputs:
            self._known[id(tensor)] = self.graph.input(tensor)

    def node(self, tensor: Tensor) -> Node:
        known = self._known.get(id(tensor))
        if known is None:
            if id(tensor) in self._refused:
                raise Unsupported(self._refused[id(tensor)])
            if id(tensor) not in self._own:
                raise Unsupported("its step reads a tensor that is neither in weights() nor a parameter or buffer")
            known = Node("own", self._own[id(tensor)], (), {}, tensor)
            self._known[id(tensor)] = known
            self.graph.nodes.append(known)
        return known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            self._refuse_shared(func, args, kwargs)
        if kwargs.get("generator") is not None or any(isinstance(arg, torch.Generator) for arg in args):
            raise Unsupported(f"its step draws from a generator of its own, in operator {func}")
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.draws = True
            if any(
                isinstance(arg, Tensor) and not arg.is_contiguous() for arg in args
            ):  # Note [Random numbers], trace.py
                raise Unsupported(f"operator {func} on a value that is not contiguous in memory")
        if func is torch.ops.aten.lift_fresh.default and id(args[0]) not in self._known:
            return self._constant(args[0])
        node = self.graph.call(func, *mapped((args, kwargs), self.node, Tensor))
        result = func(*args, **kwargs)
        self._held.append(result)
        if isinstance(result, Tensor):
            node.shape, node.dtype = tuple(result.shape), result.dtype
            self._known[id(result)] = node
        elif isinstance(result, list | tuple):
            for i, entry in enumerate(result):
                if isinstance(entry, Tensor):
                    self._known[id(entry)] = self.graph.call(operator.getitem, (node, i), value=entry)
                elif entry is not None:
                    raise Unsupported("its step reads a number out of a tensor, so its course may change")
        elif result is not None:
            raise Unsupported("its step reads a number out of a tensor, so its course may change")
        return result

    def _constant(self, tensor: Tensor) -> Tensor:
        """A tensor made of Python numbers, as ``torch.tensor(0.5)`` is."""
        node = Node("constant", None, (), {}, tensor.clone())
        self.graph.nodes.append(node)
        self._held.append(tensor)
        self._known[id(tensor)] = node
        return tensor

    def _refuse_shared(self, func: Any, args: Any, kwargs: Any) -> None:
        """A graph has values, not memory: what is written in place must be seen under one name only."""
        written = []
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[position] if position < len(args) else kwargs.get(argument.name)
                if position or not isinstance(value, Tensor):
                    raise Unsupported(f"its step writes to a given tensor (out=), in operator {func}")
                written.append(value)
        for tensor in written:
            if self.node(tensor).kind != "call":
                raise Unsupported("its step changes its arguments in place")
            memory = tensor.untyped_storage().data_ptr()
            for held in self._held:
                for other in held if isinstance(held, list | tuple) else (held,):
                    if (
                        isinstance(other, Tensor)
                        and other is not tensor
                        and other.untyped_storage().data_ptr() == memory
                    ):
                        raise Unsupported("its step writes in place where another value is a view")


def mapped(value: Any, place: Callable[[Any], Any], kind: type = Node) -> Any:
    """``value`` with ``place`` of every ``kind`` in it, inside lists, tuples and dictionaries too."""
    if isinstance(value, kind):
        return place(value)
    if isinstance(value, list | tuple):
        return type(value)(mapped(v, place, kind) for v in value)
    if isinstance(value, dict):
        return {k: mapped(v, place, kind) for k, v in value.items()}
    return value
