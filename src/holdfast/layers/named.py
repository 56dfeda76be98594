"""The named layers: each is one cell over time.

Keyword arguments that a layer does not know go to its cell: ``SGORNN(2, 128, recurrent="exp")``. A module among them,
such as ``gates=ScalarGates(...)``, is copied for each layer and direction.

Note [Signatures]. A layer takes the arguments of ``Recurrent`` and those of its cell. For editors and type checkers
they are listed in a ``TypedDict``; for ``help`` and ``inspect`` the signature is read from the cell. A test compares
the two.
"""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import torch
from torch import nn

from holdfast.cells import (
    Cell,
    EUNNCell,
    ExpRNNCell,
    FastRNNCell,
    GORUCell,
    GRUCell,
    LinearCell,
    LSTMCell,
    RNNCell,
    ScoRNNCell,
    SGORNNCell,
    URNNCell,
    VPRNNCell,
)
from holdfast.constraints.gates import ScalarGates
from holdfast.constraints.orthogonal import OrthogonalMap
from holdfast.layers.initial_state import RandomStart
from holdfast.layers.recurrent import Recurrent
from holdfast.types import Nonlinearity

__all__ = [
    "EUNN",
    "GORU",
    "GRU",
    "LSTM",
    "RNN",
    "SGORNN",
    "URNN",
    "VPRNN",
    "ExpRNN",
    "FastRNN",
    "LayerSettings",
    "LinearRNN",
    "NamedLayer",
    "ScoRNN",
]


class LayerSettings(TypedDict, total=False):
    """Keyword arguments of every layer: those of ``Recurrent``. See Note [Signatures]."""

    batch_first: bool
    dropout: float
    bidirectional: bool
    initial_state: str | RandomStart
    backend: str
    device: Any
    dtype: torch.dtype | None


class NamedLayer(Recurrent):
    """A layer of one kind of cell, ``cell_type``, whose arguments it takes as keywords."""

    cell_type: ClassVar[type[Cell]]

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Any):
        layer = {name: settings.pop(name) for name in LayerSettings.__annotations__ if name in settings}
        factory = functools.partial(_cell_of_its_own, self.cell_type, settings)
        super().__init__(factory, input_size, hidden_size, num_layers, **layer)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in vars(cls) and hasattr(cls, "cell_type"):
            own, cell = inspect.signature(Recurrent.__init__), inspect.signature(cls.cell_type.__init__)
            layer = [own.parameters[name] for name in ("num_layers", *LayerSettings.__annotations__)]
            merged = sorted((*cell.parameters.values(), *layer), key=lambda parameter: parameter.kind)
            cls.__init__.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]


def _cell_of_its_own(cell_type: type[Cell], settings: dict[str, Any], input_size: int, hidden_size: int) -> Cell:
    """A cell with a copy of every module among its settings, so that layers and directions share no gates."""
    own = {name: copy.deepcopy(value) if isinstance(value, nn.Module) else value for name, value in settings.items()}
    return cell_type(input_size, hidden_size, **own)


class _RNNSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool
    init: str


class RNN(NamedLayer):
    """Layers of an Elman RNN. Arguments: those of ``Recurrent``, then those of ``RNNCell``.

    Example:
        >>> output, h_n = RNN(3, 4, nonlinearity="relu", init="identity")(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = RNNCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_RNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _LinearRNNSettings(LayerSettings, total=False):
    bias: bool
    output_size: int | None
    direct: bool


class LinearRNN(NamedLayer):
    """Layers of a linear dynamical system. Arguments: those of ``Recurrent``, then those of ``LinearCell``.

    Example:
        >>> output, h_n = LinearRNN(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = LinearCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_LinearRNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _FastRNNSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool
    gates: ScalarGates | None


class FastRNN(NamedLayer):
    """Layers of a FastRNN. Arguments: those of ``Recurrent``, then those of ``FastRNNCell``.

    Example:
        >>> output, h_n = FastRNN(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = FastRNNCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_FastRNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _SGORNNSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool
    recurrent: str | OrthogonalMap
    gates: ScalarGates | None


class SGORNN(NamedLayer):
    """Layers of an SGORNN. Arguments: those of ``Recurrent``, then those of ``SGORNNCell``.

    Example:
        >>> output, h_n = SGORNN(3, 4, recurrent="cayley")(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = SGORNNCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_SGORNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _VPRNNSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool
    sublayers: int | None


class VPRNN(NamedLayer):
    """Layers of a VPRNN. Arguments: those of ``Recurrent``, then those of ``VPRNNCell``.

    Example:
        >>> output, h_n = VPRNN(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = VPRNNCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_VPRNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _ExpRNNSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool
    init: Literal["cayley", "henaff", "identity"]
    rebase_every: int | None


class ExpRNN(NamedLayer):
    """Layers of an ExpRNN. Arguments: those of ``Recurrent``, then those of ``ExpRNNCell``.

    Example:
        >>> output, h_n = ExpRNN(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = ExpRNNCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_ExpRNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _ScoRNNSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool
    negative_signs: int | None


class ScoRNN(NamedLayer):
    """Layers of a scoRNN. Arguments: those of ``Recurrent``, then those of ``ScoRNNCell``.

    Example:
        >>> output, h_n = ScoRNN(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = ScoRNNCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_ScoRNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _URNNSettings(LayerSettings, total=False):
    """None of its own."""


class URNN(NamedLayer):
    """Layers of a uRNN. Arguments: those of ``Recurrent``, then those of ``URNNCell``.

    Example:
        >>> output, h_n = URNN(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = URNNCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_URNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _EUNNSettings(LayerSettings, total=False):
    order: Literal["tunable", "fft"]
    capacity: int | None


class EUNN(NamedLayer):
    """Layers of an EUNN. Arguments: those of ``Recurrent``, then those of ``EUNNCell``.

    Example:
        >>> output, h_n = EUNN(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = EUNNCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_EUNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _GORUSettings(LayerSettings, total=False):
    order: Literal["tunable", "fft"]
    capacity: int | None
    recurrent: str | OrthogonalMap | None


class GORU(NamedLayer):
    """Layers of a GORU. Arguments: those of ``Recurrent``, then those of ``GORUCell``.

    Example:
        >>> output, h_n = GORU(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = GORUCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_GORUSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _LSTMSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool
    forget_bias: float | None


class LSTM(NamedLayer):
    """Layers of an LSTM; ``h_0`` and ``h_n`` are pairs (h, c). Arguments: ``Recurrent``'s, ``LSTMCell``'s.

    Example:
        >>> output, h_n = LSTM(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n[0].shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = LSTMCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_LSTMSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _GRUSettings(LayerSettings, total=False):
    reset: str
    bias: bool


class GRU(NamedLayer):
    """Layers of a GRU, PyTorch's or, by ``reset``, S1's. Arguments: those of ``Recurrent``, then those of ``GRUCell``.

    Example:
        >>> output, h_n = GRU(3, 4, reset="before")(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = GRUCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_GRUSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)
