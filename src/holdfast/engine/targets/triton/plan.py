"""Plans for GPUs: a cell's step traced and lowered as for the CPU, then written as Triton source."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable
from typing import ClassVar

import torch

from holdfast.engine.program.tiles import Input, Kind, Product, Slot, StepProgram, Tile, in_order, read_by
from holdfast.engine.targets.cpu.plan import Plan, remembered
from holdfast.engine.targets.triton.emit import Kernel, emit_backward, emit_forward, stored_sides
from holdfast.engine.targets.triton.replay import Record
from holdfast.engine.targets.triton.shape import TYPES, Shape, Way

__all__ = ["Stage", "TritonPlan"]


@dataclasses.dataclass(frozen=True)
class Stage:
    """What is launched together: products by PyTorch, then a kernel.

    ``products``: the parameter that holds a product's left side, the product, and the parameter that it becomes.
    ``writes``: tiles that the kernel writes for products of later stages, by their parameter.
    """

    products: tuple[tuple[str, Product, str], ...]
    kernel: Kernel
    writes: dict[Tile, str]


@dataclasses.dataclass(eq=False)
class TritonPlan(Plan):
    """A traced step and the kernels made of it so far."""

    dtypes: ClassVar[Collection[torch.dtype]] = TYPES
    shapes: dict[bool, Shape] = dataclasses.field(default_factory=dict)  # what ways.py settled on, masked or not
    records: dict[Hashable, Record] = dataclasses.field(default_factory=dict)  # of launches, replay.py

    @remembered
    def stored_sides(self, source_grad: bool) -> tuple[Tile, ...]:
        program = self.lowered(source_grad).backward
        assert program is not None
        return stored_sides(program)

    @remembered
    def forward_stages(self, shape: Shape, output: bool, gradient: bool, source_grad: bool) -> tuple[Stage, ...]:
        program, keep = self.lowered(source_grad).forward, self.keep(source_grad) if gradient else ()
        return _stages(program, shape, functools.partial(emit_forward, program, shape, output=output, keep=keep))

    @remembered
    def backward_stages(self, shape: Shape, output_grad: bool, source_grad: bool) -> tuple[Stage, ...]:
        program = self.lowered(source_grad).backward
        assert program is not None
        options = {"state_sizes": self.traced.state_sizes, "stored": self.stored_sides(source_grad)}
        emit = functools.partial(emit_backward, program, shape, output_grad=output_grad, **options)
        return _stages(program, shape, emit)

    def kept_size(self, slot: Slot, source_grad: bool) -> int:
        """Features of a state or a tile that forward keeps for backward."""
        if slot.kind is Kind.STATE:
            return self.traced.state_sizes[slot.index]
        return self.lowered(source_grad).forward.saved[slot.index].features


def _stages(program: StepProgram, shape: Shape, emit: Callable[..., Kernel]) -> tuple[Stage, ...]:
    """One kernel for the whole scan, or what a step is launched as.

    A product can be done once its left side is in memory. A stage does the products that can be done; its kernel
    computes from them the left sides for the next stage. The last kernel writes what leaves the step.
    """
    if shape.way is not Way.STEPS:
        return (Stage((), emit(), {}),)
    level: dict[Tile, int] = {}  # products on the longest way to a tile
    for tile in in_order([*program.saved, *program.roots]):
        below = max((level[a] for a in read_by(tile)), default=0)
        level[tile] = below + (isinstance(tile, Product) and not tile.is_narrow)
    products = [tile for tile in level if isinstance(tile, Product) and not tile.is_narrow]
    names = {tile: _parameter(tile) or f"q{i}" for i, tile in enumerate(dict.fromkeys(p.tile for p in products))}
    made, ready, waiting = list[Stage](), dict[Product, str](), list[tuple[str, Product, str]]()
    for place in range(max(level.values(), default=0) + 1):
        now = [(names[p.tile], p, f"p{i}") for i, p in enumerate(products) if level[p] == place]
        writes = {tile: name for tile, name in names.items() if level[tile] == place and not _parameter(tile)}
        ready |= {product: name for _, product, name in now}
        waiting += now
        last = place == max(level.values(), default=0)
        if last or writes:
            made.append(Stage(tuple(waiting), emit(ready=dict(ready), wanted=None if last else writes), writes))
            waiting = []
    return tuple(made)


def _parameter(tile: Tile) -> str | None:
    """The parameter of a step's kernel in which an input lies; a cotangent is summed up by a kernel first."""
    if not isinstance(tile, Input) or tile.slot.kind is Kind.COTANGENT:
        return None
    if tile.slot.kind is Kind.NEW:
        return f"s{tile.slot.index}_kept" if tile.slot.index else "out"
    return str(tile.slot)
