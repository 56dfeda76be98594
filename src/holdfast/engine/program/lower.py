"""The ATen graph of a step to tile programs: the second stage of the compiler.

    lower(traced)  →  Lowered(forward, backward, prologue, finish, ...)

Every live node gets one of four kinds of value:

    Rows      something for each sample: a tile, and how the tensor's axes lie in its features
    Static    made of weights alone: PyTorch computes it once per sequence, in ``prologue``
    Total     summed over samples: the sum over all steps is finished by PyTorch after the loop, in ``finish``
    Constant  one number everywhere

What a sum over samples goes through afterwards must be linear in it, because the loop adds up all steps first.
rules.py says what each operator does to these.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from holdfast.engine.program.complex import is_complex, lower_complex
from holdfast.engine.program.graph import Graph, Node, Unsupported, mapped
from holdfast.engine.program.rules import RULES
from holdfast.engine.program.tiles import (
    MASKS,
    Constant,
    Fold,
    Gather,
    Input,
    Kind,
    Operand,
    Pointwise,
    Product,
    Reduction,
    Rotate,
    RowSum,
    Slice,
    Slot,
    StepProgram,
    Tile,
    Weight,
    in_order,
    reachable,
    read_by,
    with_operands,
)
from holdfast.engine.program.trace import Batch, Traced
from holdfast.engine.program.values import Axes, Rows, Static, Total, axes_of, broadcast, flat

__all__ = ["Lowered", "Lowering", "Noise", "lower"]


@dataclasses.dataclass(frozen=True)
class Noise:
    """Random numbers that a step draws: the operator and its arguments, and the tile that they become."""

    node: Node
    tile: Input
    is_read: bool


@dataclasses.dataclass(frozen=True)
class Lowered:
    """Both directions of a step, and the PyTorch around them.

    Attributes:
        forward: from the source, states and noises to the new states.
        backward: from any of these, new states, saved tiles and cotangents to the gradients of source and states.
        prologue: ``cell.weights()``, then the cell's tensors ``own``, to the weights that programs and finish read.
        finish: the reductions, then the weights ``finish_reads``, to the gradients of ``cell.weights()`` and ``own``
            (None where zero).
        noises: what is drawn at every step, in order.
    """

    forward: StepProgram
    backward: StepProgram | None
    prologue: Graph
    own: tuple[str, ...]
    finish: Graph
    finish_reads: tuple[int, ...]
    noises: tuple[Noise, ...]


def lower(traced: Traced, *, source_grad: bool) -> Lowered:
    """Lower the graph; ``source_grad`` says whether the gradient of x (or the drive) is wanted."""
    low = Lowering(traced)
    inputs = {t.slot: t for t in (*low.sources, *(noise.tile for noise in low.noises if noise.is_read))}
    news = [low.rows(node).tile for node in traced.new]
    outputs: dict[Slot, Tile | None] = {Slot(Kind.STATE, i): new for i, new in enumerate(news)}
    own = tuple(traced.own[i] for i in low.own)
    if not traced.gradient:
        reads = (low.prologue, own, low.finish, (), tuple(low.noises))
        return Lowered(StepProgram(inputs, outputs), None, *reads)
    count = 1 + len(traced.state_sizes)
    wanted = [*traced.grads[:count]] if source_grad else [None, *traced.grads[1:count]]
    grads = [None if node is None else low.rows_or_none(node) for node in wanted]
    low.end(
        [*traced.grads[count : count + traced.weights], *(traced.grads[count + traced.weights + i] for i in low.own)]
    )
    slots = [source.slot for source in low.sources]
    backward = StepProgram(inputs, dict(zip(slots, grads, strict=True)), tuple(low.reductions))
    backward, saved = _share(news, backward, low)
    reads = (low.prologue, own, low.finish, tuple(low.finish_reads), tuple(low.noises))
    return Lowered(StepProgram(inputs, outputs, saved=saved), backward, *reads)


def _share(news: list[Tile], program: StepProgram, low: Lowering) -> tuple[StepProgram, tuple[Tile, ...]]:
    """Let backward read what forward can keep instead of computing it again: new states, products and rotations."""
    ahead, replaced = reachable(news), dict[Tile, Input]()
    for i, new in enumerate(news):
        if not isinstance(new, Input):
            replaced.setdefault(new, Input(Slot(Kind.NEW, i), new.features))
    roots, saved = program.roots, list[Tile]()
    for tile in in_order(roots):
        costly = isinstance(tile, Rotate) or (isinstance(tile, Product) and not tile.is_narrow)
        if costly and tile in ahead and tile not in replaced and _is_read(tile, roots, replaced):
            replaced[tile] = Input(Slot(Kind.SAVED, len(saved)), tile.features)
            saved.append(tile)
    memo: dict[Any, Any] = dict(replaced)
    for tile in in_order(roots):  # oldest first
        if tile not in memo:
            memo[tile] = with_operands(tile, memo)
    outputs = {slot: None if tile is None else memo[tile] for slot, tile in program.outputs.items()}
    reductions = tuple(with_operands(r, memo) for r in program.reductions)
    every = {t.slot: t for t in (*program.inputs.values(), *low.cotangents, *replaced.values())}
    backward = StepProgram(every, outputs, reductions)
    live = reachable(backward.roots)
    inputs = {slot: tile for slot, tile in every.items() if tile in live}
    return dataclasses.replace(backward, inputs=inputs), tuple(saved)


def _is_read(tile: Tile, roots: list[Tile], replaced: dict[Tile, Input]) -> bool:
    """Whether a root still needs ``tile`` once the replaced ones are inputs."""
    seen, todo = set[Tile](), list(roots)
    while todo:
        node = todo.pop()
        if node is tile:
            return True
        if node not in seen and node not in replaced:
            seen.add(node)
            todo += read_by(node)
    return False


class Lowering:
    """One graph on its way: ``env`` has each live node's value."""

    def __init__(self, traced: Traced):
        self.dtype, graph = traced.dtype, traced.graph
        self.reductions: list[Reduction] = []
        self.prologue, self.finish = Graph(), Graph()
        self.finish_reads: list[int] = []
        self._finish_weights: dict[int, Node] = {}
        self._weights: dict[tuple[Node, bool], Weight] = {}
        self.noises: list[Noise] = []
        self.own: list[int] = []
        states, cotangents = (
            [Input(Slot(kind, i), size) for i, size in enumerate(traced.state_sizes)]
            for kind in (Kind.STATE, Kind.COTANGENT)
        )
        self.sources = [Input(Slot(Kind.SOURCE), traced.source_features), *states]
        self.cotangents = cotangents if traced.gradient else []
        self.env: dict[Node, Any] = {}
        tiles, after = len(self.sources), len(self.sources) + traced.weights
        for node, tile in zip(graph.inputs[:tiles] + graph.inputs[after:], self.sources + self.cotangents, strict=True):
            self.env[node] = Rows(tile, ((None,), (tile.features,)))
        for node in graph.inputs[tiles:after]:
            self.env[node] = Static(self._prologue_input(node))
        live = graph.live([*traced.new, *traced.grads])
        for node in graph.nodes:  # inputs of the prologue come first
            if node.kind == "own" and node in live:
                self.own.append(node.target)
                self.env[node] = Static(self._prologue_input(node))
        for place, node in enumerate(graph.nodes):
            if node.is_random:
                self._draw(node, node in live and place < traced.ahead, place < traced.ahead)
            elif node in live and node.kind != "own":
                self.env[node] = self._lower(node)

    def _prologue_input(self, node: Node) -> Node:
        made = self.prologue.input()
        made.shape, made.dtype = node.shape, node.dtype
        return made

    # -- one node -------------------------------------------------------------------------------------------------

    def _lower(self, node: Node) -> Any:
        if node.kind == "constant":
            assert node.value is not None
            return Constant(node.value.item()) if not node.shape else Static(self.prologue.copy(node, lambda n: n))
        if node.name == "getitem":
            whole = self.env[node.args[0]]
            if isinstance(whole, Static | Total):
                graph, kind = (self.prologue, Static) if isinstance(whole, Static) else (self.finish, Total)
                return kind(graph.copy(node, lambda _: whole.node))
            return whole[node.args[1]]
        values = [self.env[arg] for arg in node.inputs]
        if any(isinstance(v, Total) for v in values):
            return self._then(node)
        sizes = node.shape, [arg.shape for arg in node.inputs], node.args, tuple(node.kwargs.values())
        alone = all(isinstance(v, Static | Constant) for v in values) and (values or node.shape)
        if alone and not any(isinstance(n, Batch) for n in flat(sizes)):  # PyTorch computes it before the loop
            return Static(self.prologue.copy(node, lambda arg: self._in_prologue(self.env[arg])))
        if is_complex(node, values):
            return lower_complex(self, node)
        name = node.name if node.name.startswith("_") else node.name.removesuffix("_")
        if name not in RULES:
            raise Unsupported(f"operator {node.target}")
        if node.dtype not in (None, self.dtype, torch.bool) and not _counts(node, name):
            raise Unsupported(f"operator {node.target} on numbers of {node.dtype}")
        kwargs = {key: mapped(v, self.env.__getitem__) for key, v in node.kwargs.items() if key not in _IGNORED}
        args = [mapped(a, self.env.__getitem__) for a in node.args]
        accepted = inspect.signature(RULES[name]).parameters
        unknown = [key for key in kwargs if key not in accepted]
        many = len(args) + 2 > len(accepted) and not any(p.kind is p.VAR_POSITIONAL for p in accepted.values())
        if unknown or many:
            raise Unsupported(f"operator {node.target} with {', '.join(unknown) or 'these arguments'}")
        return RULES[name](self, node, *args, **kwargs)

    def _in_prologue(self, value: Static | Constant) -> Node:
        if isinstance(value, Static):
            return value.node
        dtype = self.dtype.to_complex() if isinstance(value.value, complex) else self.dtype
        return self.prologue.call(torch.ops.aten.scalar_tensor.default, (value.value,), {"dtype": dtype})

    def _draw(self, node: Node, is_read: bool, ahead: bool) -> None:
        """Random numbers: one draw per step, before the loop. A draw that is not read moves the generator too."""
        if not ahead:
            raise Unsupported(f"operator {node.target} in a gradient")
        if str(node.target).removeprefix("aten.") not in _DRAWS:
            raise Unsupported(f"operator {node.target}")
        if not node.shape or node.shape[0] != Batch() or any(isinstance(n, Batch) for n in node.shape[1:]):
            raise Unsupported(f"operator {node.target} without one row per sample; draw it in weights()")
        if node.dtype != self.dtype:
            raise Unsupported(f"operator {node.target} on numbers of {node.dtype}")
        tile = Input(Slot(Kind.NOISE, len(self.noises)), math.prod(node.shape[1:]))
        self.noises.append(Noise(node, tile, is_read))
        self.env[node] = Rows(tile, ((None,), *((n,) for n in node.shape[1:])))

    # -- weights ----------------------------------------------------------------------------------------------------

    def derive(self, static: Static, target: Any, *args: Any, shape: Sequence[int]) -> Static:
        """``target(static, *args)`` in the prologue."""
        node = self.prologue.call(target, (static.node, *args))
        node.shape, node.dtype = tuple(shape), static.node.dtype
        return Static(node)

    def weight(self, static: Static) -> Weight:
        """A Static as an operand of a program."""
        key = (static.node, static.node.dtype == torch.bool)
        if key not in self._weights:
            self._weights[key] = Weight(len(self.prologue.outputs), static.shape, is_mask=key[1])
            self.prologue.outputs.append(static.node)
        return self._weights[key]

    def _spread(self, static: Static, axes: Axes) -> Weight:
        """A Static broadcast to the features of a tensor with these axes."""
        if math.prod(static.shape) == 1:
            return self.weight(self.derive(static, torch.ops.aten.reshape.default, [], shape=()))
        aligned = [1] * (len(axes) - len(static.shape)) + list(static.shape)
        before, after = list[int](), list[int]()
        for size, axis in zip(aligned, axes, strict=True):
            if None in axis:
                if size != 1:
                    raise Unsupported(f"a weight of shape {static.shape} with a value for each sample")
                before += [1] * (len(axis) - 1)
            else:
                before.append(size)
            after += [n for n in axis if n is not None]
        if before != after:
            static = self.derive(static, torch.ops.aten.reshape.default, before, shape=before)
            static = self.derive(static, torch.ops.aten.expand.default, after, shape=after)
        if len(static.shape) != 1:
            features = math.prod(after)
            static = self.derive(static, torch.ops.aten.reshape.default, [features], shape=[features])
        return self.weight(static)

    # -- per sample ---------------------------------------------------------------------------------------------------

    def rows(self, node: Node) -> Rows:
        """A node's value as Rows."""
        value = self.env[node]
        if not isinstance(value, Constant | Rows):
            raise Unsupported("its step does not return one row per sample")
        return value if isinstance(value, Rows) else self.filled(value, node.shape)

    def rows_or_none(self, node: Node) -> Tile | None:
        value = self.env[node]
        return None if isinstance(value, Constant) and value.value == 0 else self.rows(node).tile

    def filled(self, value: Constant, shape: Sequence[Any]) -> Rows:
        """A number as Rows of this shape."""
        axes = axes_of(shape)
        features = math.prod(n for axis in axes for n in axis if n is not None)
        return Rows(Pointwise("same", (Constant(float(value.value)),), features), axes)

    def pointwise(self, op: str, *args: Any, shape: Sequence[Any] | None = None) -> Rows:
        """An elementwise operator of Rows, Statics and numbers, with broadcasting.

        ``shape``: the result's; needed only where a Static or a Constant makes it larger than the Rows are.
        """
        rows = [a for a in args if isinstance(a, Rows)]
        axes = broadcast([a.axes for a in rows], shape)
        features = math.prod(n for axis in axes for n in axis if n is not None)
        made: list[Operand] = []
        for place, arg in enumerate(args):
            wants_mask = op.startswith("logical") or (op in ("where", "number") and place == 0)
            match arg:
                case Rows():
                    made.append(self.as_kind(self._broadcast_tile(arg, axes), mask=wants_mask))
                case Static():
                    operand = self._spread(arg, axes)
                    made.append(self.as_kind(operand, mask=wants_mask, features=features))
                case Constant(value=value):
                    made.append(Constant(bool(value) if wants_mask else float(value)))
                case bool() | int() | float():
                    made.append(Constant(bool(arg) if wants_mask else float(arg)))
                case Batch():
                    raise Unsupported(f"its step depends on the batch size, in operator {op}")
                case _:
                    raise Unsupported(f"operator {op} on {type(arg).__name__}")
        return Rows(Pointwise(op, tuple(made), features, is_mask=op in MASKS), axes)

    def as_kind(self, operand: Any, *, mask: bool, features: int | None = None) -> Any:
        """An operand as a mask or as a number, whichever an operator wants."""
        if operand.is_mask == mask:
            return operand
        wide: int = features or operand.features
        if mask:
            return Pointwise("nonzero", (operand,), wide, is_mask=True)
        return Pointwise("number", (operand, Constant(1.0)), wide)

    def _broadcast_tile(self, rows: Rows, axes: Axes) -> Tile:
        if rows.tile.features == 1 or rows.axes == axes:
            return rows.tile
        aligned = ((1,),) * (len(axes) - len(rows.axes)) + rows.axes
        here, there = list[int](), list[int]()
        for own, axis in zip(aligned, axes, strict=True):
            wanted = [n for n in axis if n is not None]
            there += wanted
            here += [n for n in own if n is not None] if own == axis else [1] * len(wanted)
        table = np.broadcast_to(np.arange(rows.tile.features).reshape(here), there)
        return self.gather(rows.tile, table)

    def gather(self, tile: Tile, table: np.ndarray) -> Tile:
        """The features ``table`` of a tile: itself, a slice of it, or a Gather."""
        flat = [int(i) for i in table.reshape(-1)]
        if flat == list(range(tile.features)):
            return tile
        if flat and flat == list(range(flat[0], flat[0] + len(flat))):
            start = flat[0]
            while isinstance(tile, Slice):
                tile, start = tile.tile, start + tile.start
            return Slice(tile, start, len(flat))
        if isinstance(tile, Slice):
            return self.gather(tile.tile, np.array(flat) + tile.start)
        if isinstance(tile, Gather):
            return self.gather(tile.tile, np.array(tile.table)[flat])
        if tile.is_mask:  # memory holds numbers
            number = Gather(Pointwise("number", (tile, Constant(1.0)), tile.features), tuple(flat))
            return Pointwise("nonzero", (number,), len(flat), is_mask=True)
        return Gather(tile, tuple(flat))

    def viewed(self, rows: Rows, shape: Sequence[Any]) -> Rows:
        """The same entries in the same order, in another shape."""
        ahead = 1  # features before the batch
        for n in (n for axis in rows.axes for n in axis):
            if n is None:
                break
            ahead *= n
        axes, seen = list[tuple[int | None, ...]](), 1
        for n in shape:
            if not isinstance(n, Batch):
                axes.append((n,))
                seen *= n
                continue
            first, rest = divmod(ahead, seen)
            if rest or first < 1 or n.times % first:
                raise Unsupported(f"a view from {rows.axes} to {tuple(shape)}")
            parts: list[int | None] = [first] if first > 1 else []
            parts.append(None)
            parts += [n.times // first] if n.times > first else []
            axes.append(tuple(parts))
        if sum(None in axis for axis in axes) != 1:
            raise Unsupported(f"a view from {rows.axes} to {tuple(shape)}")
        return Rows(rows.tile, tuple(axes))

    def fold(self, rows: Rows, dims: Iterable[int], op: str, *, keepdim: bool) -> Rows:
        """The sum ("add") or the largest ("maximum") over axes that hold features."""
        table, over = rows.table(), sorted({d % len(rows.axes) for d in dims})
        kept = [d for d in range(len(rows.axes)) if d not in over]
        size = math.prod(table.shape[d] for d in over)
        tile = self.gather(self.as_kind(rows.tile, mask=False), table.transpose([*kept, *over]))
        folded = Fold(tile, size, op) if size > 1 else tile
        axes = tuple((1,) if d in over else axis for d, axis in enumerate(rows.axes) if keepdim or d not in over)
        return Rows(folded, axes)

    # -- summed over samples -----------------------------------------------------------------------------------------

    def reduce(self, reduction: Reduction) -> Node:
        self.reductions.append(reduction)
        return self.finish.input()

    def row_total(self, rows: Rows, dims: set[int], shape: Sequence[int]) -> Total:
        """The sum over samples and over the axes ``dims`` besides, as a tensor of ``shape``."""
        total = self.reduce(RowSum(self.as_kind(rows.tile, mask=False)))
        sizes, over = rows.sizes, list[int]()
        place = 0
        for d, axis in enumerate(rows.axes):
            count = sum(n is not None for n in axis)
            over += range(place, place + count) if d in dims else ()
            place += count
        if over:
            total = self.finish.call(torch.ops.aten.reshape.default, (total, sizes))
            total = self.finish.call(torch.ops.aten.sum.dim_IntList, (total, over))
        return Total(self.finish.call(torch.ops.aten.reshape.default, (total, list(shape))))

    def _then(self, node: Node) -> Total:
        """An operator on a sum over samples: it must be linear, since the sum over steps comes first."""
        values = [self.env[arg] for arg in node.inputs]
        others = [v for v in values if not isinstance(v, Total)]
        name, one = node.name.removesuffix("_"), len(values) - len(others) == 1
        first = isinstance(node.args[0], Node) and isinstance(self.env[node.args[0]], Total)
        zero = all(isinstance(v, Constant) and v.value == 0 for v in others)
        static = all(isinstance(v, Static | Constant) for v in others)
        numbers = [a for a in node.args[1:] if isinstance(a, int | float) and not isinstance(a, bool)]
        match name:
            case _ if any(isinstance(n, Batch) for n in flat((node.args, tuple(node.kwargs.values())))):
                linear = False  # back to samples
            case _ if name in _LINEAR_FIRST:
                linear = one and first and static
            case "add" | "sub":
                linear = zero and not any(numbers) and len(values) == sum(isinstance(a, Node) for a in node.args)
            case "mul" | "mm" | "bmm" | "mv" | "dot":
                linear = one and static
            case "div":
                linear = one and first and static and not node.kwargs
            case "cat" | "stack":
                linear = not others
            case "where":
                chosen = (v for v in values[1:] if not isinstance(v, Total))
                zeros = all(isinstance(v, Constant) and v.value == 0 for v in chosen)
                linear = not first and static and zeros and not any(numbers)
            case "constant_pad_nd":
                linear = first and static and not any(numbers)
            case "masked_fill":
                filler = self.env.get(node.args[-1])
                linear = first and static and not any(numbers) and (zero or not isinstance(filler, Constant | Static))
            case _:
                linear = False
        if not linear:
            raise Unsupported(f"operator {node.target} on a sum over samples")
        return Total(self.finish.copy(node, lambda arg: self._in_finish(self.env[arg])))

    def _in_finish(self, value: Any) -> Node:
        if isinstance(value, Total):
            return value.node
        if isinstance(value, Constant):
            return self.finish.call(torch.ops.aten.scalar_tensor.default, (value.value,), {"dtype": self.dtype})
        index = self.weight(value).index
        if index not in self._finish_weights:
            self._finish_weights[index] = Node("input", None, (), {})
            self.finish_reads.append(index)
        return self._finish_weights[index]

    def end(self, grads: Sequence[Node | None]) -> None:
        """Close ``finish``: its outputs are these gradients of weights."""
        outputs: list[Node | None] = []
        for node in grads:
            value = None if node is None else self.env[node]
            if isinstance(value, Constant) and value.value == 0:
                value = None
            if value is not None and not isinstance(value, Total):
                raise Unsupported("a weight's gradient is not a sum over samples")
            outputs.append(None if value is None else value.node)
        self.finish.outputs = outputs
        self.finish.inputs += [self._finish_weights[index] for index in self.finish_reads]


def _counts(node: Node, name: str) -> bool:
    """Whether an integer is a count of features, and so is exact as a floating-point number."""
    whole = [a for a in node.args if isinstance(a, int | float)]
    return name in ("sum", "scalar_tensor") or (name in ("add", "sub", "rsub") and all(abs(a) < 1 << 20 for a in whole))


# Operators that are linear in their first argument, whatever the others are, if those are made of weights alone.
_LINEAR_FIRST = {
    "t", "transpose", "permute", "view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze", "sum", "mean",
    "clone", "detach", "alias", "neg", "slice", "select", "narrow", "flip", "roll", "tril", "triu", "cumsum", "repeat",
    "slice_backward", "select_backward", "diagonal", "diagonal_backward", "split", "split_with_sizes", "unbind",
    "sigmoid_backward", "tanh_backward", "threshold_backward", "softplus_backward", "gelu_backward", "silu_backward",
    "view_as_real", "view_as_complex", "_conj", "resolve_conj",
    "elu_backward", "leaky_relu_backward", "hardtanh_backward", "_softmax_backward_data", "_log_softmax_backward_data",
}  # fmt: skip
_IGNORED = {"layout", "device", "pin_memory", "memory_format", "non_blocking", "dtype"}  # the result's type is checked
_DRAWS = {
    "bernoulli_.float", "uniform_.default", "normal_.default", "exponential_.default", "rand_like.default",
    "randn_like.default", "rand.default", "randn.default",
}  # fmt: skip
