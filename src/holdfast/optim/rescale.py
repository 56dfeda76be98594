"""Feasible node-wise rescalings: other weights, the same function.

    w_{u→v} ← (α_v / α_u) w_{u→v},  α > 0 at internal units, α = 1 at inputs, outputs and the bias node      (1)
    W_i[j,k] ← (αⁱ_j / αⁱ⁻¹_k) W_i[j,k],  U_i[j,k] ← (αⁱ_j / αⁱ_k) U_i[j,k],  V[j,k] ← (1 / αᴸ_k) V[j,k]    (2)

(2) is (1) with one α per unit for all steps, since weights are shared over time. Every feasible rescaling is (2).
Biases and learned initial states are edges from the bias node, and multiplied by αⁱ_j. Source: S2, Theorem 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from holdfast.errors import SettingError, ShapeError
from holdfast.optim.describe import path_network
from holdfast.optim.network import PathNetwork, Recurrence
from holdfast.optim.pieces import Piece

__all__ = ["internal_units", "rescale_"]

Carrier = Piece | Recurrence


def internal_units(model: nn.Module | PathNetwork) -> tuple[int, ...]:
    """How many units, or channels, each group of internal units has: features of the encoder, states, hidden features.

    Example:
        >>> internal_units(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)))
        (4, 5)
    """
    return tuple(_units(carrier) for carrier in _carriers(path_network(model))[:-1])


@torch.no_grad()
def rescale_(model: nn.Module | PathNetwork, alpha: Sequence[Tensor]) -> nn.Module | PathNetwork:
    """Rescale the internal units of ``model`` in place, by (2), and return the model.

    Law: the model computes the same function, for all α > 0. ``path_norm_sq`` stays the same, and so does the function
    after a step of ``PathSGD``, but not after a step of plain SGD.

    Args:
        model: what ``path_network`` can read, or a ``PathNetwork``.
        alpha: one positive vector per group of units, of the sizes ``internal_units(model)``.

    Example:
        >>> model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)
        >>> before = model(x)
        >>> torch.allclose(rescale_(model, [torch.tensor([0.1, 1.0, 2.0, 30.0])])(x), before, atol=1e-5)
        True
    """
    network = path_network(model)
    carriers = _carriers(network)
    alpha = [torch.as_tensor(one) for one in alpha]
    expected = [(_units(carrier),) for carrier in carriers[:-1]]
    if [tuple(one.shape) for one in alpha] != expected:
        came = ", ".join(str(tuple(one.shape)) for one in alpha)
        raise ShapeError(f"rescale_ expects alpha of shapes {', '.join(map(str, expected))}, got {came or 'none'}.")
    if not all((one > 0).all() and one.isfinite().all() for one in alpha):
        raise SettingError(
            "rescale_ expects every α to be positive and finite: ReLU is homogeneous for positive factors only."
        )

    factors: dict[Tensor, Tensor] = {}
    groups = [None, *alpha, None]  # inputs and outputs keep their scale
    for carrier, before, after in zip(carriers, groups[:-1], groups[1:], strict=True):
        for tensor, factor in _factors(carrier, before, after):
            factor = factor.expand(tensor.shape)
            if tensor in factors and not torch.allclose(factors[tensor], factor, rtol=1e-12, atol=0):
                raise SettingError(
                    f"rescale_ cannot keep a shared weight of shape {tuple(tensor.shape)} equal in all its places with "
                    "this alpha: it is not feasible (S2, Definition 2)."
                )
            factors[tensor] = factor
    for tensor, factor in factors.items():
        tensor.mul_(factor.to(tensor))
    for layer, after in zip(carriers, groups[1:], strict=True):
        if isinstance(layer, Recurrence) and layer.initial is not None and after is not None:
            layer.initial[layer.row].mul_(after.to(layer.initial))
    return model


def _carriers(network: PathNetwork) -> list[Carrier]:
    """What ends in units, first to last; the last one ends in the outputs."""
    return [
        carrier
        for carrier in (*network.encoder, *network.layers, *network.decoder)
        if isinstance(carrier, Recurrence) or carrier.units is not None
    ]


def _units(carrier: Carrier) -> int:
    units = carrier.hidden_size if isinstance(carrier, Recurrence) else carrier.units
    assert units is not None
    return units


def _factors(carrier: Carrier, before: Tensor | None, after: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """Each tensor of weights with its α_v / α_u; a learned initial state, one row of a tensor, is the caller's task."""
    weight = carrier.weight_ih if isinstance(carrier, Recurrence) else carrier.tensors[0]
    assert weight is not None
    one = torch.ones(1, dtype=torch.float64, device=weight.device)
    after = one.expand(_units(carrier)) if after is None else after.to(one)
    before = one if before is None else before.to(one)
    if isinstance(carrier, Piece):
        pairs = zip(carrier.tensors, carrier.factors(before, after), strict=True)
        return [(tensor, factor) for tensor, factor in pairs if tensor is not None and factor is not None]
    gates = len(weight) // len(after)
    rows = after.repeat(gates)
    found = [(weight, rows[:, None] / before[None, :]), (carrier.weight_hh, rows[:, None] / after[None, :])]
    return [*found, *((bias, rows[: len(bias)]) for bias in carrier.biases)]
