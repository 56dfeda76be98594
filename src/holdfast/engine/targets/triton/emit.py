"""Tile programs to Triton source: the fourth stage of the compiler, for GPUs.

    emit_forward(program, shape, ...), emit_backward(program, shape, ...)  →  Kernel(text, parameters, ...)

A program of the grid runs a block of samples through all steps; its states and sums live in registers (blocks.py says
what happens inside a step, this file what happens between steps). Where a scan is launched step by step (``Way.STEPS``)
the same statements make a kernel for one step, which finds states and products in memory.

In a masked kernel sample b lives in steps birth[b] ≤ t < death[b]: outside of them its state stands still, its output
is zero and it adds to no sum. Offsets are 64 bits wide.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import linecache
import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from holdfast.engine.program.tiles import AngleSum, Input, Kind, Outer, Product, RowSum, Slot, StepProgram, Tile
from holdfast.engine.targets.triton.blocks import Blocks, Load
from holdfast.engine.targets.triton.functions import FUNCTIONS
from holdfast.engine.targets.triton.shape import Shape, Way, wide

__all__ = ["Kernel", "emit_backward", "emit_forward", "function_of", "stored_sides"]

COUNTS = ("steps", "batch", "t")  # numbers that change from scan to scan: Triton must not compile for each value


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """``parameters``: name to Triton's type; ``tables``: whole numbers known beforehand, by parameter."""

    name: str
    text: str
    parameters: Mapping[str, str]
    tables: Mapping[str, tuple[int, ...]]
    shape: Shape

    @functools.cached_property
    def function(self) -> Any:
        """The kernel as a Triton function."""
        return function_of(self.name, self.text)

    def tables_on(self, device: torch.device) -> dict[str, Tensor]:
        """The tables as tensors."""
        known = self.__dict__.setdefault("_tables", {})
        if device not in known:
            made = {
                name: torch.tensor(entries, dtype=torch.int32, device=device) for name, entries in self.tables.items()
            }
            known[device] = made
        return known[device]


def function_of(name: str, text: str) -> Any:
    """A kernel's source as a Triton function. It exists in memory only; Triton reads it through ``linecache``."""
    file = f"<holdfast {name} {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": "holdfast.engine.targets.triton.generated"}
    exec(compile(text, file, "exec"), namespace)  # text that ``_Step.kernel`` wrote, from names and numbers of its own
    return namespace[name]


def stored_sides(program: StepProgram) -> tuple[Tile, ...]:
    """Tiles that backward writes for every step: sides of outer products that no tensor holds already."""
    source = Slot(Kind.SOURCE)
    sides = [side for r in program.reductions if isinstance(r, Outer) for side in (r.left, r.right)]
    held = program.inputs.get(source), program.inputs.get(Slot(Kind.STATE)), program.outputs[source]
    return tuple(dict.fromkeys(side for side in sides if side not in held))


