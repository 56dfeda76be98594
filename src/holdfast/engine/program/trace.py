"""A cell's step and its gradient, seen as one graph of ATen operators: the first stage of the compiler.

    trace_step(cell, ...)      →  Traced: the graph, which of its nodes are new states and which are gradients
    differs(traced, again)     →  None, or the first operator in which another trace is not the same program

The step runs on real tensors under a recorder; then autograd goes back through it, still under the recorder. So the
gradient is autograd's own, with whatever the step does to it: a custom ``torch.autograd.Function``, a ``no_grad``
region, ``detach``.

A graph is recorded at one batch size and must hold for all, so it is recorded at two: a size that follows the batch
size becomes ``Batch(k)``, k samples' worth, and any other difference is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.program.graph import Graph, Node, Recorder, Unsupported, refuse_peeks
from holdfast.linalg.givens import rotations_as_primitive

__all__ = [
    "Batch",
    "Traced",
    "differs",
    "gpus_in_use",
    "gradients",
    "own_tensors",
    "random_state_kept",
    "record_step",
    "trace_step",
]

SIZES = 13, 17  # batch sizes of a trace; nothing but a multiple of the batch size is 13 k at one and 17 k at the other


@dataclasses.dataclass(frozen=True)
class Batch:
    """Stands in a graph wherever ``times`` the batch size stood."""

    times: int = 1


@dataclasses.dataclass(frozen=True)
class Traced:
    """What ``trace_step`` returns.

    Inputs of the graph: source, states, ``cell.weights()``, cotangents of the new states. Nodes of kind "own" are the
    cell's tensors that the step reads besides, by their position in ``own_tensors``.
    """

    graph: Graph
    ahead: int  # nodes up to here belong to the step, later ones to its gradient
    new: tuple[Node, ...]
    grads: tuple[Node | None, ...]  # of source, states, weights, then of every tensor of ``own_tensors``
    own: tuple[str, ...]  # the names of ``own_tensors``
    source_features: int
    state_sizes: tuple[int, ...]
    weights: int  # how many cell.weights() returned
    dtype: torch.dtype
    gradient: bool


def own_tensors(cell: Cell) -> dict[str, Tensor]:
    """The cell's parameters and buffers by name."""
    return dict(cell.named_parameters()) | dict(cell.named_buffers())


def trace_step(cell: Cell, weights: Sequence[Tensor], source_features: int, *, fold: bool, gradient: bool) -> Traced:
    """Trace one step of ``cell``, at two batch sizes.

    Args:
        weights: what ``cell.weights()`` returned.
        source_features: features of x if ``fold``, else of the drive.
        fold: whether ``cell.drive`` is part of the step.
        gradient: whether to trace the gradient as well.
    """
    with random_state_kept():
        one, other = (record_step(cell, weights, source_features, fold=fold, gradient=gradient, batch=n) for n in SIZES)
    _mark_batch(one.graph, other.graph, *SIZES)
    return one


def record_step(
    cell: Cell, weights: Sequence[Tensor], source_features: int, *, fold: bool, gradient: bool, batch: int
) -> Traced:
    """Record one step at one batch size. The caller's grad mode is the step's, as in the plain loop."""
    with _own_leaves(cell):
        return _record_step(cell, weights, source_features, fold=fold, gradient=gradient, batch=batch)


@contextlib.contextmanager
def _own_leaves(cell: Cell) -> Iterator[None]:
    """Leaves in place of the cell's tensors that are results, as ``torch.func.functional_call`` puts them there: what a
    step's gradient needs is the derivative by each of them alone, not by what they were made of.
    """
    kinds = (module._parameters for module in cell.modules()), (module._buffers for module in cell.modules())
    tables = [table for kind in kinds for table in kind if any(t is not None and not t.is_leaf for t in table.values())]
    before, leaves = [dict(table) for table in tables], dict[int, Tensor]()
    try:
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None and not tensor.is_leaf:
                    leaf = leaves.setdefault(id(tensor), tensor.detach().requires_grad_(tensor.requires_grad))
                    table[name] = leaf  # type: ignore[assignment]
        yield
    finally:
        for table, content in zip(tables, before, strict=True):
            table.update(content)  # type: ignore[arg-type]


