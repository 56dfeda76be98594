"""More named layers: systems that the papers compare with, and newer baselines. Note [Signatures] is in named.py."""

from __future__ import annotations

from typing import Unpack

from holdfast.cells import MinGRUCell, MinLSTMCell
from holdfast.layers.named import LayerSettings, NamedLayer
from holdfast.types import Nonlinearity

__all__ = ["MinGRU", "MinLSTM"]


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