class _Step(Blocks):
    """A kernel on its way: what a step reads and writes."""

    def __init__(self, shape: Shape, ready: Mapping[Product, str]):
        super().__init__(shape)
        self.in_loop = shape.way is not Way.STEPS
        self.tail: list[str] = []
        for product, name in ready.items():
            self.places[product] = self.loader(self.at(name))

    def rows(self, name: str) -> str:
        """A pointer to the first features of a tensor (batch, features)."""
        self.parameter(name)
        return f"{name} + samples * {self.parameter(f'{name}_row', 'i64')}"

    def at(self, name: str, when: str = "now") -> str:
        """The same for a tensor (time, batch, features) at this step; a launch for one step gets that step alone."""
        step = f" + ({when}) * {self.parameter(f'{name}_step', 'i64')}" if self.in_loop else ""
        return self.name(f"{self.rows(name)}{step}", "at")

    def loader(self, pointer: str, mask: str = "real") -> Load:
        def load(columns: str, features: int) -> str:
            guard = self._guard(features)
            return f"tl.load({pointer} + {columns}, mask={mask}{guard}, other=0.0).to(tl.float32)"

        return load

    def before(self, first: str, later: str, lived: str) -> Load:
        """A state before this step: that of the step before, or for a sample that begins to live the first one."""
        one, other = self.loader(later, f"real & {lived}"), self.loader(first, f"real & ({lived} == 0)")
        return lambda columns, features: f"tl.where({lived}, {one(columns, features)}, {other(columns, features)})"

    def _guard(self, features: int) -> str:
        return "" if wide(features) == features else f" & ({self.columns(features)} < {features})"

    def block(self, name: str, size: int) -> str:
        """A whole tensor (batch, size) as a block, loaded before the loop."""
        columns = self.columns(size)
        return f"tl.load({self.rows(name)} + {columns}, mask=real{self._guard(size)}, other=0.0).to(tl.float32)"

    def store(self, pointer: str, value: str, start: int, features: int, lines: list[str] | None = None) -> None:
        columns = self._shifted(self.columns(features), start)
        text = f"tl.store({pointer} + {columns}, {value}, mask=real{self._guard(features)})"
        (self.body if lines is None else lines).append(text)

    def store_tile(self, pointer: str, tile: Tile, *, zero_dead: bool) -> None:
        for start, features in self.windows(tile):
            value = self.value(tile, (start, features))
            masked = zero_dead and self.shape.masked
            self.store(pointer, f"tl.where(alive, {value}, 0.0)" if masked else value, start, features)

    def streams(self, inputs: Mapping[Slot, Input]) -> None:
        """Inputs that come from outside at every step."""
        for slot, tile in inputs.items():
            if slot.kind in (Kind.SOURCE, Kind.NOISE):
                self.places[tile] = self.loader(self.at(str(slot)))

    def sum_rows(self, index: int, reduction: RowSum) -> None:
        """Add up a tile's rows: in registers through the loop, else in memory."""
        tile, pointer = reduction.tile, self.parameter(f"sum{index}", "*fp32")
        for start, features in self.windows(tile):
            value = self.value(tile, (start, features))
            part = f"tl.sum(tl.where(alive, {value}, 0.0), axis=0, keep_dims=True)"
            columns = self.columns(features)
            where = f"{pointer} + program * {tile.features} + {self._shifted(columns, start)}"
            guard = f", mask={columns} < {features}" if wide(features) != features else ""
            if self.in_loop:
                total = self.name(f"tl.zeros((1, {wide(features)}), tl.float32)", "sum", self.head)
                self.body.append(f"{total} += {part}")
                self.tail.append(f"tl.store({where}, {total}{guard})")
            else:
                self.body.append(f"tl.store({where}, tl.load({where}{guard}) + {part}{guard})")

    def rounded(self, name: str) -> str:
        """A state as memory holds it."""
        return name if self.element == "fp32" else f"({name}).to(tl.bfloat16).to(tl.float32)"

    def kernel(self, name: str, *, backwards: bool) -> Kernel:
        lanes, counts = self.shape.lanes, ["steps", "batch"] if self.in_loop else ["t", "batch"]
        fixed = [
            "program = tl.program_id(0).to(tl.int64)",
            f"samples = program * {lanes} + tl.arange(0, {lanes})[:, None]",
            "real = samples < batch",
        ]
        if self.shape.masked:
            ends = [self.parameter(each, "*i32") for each in ("births", "deaths")]
            fixed += [f"{each[:-1]} = tl.load({each} + samples, mask=real, other=0)" for each in ends]
        if self.in_loop:
            start = ["t = steps - 1 - i"] if backwards else []
            loop = ["for i in range(steps):" if backwards else "for t in range(steps):"]
        else:
            start, loop = [], []
        start.append("now = tl.cast(t, tl.int64)")
        alive = "real & (now >= birth) & (now < death)" if self.shape.masked else "real"
        start.append(f"alive = {alive}")
        body = [("    " if self.in_loop else "") + line for line in (*start, *self.body)]
        lines = [*fixed, *self.head, *loop, *body, *self.tail]
        quoted = ", ".join(f'"{count}"' for count in counts)
        parameters = dict.fromkeys(counts, "i32") | self.parameters
        called = {word for line in lines for word in re.findall(r"(?<![\w.])([a-z_0-9]+)\(", line)}
        functions = ", ".join(sorted(called & set(FUNCTIONS)))
        text = "\n".join(
            [
                "import triton",
                "import triton.language as tl",
                "",
                *([f"from holdfast.engine.targets.triton.functions import {functions}", ""] if functions else []),
                "",
                f"@triton.jit(do_not_specialize=[{quoted}])",
                f"def {name}({', '.join(parameters)}):",
                *(f"    {line}" for line in lines),
                "",
            ]
        )
        tables = {pointer: entries for entries, pointer in self.tables.items()}
        return Kernel(name, text, parameters, tables, self.shape)


