"""A model as S5 describes it, and one pass through it that shows every layer.

    h^(0,t) = x_t, or E[x_t] for tokens                            (1)
    h^(ℓ,t) by layer ℓ, in one direction or both                    (2) S5 (1)
    z = W h^(L,T) + b,  or z_t = W h^(L,t) + b                      (3) S5 (2)

The model is taken in evaluation mode: no dropout, and a random initial state is zero, its mean.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from holdfast.cells import Cell
from holdfast.engine import scan
from holdfast.errors import DTypeError, SettingError, ShapeError, one_of
from holdfast.layers import Recurrent
from holdfast.types import State

__all__ = ["SplineNetwork", "Walked", "read_at_last", "spline_network", "walk"]

Read = Literal["last", "every"]


@dataclasses.dataclass(frozen=True, eq=False)
class SplineNetwork:
    """(1) to (3).

    Args:
        rnn: (2).
        readout: W and b of (3); None if z is the layer's output itself.
        embedding: E of (1), for token inputs.
        read: at the last step, or at every step.

    Example:
        >>> from holdfast import RNN
        >>> spline_network(RNN(3, 5, nonlinearity="relu")).outputs
        5
    """

    rnn: Recurrent
    readout: nn.Linear | None
    embedding: nn.Embedding | None
    read: Read

    @property
    def width(self) -> int:
        """Features of the last layer's output, both directions together."""
        return self.rnn.directions * self.rnn.cells[-1].state_sizes[0]

    @property
    def outputs(self) -> int:
        """Entries of z at one step."""
        return self.width if self.readout is None else self.readout.out_features

    @property
    def weight(self) -> Tensor:
        """W of (3)."""
        example = self.rnn.cells[0].example_weight()
        eye = torch.eye(self.width, dtype=example.dtype, device=example.device)
        return eye if self.readout is None else self.readout.weight

    def features(self, xs: Tensor, *, sample: bool, who: str) -> Tensor:
        """(1): one sample as (time, 1, features), or a batch as (time, batch, features)."""
        if not isinstance(xs, Tensor):
            raise DTypeError(f"{who} expects a tensor, got {type(xs).__name__}.")
        if self.embedding is not None and not xs.is_floating_point():
            xs = self.embedding(xs)
        dims = 2 if sample else 3
        if xs.dim() != dims or xs.shape[-1] != self.rnn.input_size or 0 in xs.shape:
            first = "time" if sample else "batch, time" if self.rnn.batch_first else "time, batch"
            raise ShapeError(
                f"{who} expects {'one input' if sample else 'inputs'} of shape ({first}, {self.rnn.input_size})"
                f"{'' if self.embedding is None else f', or tokens ({first})'}, got {tuple(xs.shape)}."
            )
        self.rnn.cells[0].check_input(xs, ("",) * dims, who)
        if sample:
            return xs.unsqueeze(1)
        return xs.transpose(0, 1) if self.rnn.batch_first else xs

    def start(self, batch: int, h_0: Tensor | State | None, who: str) -> State:
        """The first states, entries (rows, batch, size): the layer's own in evaluation, or ``h_0``."""
        cell = self.rnn.cells[0]
        if h_0 is None:
            return self.rnn.initial_state(batch, cell.example_weight(), noise=False)
        state = (h_0,) if isinstance(h_0, Tensor) else tuple(h_0)
        expected = [(len(self.rnn.cells), batch, size) for size in cell.state_sizes]
        state = tuple(entry.unsqueeze(1) if entry.dim() == 2 and batch == 1 else entry for entry in state)
        if [tuple(entry.shape) for entry in state] != expected:
            raise ShapeError(f"{who} expects h_0 of shape {expected}, got {[tuple(entry.shape) for entry in state]}.")
        return state

    def answer(self, walked: list[Walked]) -> Tensor:
        """(3): (batch, outputs), or (time, batch, outputs)."""
        top = walked[-self.rnn.directions :]
        hs = torch.cat([row.last[0] if self.read == "last" else row.hs for row in top], dim=-1)
        return hs if self.readout is None else self.readout(hs)


@dataclasses.dataclass(frozen=True, eq=False)
class Walked:
    """One layer in one direction, and the tensors of one pass through it.

    Args:
        index, layer, reverse: which.
        cell: its cell.
        xs: its input, (time, batch, features).
        start, last: its first and last state.
        hs: its outputs, (time, batch, hidden).
    """

    index: int
    layer: int
    reverse: bool
    cell: Cell
    xs: Tensor
    start: State
    hs: Tensor
    last: State


def walk(network: SplineNetwork, xs: Tensor, start: State, lengths: Tensor | None = None) -> Iterator[Walked]:
    """(2), layer by layer, forward before backward, as the rows of ``h_n``."""
    rnn = network.rnn
    for layer in range(rnn.num_layers):
        outputs = []
        for way in range(rnn.directions):
            index = layer * rnn.directions + way
            cell, own, reverse = rnn.cells[index], tuple(entry[index] for entry in start), way == 1
            hs, last = scan(cell, xs, own, lengths=lengths, reverse=reverse, backend=rnn.backend)
            assert hs is not None
            yield Walked(index, layer, reverse, cell, xs, own, hs, last)
            outputs.append(hs)
        xs = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)


def spline_network(
    model: nn.Module | SplineNetwork, read: Read | None = None, who: str = "spline_network"
) -> SplineNetwork:
    """Read a model as (1) to (3).

    Args:
        model: a holdfast layer, or a module with the attributes ``rnn`` (such a layer) and ``readout`` (a linear one),
            and perhaps ``embedding`` and ``every_step``, such as ``holdfast.train.SequenceModel``.
        read: at the "last" step or at "every" one; None asks the model, and for a layer alone means "last".
        who: the function to name in an error.

    Example:
        >>> from holdfast import RNN
        >>> spline_network(RNN(3, 5, num_layers=2, nonlinearity="relu"), read="every").read
        'every'
    """
    one_of(who, "read", read, ("last", "every", None))
    if isinstance(model, SplineNetwork):
        return model if read is None else dataclasses.replace(model, read=read)
    rnn: Any = getattr(model, "rnn", model)
    if isinstance(rnn, nn.RNNBase):
        raise SettingError(f"{who} expects a holdfast layer, got torch.nn.{type(rnn).__name__}; use from_torch first.")
    if not isinstance(rnn, Recurrent):
        raise SettingError(
            f"{who} expects a holdfast layer, or a module with the attributes rnn and readout, got "
            f"{type(model).__name__}."
        )
    readout, embedding = getattr(model, "readout", None), getattr(model, "embedding", None)
    if isinstance(readout, nn.Identity):
        readout = None
    if readout is not None and not isinstance(readout, nn.Linear):
        raise SettingError(f"{who} expects readout to be nn.Linear, got {type(readout).__name__}.")
    if embedding is not None and not isinstance(embedding, nn.Embedding):
        raise SettingError(f"{who} expects embedding to be nn.Embedding, got {type(embedding).__name__}.")
    own: Read = "every" if getattr(model, "every_step", False) else "last"
    network = SplineNetwork(rnn, readout, embedding, read or own)
    if readout is not None and readout.in_features != network.width:
        raise ShapeError(f"{who} expects a readout of {network.width} features, got {readout.in_features}.")
    return network


def read_at_last(model: nn.Module | SplineNetwork, who: str) -> SplineNetwork:
    """The model as (1) to (3); an error if it is read at every step."""
    network = spline_network(model, who=who)
    if network.read == "every":
        raise SettingError(f"{who} expects a model that is read at the last step, got one that is read at every step.")
    return network
