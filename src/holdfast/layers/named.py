"""The named layers: one line each, a cell over time.

Settings that a layer does not know go to its cell: ``SGORNN(2, 128, recurrent="exp")``. A module among them, such as
``gates=ScalarGates(...)``, is copied for each layer and direction.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, ClassVar

import torch
from torch import nn

from holdfast.cells import (
    Cell,
    ExpRNNCell,
    FastRNNCell,
    GRUCell,
    LinearCell,
    LSTMCell,
    RNNCell,
    SGORNNCell,
    VPRNNCell,
)
from holdfast.layers.initial_state import Random
from holdfast.layers.recurrent import Recurrent

__all__ = ["GRU", "LSTM", "RNN", "SGORNN", "VPRNN", "ExpRNN", "FastRNN", "LinearRNN"]


class _Named(Recurrent):
    cell_type: ClassVar[type[Cell]]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        initial_state: str | Random = "zeros",
        backend: str = "auto",
        device: Any = None,
        dtype: torch.dtype | None = None,
        **cell_settings: Any,
    ):
        super().__init__(
            functools.partial(_cell_of_its_own, self.cell_type, cell_settings),
            input_size,
            hidden_size,
            num_layers,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            initial_state=initial_state,
            backend=backend,
            device=device,
            dtype=dtype,
        )


def _cell_of_its_own(cell_type: type[Cell], settings: dict[str, Any], input_size: int, hidden_size: int) -> Cell:
    """A cell with a copy of every module among its settings: layers and directions share no gates, unless asked to."""
    own = {name: copy.deepcopy(value) if isinstance(value, nn.Module) else value for name, value in settings.items()}
    return cell_type(input_size, hidden_size, **own)


class RNN(_Named):
    """Layers of an Elman RNN. Arguments: those of ``Recurrent``, then those of ``RNNCell``.

    Example:
        >>> output, h_n = RNN(3, 4, nonlinearity="relu", init="identity")(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = RNNCell


class LinearRNN(_Named):
    """Layers of a linear dynamical system. Arguments: those of ``Recurrent``, then those of ``LinearCell``.

    Example:
        >>> output, h_n = LinearRNN(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = LinearCell


class FastRNN(_Named):
    """Layers of a FastRNN. Arguments: those of ``Recurrent``, then those of ``FastRNNCell``.

    Example:
        >>> output, h_n = FastRNN(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = FastRNNCell


class SGORNN(_Named):
    """Layers of an SGORNN. Arguments: those of ``Recurrent``, then those of ``SGORNNCell``.

    Example:
        >>> output, h_n = SGORNN(3, 4, recurrent="cayley")(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = SGORNNCell


class VPRNN(_Named):
    """Layers of a VPRNN. Arguments: those of ``Recurrent``, then those of ``VPRNNCell``.

    Example:
        >>> output, h_n = VPRNN(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = VPRNNCell


class ExpRNN(_Named):
    """Layers of an ExpRNN. Arguments: those of ``Recurrent``, then those of ``ExpRNNCell``.

    Example:
        >>> output, h_n = ExpRNN(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = ExpRNNCell


class LSTM(_Named):
    """Layers of an LSTM; ``h_0`` and ``h_n`` are pairs (h, c). Arguments: those of ``Recurrent``, then of ``LSTMCell``.

    Example:
        >>> output, h_n = LSTM(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n[0].shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = LSTMCell


class GRU(_Named):
    """Layers of a GRU, PyTorch's or, by ``reset``, S1's. Arguments: those of ``Recurrent``, then those of ``GRUCell``.

    Example:
        >>> output, h_n = GRU(3, 4, reset="before")(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = GRUCell
