"""Scratch memory: arrays that are never needed at the same time share it, and a new state may replace the old."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from holdfast.engine.program.tiles import Input, Tile

if TYPE_CHECKING:
    from holdfast.engine.targets.c.emitter import Emitter

__all__ = ["Layout", "Touch", "layout"]


@dataclasses.dataclass(frozen=True)
class Touch:
    """Statement ``when`` reads or writes an array; ``own_row``: only at the row that its loop is at."""

    when: int
    own_row: bool


@dataclasses.dataclass(frozen=True)
class Layout:
    """``starts``: where in scratch memory an array begins; ``in_place``: new states written over the old, by slot."""

    starts: dict[Tile, int] = dataclasses.field(default_factory=dict)
    in_place: dict[Tile, int] = dataclasses.field(default_factory=dict)
    work: int = 0


def layout(draft: Emitter) -> Layout:
    """Where the arrays of a step lie, from what its draft touched."""
    in_place: dict[Tile, int] = {}
    program = draft.step.schedule.program
    for slot, new in program.outputs.items():
        if new is not None and new not in in_place and _can_replace(new, program.inputs[slot], draft):
            in_place[new] = slot.index
    lives = {}
    for tile in draft.arrays:
        if tile not in in_place:
            when = [touch.when for touch in draft.touched[tile]]
            lives[tile] = min(when), max(when)
    starts = _packed(lives)
    return Layout(starts, in_place, max((start + tile.features for tile, start in starts.items()), default=0))


def _packed(lives: dict[Tile, tuple[int, int]]) -> dict[Tile, int]:
    """First fit, by first use."""
    starts: dict[Tile, int] = {}
    for tile, (begin, end) in sorted(lives.items(), key=lambda item: item[1]):
        others = [other for other in starts if lives[other][0] <= end and begin <= lives[other][1]]
        start = 0
        for other in sorted(others, key=starts.__getitem__):
            if start + tile.features <= starts[other]:
                break
            start = max(start, starts[other] + other.features)
        starts[tile] = start
    return starts


def _can_replace(new: Tile, old: Input, draft: Emitter) -> bool:
    """Whether the loop that makes ``new`` may write over ``old``: no later statement reads old, and no other row."""
    made = draft.made_by_loop.get(new)
    if made is None or new.features != old.features:
        return False
    return all(touch.when < made or (touch.when == made and touch.own_row) for touch in draft.touched[old])
