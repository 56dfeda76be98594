"""RRNN-GRU: the tree is the GRU's, and only the tuple at each node is chosen.

    r  = σ[x, h],  z = σ[x, h],  r̃ = id[h ⊙ r],  z̄ = (1 - ·)[0, z],                                    (1)
    h̃  = tanh[x, r̃],  a = id[h ⊙ z],  b = id[z̄ ⊙ h̃],  h' = id[a, b]
    u[c, d] = Σ_r p_r v_r,   v_r = u(o(L_r c, R_r d) + b_r),   p = softmax(α(v_1) .. α(v_n))            (2)

The operator is + where none is written. (2) is the soft choice, which trains the scorer through the task's loss, in
evaluation too. With a hard choice u[c, d] is the v_r with the highest score. Both are tensor algebra without control
flow, so that a scan compiles them.

Note [r and z]. Both have the same children, operator and activation, so the same candidates and the same scores. In
Algorithm 1 they differ because nodes in the pool are excluded. ``gates="chosen"`` does the same: the tuple of r, the
one with the highest score, is excluded for z. What S1's authors ran is ``gates="fixed"``: z by the first tuple, r by
the second, and b = id[h̃ ⊙ z̄], h' = id[b, a], which differs from (1) because L and R do.

Weights and scorer are trained in turn for ``alternate`` epochs each, weights first; the layers after it are always
trained. ``at_epoch`` switches, and a training loop calls it.

Source: S1, §5 and Appendix E.1, and the code of its authors (docs/differences.md). Symbols: docs/notation.md.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from holdfast.cells import Cell
from holdfast.engine import scan
from holdfast.errors import SettingError, one_of, positive_size
from holdfast.layers.named import LayerSettings
from holdfast.rrnn.cell import TreeCell, Tuples
from holdfast.rrnn.layer import Noted, TreeLayer
from holdfast.rrnn.loss import TreeLoss
from holdfast.rrnn.record import Grown
from holdfast.rrnn.scorer import TwoLayerScorer
from holdfast.rrnn.sets import ACTIVATIONS, OPERATORS, Sets
from holdfast.rrnn.tree import Matrices
from holdfast.types import Hidden, State, Weights

__all__ = ["RRNNGRU", "RRNNGRUCell"]

# (left, right, operator, activation) in the pool x, h, 0, r, z, r̃, z̄, h̃, a, b, h': (1)
_CHOSEN = (
    (0, 1, "add", "sigmoid"),
    (0, 1, "add", "sigmoid"),
    (1, 3, "mul", "identity"),
    (2, 4, "add", "one_minus"),
    (0, 5, "add", "tanh"),
    (1, 4, "mul", "identity"),
    (6, 7, "mul", "identity"),
    (8, 9, "add", "identity"),
)
_FIXED = (*_CHOSEN[:6], (7, 6, "mul", "identity"), (9, 8, "add", "identity"))  # see Note [r and z]
_GATES = {0: 1, 1: 0}  # the tuples of r and z there

Setting = Literal["printed", "published code"]
_SETTINGS: dict[str, dict[str, Any]] = {
    "printed": {"identity": True, "gates": "chosen", "first": None, "forms": "min"},
    "published code": {"identity": "start", "gates": "fixed", "first": 1, "forms": "nodes"},
}


class RRNNGRUCell(TreeCell):
    """One step of an RRNN-GRU.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        setting: what the arguments that are None stand for: those of the paper, "printed", or those that its authors
            ran, "published code".

            ================== ========= ================
            argument           "printed" "published code"
            ================== ========= ================
            identity           True      "start"
            gates              "chosen"  "fixed"
            first              alternate 1
            forms of the loss  "min"     "nodes"
            ================== ========= ================
        tuples: how many (L, R, b) there are.
        identity: whether the last tuple is (I, I, 0); "start": only at the start, see ``Tuples``.
        gates: "chosen", r and z choose tuples as the other nodes do, or "fixed": z has the first and r the second.
        scorer: hidden units of α, or a module from (..., p) to (...).
        choice: "soft", as in the paper, or "hard".
        alternate: epochs per phase; None trains weights and scorer together, in both settings, since phases need a loop
            that calls ``at_epoch``. S1's authors have 5.
        first: epochs of the first phase.
        start_norm: the spectral norm of every L and R at the start, see ``Tuples``.
        loss: the parts of loss (6) that ``RRNNGRU.penalty`` adds up.

    Example:
        >>> cell = RRNNGRUCell(4, 4, setting="published code")
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
        setting: Setting = "printed",
        tuples: int = 4,
        identity: bool | Literal["start"] | None = None,
        gates: Literal["chosen", "fixed"] | None = None,
        scorer: int | nn.Module = 64,
        choice: Literal["soft", "hard"] = "soft",
        alternate: int | None = None,
        first: int | None = None,
        start_norm: float | None = None,
        loss: TreeLoss | None = None,
    ):
        super().__init__(input_size, hidden_size, loss)
        one_of("RRNNGRUCell", "setting", setting, tuple(_SETTINGS))
        preset = _SETTINGS[setting]
        last: bool | Literal["start"] = preset["identity"] if identity is None else identity
        self.gates = preset["gates"] if gates is None else gates
        one_of("RRNNGRUCell", "gates", self.gates, ("chosen", "fixed"))
        one_of("RRNNGRUCell", "choice", choice, ("soft", "hard"))
        if tuples < 2:
            raise SettingError(f"RRNNGRUCell expects at least 2 tuples, one for r and another for z, got {tuples}.")
        self.setting, self.choice, self.forms = setting, choice, preset["forms"]
        self.alternate = None if alternate is None else positive_size("RRNNGRUCell", "alternate", alternate)
        first = preset["first"] if first is None else first
        self.first = self.alternate if first is None else positive_size("RRNNGRUCell", "first", first)
        self.sets = (Sets(tuples, last),)
        self.tuples = Tuples(hidden_size, tuples, identity=last, start_norm=start_norm)
        self.scorer = scorer if isinstance(scorer, nn.Module) else TwoLayerScorer(hidden_size, scorer)

    @property
    def leaf_names(self) -> tuple[tuple[str | int, ...], ...]:
        return (("x", "h", "0"),)

    @property
    def nodes(self) -> tuple[tuple[int, int, str, str], ...]:
        """(left, right, operator, activation) of every node, children counted in the pool x, h, 0, nodes."""
        return _FIXED if self.gates == "fixed" else _CHOSEN

    @property
    def scored(self) -> range:
        """The nodes whose tuple is chosen."""
        return range(2 if self.gates == "fixed" else 0, len(self.nodes))

    def phase(self, epoch: int) -> Literal["both", "weights", "scorer"]:
        """What is trained in this epoch, counted from 0.

        Example:
            >>> [RRNNGRUCell(4, 4, alternate=2).phase(epoch) for epoch in range(5)]
            ['weights', 'weights', 'scorer', 'scorer', 'weights']
            >>> [RRNNGRUCell(4, 4, alternate=2, setting="published code").phase(epoch) for epoch in range(4)]
            ['weights', 'scorer', 'scorer', 'weights']
        """
        if self.alternate is None or self.first is None:
            return "both"
        return "scorer" if epoch >= self.first and (epoch - self.first) // self.alternate % 2 == 0 else "weights"

    def at_epoch(self, epoch: int) -> None:
        """Enable gradients for what this epoch's phase trains, and disable the others."""
        phase = self.phase(epoch)
        self.scorer.requires_grad_(phase != "weights")
        self.tuples.requires_grad_(phase != "scorer")
        self.input_map.requires_grad_(phase != "scorer")

    def drive(self, x: Tensor) -> Tensor:
        """L_1 x .. L_n x side by side."""
        return super().drive(x) @ self.tuples().flat_left

    def weights(self) -> Weights:
        matrices = self.tuples()
        scorer = self.scorer.parts if isinstance(self.scorer, TwoLayerScorer) else ()
        return matrices.flat_left, matrices.flat_right, matrices.bias.flatten(), *scorer

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        return (self.grown_nodes(drive, state[0], weights)[0][-1],)

    def grown_nodes(
        self, drive: Hidden, h: Hidden, weights: Weights
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """The vectors of (1), each (batch, p); and of every node in ``scored`` all scores, and its first best, one-hot.

        Both are (batch, tuples).
        """
        flat_left, flat_right, bias, *scorer = weights
        size, fixed = self.hidden_size, self.gates == "fixed"
        pool, lefts, rights = [h, h, h], {0: drive}, {}  # of x and 0 only products are needed
        found, firsts = [], []
        for k, (left, right, operator, activation) in enumerate(self.nodes):
            act = ACTIVATIONS[activation].apply
            if fixed and k in _GATES:
                if right not in rights:  # r and z need two tuples of four
                    rights[right] = h @ flat_right[:, : 2 * size]
                own = slice(_GATES[k] * size, (_GATES[k] + 1) * size)
                pool.append(act(drive[:, own] + rights[right][:, own] + bias[own]))
                continue
            if left not in lefts and left != 2:
                lefts[left] = pool[left] @ flat_left  # (batch, tuples · p)
            if right not in rights:
                rights[right] = pool[right] @ flat_right
            both = rights[right] if left == 2 else OPERATORS[operator].apply(lefts[left], rights[right])
            v = act(both + bias).view(len(h), -1, size)  # (batch, tuples, p)
            scores = self._scores(v, scorer)
            if not fixed and k == 1:  # see Note [r and z]
                scores = scores.masked_fill(firsts[0] > 0, -torch.inf)
            best = (scores == scores.amax(dim=1, keepdim=True)).to(v.dtype)
            first = best * (best.cumsum(dim=1) == 1).to(v.dtype)
            if self.choice == "soft":
                node = (torch.softmax(scores, dim=1).unsqueeze(2) * v).sum(dim=1)  # (2)
            else:  # without a best score, NaN
                node = torch.where(first.unsqueeze(2) > 0, v, 0.0).sum(dim=1) / first.sum(dim=1, keepdim=True)
            pool.append(node)
            found.append(scores)
            firsts.append(first)
        return pool[3:], found, firsts

    def _scores(self, v: Tensor, scorer: list[Tensor]) -> Tensor:
        """α of every candidate: (batch, tuples)."""
        if not scorer:
            return self.scorer(v).reshape(v.shape[:-1])
        weight, bias, weight_out, bias_out = scorer
        return (torch.relu(linear(v, weight, bias)) * weight_out).sum(dim=2) + bias_out

    def matrices(self) -> Matrices:
        """The tuples, the identity among them."""
        return self.tuples()

    def extra_repr(self) -> str:
        shown = f"setting={self.setting!r}, gates={self.gates!r}, choice={self.choice!r}, alternate={self.alternate}"
        return f"{super().extra_repr()}, {shown}"


class _Nodes(Cell):
    """The same steps with everything that they grow as the state: the nodes, then best, second and first best tuple."""

    def __init__(self, cell: RRNNGRUCell):
        super().__init__(cell.input_size, cell.hidden_size)
        self.cell = cell

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (sum(self.sizes),)

    @property
    def sizes(self) -> list[int]:
        scored = len(self.cell.scored)
        return [len(self.cell.nodes) * self.hidden_size, scored, scored, scored]

    def drive(self, x: Tensor) -> Tensor:
        return self.cell.drive(x)

    def weights(self) -> Weights:
        return self.cell.weights()

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        end = self.sizes[0]
        nodes, scores, firsts = self.cell.grown_nodes(drive, state[0][:, end - self.hidden_size : end], weights)
        pairs = list(zip(scores, firsts, strict=True))
        best = [torch.where(first > 0, it, 0.0).sum(dim=1, keepdim=True) for it, first in pairs]
        second = [it.masked_fill(first > 0, -torch.inf).amax(dim=1, keepdim=True) for it, first in pairs]
        # the sum of 0 .. 0 1 .. 1 is how many tuples come after the first best, itself included
        index = [first.shape[1] - first.cumsum(dim=1).sum(dim=1, keepdim=True) for first in firsts]
        return (torch.cat([*nodes, *best, *second, *index], dim=1),)


class _RRNNGRUSettings(LayerSettings, total=False):
    setting: Setting
    tuples: int
    identity: bool | Literal["start"] | None
    gates: Literal["chosen", "fixed"] | None
    scorer: int | nn.Module
    choice: Literal["soft", "hard"]
    alternate: int | None
    first: int | None
    start_norm: float | None
    loss: TreeLoss | None


class RRNNGRU(TreeLayer):
    """Layers of an RRNN-GRU. Arguments: those of ``Recurrent``, then those of ``RRNNGRUCell``.

    Example:
        >>> layer = RRNNGRU(4, 4, setting="published code", scorer=10, alternate=5)
        >>> output, h_n = layer(torch.zeros(7, 2, 4))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = RRNNGRUCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_RRNNGRUSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)
        self._walks = [_Nodes(cell) for cell in self.cells]  # type: ignore[arg-type]  # a list: no part of the layer

    @property
    def fuses(self) -> bool:
        return all(isinstance(cell.scorer, TwoLayerScorer) for cell in self.cells)

    def at_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0: see ``RRNNGRUCell.phase``.

        Example:
            >>> layer = RRNNGRU(4, 4, alternate=1)
            >>> layer.at_epoch(1)
            >>> [name for name, weight in layer.named_parameters() if weight.requires_grad][0]
            'l0.scorer.weight'
        """
        for cell in self.cells:
            cell.at_epoch(epoch)  # type: ignore[attr-defined]

    def _noting(
        self, noted: Noted, scores: bool | None, row: int, xs: Tensor, state: State, **run: Any
    ) -> tuple[Tensor | None, State]:
        walk, (h,), size = self._walks[row], state, self.hidden_size
        cell, sizes = walk.cell, walk.sizes
        start = torch.cat([h.new_zeros(len(h), sizes[0] - size), h, h.new_zeros(len(h), sum(sizes[1:]))], dim=1)
        run["need_output"] = True
        every, (last,) = scan(walk, xs, start, backend=self.backend, **run)
        flat, best, second, index = every.split(sizes, dim=2)  # type: ignore[union-attr]
        vectors = flat.unflatten(2, (-1, size)).permute(2, 0, 1, 3)  # (nodes, time, batch, p)
        output = vectors[-1]
        noted.lengths, noted.grown[row] = run["lengths"], (
            Grown(
                self._leaves(cell, xs, h, output, run["lengths"], reverse=run["reverse"]),
                _choices(cell, index.detach()),
                vectors,
                best.permute(2, 0, 1),
                second.permute(2, 0, 1),
            ),
        )  # fmt: skip
        return output, (last[:, sizes[0] - size : sizes[0]],)

    @staticmethod
    @torch.no_grad()
    def _leaves(
        cell: RRNNGRUCell, xs: Tensor, h: Tensor, output: Tensor, lengths: Tensor | None, *, reverse: bool
    ) -> Tensor:
        """x, the state before the step, and 0: (3, time, batch, p)."""
        before = torch.cat((output[1:], h[None]) if reverse else (h[None], output[:-1]))
        if reverse and lengths is not None:
            last = torch.arange(len(xs), device=xs.device)[:, None, None] >= lengths[:, None] - 1
            before = torch.where(last, h, before)
        return torch.stack((TreeCell.drive(cell, xs), before, torch.zeros_like(before)))


@torch.no_grad()
def _choices(cell: RRNNGRUCell, index: Tensor) -> Tensor:
    """The choices, (nodes, time, batch, 5), from the tuples of the scored nodes, (time, batch, nodes)."""
    (sets,) = cell.sets
    rows = [
        (left, right, _GATES.get(k, 0), sets.operators.index(operator), sets.activations.index(activation))
        for k, (left, right, operator, activation) in enumerate(cell.nodes)
    ]
    choices = torch.tensor(rows, device=index.device)[:, None, None].repeat(1, *index.shape[:2], 1)
    choices[list(cell.scored), ..., 2] = index.permute(2, 0, 1).long()
    return choices
