"""A traced step as text, and a cell made of that text: how a step travels inside a graph of PyTorch.

    written(traced)  →  text            the operators of the step and of its gradient, in order
    TextCell(text)   →  a Cell          with the same step and gradient; every tensor comes through ``weights``

The text is JSON and names operators of PyTorch and nothing else: no class, no code, no tensor of the cell. So a program
that holds it can be saved, and run where the cell's class is unknown.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from holdfast.cells import Cell
from holdfast.engine.program.graph import Node, Unsupported, mapped
from holdfast.engine.program.trace import Batch, Traced
from holdfast.errors import DataError
from holdfast.linalg.givens import rotate
from holdfast.types import State, Weights

__all__ = ["TextCell", "written"]

FORMAT = 1
LARGEST = 4096  # entries of a constant tensor that is written down
_KINDS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
_OURS: dict[str, Callable[..., Any]] = {
    "holdfast.rotate.default": rotate,
    "holdfast.rotate_backward.default": torch.ops.holdfast.rotate_backward,
    "getitem": operator.getitem,
}


def written(traced: Traced, name: str) -> tuple[str, tuple[str, ...]]:
    """The step of the cell ``name`` as text, and the names of the cell's own tensors that it reads besides.

    In the text these tensors follow those of ``cell.weights()``, as more weights.

    ``Unsupported`` if the step draws random numbers or holds something that cannot be written down.
    """
    states, graph = len(traced.state_sizes), traced.graph
    live = graph.live([*traced.new, *traced.grads])
    if any(node.is_random for node in live):
        raise Unsupported("it draws random numbers")
    own = [node for node in graph.nodes if node.kind == "own" and node in live]
    given = 1 + states + traced.weights
    inputs = [*graph.inputs[:given], *own, *graph.inputs[given:]]
    places = {node: i for i, node in enumerate(inputs)}
    nodes: list[Any] = []
    for node in graph.nodes:
        if node in live and node.kind != "own":
            places[node] = len(inputs) + len(nodes)
            nodes.append(_entry(node, places))
    grads = [traced.grads[i] for i in range(given)] + [traced.grads[given + node.target] for node in own]
    table = {
        "format": FORMAT,
        "cell": name,
        "dtype": _name(traced.dtype),
        "source": traced.source_features,
        "states": traced.state_sizes,
        "weights": traced.weights + len(own),
        "nodes": nodes,
        "new": [places[node] for node in traced.new],
        "grads": [None if grad is None else places[grad] for grad in grads],
    }
    return json.dumps(table, separators=(",", ":")), tuple(traced.own[node.target] for node in own)


def _entry(node: Node, places: dict[Node, int]) -> list[Any]:
    if node.kind == "constant":
        assert node.value is not None
        if node.value.numel() > LARGEST:
            raise Unsupported(f"its step holds a constant of {node.value.numel()} numbers; make it a buffer")
        return ["constant", _coded(node.value.tolist(), places), _name(node.value.dtype)]
    name = "getitem" if node.target is operator.getitem else str(node.target)
    return [name, _coded(list(node.args), places), _coded(dict(node.kwargs), places)]


def _coded(value: Any, places: dict[Node, int]) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [_coded(entry, places) for entry in value]
        case tuple():
            return {"tuple": [_coded(entry, places) for entry in value]}
        case dict():
            return {"dict": {key: _coded(entry, places) for key, entry in value.items()}}
        case Node():
            return {"node": places[value]}
        case Batch():
            return {"batch": value.times}
        case complex():
            return {"complex": [value.real, value.imag]}
        case torch.device():
            return {"device": str(value)}
    for name, kind in _KINDS.items():
        if isinstance(value, kind):
            return {name: _name(value)}
    raise Unsupported(f"its step uses a {type(value).__name__}, which cannot be written down")


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


# -- back to operators -----------------------------------------------------------------------------------------------


class _Step:
    """What a text says, ready to run."""

    def __init__(self, text: str):
        try:
            table = json.loads(text)
            if table["format"] != FORMAT:
                raise ValueError(f"format {table['format']}, and this version of Holdfast knows format {FORMAT}")
            self.name = str(table["cell"])
            self.dtype = getattr(torch, table["dtype"])
            self.source, self.states = int(table["source"]), tuple(map(int, table["states"]))
            self.inputs = 1 + len(self.states) + int(table["weights"])
            self.nodes = [_operator(*entry) for entry in table["nodes"]]
            self.new: list[int] = table["new"]
            self.grads: list[int | None] = table["grads"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"The operator holdfast::scan has a step that this version of Holdfast cannot read ({error}). Export "
                "the model again."
            ) from None
        count = self.inputs + len(self.states)
        self._ahead = self._order(self.new, count)
        self._whole = self._order([grad for grad in self.grads if grad is not None], count)

    def _order(self, roots: Sequence[int], count: int) -> list[int]:
        """The operators that the roots are made of."""
        live = set(roots)
        for i in reversed(range(len(self.nodes))):
            if count + i in live:
                mapped(self.nodes[i][1:], lambda node: live.add(node.place), _Place)
        return [i for i in range(len(self.nodes)) if count + i in live]

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return self._run(self._ahead, inputs, self.new)  # type: ignore[return-value]

    def backward(self, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        return self._run(self._whole, [*inputs, *cotangents], self.grads)

    def _run(
        self, order: list[int], inputs: Sequence[Tensor], wanted: Sequence[int | None]
    ) -> tuple[Tensor | None, ...]:
        count, batch = self.inputs + len(self.states), len(inputs[0])
        values: dict[int, Any] = dict(enumerate(inputs))
        for i in order:
            target, args, kwargs = self.nodes[i]
            args, kwargs = mapped((args, kwargs), lambda node: values[node.place], _Place)
            args, kwargs = mapped((args, kwargs), lambda size: size.times * batch, Batch)
            values[count + i] = target(*args, **kwargs)
        return tuple(None if place is None else values[place] for place in wanted)


class _Place:
    """Stands in the arguments of an operator for the value of another."""

    def __init__(self, place: int):
        self.place = place


def _operator(name: str, args: Any, kwargs: Any) -> tuple[Callable[..., Any], Any, Any]:
    if name == "constant":
        value = torch.tensor(args, dtype=getattr(torch, kwargs))
        return (lambda: value.clone()), (), {}
    return _target(name), tuple(_decoded(args)), _decoded(kwargs)


def _target(name: str) -> Callable[..., Any]:
    if name in _OURS:
        return _OURS[name]
    namespace, packet, overload = name.split(".")
    if namespace not in ("aten", "prims"):
        raise ValueError(f"operator {name}")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "tuple":
            return tuple(map(_decoded, content))
        case "dict":
            return {key: _decoded(entry) for key, entry in content.items()}
        case "node":
            return _Place(content)
        case "batch":
            return Batch(content)
        case "complex":
            return complex(*content)
        case "device":
            return torch.device(content)
        case "dtype" | "layout" | "memory_format":
            return getattr(torch, content)
    raise ValueError(f"{kind!r} in an argument")


@functools.lru_cache(maxsize=256)
def _read(text: str) -> _Step:
    return _Step(text)


class TextCell(Cell):
    """The cell that a text describes, over a ready drive.

    Law: values and gradients are those of the cell that the text was made from.
    """

    @staticmethod
    def of(text: str) -> TextCell:
        """The cell under the name of the one that it was made from, for messages."""
        return type(_read(text).name, (TextCell,), {})(text)

    def __init__(self, text: str):
        step = _read(text)
        super().__init__(step.source, step.states[0])
        self.text = text

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return _read(self.text).states

    def example_weight(self) -> Tensor:
        return torch.empty(0, dtype=_read(self.text).dtype)

    def drive(self, x: Tensor) -> Tensor:
        return x

    def weights(self) -> Weights:
        return ()  # they come with every call

    def step(self, drive: Tensor, state: State, weights: Weights) -> State:
        return _WithGradient.apply(self.text, drive, *state, *weights)


class _WithGradient(torch.autograd.Function):
    """The step, with the gradient that was recorded: a custom one, ``no_grad`` and ``detach`` are in it."""

    @staticmethod
    def forward(ctx: Any, text: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.text = text
        ctx.save_for_backward(*inputs)
        new = _read(text).forward(inputs)
        # an output that is an input as it came would be marked as a view of it
        return tuple(value.clone() if any(value is given for given in inputs) else value for value in new)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return None, *_read(ctx.text).backward(ctx.saved_tensors, cotangents)
