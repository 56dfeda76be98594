"""RRNN: a cell that is a tree, found for every sample and step by Algorithm 1.

    (T_{t,i}, h_{t,i}) = search over {x_t, h_{t-1,1..M}, constants, h_{t,1..i-1}},   i = 1..M        (1)

The state is (h_{t,M}, .., h_{t,1}): the output first, and what an LSTM calls (h, c) for M = 2.

Vectors of one pool have one length p, the hidden size. An input of another length is first multiplied by a matrix.

Source: S1, §3 and Appendix B. Symbols: docs/notation.md.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from holdfast.cells import Cell
from holdfast.errors import SettingError, one_of, positive_size
from holdfast.rrnn.grow import candidates, grow
from holdfast.rrnn.loss import TreeLoss
from holdfast.rrnn.normalise import BirthNorm
from holdfast.rrnn.record import Grown
from holdfast.rrnn.scorer import TwoLayerScorer
from holdfast.rrnn.search import search
from holdfast.rrnn.sets import Sets, auxiliary_vector
from holdfast.rrnn.soft import Rules, soft_search
from holdfast.rrnn.tree import Matrices
from holdfast.types import Hidden, State, Weights

__all__ = ["RRNNCell", "TreeCell", "Tuples"]


class Tuples(nn.Module):
    """The parameters (L_r, R_r, b_r); an identity tuple at the end is not a parameter.

    Args:
        size: p.
        count: how many, the identity among them.
        identity: whether the last is (I, I, 0). "start": it is so at the start and is then trained as the others, and
            all b start at 0, as in the published code of S1.
        start_norm: the spectral norm of every L and R at the start, of an identity that is trained too; None keeps them
            as drawn.

    Example:
        >>> Tuples(5, 4)().left.shape, sum(weight.numel() for weight in Tuples(5, 4).parameters())
        (torch.Size([4, 5, 5]), 165)
    """

    def __init__(
        self,
        size: int,
        count: int,
        *,
        identity: bool | Literal["start"] = True,
        start_norm: float | None = None,
    ):
        super().__init__()
        one_of("Tuples", "identity", identity, (True, False, "start"))
        if start_norm is not None and not start_norm > 0:
            raise SettingError(f"Tuples expects start_norm above 0, got {start_norm!r}.")
        self.identity, self.start_norm, free = identity, start_norm, count - int(identity is True)
        self.left = nn.Parameter(torch.empty(free, size, size))
        self.right = nn.Parameter(torch.empty(free, size, size))
        self.bias = nn.Parameter(torch.empty(free, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.bias.shape[1])
        for weight in self.parameters():
            nn.init.uniform_(weight, -bound, bound)
        if self.identity == "start":
            nn.init.zeros_(self.bias)
            nn.init.eye_(self.left.data[-1])
            nn.init.eye_(self.right.data[-1])
        if self.start_norm is not None:
            with torch.no_grad():
                for weight in (self.left, self.right):
                    weight *= self.start_norm / torch.linalg.matrix_norm(weight, ord=2, keepdim=True)

    def forward(self) -> Matrices:
        own = Matrices(self.left, self.right, self.bias)
        if self.identity is not True:
            return own
        last = Matrices.identity(self.bias.shape[1], self.bias)
        pairs = ((own.left, last.left), (own.right, last.right), (own.bias, last.bias))
        return Matrices(*(torch.cat(pair) for pair in pairs))

    def extra_repr(self) -> str:
        return f"{self.bias.shape[1]}, {len(self.bias) + int(self.identity is True)}, identity={self.identity!r}"


class TreeCell(Cell):
    """What RRNN and RRNN-GRU have in common: sets, a loss, and vectors of one length."""

    sets: tuple[Sets, ...]
    loss: TreeLoss | None
    forms: Literal["min", "nodes"] = "min"  # of the loss, if it names none

    def __init__(self, input_size: int, hidden_size: int, loss: TreeLoss | None):
        super().__init__(input_size, hidden_size)
        self.loss = loss
        self.input_map = nn.Identity() if input_size == hidden_size else nn.Linear(input_size, hidden_size, bias=False)

    @property
    @abc.abstractmethod
    def leaf_names(self) -> tuple[tuple[str | int, ...], ...]:
        """Names of the leaves of every run."""

    def drive(self, x: Tensor) -> Tensor:
        return self.input_map(x)


class RRNNCell(TreeCell):
    """One step of an RRNN.

    Args:
        input_size, hidden_size: features of ``x`` and of each state vector.
        tuples, identity, operators, activations, auxiliary, rounds: as in ``Sets``.
        states: M, the number of state vectors.
        sets: one ``Sets`` per state vector, if they differ; then the settings above are ignored.
        names: of the state vectors in trees; "h", or "h1", "h2", ...
        carry_pool: the run for a later state vector may also use the nodes of earlier runs.
        scorer: hidden units of α, or a module from (..., p) to (...), or one of these per state vector.
        start_norm: the spectral norm of every L and R at the start, see ``Tuples``; S1 observed 0.223 (Appendix D.2).
        choice: "hard", the best candidate, with the gradient through its path alone, or "soft", see ``soft_search``.
        batch_norm: normalise candidates: True, with one set of statistics per birth, see ``BirthNorm``, for a hard
            choice, or "candidate", each candidate over batch and entries, see ``soft_search``, for a soft one.
        rules: which candidates a round has, see ``soft_search``; others than "algorithm 1" for a soft choice.
        copies: of x and of every old state in the pool, for the rules "multiset".
        loss: the parts of loss (6) that ``RRNN.penalty`` adds up.

    Example:
        >>> cell = RRNNCell(4, 4, rounds=3)
        >>> cell(torch.randn(2, 4), cell.initial_state(2)).shape
        torch.Size([2, 4])

    References:
        Qian, Kennedy, Klabjan: Dynamic cell structure via recursive-recurrent neural networks.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        tuples: int = 4,
        identity: bool | Literal["start"] = True,
        operators: Sequence[str] = ("add", "mul"),
        activations: Sequence[str] = ("sigmoid", "tanh", "one_minus", "identity"),
        auxiliary: Sequence[str] = ("0",),
        rounds: int = 8,
        states: int = 1,
        sets: Sequence[Sets] | None = None,
        names: Sequence[str] | None = None,
        carry_pool: bool = False,
        scorer: int | nn.Module | Sequence[int | nn.Module] = 256,
        start_norm: float | None = None,
        choice: Literal["hard", "soft"] = "hard",
        batch_norm: bool | Literal["candidate"] = False,
        rules: Rules = "algorithm 1",
        copies: tuple[int, int] = (1, 1),
        loss: TreeLoss | None = None,
    ):
        super().__init__(input_size, hidden_size, loss)
        one = Sets(tuples, identity, tuple(operators), tuple(activations), tuple(auxiliary), rounds)
        self.sets = tuple(sets) if sets is not None else (one,) * positive_size("RRNNCell", "states", states)
        count = len(self.sets)
        self.names = tuple(names or (("h",) if count == 1 else [f"h{i + 1}" for i in range(count)]))
        if len(self.names) != count or count == 0:
            raise SettingError(f"RRNNCell expects a name for each of its {count} state vectors, got {self.names}.")
        one_of("RRNNCell", "choice", choice, ("hard", "soft"))
        one_of("RRNNCell", "batch_norm", batch_norm, (True, False, "candidate"))
        if batch_norm and (choice == "soft") != (batch_norm == "candidate"):
            raise SettingError(
                'RRNNCell expects batch_norm=True with a hard choice and batch_norm="candidate" with a soft one, got '
                f"{batch_norm!r} with a {choice} one."
            )
        self.normalise = batch_norm == "candidate"
        one_of("RRNNCell", "rules", rules, ("algorithm 1", "multiset", "published code"))
        if rules != "algorithm 1" and choice == "hard":
            raise SettingError(
                f'RRNNCell expects a soft choice with the rules {rules!r}, got a hard one; set choice="soft".'
            )
        if rules != "multiset" and tuple(copies) != (1, 1):
            raise SettingError(
                f'RRNNCell expects copies with the rules "multiset" only, got {tuple(copies)} with {rules!r}.'
            )
        self.rules: Rules = rules
        self.copies = (positive_size("RRNNCell", "copies", copies[0]), positive_size("RRNNCell", "copies", copies[1]))
        if loss is not None and loss.forms == "nodes":
            raise SettingError('RRNNCell expects loss.forms of trees, got "nodes", which RRNN-GRU alone has.')
        self.choice, self.carry_pool = choice, carry_pool
        self.tuples = nn.ModuleList(
            Tuples(hidden_size, it.tuples, identity=it.identity, start_norm=start_norm) for it in self.sets
        )
        self.scorers = nn.ModuleList(self._scorers(scorer))
        for it, leaves in zip(self.sets, self.leaf_names, strict=True):
            if rules == "multiset" and it.rounds != len(leaves) - 1:
                raise SettingError(
                    f"RRNNCell expects {len(leaves) - 1} rounds for the {len(leaves)} leaves of a multiset, to leave "
                    f"one node, got {it.rounds}."
                )
        self.norms = nn.ModuleList(
            BirthNorm(hidden_size, it.rounds) if batch_norm is True else nn.Identity() for it in self.sets
        )
        for i, it in enumerate(self.sets):
            constants = [auxiliary_vector(name, hidden_size, self.example_weight()) for name in it.auxiliary]
            held = torch.stack(constants) if constants else self.example_weight().new_zeros(0, hidden_size)
            self.register_buffer(f"auxiliary_{i}", held, persistent=False)

    def _scorers(self, scorer: int | nn.Module | Sequence[int | nn.Module]) -> list[nn.Module]:
        each: Any = list(scorer) if isinstance(scorer, Sequence) else [scorer] * len(self.sets)
        if len(each) != len(self.sets):
            raise SettingError(f"RRNNCell expects {len(self.sets)} scorers, one per state vector, got {len(each)}.")
        return [it if isinstance(it, nn.Module) else TwoLayerScorer(self.hidden_size, it) for it in each]

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size,) * len(self.sets)

    @property
    def leaf_names(self) -> tuple[tuple[str | int, ...], ...]:
        """Names of the leaves of every run: x, old states, constants, new states (with a prime), nodes carried on."""
        every = []
        for i, sets in enumerate(self.sets):
            new = [f"{name}'" for name in self.names[:i]]
            carried = range(self.sets[i - 1].rounds - 1) if self.carry_pool and i else ()
            leaves = ("x",) * self.copies[0] + self.names * self.copies[1]
            every.append((*leaves, *sets.auxiliary, *new, *carried))
        return tuple(every)

    def weights(self) -> Weights:
        every = [tuples() for tuples in self.tuples]
        return tuple(tensor for it in every for tensor in (it.left, it.right, it.bias))

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        return self.grown_step(drive, state, weights)[0]

    def grown_step(
        self, drive: Hidden, state: State, weights: Weights, *, scores: bool = False
    ) -> tuple[State, tuple[Grown, ...]]:
        """``step``, and what it grew: one ``Grown`` per state vector, with the two best scores if ``scores``."""
        before, made, done = state[::-1], [], []
        carried: tuple[Tensor, ...] = ()
        for i, sets in enumerate(self.sets):
            constants = getattr(self, f"auxiliary_{i}")[:, None].expand(-1, len(drive), -1)
            old = (drive,) * self.copies[0] + tuple(before) * self.copies[1]
            leaves = torch.stack((*old, *constants, *made, *carried))
            grown = self._grow(i, leaves, Matrices(*weights[3 * i : 3 * i + 3]), sets, scores)
            done.append(grown)
            made.append(grown.vectors[-1])  # (1)
            carried = tuple(grown.vectors[:-1]) if self.carry_pool else ()
        return tuple(made[::-1]), tuple(done)

    def _grow(self, i: int, leaves: Tensor, matrices: Matrices, sets: Sets, scores: bool) -> Grown:
        scorer = self.scorers[i]
        if self.choice == "soft":
            found, best, second = soft_search(
                leaves, matrices, sets, scorer, normalise=self.normalise, rules=self.rules
            )
            return Grown(leaves, found.choices, found.vectors, best, second)
        norm = it if isinstance(it := self.norms[i], BirthNorm) else None
        found = search(leaves, matrices, sets, scorer, norm=norm, runner_up=scores)
        vectors = found.vectors
        if torch.is_grad_enabled():
            vectors = grow(leaves, found, matrices, sets, norm)
        if not scores:
            return Grown(leaves, found.choices, vectors)
        nodes, missing = torch.cat((leaves, vectors)), found.runners[..., 0] < 0
        others = candidates(
            nodes,
            found.runners.clamp_min(0),
            matrices,
            sets,
            norm=norm,
            found=found,
            leaves=len(leaves),
        )
        both = scorer(torch.stack((vectors, others)))
        best, second = both.reshape(2, *missing.shape)
        return Grown(leaves, found.choices, vectors, best, second.masked_fill(missing, -torch.inf))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, states={len(self.sets)}, choice={self.choice!r}"
