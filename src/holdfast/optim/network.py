"""A network as carriers of paths: an encoder of each input, ReLU recurrences, and a decoder.

    h⁰_t = encoder(x_t)                                     (1) embedding, or any feed-forward pieces
    hⁱ_t = [W_i hⁱ⁻¹_t + b_i + U_i hⁱ_{t-1}]₊,  hⁱ_0 = 0     (2) layers, S2 Table 1; a learned hⁱ_0 is one more bias
    y_t = decoder(hᴸ_t), t = T or t = 1..T                  (3) the output nodes that γ² sums over

Source: S2, §2 and footnote 1. Symbols: docs/notation.md.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import SettingError, ShapeError, one_of
from holdfast.optim.pieces import Piece, Squares

__all__ = ["PathNetwork", "Recurrence"]


@dataclass(frozen=True, eq=False)
class Recurrence:
    """One layer of (2): which tensors are its weights.

    Args:
        weight_ih: W, (hidden, input).
        weight_hh: U, (hidden, hidden). With several gates the rows of all of them, (gates · hidden, hidden): their
            edges are parallel.
        biases: each (hidden) or (gates · hidden); ``torch.nn.RNN`` has two.
        initial, row: a learned h_0 is row ``row`` of ``initial``, (rows, hidden).

    Example:
        >>> Recurrence(torch.zeros(5, 3), torch.zeros(5, 5), (torch.zeros(5),)).hidden_size
        5
    """

    weight_ih: Tensor
    weight_hh: Tensor
    biases: tuple[Tensor, ...] = ()
    initial: Tensor | None = None
    row: int = 0

    def __post_init__(self) -> None:
        rows, hidden = self.weight_hh.shape
        if rows % hidden or len(self.weight_ih) != rows:
            raise ShapeError(
                f"Recurrence expects weight_ih (hidden, input) and weight_hh (hidden, hidden), or a multiple of hidden "
                f"rows in both, got {tuple(self.weight_ih.shape)} and {tuple(self.weight_hh.shape)}."
            )
        for bias in self.biases:
            if bias.dim() != 1 or len(bias) not in (hidden, rows):
                raise ShapeError(f"Recurrence expects biases of {rows} entries, got shape {tuple(bias.shape)}.")

    @property
    def hidden_size(self) -> int:
        return self.weight_hh.shape[1]

    def squared(self, weight: Tensor, squares: Squares) -> Tensor:
        """The square of a weight or bias, summed over gates: (hidden, ...)."""
        value = squares[weight]
        gates = len(value) // self.hidden_size
        return value if gates == 1 else value.unflatten(0, (gates, self.hidden_size)).sum(0)

    def squared_bias(self, squares: Squares) -> Tensor:
        """What the node of the biases adds at every step, (hidden)."""
        parts = [self.squared(bias, squares) for bias in self.biases]
        return sum(parts[1:], parts[0]) if parts else squares[self.weight_hh].new_zeros(self.hidden_size)

    def squared_start(self, squares: Squares) -> Tensor:
        """The square of h_0, (hidden)."""
        if self.initial is None:
            return squares[self.weight_hh].new_zeros(self.hidden_size)
        return squares[self.initial][self.row]

    def weights(self) -> Iterator[Tensor]:
        yield from (self.weight_ih, self.weight_hh, *self.biases)
        if self.initial is not None:
            yield self.initial


@dataclass(frozen=True, eq=False)
class PathNetwork:
    """A network in the form (1) to (3). ``path_network`` makes it from a model; for your own class, build it yourself.

    Args:
        layers: the recurrences, first to last; none for a feed-forward network.
        decoder: pieces from the last layer (or from the encoder) to the outputs; none if its states are the outputs.
        encoder: pieces from an input to the first layer.
        last_only: whether outputs are read at the last step alone; ``None`` if whoever uses it is to say.
        input_shape: of one sample, (channels, ...), where the first piece is a convolution.

    Example:
        >>> W, U, V = torch.ones(2, 3), torch.ones(2, 2), torch.ones(1, 2)
        >>> from holdfast.optim import Dense, path_norm_sq
        >>> net = PathNetwork(layers=(Recurrence(W, U),), decoder=(Dense(V),), last_only=True)
        >>> path_norm_sq(net, steps=2).item()  # 3·2 paths from the last step, 3·2·2 from the first
        18.0
    """

    layers: tuple[Recurrence, ...] = ()
    decoder: tuple[Piece, ...] = ()
    encoder: tuple[Piece, ...] = ()
    last_only: bool | None = None
    input_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not (self.layers or self.decoder or self.encoder):
            raise SettingError("PathNetwork expects at least one layer or piece, got none.")
        width = self.encoder[-1].units if self.encoder else None
        for index, layer in enumerate(self.layers):
            if width is not None and layer.weight_ih.shape[1] != width:
                raise ShapeError(
                    f"PathNetwork expects layer {index} to read {width} features, got a weight_ih of shape "
                    f"{tuple(layer.weight_ih.shape)}."
                )
            width = layer.hidden_size

    def ones(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The input of ones, at one step."""
        if pieces := (self.encoder or (() if self.layers else self.decoder)):
            shape = pieces[0].input_shape() if self.input_shape is None else self.input_shape
        else:
            shape = (self.layers[0].weight_ih.shape[1],)
        return torch.ones((), dtype=dtype, device=next(self.edges()).device).expand(shape)

    @functools.cached_property
    def is_one_layer(self) -> bool:
        """Whether it is one recurrence of one gate that starts at zero, and one piece; each weight in one place."""
        if self.encoder or len(self.layers) != 1 or len(self.decoder) != 1:
            return False
        layer, weights = self.layers[0], list(self.edges())
        return layer.initial is None and len(layer.weight_hh) == layer.hidden_size and len(set(weights)) == len(weights)

    def edges(self) -> Iterator[Tensor]:
        """Every tensor of weights, once for each place that uses it."""
        for piece in self.encoder:
            yield from (tensor for tensor in piece.tensors if tensor is not None)
        for layer in self.layers:
            yield from layer.weights()
        for piece in self.decoder:
            yield from (tensor for tensor in piece.tensors if tensor is not None)

    def parameters(self) -> list[Tensor]:
        """Every tensor of weights, once, in order."""
        return list(dict.fromkeys(self.edges()))

    def reads_every_step(self, who: str, outputs: str | None) -> bool:
        """Whether γ² sums over outputs at every step, by ``outputs`` and by ``last_only``."""
        one_of(who, "outputs", outputs, ("last", "every", None))
        if self.last_only is not None:
            own = "last" if self.last_only else "every"
            if outputs not in (own, None):
                raise SettingError(
                    f"{who} expects outputs={own!r}, since the model has last_only={self.last_only}, got {outputs!r}."
                )
            return not self.last_only
        if outputs is None and self.layers:
            raise SettingError(f'{who} expects outputs="last" or "every": the steps at which the model is read.')
        return outputs == "every"