def _record_step(
    cell: Cell, weights: Sequence[Tensor], source_features: int, *, fold: bool, gradient: bool, batch: int
) -> Traced:
    like, count = cell.example_weight(), len(cell.state_sizes)
    dtype, generator = like.dtype, torch.Generator().manual_seed(0)

    def example(size: int) -> Tensor:
        return (torch.rand(batch, size, dtype=dtype, generator=generator) + 0.5).to(like.device)

    tensors = own_tensors(cell)
    own = list(tensors.values())
    hooked = [(t, f"its step reads {name}, which has a hook") for name, t in tensors.items() if t._backward_hooks]
    grad_mode = torch.is_grad_enabled()  # before inference_mode(False), which switches it on
    with torch.inference_mode(False), torch.set_grad_enabled(grad_mode):
        inputs = [
            example(source_features),
            *(example(n) for n in cell.state_sizes),
            *(w.detach().clone() for w in weights),
        ]
        if gradient:
            for tensor in inputs:
                if tensor.is_floating_point():
                    tensor.requires_grad_()
        cotangents = [example(n) for n in cell.state_sizes] if gradient else []
        try:
            recorder = Recorder([*inputs, *cotangents], own, hooked if gradient else ())  # Note [Hooks]
            with rotations_as_primitive(), recorder:
                with refuse_peeks():
                    drive = cell.drive(inputs[0]) if fold else inputs[0]
                    new = cell.step(drive, tuple(inputs[1 : 1 + count]), tuple(inputs[1 + count :]))
                if not isinstance(new, tuple | list) or not all(isinstance(entry, Tensor) for entry in new):
                    raise Unsupported(f"its step returns a {type(new).__name__} instead of a tuple of tensors")
                ahead = len(recorder.graph.nodes)
                grads = _pull_back(new, cotangents, [*inputs, *own]) if gradient else []
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise Unsupported(f"its step cannot be traced ({str(error).splitlines()[0]})") from error
        nodes = tuple(recorder.node(entry) for entry in new)
        if recorder.draws and not all(entry.is_contiguous() for entry in new):
            raise Unsupported("it draws random numbers, and its new state is not contiguous in memory")
    if len(nodes) != count:
        raise Unsupported(f"its step returns {len(nodes)} states for {count}")
    for node, size in zip(nodes, cell.state_sizes, strict=True):
        if node.shape != (batch, size) or node.dtype != dtype:
            raise Unsupported(f"its step makes {node} of {node.dtype} of a state of shape {(batch, size)} and {dtype}")
    return Traced(
        graph=recorder.graph,
        ahead=ahead,
        new=nodes,
        grads=tuple(None if grad is None else recorder.node(grad) for grad in grads),
        own=tuple(tensors),
        source_features=source_features,
        state_sizes=tuple(cell.state_sizes),
        weights=len(weights),
        dtype=dtype,
        gradient=gradient,
    )


# Note [Hooks]
# A hook on a parameter runs once per backward pass, on the whole gradient. Autograd would also run it while a step's
# gradient is recorded, so a step may not read such a parameter itself. weights() and an unfolded drive() may: they run
# in PyTorch.


# Note [Random numbers]
# A random operator fills memory in the order in which it lies, so which number an entry gets depends on strides, and a
# graph has none. Hence everything that a step with random numbers draws for, takes or returns must be contiguous.


def _pull_back(new: Sequence[Tensor], cotangents: list[Tensor], leaves: list[Tensor]) -> list[Tensor | None]:
    """The gradients at the leaves, None where there is none."""
    pairs = [
        (result, cotangent) for result, cotangent in zip(new, cotangents, strict=True) if result.grad_fn is not None
    ]
    wanted = [i for i, t in enumerate(leaves) if t.requires_grad]
    found: list[Tensor | None] = [None] * len(leaves)
    passed_on = [i for i in wanted if any(leaves[i] is result for result in new)]
    if pairs and wanted:
        results, seeds = zip(*pairs, strict=True)
        grads = gradients(results, seeds, tuple(leaves[i] for i in wanted))
        for i, grad in zip(wanted, grads, strict=True):
            found[i] = grad
    for i in passed_on:  # a state that is returned as it came
        for result, cotangent in zip(new, cotangents, strict=True):
            if result is leaves[i]:
                before = found[i]
                found[i] = cotangent if before is None else before + cotangent
    return found


