"""RRNN as a layer, with its trees and the parts of loss (6).

    output, h_n = layer(input, h_0)                    as ``torch.nn.RNN``
    trace = layer.trace(input, h_0)                    the same, and every choice
    loss = task loss + layer.penalty()                 (6), in training, for a layer with loss=TreeLoss(...)

Source: S1. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from holdfast.engine.reference import plain_loop
from holdfast.errors import SettingError
from holdfast.layers.named import LayerSettings, NamedLayer
from holdfast.rrnn.cell import RRNNCell, TreeCell
from holdfast.rrnn.loss import LossParts, TreeLoss, parts_of
from holdfast.rrnn.record import Grown, Record
from holdfast.rrnn.sets import Sets
from holdfast.rrnn.soft import Rules
from holdfast.types import State

__all__ = ["RRNN", "Trace", "TreeLayer"]


@dataclasses.dataclass(frozen=True)
class Trace:
    """A call and its choices.

    Args:
        output, h_n: as the layer returns them.
        records: one per cell, in the order of ``layer.cells``.
        grown: one entry per cell: for every state vector what it grew over time, with gradients if they were enabled.

    Example:
        >>> trace = RRNN(4, 4, rounds=2).trace(torch.randn(5, 3, 4))
        >>> trace.output.shape, len(trace.records), trace.grown[0][0].vectors.shape
        (torch.Size([5, 3, 4]), 1, torch.Size([2, 5, 3, 4]))
    """

    output: Tensor
    h_n: Tensor | State
    records: tuple[Record, ...]
    grown: tuple[tuple[Grown, ...], ...]


class Noted:
    """What one call grew: for each of ``rows`` cells one ``Grown`` over time per state vector."""

    def __init__(self, rows: int):
        self.grown: list[tuple[Grown, ...]] = [()] * rows
        self.lengths: Tensor | None = None  # of a packed batch


class TreeLayer(NamedLayer):
    """What RRNN and RRNN-GRU have in common as layers."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Any):
        super().__init__(input_size, hidden_size, num_layers, **settings)
        if self.backend == "auto" and not self.fuses:
            self.backend = "reference"
        self.noted: Noted | None = None
        losses = [(cell.loss, len(cell.sets)) for cell in self.tree_cells if cell.loss is not None]
        if self.bidirectional and any(it.along == "teacher" for loss, states in losses for it in loss.targets(states)):
            raise SettingError(
                f"{type(self).__name__} expects a target along the model's states in both directions, got one along "
                'the teacher\'s; build it with along="model".'
            )

    @property
    def fuses(self) -> bool:
        """Whether a scan can compile the steps."""
        return False

    @property
    def tree_cells(self) -> list[TreeCell]:
        return self.cells  # type: ignore[return-value]

    def forward(
        self, input: Tensor | PackedSequence, h_0: Tensor | State | None = None, *, need_output: bool = True
    ) -> tuple[Any, Any]:
        wanted = self.training and torch.is_grad_enabled() and any(cell.loss is not None for cell in self.tree_cells)
        self.noted = Noted(len(self.cells)) if wanted else None
        run = self._run_row if self.noted is None else functools.partial(self._noting, self.noted, None)
        return self._forward(input, h_0, need_output, run)

    def _noting(
        self, noted: Noted, scores: bool | None, row: int, xs: Tensor, state: State, **run: Any
    ) -> tuple[Tensor | None, State]:
        """One cell over time, as ``scan`` runs it, with what every step grew; scores if asked, or if (7) needs them."""
        raise NotImplementedError

    def trace(self, input: Tensor, h_0: Tensor | State | None = None, *, scores: bool = False) -> Trace:
        """Run over ``input`` and keep every choice.

        Args:
            input, h_0: tensors, as in a call.
            scores: also evaluate the scores of chosen and runners-up.

        Example:
            >>> layer = RRNN(4, 4, rounds=2)
            >>> layer.trace(torch.randn(5, 3, 4)).records[0].tree(time=4, sample=0).size >= 1
            True
        """
        if not isinstance(input, Tensor):
            raise SettingError(f"{type(self).__name__}.trace expects a tensor, got {type(input).__name__}.")
        noted = Noted(len(self.cells))
        output, h_n = self._forward(input, h_0, True, functools.partial(self._noting, noted, scores))
        choices = [tuple(it.choices.permute(1, 2, 0, 3).to(torch.int16) for it in grown) for grown in noted.grown]
        cells = zip(choices, self.tree_cells, strict=True)
        records = tuple(Record(chosen, cell.leaf_names, cell.sets) for chosen, cell in cells)
        return Trace(output, h_n, records, tuple(noted.grown))

    @property
    def noted_steps(self) -> int:
        """Steps of the last call that ``penalty`` is over."""
        return 0 if self.noted is None else self.noted.grown[0][0].vectors.shape[1]

    def loss_parts(self, others: Iterable[Tensor] = ()) -> list[LossParts]:
        """The parts of loss (6) of the last call, one entry per cell.

        Args:
            others: parameters outside the layer that λ₄ also acts on, such as the readout's. The first entry has them.
        """
        every = []
        for row, cell in enumerate(self.tree_cells):
            if cell.loss is None:
                raise SettingError(
                    f"{type(self).__name__} expects a loss for loss_parts, got None; build it with loss=TreeLoss(...)."
                )
            if self.noted is None:
                raise SettingError(
                    f"{type(self).__name__} expects a call in training mode with gradients before loss_parts, got none."
                )
            parameters = [weight for weight in cell.parameters() if weight.requires_grad]
            own = (*parameters, *(others if row == 0 else ()))
            forms = cell.loss.forms or cell.forms
            loss = dataclasses.replace(cell.loss, forms=forms)
            every.append(parts_of(self.noted.grown[row], cell.leaf_names, loss, own, self.noted.lengths))
        return every

    def penalty(self, others: Iterable[Tensor] = ()) -> Tensor | None:
        """What (6) adds to the task's loss of the last call, summed over time; None without ``loss``.

        Example:
            >>> from holdfast.rrnn import TreeLoss
            >>> layer = RRNN(4, 4, rounds=2, loss=TreeLoss(tree=1e-3, margin=1e-3, ridge=1e-5))
            >>> output, _ = layer(torch.randn(5, 3, 4))
            >>> (output.square().mean() + layer.penalty()).backward()
        """
        if all(cell.loss is None for cell in self.tree_cells):
            return None
        parts = zip(self.loss_parts(others), self.tree_cells, strict=True)
        return torch.stack([part.weighted(cell.loss) for part, cell in parts]).sum()  # type: ignore[arg-type]


