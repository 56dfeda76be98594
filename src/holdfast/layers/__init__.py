"""Cells over time, with the interface of ``torch.nn.RNN``."""

from holdfast.layers.c_lstm import CLSTM
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
from holdfast.layers.named_zoo import LEM, AntisymmetricRNN, CoRNN, FastGRNN, IndRNN, MinGRU, MinLSTM
from holdfast.layers.recurrent import Recurrent
from holdfast.layers.reservoir import Reservoir
from holdfast.layers.stream import LayerStream, Stream
from holdfast.layers.tree_lstm import TreeLSTM

__all__ = [
    "CLSTM",
    "EUNN",
    "GORU",
    "GRU",
    "LEM",
    "LSTM",
    "RNN",
    "SGORNN",
    "URNN",
    "VPRNN",
    "AntisymmetricRNN",
    "CoRNN",
    "ExpRNN",
    "FastGRNN",
    "FastRNN",
    "IndRNN",
    "LayerStream",
    "LinearRNN",
    "MinGRU",
    "MinLSTM",
    "RandomStart",
    "Recurrent",
    "Reservoir",
    "ScoRNN",
    "Stream",
    "TreeLSTM",
    "from_torch",
    "to_torch",
]