def gradients(
    results: tuple[Tensor, ...], seeds: tuple[Tensor, ...], leaves: tuple[Tensor, ...]
) -> Sequence[Tensor | None]:
    """What ``torch.autograd.grad`` calls after checking the seeds, which imports half a second of SymPy."""
    engine = torch.autograd.Variable._execution_engine
    return engine.run_backward(results, seeds, False, False, leaves, allow_unreachable=True, accumulate_grad=False)


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Tracing leaves the user's random numbers alone, PyTorch's, NumPy's and Python's.

    Between two traces the generators continue: a number that a step draws outside PyTorch is a constant that differs.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the user's, whatever we think of it
    try:
        with torch.random.fork_rng(devices=gpus_in_use()):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def gpus_in_use() -> list[int]:
    """The GPU whose random numbers a step may draw, if there is one."""
    return [torch.cuda.current_device()] if torch.cuda.is_initialized() else []


# -- two batch sizes -------------------------------------------------------------------------------------------------


def _mark_batch(graph: Graph, twin: Graph, size: int, twin_size: int) -> None:
    """Write ``Batch`` wherever the two traces differ by their batch size, and refuse any other difference."""

    def merge(a: Any, b: Any) -> Any:
        if _is_number(a) and _is_number(b) and a != b and a % size == 0 and a // size * twin_size == b:
            return Batch(a // size)
        raise _Different

    for node, _, merged in _merged(graph, twin, merge):
        node.args, kwargs, node.shape = merged
        node.kwargs = dict(kwargs)


def differs(traced: Traced, again: Traced, batch: int) -> str | None:
    """The first operator in which ``again``, recorded at batch size ``batch``, is another program; None if none."""

    def same(a: Any, b: Any) -> Any:
        if isinstance(a, Batch) and _is_number(b) and a.times * batch == b:
            return a
        raise _Different

    try:
        for _ in _merged(traced.graph, again.graph, same):
            pass
    except Unsupported as difference:
        return str(difference)
    return None


class _Different(Exception):
    pass


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _merged(graph: Graph, twin: Graph, merge: Any) -> Iterator[tuple[Node, Node, Any]]:
    """Node by node (node, its twin, their arguments and shape merged); ``merge`` decides where the two differ."""
    places = [{node: i for i, node in enumerate((*g.inputs, *g.nodes))} for g in (graph, twin)]

    def merged(a: Any, b: Any) -> Any:
        if isinstance(a, Node) and isinstance(b, Node) and places[0][a] == places[1][b]:
            return a
        if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
            return type(a)(merged(x, y) for x, y in zip(a, b, strict=True))
        if type(a) is type(b) and (a == b or (a != a and b != b)) and repr(a) == repr(b):  # repr tells 0.0 from -0.0
            return a
        return merge(a, b)

    if len(graph.inputs) != len(twin.inputs):
        raise Unsupported("its step takes other inputs than before")
    for node, other in zip((*graph.inputs, *graph.nodes), (*twin.inputs, *twin.nodes), strict=False):
        try:
            if node.kind != other.kind or node.target != other.target or node.dtype != other.dtype:
                raise _Different
            if node.kind == "constant" and not torch.equal(node.value, other.value):  # type: ignore[arg-type]
                raise _Different
            pairs = (
                (node.args, tuple(node.kwargs.items()), node.shape),
                (other.args, tuple(other.kwargs.items()), other.shape),
            )
            yield node, other, merged(*pairs)
        except _Different:
            raise Unsupported(f"its step depends on the batch size, in operator {node.name}") from None
    if len(graph.nodes) != len(twin.nodes):
        last = max((graph.nodes, twin.nodes), key=len)[-1]
        raise Unsupported(f"its step depends on the batch size, in operator {last.name}")