class _RRNNSettings(LayerSettings, total=False):
    tuples: int
    identity: bool | Literal["start"]
    operators: Sequence[str]
    activations: Sequence[str]
    auxiliary: Sequence[str]
    rounds: int
    states: int
    sets: Sequence[Sets] | None
    names: Sequence[str] | None
    carry_pool: bool
    scorer: int | nn.Module | Sequence[int | nn.Module]
    start_norm: float | None
    choice: Literal["hard", "soft"]
    batch_norm: bool | Literal["candidate"]
    rules: Rules
    copies: tuple[int, int]
    loss: TreeLoss | None


class RRNN(TreeLayer):
    """Layers of an RRNN. Arguments: those of ``Recurrent``, then those of ``RRNNCell``.

    The search runs step after step on any device; ``backend`` is "reference".

    Example:
        >>> layer = RRNN(4, 4, rounds=3)
        >>> output, h_n = layer(torch.zeros(7, 2, 4))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = RRNNCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_RRNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)

    def _noting(
        self, noted: Noted, scores: bool | None, row: int, xs: Tensor, state: State, **run: Any
    ) -> tuple[Tensor | None, State]:
        cell: RRNNCell = self.cells[row]  # type: ignore[assignment]
        weights, wanted = cell.weights(), cell.loss is not None and cell.loss.margin > 0 if scores is None else scores
        steps: list[tuple[Grown, ...]] = []

        def step(drive: Tensor, state: State) -> State:
            state, grown = cell.grown_step(drive, state, weights, scores=wanted)
            steps.append(grown)
            return state

        output, state = plain_loop(step, cell.drive(xs), state, **run)
        ordered = steps[::-1] if run["reverse"] else steps
        noted.lengths = run["lengths"]
        noted.grown[row] = tuple(map(Grown.over_time, zip(*ordered, strict=True)))
        return output, state
