"""C-LSTM: an LSTM over the features of short windows instead of over single inputs.

    c_t = relu(Σ_{j<k} F_j x_{t-k+1+j} + b)            (1) n filters over the last k inputs; zeros before the first
    h_1 .. h_T = LSTM(c_1 .. c_T)                      (2)

The paper pads sentences to one length behind their end and has T - k + 1 windows. Here the k - 1 zeros are in front:
there is a window for every input, so lengths stay as they are and a sentence shorter than k has windows too.
Source: Zhou et al. (2015), §3. Symbols: docs/notation.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from holdfast.cells import CheckedLoad
from holdfast.errors import SettingError, ShapeError, positive_size
from holdfast.layers.named import LSTM

__all__ = ["CLSTM"]


class CLSTM(CheckedLoad):
    """A convolution over windows (1) and LSTM layers over what it finds (2), called as ``torch.nn.LSTM``.

    It reads whole sequences: a call begins with zeros in the window, so it takes no ``h_0`` and cannot be streamed.

    Args:
        input_size, hidden_size, num_layers: as in ``LSTM``.
        filters: n; the paper has 150.
        window: k; the paper has 3 for sentiment.
        settings: of ``LSTM``: ``dropout``, ``bidirectional``, ``initial_state``, ``backend``, ...; time comes first.

    Example:
        >>> output, (h_n, c_n) = CLSTM(3, 4, filters=6)(torch.zeros(7, 2, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))

    References:
        Zhou et al. (2015), A C-LSTM neural network for text classification.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        filters: int = 150,
        window: int = 3,
        **settings: Any,
    ):
        super().__init__()
        if settings.get("batch_first"):
            raise SettingError("CLSTM expects time first; leave out batch_first and transpose the input.")
        self.input_size = positive_size("CLSTM", "input_size", input_size)
        self.filters, self.window = (
            positive_size("CLSTM", name, value) for name, value in (("filters", filters), ("window", window))
        )
        self.convolution = nn.Conv1d(input_size, filters, window)
        self.lstm = LSTM(filters, hidden_size, num_layers, **settings)
        self.convolution.to(self.lstm.cells[0].example_weight())

    @property
    def hidden_size(self) -> int:
        return self.lstm.hidden_size

    @property
    def num_layers(self) -> int:
        return self.lstm.num_layers

    @property
    def bidirectional(self) -> bool:
        return self.lstm.bidirectional

    @property
    def directions(self) -> int:
        return self.lstm.directions

    def forward(
        self, input: Tensor | PackedSequence, h_0: Any = None, *, need_output: bool = True
    ) -> tuple[Any, tuple[Tensor, Tensor]]:
        if h_0 is not None:
            raise SettingError(
                "CLSTM expects no h_0: a call does not know the inputs before it, which are in its first windows. Give "
                "whole sequences in one call, without truncation or carry_state."
            )
        if not isinstance(input, PackedSequence):
            return self.lstm(self._windows(input), need_output=need_output)
        xs, lengths = pad_packed_sequence(input)
        packed = pack_padded_sequence(self._windows(xs), lengths, enforce_sorted=False)
        return self.lstm(packed, need_output=need_output)

    def _windows(self, xs: Tensor) -> Tensor:  # (time, batch, input) to (time, batch, filters)
        if xs.ndim != 3 or xs.shape[2] != self.input_size:
            raise ShapeError(f"CLSTM expects x of shape (time, batch, {self.input_size}), got {tuple(xs.shape)}.")
        rows = nn.functional.pad(xs.permute(1, 2, 0), (self.window - 1, 0))  # (batch, input, time)
        return torch.relu(self.convolution(rows)).permute(2, 0, 1)  # (1)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, filters={self.filters}, window={self.window}"
