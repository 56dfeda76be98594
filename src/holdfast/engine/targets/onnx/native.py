"""RNN, LSTM and GRU as ONNX's own operators, where its equations are ours.

    RNN     φ = tanh or relu
    LSTM    gates in the order i, o, f, c (ours: i, f, c, o), φ = tanh or relu
    GRU     gates in the order z, r, n (ours: r, z, n); reset "after" is linear_before_reset = 1, whose c_n is the last
            part of the second bias

Each has two biases, of which ours is the first. A subclass with equations of its own is not native.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.cells import Cell, GRUCell, LSTMCell, RNNCell

__all__ = ["Native", "native"]

_ACTIVATIONS: dict[Callable[..., Any], str] = {torch.tanh: "Tanh", torch.relu: "Relu"}


@dataclasses.dataclass(frozen=True, eq=False)
class Native:
    """An operator with its weights: W (1, gates · hidden, input), R (1, gates · hidden, hidden), B (1, both biases)."""

    kind: str
    weight_ih: Tensor
    weight_hh: Tensor
    bias: Tensor
    attributes: dict[str, Any]


@torch.no_grad()
def native(cell: Cell) -> Native | None:
    """The operator for ``cell``; None if ONNX has none.

    Example:
        >>> native(LSTMCell(3, 5)).weight_ih.shape, native(RNNCell(3, 5, nonlinearity="gelu")) is None
        (torch.Size([1, 20, 3]), True)
    """
    kind = next((kind for kind in (RNNCell, LSTMCell, GRUCell) if isinstance(cell, kind)), None)
    parts = ("drive", "weights", "step", "state_sizes")
    if kind is None or any(getattr(type(cell), part) is not getattr(kind, part) for part in parts):
        return None
    if any(part in vars(cell) for part in parts):  # replaced in this object
        return None
    assert isinstance(cell, RNNCell | LSTMCell | GRUCell)
    phi = "Tanh" if isinstance(cell, GRUCell) else _activation(cell.phi)
    if phi is None:
        return None
    hidden = cell.hidden_size
    attributes: dict[str, Any] = {"hidden_size": hidden}
    bias = cell.weight_ih.new_zeros(len(cell.weight_ih)) if cell.bias is None else cell.bias
    second = torch.zeros_like(bias)
    if isinstance(cell, RNNCell):
        name, gates, attributes["activations"] = "RNN", (0,), [phi]
    elif isinstance(cell, LSTMCell):
        name, gates, attributes["activations"] = "LSTM", (0, 3, 1, 2), ["Sigmoid", phi, phi]
    else:
        name, gates, attributes["linear_before_reset"] = "GRU", (1, 0, 2), int(cell.reset == "after")
        if cell.bias_hn is not None:
            second[2 * hidden :] = cell.bias_hn
    order = torch.cat([torch.arange(hidden) + gate * hidden for gate in gates])
    both = torch.cat([bias[order], second[order]])
    w, r, b = (part.detach()[None] for part in (cell.weight_ih[order], cell.weight_hh[order], both))
    return Native(name, w, r, b, attributes)


def _activation(phi: Callable[..., Any]) -> str | None:
    try:
        return _ACTIVATIONS.get(phi)
    except TypeError:  # not hashable
        return None
