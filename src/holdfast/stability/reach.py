"""How far back a loss depends on its inputs: the norm of its gradient over distance. S4, Figure 2.

    g(i) = mean over t of ‖∇_{x_t} p_{t+i}‖                                     (1) p_s the loss at step s

One backward pass from p_s gives ∇_{x_t} p_s for all t ≤ s at once. To take many s in one pass, each gets its own copy
of the sequence, as a sample of a batch: m copies of the D + m steps that end with them, started at the state that the
full recurrence has there. So (1) is exact, and needs T/m passes over 2D steps if m = D.

Source: S4, §7.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.errors import SettingError, ShapeError
from holdfast.layers import Recurrent
from holdfast.stability.observed import time_first
from holdfast.stability.stack import as_layer
from holdfast.types import State

__all__ = ["Reach", "gradient_reach"]

_BUDGET = 1 << 25  # numbers in the outputs of one batch of copies


@dataclass(frozen=True)
class Reach:
    """The norm of the gradient over distance (1), and its spread.

    Args:
        distances: i = 0, 1, 2, ...
        mean, largest: of ‖∇_{x_t} p_{t+i}‖ over t and samples, for each distance.
        count: how many gradients each is taken over.

    Example:
        >>> from holdfast import LinearCell
        >>> cell = LinearCell(1, 1, bias=False)
        >>> with torch.no_grad():
        ...     _ = cell.weight_hh.fill_(0.5), cell.weight_ih.fill_(1.0)
        >>> gradient_reach(cell, torch.randn(6, 1, 1), lambda h: h.sum(dim=1), distances=3).mean
        (1.0, 0.5, 0.25, 0.125)
    """

    distances: tuple[int, ...]
    mean: tuple[float, ...]
    largest: tuple[float, ...]
    count: tuple[int, ...]


def gradient_reach(
    model: Cell | Recurrent,
    data: Tensor,
    loss: Callable[..., Tensor] | None = None,
    targets: Tensor | None = None,
    *,
    distances: int = 50,
    copies: int | None = None,
    at: Sequence[int] | None = None,
) -> Reach:
    """The norm of the gradient over distance, (1) for i = 0 to ``distances``, over every step and sample; exact.

    Law: the gradients are those of backpropagation through the whole sequence.

    Args:
        model: a cell, or a layer in one direction, in evaluation mode.
        data: inputs as the layer takes them, (time, batch, input), at least two steps.
        loss: p: from outputs (rows, hidden), and targets (rows, ...) if given, to losses (rows,); default: ½ ‖output‖²,
            for a model without a task.
        targets: (time, batch, ...), or (batch, time, ...) with ``batch_first``.
        distances: the largest i, at most the number of steps less one.
        copies: m; default ``distances``, or fewer if memory would exceed about 256 MB.
        at: the steps s whose losses p_s are taken; default: all. A few are enough for a long sequence. A distance that
            none of them reaches has a count of 0 and a mean that is not a number.

    Example:
        >>> from holdfast import RNN
        >>> readout = torch.nn.Linear(8, 5)
        >>> words = torch.randint(0, 5, (30, 2))
        >>> def loss(h, y):
        ...     return torch.nn.functional.cross_entropy(readout(h), y, reduction="none")
        >>> reach = gradient_reach(RNN(3, 8), torch.randn(30, 2, 3), loss, words, distances=10)
        >>> len(reach.mean), reach.count[0], reach.count[10]
        (11, 60, 40)
    """
    layer = as_layer(model, "gradient_reach")
    xs = time_first(layer, data, "gradient_reach").detach()
    steps, batch = xs.shape[:2]
    if isinstance(distances, bool) or not isinstance(distances, int) or not 1 <= distances < steps:
        raise SettingError(
            f"gradient_reach expects distances from 1 to {steps - 1}, one less than the steps, got {distances!r}."
        )
    if targets is not None:
        targets = targets.unsqueeze(1) if data.dim() == 2 else targets.transpose(0, 1) if layer.batch_first else targets
        if targets.shape[:2] != xs.shape[:2]:
            raise ShapeError(
                f"gradient_reach expects a target for each of {steps} steps and {batch} samples, got targets of shape "
                f"{tuple(targets.shape)}."
            )
    if loss is None:
        if targets is not None:
            raise SettingError(
                "gradient_reach expects a loss together with targets, got targets alone; give loss, too."
            )
        loss = _half_square
    width = layer.cells[-1].state_sizes[0]
    fitting = max(1, _BUDGET // (2 * distances * batch * width))
    copies = min(distances, fitting) if copies is None else copies
    if copies < 1:
        raise SettingError(f"gradient_reach expects at least 1 copy, got {copies}.")
    chosen = torch.arange(steps) if at is None else torch.tensor(sorted(set(at)), dtype=torch.int64)
    if not len(chosen) or chosen[0] < 0 or chosen[-1] >= steps:
        raise SettingError(f"gradient_reach expects at to name steps from 0 to {steps - 1}, got {at}.")
    total, largest = torch.zeros(2, distances + 1, dtype=torch.float64)
    count = torch.zeros(distances + 1, dtype=torch.int64)
    state, here = layer.initial_state(batch, xs), 0  # the state before step ``here``
    for own in chosen.split(copies):  # the losses at these steps
        last, begin = int(own[-1]) + 1, max(0, int(own[0]) - distances)
        if begin > here:
            with torch.no_grad():
                _, state = layer.through_layers(xs[here:begin], state, need_output=False)
            here = begin
        norms = _norms(layer, xs[begin:last], state, loss, targets, own, begin)
        for distance in range(min(distances, last - 1) + 1):
            row = torch.nonzero(own >= distance).squeeze(1)  # those with a step this far back
            found = norms[own[row] - distance - begin, row].double()  # (rows, batch)
            total[distance] += found.sum()
            largest[distance] = torch.maximum(largest[distance], found.max())
            count[distance] += found.numel()
    return Reach(
        tuple(range(distances + 1)), tuple((total / count).tolist()), tuple(largest.tolist()), tuple(count.tolist())
    )


def _half_square(outputs: Tensor) -> Tensor:
    return outputs.square().sum(dim=1) / 2


def _norms(
    layer: Recurrent,
    xs: Tensor,
    state: State,
    loss: Callable[..., Tensor],
    targets: Tensor | None,
    at: Tensor,
    begin: int,
) -> Tensor:  # (time, rows, batch)
    """‖∂ p_s / ∂ x_t‖ for t in the stretch, which begins at ``begin``, and s in ``at``, one copy per row."""
    (steps, batch, features), rows = xs.shape, len(at)
    copied = xs.unsqueeze(1).expand(-1, rows, -1, -1).reshape(steps, rows * batch, features).requires_grad_()
    start = tuple(entry.detach().unsqueeze(1).expand(-1, rows, -1, -1).flatten(1, 2) for entry in state)
    with torch.enable_grad():
        outputs, _ = layer.through_layers(copied, start)
        assert outputs is not None
        row = torch.arange(rows)
        own = outputs.unflatten(1, (rows, batch))[at - begin, row].flatten(0, 1)  # (rows · batch, hidden)
        losses = loss(own) if targets is None else loss(own, targets[at].flatten(0, 1))
        if losses.shape != (rows * batch,):
            raise ShapeError(
                f"gradient_reach expects loss to give one number per row, ({rows * batch},), got "
                f'{tuple(losses.shape)}; use reduction="none".'
            )
        (grad,) = torch.autograd.grad(losses.sum(), copied)
    return grad.norm(dim=2).unflatten(1, (rows, batch))
