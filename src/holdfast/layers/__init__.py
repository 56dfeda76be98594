"""Cells over time, with the interface of ``torch.nn.RNN``."""

from holdfast.layers.convert import from_torch, to_torch
from holdfast.layers.initial_state import RandomStart
from holdfast.layers.named import (
    EUNN,
    GORU,
    GRU,
    LSTM,
    RNN,
    SGORNN,
    URNN,
    VPRNN,
    ExpRNN,
    FastRNN,
    LinearRNN,
    ScoRNN,
)
from holdfast.layers.recurrent import Recurrent
from holdfast.layers.reservoir import Reservoir
from holdfast.layers.stream import LayerStream, Stream

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
    "LayerStream",
    "LinearRNN",
    "RandomStart",
    "Recurrent",
    "Reservoir",
    "ScoRNN",
    "Stream",
    "from_torch",
    "to_torch",
]
