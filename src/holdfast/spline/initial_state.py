"""How much the answer depends on the initial state.

    A_h = dh^(L,T)/dh_0 = 𝒜_{0:T} = Π_{s=T}^{1} A_σ^(s) W_r          (1) T factors; S5 §6 prints 𝒜_{1:T} for them
    W A_h = dz/dh_0                                                 (2) what reaches the loss, S5 (11)

By the same product as (2) of frozen.py: one row per output, all inputs of a batch together.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from holdfast.spline.frozen import FrozenNetwork, freeze
from holdfast.spline.network import SplineNetwork, read_at_last, walk

__all__ = ["InitialStateSlope", "frozen_at", "initial_state_slope", "start_slopes"]


@dataclasses.dataclass(frozen=True, eq=False)
class InitialStateSlope:
    """A_h (1) and W A_h (2) for every input of a batch.

    Args:
        state: A_h, (batch, layers · directions, hidden out, hidden): how h^(L,T), both directions of it, depends on
            every layer's h_0.
        output: W A_h, (batch, layers · directions, outputs, hidden).

    Example:
        >>> InitialStateSlope(torch.ones(4, 1, 5, 5), torch.ones(4, 1, 3, 5)).state_norm.shape
        torch.Size([4])
    """

    state: Tensor
    output: Tensor

    @property
    def state_norm(self) -> Tensor:
        """‖A_h‖ of every input, Frobenius': shown in S5's Figures 4 and 10."""
        return self.state.flatten(1).norm(dim=1)

    @property
    def output_norm(self) -> Tensor:
        """‖W A_h‖ of every input."""
        return self.output.flatten(1).norm(dim=1)


@torch.no_grad()
def initial_state_slope(model: nn.Module, xs: Tensor) -> InitialStateSlope:
    """A_h and W A_h of a batch of inputs.

    Args:
        model: as in ``affine_piece``, read at the last step.
        xs: (time, batch, features), or tokens (time, batch); batch first if the layer is.

    Example:
        >>> from holdfast import RNN
        >>> slope = initial_state_slope(RNN(3, 5, nonlinearity="relu", init="identity"), torch.zeros(7, 2, 3) + 1)
        >>> slope.state.shape, slope.output.shape
        (torch.Size([2, 1, 5, 5]), torch.Size([2, 1, 5, 5]))
    """
    network, frozen, _ = frozen_at(model, xs, "initial_state_slope", fixed=True)
    eye = torch.eye(network.width, dtype=frozen.weight.dtype, device=frozen.weight.device)
    state = start_slopes(dataclasses.replace(frozen, weight=eye, bias=None))
    weight = frozen.weight  # W A_h is one more product
    return InitialStateSlope(state, torch.einsum("oh,brhk->brok", weight, state))


def start_slopes(frozen: FrozenNetwork) -> Tensor:
    """dz/dh_0 of every sample, (batch, rows, outputs, hidden), in one sweep."""
    outputs, batch = len(frozen.weight), frozen.rows[0].gain.shape[1]
    eye = torch.eye(outputs, dtype=frozen.weight.dtype, device=frozen.weight.device)
    _, starts = frozen.backward(eye.repeat(batch, 1), inputs=False)  # (rows, batch · outputs, hidden)
    return starts.unflatten(1, (batch, outputs)).transpose(0, 1)


def frozen_at(model: nn.Module, xs: Tensor, who: str, *, fixed: bool) -> tuple[SplineNetwork, FrozenNetwork, Tensor]:
    """The model, the model with the patterns of these inputs fixed, and its answers."""
    network = read_at_last(model, who)
    features = network.features(xs, sample=False, who=who)
    walked = list(walk(network, features, network.start(features.shape[1], None, who)))
    return network, freeze(network, walked, fixed=fixed), network.answer(walked)
