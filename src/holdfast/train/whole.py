"""Models that read a whole sequence before they answer, from a summary of all states instead of the last one.

    f = (1/T Σ h_t,  h_T,  max_t h_t)                               (1) of a trained layer, in one or both directions
    z = W f + b                                                     (2)
    z = τ ((f - m) / s · W + b)                                     (3) f: the features of a reservoir

Both are called as ``SequenceModel`` is: inputs (time, batch, features) and lengths to answers and a state. The state is
empty here: there is no next call to hand it to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.cells import CheckedLoad
from holdfast.layers import Reservoir
from holdfast.types import State

__all__ = ["PooledModel", "ReservoirModel"]


class PooledModel(CheckedLoad):
    """(1) and (2) around a layer that looks like ``torch.nn.RNN`` with time first.

    Args:
        rnn: the layer; with ``bidirectional`` both directions are in (1).
        features: of the layer's output, hidden units times directions.
        outputs: classes, or numbers to predict.
        input_dropout, output_dropout: in training, on the inputs and on (1).

    Shape:
        inputs (time, batch, features), lengths (batch,) or None. Returns (batch, outputs) and ().

    Example:
        >>> import holdfast
        >>> model = PooledModel(holdfast.SGORNN(3, 8, bidirectional=True), features=16, outputs=2)
        >>> model(torch.randn(20, 5, 3))[0].shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        rnn: nn.Module,
        features: int,
        outputs: int,
        *,
        input_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ):
        super().__init__()
        self.rnn = rnn
        self.linear = nn.Linear(3 * features, outputs)  # not "readout": whoever looks for rnn and readout expects h_T
        self.input_dropout, self.output_dropout = nn.Dropout(input_dropout), nn.Dropout(output_dropout)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None, state: Any = None) -> tuple[Tensor, State]:
        steps, batch = inputs.shape[:2]
        lengths = torch.full((batch,), steps) if lengths is None else lengths.cpu()
        xs = self.input_dropout(inputs)
        packed = nn.utils.rnn.pack_padded_sequence(xs, lengths, enforce_sorted=False)
        output, last = self.rnn(packed, None)
        hs = nn.utils.rnn.pad_packed_sequence(output)[0]  # zeros behind the end
        ends = lengths.to(hs.device)
        outside = (torch.arange(len(hs), device=hs.device)[:, None] >= ends)[..., None]
        rows = last if isinstance(last, Tensor) else last[0]
        end = torch.cat(tuple(rows[-getattr(self.rnn, "directions", 1) :]), dim=1)
        mean, highest = hs.sum(dim=0) / ends[:, None], hs.masked_fill(outside, -torch.inf).amax(dim=0)
        return self.linear(self.output_dropout(torch.cat([mean, end, highest], dim=1))), ()  # (1), (2)


class ReservoirModel(CheckedLoad):
    """(3): a reservoir with a linear readout. ``holdfast.estimators.fit_reservoir`` fits it in closed form.

    Args:
        reservoir: the features.
        outputs: classes, or numbers to predict.

    Shape:
        inputs (time, batch, features), lengths (batch,) or None. Returns (batch, outputs), logits of classes or
        numbers, and ().

    Example:
        >>> model = ReservoirModel(Reservoir(3, steps=20, units=4), outputs=2)
        >>> model(torch.randn(20, 5, 3))[0].shape
        torch.Size([5, 2])
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    sharpness: Tensor

    def __init__(self, reservoir: Reservoir, outputs: int):
        super().__init__()
        self.reservoir, self.outputs = reservoir, outputs
        features, like = reservoir.features, reservoir.mean
        self.register_buffer("mean", like.new_zeros(features))
        self.register_buffer("scale", like.new_ones(features))
        self.register_buffer("weight", like.new_zeros(features, outputs))
        self.register_buffer("bias", like.new_zeros(outputs))
        self.register_buffer("sharpness", like.new_ones(()))

    def forward(self, inputs: Tensor, lengths: Tensor | None = None, state: Any = None) -> tuple[Tensor, State]:
        x = inputs.transpose(0, 1)
        z, begin = self.bias.double().expand(len(x), -1), 0
        for block in self.reservoir.blocks(x, lengths):
            at = slice(begin, begin := begin + block.shape[1])
            standard = (block.double() - self.mean[at]) / self.scale[at]
            z = z + standard @ self.weight[at].double()  # so many terms, whose sum may be small, need float64
        return (self.sharpness * z).to(x.dtype), ()  # (3)

    def options(self) -> dict[str, Any]:
        """What builds the same reservoir again, besides ``input_size`` and ``units``."""
        names = ("steps", "horizons", "nonlinearities", "scales", "quantiles", "bidirectional", "seed")
        return {name: getattr(self.reservoir, name) for name in names}
