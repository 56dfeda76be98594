"""PyTorch's own kernels, for the cells that it has and the sizes at which they are faster than the fused scan.

A block of the fused scan is a vector of samples wide, so a batch of one leaves most lanes empty; PyTorch's LSTM in
float32 then runs on oneDNN and wins. Where it does was measured: benchmarks/, section "Sizes".
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from holdfast.cells import Cell, LSTMCell
from holdfast.types import State

__all__ = ["scan_library"]


@functools.singledispatch
def scan_library(cell: Cell, xs: Tensor, state: State, *, reverse: bool) -> tuple[Tensor, State] | None:
    """The scan by PyTorch's kernel if that is the faster way, else None."""
    return None


@scan_library.register
def _(cell: LSTMCell, xs: Tensor, state: State, *, reverse: bool) -> tuple[Tensor, State] | None:
    few = xs.shape[1] <= 4 or (xs.shape[1] <= 16 and cell.hidden_size >= 128)
    if not few or cell.phi is not torch.tanh or xs.dtype != torch.float32:
        return None
    weights: list[Tensor] = [cell.weight_ih, cell.weight_hh]
    if cell.bias is not None:
        weights += [cell.bias, torch.zeros_like(cell.bias)]  # PyTorch adds two
    start = [entry.unsqueeze(0).contiguous() for entry in state]
    source = xs.flip(0) if reverse else xs
    output, *last = torch.lstm(source, start, weights, cell.bias is not None, 1, 0.0, cell.training, False, False)
    return (output.flip(0) if reverse else output), tuple(entry.squeeze(0) for entry in last)
