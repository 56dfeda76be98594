"""A cell's step, seen as graphs of ATen operators: the first stage of the compiler.

    trace_step(cell, ...)  →  Traced(prologue, forward, vjp)

``forward`` maps (x or drive, states, weights) to the new states, ``vjp`` maps those and the cotangents of the new
states to gradients. What depends on weights alone (a transpose, ``1 - alpha``) is not part of a step: it is split off
as ``prologue`` and runs once a sequence in PyTorch, where autograd takes care of it.

A graph is recorded at one batch size and must hold for all, so it is recorded at two and compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.fused.graph import Graph, Node, Unsupported, record
from holdfast.linalg.givens import rotations_as_primitive

__all__ = ["BATCH", "Traced", "trace_step"]


class _Batch:
    """Stands in a graph wherever the batch size stood."""

    def __repr__(self) -> str:
        return "BATCH"


BATCH = _Batch()

# Operators whose whole-number arguments are sizes; anywhere else a batch size among the arguments is a value.
_TAKES_SIZES = {
    "view",
    "_unsafe_view",
    "reshape",
    "expand",
    "full",
    "zeros",
    "ones",
    "new_zeros",
    "new_ones",
    "new_full",
}
_TAKES_SIZES |= {"slice_backward"}
_PRIMES = (13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73)


@dataclasses.dataclass(frozen=True)
class Traced:
    """What ``trace_step`` returns. Inputs of the graphs: source, states, weights, and for ``vjp`` the cotangents."""

    prologue: Graph  # cell.weights(), then ``own``, to the weights that a step reads
    own: tuple[str, ...]  # parameters and buffers of the cell that are read besides cell.weights()
    forward: Graph
    vjp: Graph | None
    weights: tuple[tuple[int, ...], ...]  # the shape of each weight that a step reads
    source_features: int
    state_sizes: tuple[int, ...]
    wanted: tuple[int, ...]  # the inputs whose gradients ``vjp`` returns, in order


def trace_step(cell: Cell, weights: Sequence[Tensor], source_features: int, *, fold: bool, gradient: bool) -> Traced:
    """Trace one step of ``cell``.

    Args:
        weights: what ``cell.weights()`` returned.
        source_features: features of x if ``fold``, else of the drive.
        fold: whether ``cell.drive`` is part of the step.
        gradient: whether to trace ``vjp`` as well.
    """
    taken = {cell.input_size, source_features, *cell.state_sizes, *(n for w in weights for n in w.shape)}
    sizes = [n for n in _PRIMES if n not in taken][:2]
    if len(sizes) < 2:
        raise Unsupported("the cell has sizes in the way of the trace")
    with torch.inference_mode(False), torch.enable_grad(), rotations_as_primitive():
        one, other = (_trace_at(cell, weights, source_features, fold, gradient, n) for n in sizes)
    for graph, twin in ((one.forward, other.forward), (one.vjp, other.vjp)):
        if graph is not None and twin is not None:
            _mark_batch(graph, twin, *sizes)
    return one


def _trace_at(
    cell: Cell, weights: Sequence[Tensor], source_features: int, fold: bool, gradient: bool, batch: int
) -> Traced:
    dtype, count = cell.example_weight().dtype, len(cell.state_sizes)
    generator = torch.Generator().manual_seed(0)  # tracing leaves the user's random numbers alone

    def example(size: int) -> Tensor:
        return torch.rand(batch, size, dtype=dtype, generator=generator) + 0.5

    def step(source: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        drive = cell.drive(source) if fold else source
        return tuple(cell.step(drive, rest[:count], rest[count:]))

    source, states = example(source_features), [example(size) for size in cell.state_sizes]
    names, own = (
        zip(*cell.named_parameters(), *cell.named_buffers(), strict=True)
        if any(True for _ in cell.state_dict())
        else ((), ())
    )
    try:
        whole = record(step, [source, *states, *(w.detach() for w in weights)], own)
    except RuntimeError as error:
        raise Unsupported(f"its step cannot be traced ({str(error).splitlines()[0]})") from error
    prologue, read, forward = _split(whole, 1 + count)
    with torch.no_grad():
        values = prologue.run(*weights, *(own[i] for i in read))
    _check(values, whole.outputs, states, dtype)
    inputs = [source, *states, *values]
    vjp, wanted = None, tuple(i for i, t in enumerate(inputs) if t.is_floating_point())
    if gradient:

        def pull_back(*tensors: Tensor) -> Sequence[Tensor | None]:
            primals = [t.detach() for t in tensors[: len(inputs)]]
            for i in wanted:
                primals[i].requires_grad_()
            pairs = zip(forward.run(*primals), tensors[len(inputs) :], strict=True)
            pairs = [(result, cotangent) for result, cotangent in pairs if result.requires_grad]
            if not pairs:
                return [None] * len(wanted)
            results, cotangents = zip(*pairs, strict=True)
            # What torch.autograd.grad calls after checking the cotangents, which imports half a second of SymPy.
            engine, inputs_ = torch.autograd.Variable._execution_engine, tuple(primals[i] for i in wanted)
            return engine.run_backward(
                results, cotangents, False, False, inputs_, allow_unreachable=True, accumulate_grad=False
            )

        vjp = record(pull_back, [*inputs, *(example(size) for size in cell.state_sizes)])
    return Traced(
        prologue=prologue,
        own=tuple(names[i] for i in read),
        forward=forward,
        vjp=vjp,
        weights=tuple(tuple(v.shape) for v in values),
        source_features=source_features,
        state_sizes=tuple(cell.state_sizes),
        wanted=wanted if gradient else (),
    )


def _check(values: Sequence[Tensor], outputs: Sequence[Node | None], states: list[Tensor], dtype: torch.dtype) -> None:
    for value in values:
        if value.is_floating_point() and value.dtype != dtype:
            raise Unsupported(f"it mixes {dtype} with {value.dtype}")
    if len(outputs) != len(states):
        raise Unsupported(f"its step returns {len(outputs)} states for {len(states)}")
    for node, state in zip(outputs, states, strict=True):
        if node is None or node.shape != tuple(state.shape) or node.value.dtype != dtype:
            raise Unsupported(f"its step makes {node} of a state of shape {tuple(state.shape)}")


def _split(whole: Graph, tiles: int) -> tuple[Graph, list[int], Graph]:
    """Part what depends on weights alone from the rest: the prologue, the cell's tensors that it reads, the step."""
    before, after = Graph(), Graph()
    place_before: dict[Node, Node] = {}
    place_after: dict[Node, Node] = {node: after.input(node.value) for node in whole.inputs[:tiles]}
    for node in whole.inputs[tiles:]:
        place_before[node] = before.input(node.value)
    in_step = set(whole.inputs[:tiles])
    read: list[int] = []
    frontier: list[Node] = []
    for node in whole.nodes:
        if node.kind == "own":
            place_before[node] = before.input(node.value)
            read.append(node.target)
        elif not node.inputs or any(
            arg in in_step for arg in node.inputs
        ):  # what is made of nothing may be of batch size
            in_step.add(node)
            frontier += [arg for arg in node.inputs if arg not in in_step and arg not in frontier]
    frontier += [n for n in whole.outputs if n is not None and n not in in_step and n not in frontier]
    for node in frontier:
        place_after[node] = after.input(node.value)
    for node in whole.nodes:
        if node in in_step:
            place_after[node] = after.copy(node, place_after.__getitem__)
        elif node.kind == "call":
            place_before[node] = before.copy(node, place_before.__getitem__)
    before.outputs = [place_before[node] for node in frontier]
    after.outputs = [None if node is None else place_after[node] for node in whole.outputs]
    return before, read, after


