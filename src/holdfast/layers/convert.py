"""Conversion between PyTorch's layers and ours: the same function, weight for weight.

PyTorch has two biases where one is enough; ours is their sum, and converted back the second is zero. The GRU's b_hn is
multiplied by the reset gate, so it stays a parameter of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.cells import Cell, GRUCell, LSTMCell, RNNCell
from holdfast.errors import ConversionError
from holdfast.layers.named import GRU, LSTM, RNN
from holdfast.layers.recurrent import Recurrent

__all__ = ["from_torch", "to_torch"]

OURS: dict[str, type[RNN] | type[LSTM] | type[GRU]] = {"RNN_TANH": RNN, "RNN_RELU": RNN, "LSTM": LSTM, "GRU": GRU}


def from_torch(layer: nn.RNNBase) -> Recurrent:
    """Our layer that computes what a ``torch.nn.RNN``, ``LSTM`` or ``GRU`` computes.

    Law: outputs, states and gradients are the same, to rounding.

    Example:
        >>> theirs = torch.nn.LSTM(3, 5, num_layers=2)
        >>> xs = torch.randn(7, 2, 3)
        >>> torch.testing.assert_close(from_torch(theirs)(xs), theirs(xs))
    """
    if not isinstance(layer, nn.RNNBase) or layer.mode not in OURS or getattr(layer, "proj_size", 0):
        raise ConversionError(
            f"from_torch expects a torch.nn.RNN, LSTM (without proj_size) or GRU, got {type(layer).__name__}"
            + (" with proj_size." if getattr(layer, "proj_size", 0) else ".")
        )
    settings: dict[str, Any] = {"bias": layer.bias}
    if layer.mode.startswith("RNN"):
        settings["nonlinearity"] = layer.nonlinearity
    ours = OURS[layer.mode](**_shared(layer, layer.weight_ih_l0), **settings)
    with torch.no_grad():
        for name, cell in zip(ours._names, ours.cells, strict=True):
            weights = {part: getattr(layer, f"{part}_{name}") for part in _torch_parts(layer.bias)}
            for part, value in _to_ours(cell, weights).items():
                getattr(cell, part).copy_(value)
    return ours.train(layer.training)


def to_torch(layer: Recurrent) -> nn.RNNBase:
    """The ``torch.nn`` layer that computes what our ``RNN``, ``LSTM`` or ``GRU`` computes.

    Law: ``from_torch(to_torch(layer))`` has the weights of ``layer``.

    Example:
        >>> theirs = to_torch(GRU(3, 5))
        >>> type(theirs).__name__, theirs.hidden_size
        ('GRU', 5)
    """
    if not isinstance(layer, Recurrent):
        raise ConversionError(f"to_torch expects a holdfast.RNN, LSTM or GRU, got {type(layer).__name__}.")
    cells = layer.cells
    kind = next((t for t in (RNNCell, LSTMCell, GRUCell) if isinstance(cells[0], t)), None)
    settings: dict[str, Any] = {}
    if kind is RNNCell:
        name = {torch.tanh: "tanh", torch.relu: "relu"}.get(cells[0].phi)  # type: ignore[arg-type]
        reason = None if name else "a nonlinearity other than tanh and relu"
        settings["nonlinearity"] = name
    elif kind is LSTMCell:
        reason = None if cells[0].phi is torch.tanh else "a nonlinearity other than tanh"
    elif kind is GRUCell:
        reason = None if cells[0].reset == "after" else 'reset="before", which torch.nn.GRU does not have'
    else:
        reason = f"{type(cells[0]).__name__}, which torch.nn does not have"
    if reason is None and layer.initial_state.kind != "zeros":
        reason = f"initial_state={layer.initial_state.kind!r}, which torch.nn does not have"
    if reason is not None:
        raise ConversionError(f"to_torch expects an RNN, LSTM or GRU as in torch.nn, got a layer with {reason}.")
    settings |= _shared(layer, cells[0].example_weight()) | {"bias": cells[0].bias is not None}
    theirs = {RNNCell: nn.RNN, LSTMCell: nn.LSTM, GRUCell: nn.GRU}[kind](**settings)  # type: ignore[index]
    with torch.no_grad():
        for name, cell in zip(layer._names, cells, strict=True):
            for part, value in _to_theirs(cell).items():
                getattr(theirs, f"{part}_{name}").copy_(value)
    return theirs.train(layer.training)


def _shared(layer: nn.Module, weight: Any) -> dict[str, Any]:
    """The arguments that both kinds of layers have."""
    names = ("input_size", "hidden_size", "num_layers", "batch_first", "dropout", "bidirectional")
    return {name: getattr(layer, name) for name in names} | {"dtype": weight.dtype, "device": weight.device}


def _torch_parts(bias: bool) -> tuple[str, ...]:
    return ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if bias else ("weight_ih", "weight_hh")


def _to_ours(cell: Cell, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    ours = {"weight_ih": theirs["weight_ih"], "weight_hh": theirs["weight_hh"]}
    if "bias_ih" in theirs:
        hidden_bias = theirs["bias_hh"].clone()
        if isinstance(cell, GRUCell):
            ours["bias_hn"] = hidden_bias[2 * cell.hidden_size :].clone()
            hidden_bias[2 * cell.hidden_size :] = 0
        ours["bias"] = theirs["bias_ih"] + hidden_bias
    return ours


def _to_theirs(cell: Any) -> dict[str, Tensor]:
    theirs = {"weight_ih": cell.weight_ih, "weight_hh": cell.weight_hh}
    if cell.bias is not None:
        theirs["bias_ih"], theirs["bias_hh"] = cell.bias, torch.zeros_like(cell.bias)
        if isinstance(cell, GRUCell) and cell.bias_hn is not None:
            theirs["bias_hh"][2 * cell.hidden_size :] = cell.bias_hn
    return theirs
