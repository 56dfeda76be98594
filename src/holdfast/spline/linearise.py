"""The local linearisation of any cell, smooth ones too. It holds to first order, at one point, not on a region.

    z(x + d, h_0 + e) = z(x, h_0) + J d + J_h e + o(‖d‖ + ‖e‖)      (1)

For a piecewise affine model J is ``affine_piece``'s A, and only there is z = J x + B true of a whole region.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from holdfast.spline.network import Read, spline_network, walk
from holdfast.types import State

__all__ = ["Linearisation", "linearise"]

_ROWS = 256  # outputs per sweep


@dataclasses.dataclass(frozen=True, eq=False)
class Linearisation:
    """The linearisation (1) at one input.

    Args:
        jacobian: J, (outputs, time, features); read at every step: (time, outputs, time, features).
        value: z, (outputs) or (time, outputs).
        start: J_h, one tensor (..., layers · directions, size) for each entry of the state, with the shape of z before.

    Example:
        >>> Linearisation(torch.zeros(5, 7, 3), torch.zeros(5), (torch.zeros(5, 1, 4),)).jacobian.shape
        torch.Size([5, 7, 3])
    """

    jacobian: Tensor
    value: Tensor
    start: State


def linearise(
    model: nn.Module, x: Tensor, *, h_0: Tensor | State | None = None, read: Read | None = None
) -> Linearisation:
    """The linearisation (1) of ``model`` at ``x``, by differentiating a batch of copies of it, one per output.

    Args:
        model: a layer or a module with ``rnn`` and ``readout``; any cell: GRU, LSTM, RNN with tanh.
        x: one input, (time, features), or tokens (time).
        h_0: where to start, entries (layers · directions, size); default: as the model does in evaluation.
        read: z at the "last" step or at "every" one; default as in ``affine_piece``.

    Example:
        >>> from holdfast import GRU
        >>> model, x = GRU(3, 5), torch.randn(7, 3)
        >>> local = linearise(model, x)
        >>> local.jacobian.shape, local.start[0].shape
        (torch.Size([5, 7, 3]), torch.Size([5, 1, 5]))
    """
    network = spline_network(model, read, "linearise")
    one = network.features(x, sample=True, who="linearise").detach()
    first = tuple(entry.detach() for entry in network.start(1, h_0, "linearise"))
    count = network.outputs * (len(one) if network.read == "every" else 1)
    values, jacobians, starts = torch.empty(0), [], []
    for begin in range(0, count, _ROWS):
        rows = min(_ROWS, count - begin)
        with torch.enable_grad():
            xs = one.expand(-1, rows, -1).clone().requires_grad_()
            state = tuple(entry.expand(-1, rows, -1).clone().requires_grad_() for entry in first)
            z = network.answer(list(walk(network, xs, state)))
            flat = z if network.read == "last" else z.transpose(0, 1).flatten(1)  # (rows, outputs of all steps)
            picked = flat[torch.arange(rows), begin + torch.arange(rows)].sum()  # copy r is for output r
            slopes = torch.autograd.grad(picked, (xs, *state), materialize_grads=True)
        values = flat[0].detach()
        jacobians.append(slopes[0].transpose(0, 1))
        starts.append(tuple(slope.transpose(0, 1) for slope in slopes[1:]))
    shape = (len(one), network.outputs) if network.read == "every" else (network.outputs,)
    return Linearisation(
        torch.cat(jacobians).unflatten(0, shape),
        values.view(shape),
        tuple(torch.cat(parts).unflatten(0, shape) for parts in zip(*starts, strict=True)),
    )
