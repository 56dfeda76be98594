"""Names for the shapes and callables in signatures. Shapes are checked in tests, not at run time."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

__all__ = ["Hidden", "Input", "Nonlinearity", "State", "TimeFirst", "Weights"]

Input = Float[Tensor, "*batch input"]
"""One step's input, or any stack of them."""

Hidden = Float[Tensor, "batch hidden"]
"""One step's state, or anything else with one row per sample."""

TimeFirst = Float[Tensor, "steps batch feature"]
"""All steps of a batch, time first."""


State = tuple[Tensor, ...]
"""What a cell carries from step to step; the first entry is its output."""

Weights = tuple[Tensor, ...]
"""What a step reads besides its input and its state: constrained weights, built once per sequence."""

Nonlinearity = Callable[[Tensor], Tensor]
"""An elementwise function."""
