"""κ⁽¹⁾ of one ReLU layer and its readout, in float32 and in few operations: the common case of a PathSGD step.

    f_t = Ũ f_{t-1} + W̃ 1 + b̃,  g_T = Ṽᵀ 1,  g_t = Ũᵀ g_{t+1} (+ Ṽᵀ 1 if every step is read)   (1) S2 (15), (16)
    κ(U) = Σ_t g_t f_{t-1}ᵀ,  κ(W) = Σ_t g_t 1ᵀ,  κ(b) = Σ_t g_t,  κ(V) = 1 f_Tᵀ, or 1 Σ_t f_tᵀ     (2) S2 (14), (17)

The same numbers as ``path_norm.kappa_first``, which works for any network; a test compares the two. All that is summed
is non-negative, so rounding is relative to each κ; what falls below the least float32, 2⁻¹²⁶, is lost. (2) loses at
most T such terms times the largest flow, and no flow is above the largest κ, for f_T is in κ(V) and each g_t in κ(W).
So the result stands if the least κ is 2²⁴ times as large as what can be lost.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.engine.kernels.flow import compiled_flow, fits
from holdfast.optim.network import PathNetwork, Recurrence
from holdfast.optim.pieces import Dense

__all__ = ["EXACT", "LOST", "is_one_layer", "one_layer_first"]

LOST = 2.0**-126  # the least normal float32
EXACT = 2.0**24  # 1 / the rounding of float32


def one_layer_first(network: PathNetwork, steps: int, every: bool) -> dict[Tensor, Tensor] | None:
    """(2) in float32; ``None`` for other networks, or if the range of float32 is too small.

    Example:
        >>> from holdfast.optim import Recurrence
        >>> one = torch.ones(1, 1)
        >>> network = PathNetwork(layers=(Recurrence(one, 2 * one),), decoder=(Dense(one),))
        >>> found = one_layer_first(network, 3, every=False)  # γ² = 1 + p² + p⁴ for U = p, so κ(U) = 1 + 2p²
        >>> found is None or found[network.layers[0].weight_hh].item() == 9.0
        True
    """
    parts = _parts(network)
    if parts is None or not fits(parts[0].weight_hh):
        return None
    layer, (weight, bias) = parts[0], parts[1].tensors
    U, W = layer.weight_hh.square(), layer.weight_ih
    drive = W.square().sum(1)
    for own in layer.biases:
        drive.addcmul_(own, own)
    start, none = weight.square().sum(0), torch.zeros_like(drive)
    starts, drives = torch.stack([none, start]), torch.stack([drive, start if every else none])
    F, G = compiled_flow(torch.stack([U.mT, U]), starts, drives, steps + 1)  # f_0 = 0 first; one g too many
    G = G[:steps].flip(0)
    total = G.sum(0)
    read = F[1:].sum(0) if every else F[steps]
    recurrent = G.mT @ F[:steps]
    least, most = torch.cat([recurrent.flatten(), total, read]).aminmax()
    if not least.item() > EXACT * LOST * steps * most.item() or not least.item() > EXACT * LOST:
        return None
    found = {W: total[:, None].expand_as(W), layer.weight_hh: recurrent}
    found |= dict.fromkeys(layer.biases, total)
    found[weight] = read.expand_as(weight)
    if bias is not None:
        found[bias] = read.new_full((1,), steps if every else 1).expand_as(bias)
    return found


def is_one_layer(network: PathNetwork) -> bool:
    """Whether (2) is for this network.

    Example:
        >>> is_one_layer(PathNetwork(decoder=(Dense(torch.ones(1, 1)),)))
        False
    """
    parts = _parts(network)
    return parts is not None and fits(parts[0].weight_hh)


def _parts(network: PathNetwork) -> tuple[Recurrence, Dense] | None:
    """Its layer and readout: one gate, started at zero, one linear map; every weight float32 and in one place."""
    if network.encoder or len(network.layers) != 1 or len(network.decoder) != 1:
        return None
    layer, readout = network.layers[0], network.decoder[0]
    weights = list(network.edges())
    plain = (
        layer.initial is None
        and layer.weight_hh.shape[0] == layer.weight_hh.shape[1]
        and all(weight.dtype == torch.float32 for weight in weights)
        and len(set(weights)) == len(weights)
    )
    return (layer, readout) if plain and isinstance(readout, Dense) else None
