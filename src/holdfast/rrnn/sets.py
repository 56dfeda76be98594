"""The sets that Algorithm 1 searches: tuples, operators, activations, auxiliary vectors, and the number of rounds.

    v = u(o(L_r c_i, R_r c_j) + b_r),   r in 1..n,  o in O,  u in U,  c_i, c_j in the pool, i < j      (1) a candidate

    GRU:   n = 4, the last (I, I, 0);  O = {+, ⊙};  U = {σ, tanh, 1 - ·, id};  {0};  8 rounds         Theorem 5
    LSTM:  n = 5, the last (I, I, 0);  O = {+, ⊙};  U = {σ, tanh, id};         {0};  7 rounds         Theorem 6, c_t
           n = 1, (I, I, 0);           O = {+, ⊙};  U = {tanh, id};            {0};  2 rounds         Theorem 6, h_t

Source: S1, §3.2 and Appendix C. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import SettingError, one_of, positive_size

__all__ = ["ACTIVATIONS", "GRU_SETS", "LSTM_SETS", "OPERATORS", "Activation", "Operator", "Sets", "auxiliary_vector"]


@dataclasses.dataclass(frozen=True)
class Operator:
    """A binary operation between two vectors, entry by entry.

    Args:
        symbol: for drawing trees.
        apply: the function.
        derivatives: ∂o/∂ first and ∂o/∂ second argument.
        slope: sup |∂o/∂ one argument|; None if it is the largest entry of the other argument.

    Example:
        >>> OPERATORS["add"].symbol, OPERATORS["mul"].slope is None
        ('+', True)
    """

    symbol: str
    apply: Callable[[Tensor, Tensor], Tensor]
    derivatives: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    slope: float | None


@dataclasses.dataclass(frozen=True)
class Activation:
    """An elementwise function.

    Args:
        symbol: for drawing trees.
        apply: the function.
        derivative: u'(z), from z and u(z).
        slope: sup |u'|, over the reals.

    Example:
        >>> ACTIVATIONS["sigmoid"].slope
        0.25
    """

    symbol: str
    apply: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor, Tensor], Tensor]
    slope: float


def _one_minus(z: Tensor) -> Tensor:
    return 1 - z


def _identity(z: Tensor) -> Tensor:
    return z


def _larger(a: Tensor, b: Tensor) -> Tensor:
    return (a > b) + 0.5 * (a == b)  # as PyTorch: a tie is shared


OPERATORS: dict[str, Operator] = {
    "add": Operator("+", torch.add, lambda a, b: (torch.ones_like(a), torch.ones_like(b)), 1.0),
    "mul": Operator("⊙", torch.mul, lambda a, b: (b, a), None),
    "max": Operator("∨", torch.maximum, lambda a, b: (_larger(a, b), _larger(b, a)), 1.0),
}
"""Operators by their name in settings. To add one, add an entry."""

ACTIVATIONS: dict[str, Activation] = {
    "sigmoid": Activation("σ", torch.sigmoid, lambda z, v: v * (1 - v), 0.25),
    "tanh": Activation("tanh", torch.tanh, lambda z, v: 1 - v.square(), 1.0),
    "one_minus": Activation("1-", _one_minus, lambda z, v: torch.full_like(z, -1), 1.0),
    "identity": Activation("id", _identity, lambda z, v: torch.ones_like(z), 1.0),
    "relu": Activation("relu", torch.relu, lambda z, v: (z > 0).to(z.dtype), 1.0),
}
"""Activations by their name in settings. To add one, add an entry."""


@dataclasses.dataclass(frozen=True)
class Sets:
    """What one run of Algorithm 1 may use.

    Args:
        tuples: how many (L, R, b) there are.
        identity: the last tuple is (I, I, 0) and is not trained; "start": it starts there, see ``Tuples``.
        operators, activations: names in ``OPERATORS`` and ``ACTIVATIONS``.
        auxiliary: constant vectors in the pool: "0" zeros, "1" ones, "e3" the third unit vector.
        rounds: N̄, nodes per step.

    Example:
        >>> Sets() == GRU_SETS, GRU_SETS.candidates(leaves=3)
        (True, 1440)
    """

    tuples: int = 4
    identity: bool | Literal["start"] = True
    operators: tuple[str, ...] = ("add", "mul")
    activations: tuple[str, ...] = ("sigmoid", "tanh", "one_minus", "identity")
    auxiliary: tuple[str, ...] = ("0",)
    rounds: int = 8

    def __post_init__(self) -> None:
        for name in ("operators", "activations", "auxiliary"):  # settings files have lists
            object.__setattr__(self, name, tuple(getattr(self, name)))
        one_of("Sets", "identity", self.identity, (True, False, "start"))
        positive_size("Sets", "tuples", self.tuples)
        positive_size("Sets", "rounds", self.rounds)
        for name, known in (("operators", OPERATORS), ("activations", ACTIVATIONS)):
            given = getattr(self, name)
            if not given or len(set(given)) < len(given) or not set(given) <= set(known):
                raise SettingError(f"Sets expects {name} to be some of {', '.join(known)}, each once; got {given}.")
        if len(set(self.auxiliary)) < len(self.auxiliary):
            raise SettingError(f"Sets expects each auxiliary vector once, got {self.auxiliary}.")

    def candidates(self, leaves: int) -> int:
        """How many candidates the last round chooses from, with this many leaves in the pool."""
        nodes = leaves + self.rounds - 1
        return nodes * (nodes - 1) // 2 * self.tuples * len(self.operators) * len(self.activations)


GRU_SETS = Sets()
LSTM_SETS = (
    Sets(tuples=5, activations=("sigmoid", "tanh", "identity"), rounds=7),
    Sets(tuples=1, activations=("tanh", "identity"), rounds=2),
)


def auxiliary_vector(name: str, size: int, like: Tensor) -> Tensor:
    """The constant vector of this name: "0", "1", or "e" and the number of the entry that is one.

    Example:
        >>> auxiliary_vector("e2", 3, torch.empty(0))
        tensor([0., 1., 0.])
    """
    zeros = like.new_zeros(size)
    if name in ("0", "1"):
        return zeros + float(name)
    if name.startswith("e") and name[1:].isdigit() and 1 <= int(name[1:]) <= size:
        zeros[int(name[1:]) - 1] = 1
        return zeros
    raise SettingError(f'An auxiliary vector is expected to be "0", "1", or "e1" to "e{size}", got {name!r}.')
