"""What the arguments of a scan's kernel are: emit.py asks for them, pack.py fills them in."""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["Argument", "Part", "Role"]


class Role(enum.StrEnum):
    """What an argument holds; ``index`` of an ``Argument`` says which of several."""

    STEPS = "steps"
    SAMPLES = "samples of the block"
    WORK = "scratch memory"
    BIRTH = "the step at which each sample begins to live"
    DEATH = "the step from which it lives no more"
    SOURCE = "x, or the drive"  # this and the next five: (time, batch, features)
    SOURCE_GRAD = "the gradient of the source"
    OUTPUT = "the first state of every step"
    OUTPUT_GRAD = "the gradient of the output"
    NOISE = "random numbers"
    STORED = "a tile of every step, for the products after the loop"
    FIRST = "a state before the first step"  # this and the next three: (batch, features)
    LAST = "a state after the last step"
    FIRST_GRAD = "the gradient of the first state"
    LAST_GRAD = "the gradient of the last state"
    STATES = "a state after every step, as tiles"
    SAVED = "a tile that forward saves for backward, of every step"
    SUM = "a sum over steps and samples"
    WEIGHT = "a weight, entry by entry"
    NARROW = "the matrix of a narrow product, transposed"
    PANELS = "the matrix of a product, in panels"
    PAIRS = "the rows that a rotation turns together"
    STARTS = "the rows in which features begin a rotation"
    TURNS = "cosines and sines of a rotation"
    TEAM = "threads that run a scan together"  # this and the next three: feature_builder.py
    WORKER = "which of them this is"
    COUNTER = "how often one of them has waited for the others"
    YIELD = "the function that offers a core to other threads"


_NUMBERS = Role.STEPS, Role.SAMPLES, Role.TEAM, Role.WORKER, Role.YIELD


class Part(enum.StrEnum):
    """An address, or the elements from one row (sample), or one step, of a tensor to the next."""

    ADDRESS = "address"
    ROW = "row"
    STEP = "step"


class Argument(NamedTuple):
    """One entry of a kernel's parameter. A tuple, since it is hashed some dozens of times in every scan."""

    role: Role
    index: int = 0  # type: ignore[assignment] - a tuple has a method of this name
    part: Part = Part.ADDRESS

    @property
    def is_number(self) -> bool:
        return self.part is not Part.ADDRESS or self.role in _NUMBERS
