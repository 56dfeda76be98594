"""Windows over a sequence as one batch, kept cheap by views, a shared drive and recomputation.

    windows[j, c · batch + b] = drive[c · stride + j, b],   j < length, c < count                  (1)

The gradient of (1) adds the windows back in place: ``length`` additions of whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.types import State, Weights

__all__ = ["Driven", "Recomputed", "Windows"]


class Driven(Cell):
    """A cell whose input is the drive itself, computed beforehand.

    Example:
        >>> from holdfast import RNNCell, scan
        >>> cell, xs = RNNCell(3, 4), torch.randn(5, 2, 3)
        >>> torch.testing.assert_close(scan(Driven(cell), cell.drive(xs))[0], scan(cell, xs)[0])
    """

    def __init__(self, cell: Cell):
        weight = cell.example_weight()
        with torch.no_grad():
            features = cell.drive(torch.zeros(1, cell.input_size, dtype=weight.dtype, device=weight.device)).shape[-1]
        super().__init__(features, cell.hidden_size)
        self.cell = cell

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return self.cell.state_sizes

    def drive(self, x: Tensor) -> Tensor:
        return x

    def weights(self) -> Weights:
        return self.cell.weights()

    def step(self, drive: Tensor, state: State, weights: Weights) -> State:
        return self.cell.step(drive, state, weights)


class Windows(torch.autograd.Function):
    """(1): (time, batch, features) to (length, count · batch, features), without a copy if stride or batch is 1."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, length: int, stride: int, count: int) -> Tensor:
        ctx.layout = source.shape, length, stride, count
        source = source.contiguous()
        batch, features = source.shape[1:]
        row = batch * features
        view = source.as_strided((length, count, batch, features), (row, stride * row, features, 1))
        return view.reshape(length, count * batch, features)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (shape, length, stride, count), (grad,) = ctx.layout, grads
        parts, total = grad.unflatten(1, (count, shape[1])), grad.new_zeros(shape)
        for j in range(length):
            total[j : j + (count - 1) * stride + 1 : stride] += parts[j]
        return total, None, None, None


class Recomputed(torch.autograd.Function):
    """``run(xs)`` that keeps only ``xs``: backward runs it again. ``weights``: all other tensors with a gradient.

    ``torch.utils.checkpoint`` does the same, but its hooks interfere with the first trace of a fused scan.
    """

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], xs: Tensor, *weights: Tensor) -> Tensor:
        ctx.run, ctx.weights = run, weights
        ctx.save_for_backward(xs)
        return run(xs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        xs = ctx.saved_tensors[0].detach().requires_grad_(ctx.needs_input_grad[1])
        with torch.enable_grad():
            output = ctx.run(xs)
        wanted = ([xs] if xs.requires_grad else []) + list(ctx.weights)
        found = list(torch.autograd.grad(output, wanted, grads, allow_unused=True))
        return None, found.pop(0) if xs.requires_grad else None, *found
