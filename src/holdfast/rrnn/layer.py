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
from holdfast.types import State

__all__ = ["RRNN", "Trace", "TreeLayer"]


@dataclasses.dataclass(frozen=True)
class Trace:
    """A call and its choices.

    Args:
        output, h_n: as the layer returns them.
        records: one per cell, in the order of ``layer.cells``.
        steps: one entry per cell: what it grew at every step, with gradients if they were enabled.

    Example:
        >>> trace = RRNN(4, 4, rounds=2).trace(torch.randn(5, 3, 4))
        >>> trace.output.shape, len(trace.records), len(trace.steps[0])
        (torch.Size([5, 3, 4]), 1, 5)
    """

    output: Tensor
    h_n: Tensor | State
    records: tuple[Record, ...]
    steps: tuple[tuple[tuple[Grown, ...], ...], ...]


class Noted:
    """What one call grew: for each of ``rows`` cells one entry per step, one ``Grown`` per state vector."""

    def __init__(self, rows: int):
        self.steps: list[list[tuple[Grown, ...]]] = [[] for _ in range(rows)]
        self.lengths: Tensor | None = None  # of a packed batch


class TreeLayer(NamedLayer):
    """What RRNN and RRNN-GRU have in common as layers."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Any):
        # choices are made in Python between the steps, so there is nothing to fuse
        settings.setdefault("backend", "reference")
        if settings["backend"] == "auto":
            settings["backend"] = "reference"
        super().__init__(input_size, hidden_size, num_layers, **settings)
        self.noted: Noted | None = None

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
        self,
        noted: Noted,
        scores: bool | None,
        row: int,
        xs: Tensor,
        state: State,
        *,
        lengths: Tensor | None,
        reverse: bool,
        need_output: bool,
    ) -> tuple[Tensor | None, State]:
        """One cell over time, as ``scan`` runs it, with what every step grew; scores if asked, or if (7) needs them."""
        cell, noted.lengths = self.tree_cells[row], lengths
        weights, wanted = cell.weights(), cell.loss is not None and cell.loss.margin > 0 if scores is None else scores

        def step(drive: Tensor, state: State) -> State:
            state, grown = cell.grown_step(drive, state, weights, scores=wanted)
            noted.steps[row].append(grown)
            return state

        return plain_loop(step, cell.drive(xs), state, lengths=lengths, reverse=reverse, need_output=need_output)

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
        steps = tuple(map(tuple, noted.steps))
        records = tuple(
            _record(cell, notes, reverse=self.bidirectional and row % 2 == 1)
            for row, (cell, notes) in enumerate(zip(self.tree_cells, steps, strict=True))
        )
        return Trace(output, h_n, records, steps)

    @property
    def noted_steps(self) -> int:
        """Steps of the last call that ``penalty`` is over."""
        return 0 if self.noted is None else len(self.noted.steps[0])

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
            every.append(parts_of(self.noted.steps[row], cell.leaf_names, cell.loss, own, self.noted.lengths))
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


def _record(cell: TreeCell, notes: tuple[tuple[Grown, ...], ...], *, reverse: bool) -> Record:
    """The choices as small integers, in the order of time."""
    ordered = notes[::-1] if reverse else notes
    choices = tuple(
        torch.stack([step[state].choices for step in ordered]).transpose(1, 2).to(torch.int16)
        for state in range(len(cell.sets))
    )
    return Record(choices, cell.leaf_names, cell.sets)


class _RRNNSettings(LayerSettings, total=False):
    tuples: int
    identity: bool
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
    batch_norm: bool
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
