"""``Recurrent``: any cell as a layer that looks and behaves like ``torch.nn.RNN``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from holdfast.cells import Cell, CheckedLoad
from holdfast.engine import in_weights_type, scan
from holdfast.engine.scan import BACKENDS
from holdfast.errors import DTypeError, SettingError, ShapeError, one_of, positive_size
from holdfast.layers.initial_state import InitialState, RandomStart
from holdfast.layers.stream import LayerStream
from holdfast.types import State

__all__ = ["Recurrent"]

CellFactory = Callable[[int, int], Cell]
RunRow = Callable[..., tuple[Tensor | None, State]]


class Recurrent(CheckedLoad):
    """A cell over time, stacked and in one direction or both, with the interface of ``torch.nn.RNN``.

    Args:
        cell: a ready ``Cell`` (one layer, one direction), or a factory ``(input_size, hidden_size) -> Cell``: a cell
            class, or ``functools.partial`` of one.
        input_size, hidden_size: arguments of the factory; leave them out for a ready cell.
        num_layers, batch_first, dropout, bidirectional, device, dtype: as in ``torch.nn.RNN``.
        initial_state: the start if no ``h_0`` is given: "zeros", "learned", or ``RandomStart(std)``.
        backend: as in ``holdfast.scan``.

    Shape:
        input (time, batch, input), (batch, time, input) with ``batch_first``, (time, input), or a ``PackedSequence``;
        ``h_0`` (layers · directions, batch, hidden), a tuple of such tensors if the cell's state has several entries.
        Returns ``output, h_n`` of the same kinds. With ``need_output=False`` in the call, ``None`` is returned
        instead of the output and, without gradients, memory does not grow with time.

    Example:
        >>> from holdfast import FastRNNCell
        >>> layer = Recurrent(FastRNNCell, 3, 5, num_layers=2, bidirectional=True)
        >>> output, h_n = layer(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 10]), torch.Size([4, 2, 5]))
    """

    def __init__(
        self,
        cell: Cell | CellFactory,
        input_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int = 1,
        *,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        initial_state: str | RandomStart = "zeros",
        backend: str = "auto",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        who = type(self).__name__
        self.num_layers = positive_size(who, "num_layers", num_layers)
        if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
            raise SettingError(f"{who} expects dropout to be a probability, 0 to 1, got {dropout!r}.")
        self.batch_first, self.dropout, self.bidirectional = bool(batch_first), float(dropout), bool(bidirectional)
        one_of(who, "backend", backend, BACKENDS)
        self.backend = backend
        self._names = [f"l{layer}{way}" for layer in range(num_layers) for way in ("", "_reverse")[: self.directions]]
        for name, built in zip(self._names, self._build(who, cell, input_size, hidden_size), strict=True):
            self.add_module(name, built)
        first = self.cells[0]
        self.input_size, self.hidden_size = first.input_size, first.hidden_size
        self.initial_state = InitialState(len(self._names), first.state_sizes, initial_state)
        self.to(device=device, dtype=dtype)

    def _build(self, who: str, cell: Cell | CellFactory, input_size: int | None, hidden_size: int | None) -> list[Cell]:
        if isinstance(cell, Cell):
            if len(self._names) > 1 or input_size is not None or hidden_size is not None:
                raise SettingError(
                    f"{who} expects a ready cell alone, for one layer in one direction, got {type(cell).__name__} and "
                    "more; give a factory: Recurrent(CellClass, input_size, hidden_size, num_layers)."
                )
            return [cell]
        if not callable(cell) or input_size is None or hidden_size is None:
            raise SettingError(
                f"{who} expects a Cell, or a factory with input_size and hidden_size, "
                f"got {cell!r}, {input_size}, {hidden_size}."
            )
        cells: list[Cell] = []
        for index in range(len(self._names)):
            width = input_size if index < self.directions else self.directions * cells[0].state_sizes[0]
            cells.append(cell(width, hidden_size))
            if not isinstance(cells[-1], Cell):
                raise DTypeError(
                    f"{who} expects its factory to return a holdfast.Cell, got {type(cells[-1]).__name__}."
                )
        return cells

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def cells(self) -> list[Cell]:
        """The cells, layer by layer, forward before backward, as the rows of ``h_n``."""
        return [self._modules[name] for name in self._names]  # type: ignore[misc]

    def reset_parameters(self) -> None:
        """Reset everything: the cells, their orthogonal maps and gates, and a learned start."""
        for module in self.modules():
            if module is not self and callable(reset := getattr(module, "reset_parameters", None)):
                reset()

    def forward(
        self, input: Tensor | PackedSequence, h_0: Tensor | State | None = None, *, need_output: bool = True
    ) -> tuple[Any, Any]:
        return self._forward(input, h_0, need_output, self._run_row)

    def _forward(
        self, input: Tensor | PackedSequence, h_0: Tensor | State | None, need_output: bool, run: RunRow
    ) -> tuple[Any, Any]:
        h_0 = in_weights_type(self.cells[0], h_0)
        if isinstance(input, PackedSequence):
            data = in_weights_type(self.cells[0], input.data)
            return self._forward_packed(input._replace(data=data), h_0, need_output, run)
        given: Tensor = in_weights_type(self.cells[0], input)
        batched = self._checked_batched(given)
        xs = given if batched else given.unsqueeze(1)  # (time, 1, input)
        if batched and self.batch_first:
            xs = xs.transpose(0, 1)
        state = self._start(h_0, xs, batched)
        output, state = self.through_layers(xs, state, need_output=need_output, run=run)
        if not batched:
            output = None if output is None else output.squeeze(1)
            state = tuple(entry.squeeze(1) for entry in state)
        elif output is not None and self.batch_first:
            output = output.transpose(0, 1)
        return output, _as_given(state)

    def _forward_packed(
        self, packed: PackedSequence, h_0: Tensor | State | None, need_output: bool, run: RunRow
    ) -> tuple[Any, Any]:
        """Samples stay in the packed order, longest first, and return to the caller's order at the end."""
        sizes = packed.batch_sizes
        if len(sizes) == 0 or sizes.min() < 1 or (sizes[1:] > sizes[:-1]).any() or sizes.sum() != len(packed.data):
            raise ShapeError(
                f"{type(self).__name__} expects a PackedSequence whose batch_sizes are positive, do not grow and add "
                f"up to {len(packed.data)}, got {sizes.tolist()}; use pack_padded_sequence(..., enforce_sorted=False)."
            )
        xs, lengths = pad_packed_sequence(PackedSequence(packed.data, sizes))
        self.cells[0].check_input(xs, ("time", "batch", "input_size"), type(self).__name__)
        state = self._start(h_0, xs, batched=True)
        if packed.sorted_indices is not None and h_0 is not None:
            state = tuple(entry.index_select(1, packed.sorted_indices) for entry in state)
        output, state = self.through_layers(xs, state, lengths.to(xs.device), need_output=need_output, run=run)
        if packed.unsorted_indices is not None:
            state = tuple(entry.index_select(1, packed.unsorted_indices) for entry in state)
        if output is not None:
            data = pack_padded_sequence(output, lengths).data
            output = PackedSequence(data, sizes, packed.sorted_indices, packed.unsorted_indices)
        return output, _as_given(state)

    def _run_row(self, row: int, xs: Tensor, state: State, **settings: Any) -> tuple[Tensor | None, State]:
        return scan(self.cells[row], xs, state, backend=self.backend, **settings)

    def through_layers(
        self,
        xs: Tensor,
        state: State,
        lengths: Tensor | None = None,
        *,
        need_output: bool = True,
        run: RunRow | None = None,
    ) -> tuple[Tensor | None, State]:
        """All layers over ``xs``, (time, batch, features), from ``state``, entries (rows, batch, size).

        Args:
            xs, state, lengths, need_output: as in ``holdfast.scan``, with one row of the state per layer and direction.
            run: ``run(row, xs, state, lengths=, reverse=, need_output=)`` runs one of them over time; default ``scan``.
        """
        run = run or self._run_row
        last_states: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for way in range(self.directions):
                row = layer * self.directions + way
                output, last_state = run(
                    row,
                    xs,
                    tuple(entry[row] for entry in state),
                    lengths=lengths,
                    reverse=way == 1,
                    need_output=need_output or layer + 1 < self.num_layers,
                )
                outputs.append(output)
                last_states.append(last_state)
            if outputs[0] is None:
                xs = None  # type: ignore[assignment]
                continue
            xs = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
            if layer + 1 < self.num_layers and self.dropout:  # a number that torch.compile reads costs a second trace
                xs = nn.functional.dropout(xs, self.dropout, self.training)
        return xs, tuple(torch.stack(entries) for entries in zip(*last_states, strict=True))

    def stream(self, batch: int = 1) -> LayerStream:
        """The layer as it is now, one input at a time: ``stream.step(x)``. See ``holdfast.Stream``.

        Args:
            batch: how many sequences run in parallel.
        """
        return LayerStream(self, batch)

    # -- what comes in -----------------------------------------------------------------------------------------------

    def _checked_batched(self, input: Tensor) -> bool:
        who = type(self).__name__
        if not isinstance(input, Tensor):
            raise DTypeError(f"{who} expects a tensor or a PackedSequence, got {type(input).__name__}.")
        batched = input.dim() != 2
        dims = ("batch", "time", "input_size") if self.batch_first else ("time", "batch", "input_size")
        self.cells[0].check_input(input, dims if batched else ("time", "input_size"), who)
        return batched

    def _start(self, h_0: Tensor | State | None, xs: Tensor, batched: bool) -> State:
        cell, who, rows, batch = self.cells[0], type(self).__name__, len(self._names), xs.shape[1]
        if h_0 is None:
            return self.initial_state(batch, xs)
        state = (h_0,) if isinstance(h_0, Tensor) else h_0
        if not isinstance(state, (tuple, list)) or not all(isinstance(entry, Tensor) for entry in state):
            raise DTypeError(f"{who} expects h_0 of {len(cell.state_sizes)} tensors, got {type(h_0).__name__} {h_0!r}.")
        middle = (batch,) if batched else ()
        expected = tuple((rows, *middle, size) for size in cell.state_sizes)
        if tuple(tuple(entry.shape) for entry in state) != expected:
            came = ", ".join(str(tuple(entry.shape)) for entry in state)
            raise ShapeError(f"{who} expects h_0 of shape {', '.join(map(str, expected))}, got {came}.")
        state = tuple(entry if batched else entry.unsqueeze(1) for entry in state)
        cell.check_state(tuple(entry[0] for entry in state), batch, who)
        return state

    def extra_repr(self) -> str:
        shown = [f"{self.input_size}, {self.hidden_size}"]
        for name, default in (("num_layers", 1), ("batch_first", False), ("dropout", 0.0), ("bidirectional", False)):
            if getattr(self, name) != default:
                shown.append(f"{name}={getattr(self, name)}")
        return ", ".join(shown)


def _as_given(state: State) -> Tensor | State:
    return state[0] if len(state) == 1 else state
