"""The mean increase of the loss under noise on the initial state: a penalty to use instead of the noise.

With ε ~ N(0, σ² I) on h_0 and a_i the rows of dz/dh_0, of all layers together,

    E[ℓ(z + dz/dh_0 ε)] - ℓ(z) = σ²/2 tr(dz/dh_0ᵀ ∇²ℓ dz/dh_0) + O(σ⁴)                   (1) inside one region
    cross-entropy: σ²/2 (Σ_i ŷ_i ‖a_i‖² - ‖Σ_i ŷ_i a_i‖²)                                 (2) exact
                   σ²/2 Σ_i (ŷ_i (1 - ŷ_i))² ‖a_i‖²                                       (3) published: S5 Theorem 3
    mean squared error over C outputs: σ²/C Σ_i ‖a_i‖²                                    (4) exact, without O(σ⁴)
                   σ²/2 ‖A_h‖²                                                            (5) published

and the mean over the batch of each. (3) keeps the diagonal of ∇²ℓ and squares it; (5) leaves out the readout and is for
a loss that carries a ½. docs/theory/s5-splines.md derives (2) and (4). Source: S5, Theorem 3, G.2.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.errors import SettingError, one_of
from holdfast.spline.initial_state import frozen_at, start_slopes

__all__ = ["initial_state_penalty"]


def initial_state_penalty(
    model: nn.Module,
    xs: Tensor,
    std: float,
    *,
    form: Literal["exact", "published"] = "exact",
    loss: Literal["cross_entropy", "mse"] = "cross_entropy",
) -> Tensor:
    """The mean increase of the loss under noise of ``std`` on every layer's first state, to second order.

    It needs no target and is differentiable in the weights: add it to a loss without noise.

    Law: E[loss with noise] - loss - penalty is O(σ³) for ``exact`` while no unit is on a knot.

    Args:
        model: as in ``affine_piece``, read at the last step.
        xs: (time, batch, features), or tokens (time, batch); batch first if the layer is.
        std: σ.
        form: "exact", (2) and (4), or "published", (3) and (5).
        loss: ``torch.nn.functional.cross_entropy`` or ``mse_loss``, both with their mean over the batch.

    Example:
        >>> from holdfast import RNN
        >>> model = RNN(3, 5, nonlinearity="relu", init="identity")
        >>> penalty = initial_state_penalty(model, torch.ones(7, 2, 3), std=0.1)
        >>> penalty.backward()
        >>> penalty.item() >= 0, model.l0.weight_hh.grad.shape  # 0 if every ReLU is off
        (True, torch.Size([5, 5]))
    """
    one_of("initial_state_penalty", "form", form, ("exact", "published"))
    one_of("initial_state_penalty", "loss", loss, ("cross_entropy", "mse"))
    if not 0 <= std < float("inf"):
        raise SettingError(f"initial_state_penalty expects a finite std of at least 0, got {std}.")
    network, frozen, z = frozen_at(model, xs, "initial_state_penalty", fixed=False)
    if loss == "mse" and form == "published":
        eye = torch.eye(network.width, dtype=z.dtype, device=z.device)
        frozen = dataclasses.replace(frozen, weight=eye, bias=None)  # A_h alone
    rows = start_slopes(frozen).transpose(1, 2).flatten(2)  # a_i: (batch, outputs, all first states)
    squares = rows.square().sum(-1)  # ‖a_i‖²
    if loss == "mse":
        terms = squares.sum(1) / rows.shape[1] if form == "exact" else squares.sum(1) / 2  # (4), (5)
        return std**2 * terms.mean()
    y = torch.softmax(z, dim=-1)
    if form == "exact":
        mean = torch.einsum("bi,bih->bh", y, rows)
        terms = (y * squares).sum(1) - mean.square().sum(1)  # (2)
    else:
        terms = ((y * (1 - y)).square() * squares).sum(1)  # (3)
    return std**2 / 2 * terms.mean()