def emit_forward(
    program: StepProgram,
    shape: Shape,
    *,
    output: bool,
    keep: Collection[Slot],
    ready: Mapping[Product, str] | None = None,
    wanted: Mapping[Tile, str] | None = None,
) -> Kernel:
    """All steps, first to last, or one of them.

    Args:
        output: whether the first state of every step is written.
        keep: the states and the saved tiles that are kept for backward.
        ready: products that are in memory, by their parameter.
        wanted: tiles to write instead of states, output and what is kept, by their parameter.
    """
    k = _Step(shape, ready or {})
    k.streams(program.inputs)
    news = {slot: new for slot, new in program.outputs.items() if new is not None}
    for slot in news:
        old, i = program.inputs[slot], slot.index
        if k.in_loop:
            k.head.append(f"s{i} = {k.block(f'first{i}', old.features)}")
            k.set(old, f"s{i}")
        else:
            k.places[old] = k.loader(k.at(f"s{i}"))
    if wanted is not None:
        for tile, name in wanted.items():
            k.store_tile(k.at(name), tile, zero_dead=False)
        return k.kernel("forward", backwards=False)
    for i, tile in enumerate(program.saved):
        if Slot(Kind.SAVED, i) in keep:
            k.store_tile(k.at(f"k{i}"), tile, zero_dead=False)
    results = []
    for slot, new in news.items():  # all are computed before one is changed
        value = k.name(k.rounded(k.value(new)), "new")
        results.append((slot, value, k.value(program.inputs[slot])))
    for slot, value, old in results:
        i, size = slot.index, program.inputs[slot].features
        if i == 0 and output:
            k.store(k.at("out"), f"tl.where(alive, {value}, 0.0)" if shape.masked else value, 0, size)
        after = k.name(f"tl.where(alive, {value}, {old})", "new") if shape.masked else value
        if slot in keep:
            k.store(k.at(f"s{i}_kept"), after, 0, size)
        if k.in_loop:
            k.body.append(f"s{i} = {after}")
            k.store(k.rows(f"last{i}"), f"s{i}", 0, size, k.tail)
        else:
            k.store(k.at(f"n{i}"), after, 0, size)
    return k.kernel("forward", backwards=False)


def emit_backward(
    program: StepProgram,
    shape: Shape,
    *,
    state_sizes: tuple[int, ...],
    output_grad: bool,
    stored: tuple[Tile, ...],
    ready: Mapping[Product, str] | None = None,
    wanted: Mapping[Tile, str] | None = None,
) -> Kernel:
    """All steps, last to first, or one of them.

    Args:
        state_sizes: features of each entry of the state.
        output_grad: whether the first state of every step has a gradient of its own.
        stored: tiles that are written for every step, for the products after the loop.
        ready, wanted: as in ``emit_forward``.
    """
    k = _Step(shape, ready or {})
    inputs, outputs = program.inputs, program.outputs
    k.streams(inputs)
    for slot, tile in inputs.items():
        i = slot.index
        match slot.kind:
            case Kind.SAVED:
                k.places[tile] = k.loader(k.at(f"k{i}"))
            case Kind.NEW:
                k.places[tile] = k.loader(k.at(f"s{i}_kept" if i else "out"))
            case Kind.STATE if k.in_loop:
                # a state that is kept stands still while its sample does not live, the output is zero then
                since = "birth" if i == 0 and shape.masked else "0 * samples"
                lived = k.name(f"now > {since}", "lived")
                later = k.at(f"s{i}_kept" if i else "out", "now - 1")
                k.places[tile] = k.before(k.rows(f"first{i}"), later, lived)
            case Kind.STATE:
                k.places[tile] = k.loader(k.at(f"s{i}"))
    for i, size in enumerate(state_sizes):
        if k.in_loop:
            k.head.append(f"g{i} = {k.block(f'last_grad{i}', size)}")
        else:
            k.body.append(f"g{i} = {k.loader(k.at(f'last_grad{i}'))(k.columns(size), size)}")
        total = f"g{i}"
        if i == 0 and output_grad:
            total = f"{total} + {k.loader(k.at('out_grad'))(k.columns(size), size)}"
        total = f"tl.where(alive, {total}, 0.0)" if shape.masked else total
        cotangent = inputs.get(Slot(Kind.COTANGENT, i))
        if cotangent is not None:
            k.set(cotangent, k.name(total, "grad"))
    if wanted is not None:
        for tile, name in wanted.items():
            k.store_tile(k.at(name), tile, zero_dead=False)
        return k.kernel("backward", backwards=True)
    k.angle_sums = {r.source: index for index, r in enumerate(program.reductions) if isinstance(r, AngleSum)}
    source_grad = outputs[Slot(Kind.SOURCE)]
    if source_grad is not None:
        k.store_tile(k.at("x_grad"), source_grad, zero_dead=True)
    for j, tile in enumerate(stored):
        k.store_tile(k.at(f"stored{j}"), tile, zero_dead=True)
    for index, reduction in enumerate(program.reductions):
        if isinstance(reduction, RowSum):
            k.sum_rows(index, reduction)
        elif isinstance(reduction, AngleSum):
            k.value(reduction.source)
    results = []
    for i, size in enumerate(state_sizes):
        tile = outputs[Slot(Kind.STATE, i)]
        value = f"tl.zeros(({shape.lanes}, {wide(size)}), tl.float32)" if tile is None else k.value(tile)
        results.append(k.name(f"tl.where(alive, {value}, g{i})" if shape.masked else value, "grad"))
    for i, (size, value) in enumerate(zip(state_sizes, results, strict=True)):
        if k.in_loop:
            k.body.append(f"g{i} = {value}")
            k.store(k.rows(f"first_grad{i}"), f"g{i}", 0, size, k.tail)
        else:
            k.store(k.at(f"first_grad{i}"), value, 0, size)
    return k.kernel("backward", backwards=True)
