"""Cells over time, with the interface of ``torch.nn.RNN``."""

from holdfast.layers.convert import from_torch, to_torch
from holdfast.layers.initial_state import RandomStart
from holdfast.layers.named import GRU, LSTM, RNN, SGORNN, VPRNN, ExpRNN, FastRNN, LinearRNN
from holdfast.layers.named_zoo import MinGRU, MinLSTM
from holdfast.layers.recurrent import Recurrent
from holdfast.layers.reservoir import Reservoir
from holdfast.layers.stream import LayerStream, Stream

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "SGORNN",
    "VPRNN",
    "ExpRNN",
    "FastRNN",
    "LayerStream",
    "LinearRNN",
    "MinGRU",
    "MinLSTM",
    "RandomStart",
    "Recurrent",
    "Reservoir",
    "Stream",
    "from_torch",
    "to_torch",
]