def _mark_batch(graph: Graph, twin: Graph, size: int, twin_size: int) -> None:
    """Write BATCH wherever the two traces differ by their batch size, and refuse any other difference."""
    place = {node: i for i, node in enumerate((*graph.inputs, *graph.nodes))}
    twin_place = {node: i for i, node in enumerate((*twin.inputs, *twin.nodes))}

    def changes(node: Node) -> Unsupported:
        return Unsupported(f"its step depends on the batch size, in operator {node.name}")

    def merge(a: Any, b: Any, takes_sizes: bool, node: Node) -> Any:
        if isinstance(a, Node) and isinstance(b, Node) and place[a] == twin_place[b]:
            return a
        if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
            return type(a)(merge(x, y, takes_sizes, node) for x, y in zip(a, b, strict=True))
        if takes_sizes and (a, b) == (size, twin_size):
            return BATCH
        if type(a) is type(b) and (a == b or (a != a and b != b)):
            return a
        raise changes(node)

    for node, other in zip(graph.nodes, twin.nodes, strict=False):
        if node.target != other.target:
            raise changes(node)
        takes_sizes = node.name in _TAKES_SIZES
        merge(tuple(node.kwargs.items()), tuple(other.kwargs.items()), takes_sizes, node)
        node.args = merge(tuple(node.args), tuple(other.args), takes_sizes, node)
    if len(graph.nodes) != len(twin.nodes):
        raise changes((*graph.nodes, *twin.nodes)[-1])
