"""More named layers: systems that the papers compare with, and newer baselines. Note [Signatures] is in named.py."""

from __future__ import annotations

from typing import Unpack

from holdfast.cells import (
    AntisymmetricRNNCell,
    CoRNNCell,
    FastGRNNCell,
    IndRNNCell,
    LEMCell,
    MinGRUCell,
    MinLSTMCell,
)
from holdfast.layers.named import LayerSettings, NamedLayer
from holdfast.types import Nonlinearity

__all__ = ["LEM", "AntisymmetricRNN", "CoRNN", "FastGRNN", "IndRNN", "MinGRU", "MinLSTM"]


class _IndRNNSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool
    horizon: int | None


class IndRNN(NamedLayer):
    """Layers of an IndRNN. Arguments: those of ``Recurrent`` and of ``IndRNNCell``.

    Example:
        >>> import torch
        >>> output, h_n = IndRNN(3, 4, num_layers=2, horizon=7)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([2, 2, 4]))
    """

    cell_type = IndRNNCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_IndRNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _CoRNNSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool
    dt: float
    gamma: float
    epsilon: float


class CoRNN(NamedLayer):
    """Layers of a coRNN; ``h_0`` and ``h_n`` are pairs (y, z). Arguments: those of ``Recurrent`` and of ``CoRNNCell``.

    Example:
        >>> import torch
        >>> output, h_n = CoRNN(3, 4, dt=0.1)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n[1].shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = CoRNNCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_CoRNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _LEMSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool
    dt: float


class LEM(NamedLayer):
    """Layers of a LEM; ``h_0`` and ``h_n`` are pairs (y, z). Arguments: those of ``Recurrent`` and of ``LEMCell``.

    Example:
        >>> import torch
        >>> output, h_n = LEM(3, 4)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n[1].shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = LEMCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_LEMSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _AntisymmetricRNNSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool
    gated: bool
    epsilon: float
    gamma: float


class AntisymmetricRNN(NamedLayer):
    """Layers of an antisymmetric RNN. Arguments: those of ``Recurrent`` and of ``AntisymmetricRNNCell``.

    Example:
        >>> import torch
        >>> output, h_n = AntisymmetricRNN(3, 4, gated=True)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = AntisymmetricRNNCell

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_AntisymmetricRNNSettings]
    ):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _FastGRNNSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool
    input_rank: int | None
    recurrent_rank: int | None


class FastGRNN(NamedLayer):
    """Layers of a FastGRNN. Arguments: those of ``Recurrent`` and of ``FastGRNNCell``.

    Example:
        >>> import torch
        >>> output, h_n = FastGRNN(3, 4, recurrent_rank=2)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = FastGRNNCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_FastGRNNSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _MinGRUSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool


class MinGRU(NamedLayer):
    """Layers of a minGRU. Arguments: those of ``Recurrent``, then those of ``MinGRUCell``.

    Example:
        >>> import torch
        >>> layer, xs = MinGRU(3, 4), torch.randn(7, 2, 3)
        >>> output, h_n = layer(xs)
        >>> layer.backend = "parallel"  # all steps at once
        >>> torch.allclose(layer(xs)[0], output, atol=1e-6)
        True
    """

    cell_type = MinGRUCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_MinGRUSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)


class _MinLSTMSettings(LayerSettings, total=False):
    nonlinearity: str | Nonlinearity
    bias: bool


class MinLSTM(NamedLayer):
    """Layers of a minLSTM; its state is one tensor. Arguments: those of ``Recurrent``, then those of ``MinLSTMCell``.

    Example:
        >>> import torch
        >>> output, h_n = MinLSTM(3, 4, backend="parallel")(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = MinLSTMCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_MinLSTMSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)
