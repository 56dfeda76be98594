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

from holdfast.engine.kernels.flow import fits, padded, padded_flow
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
    U, W, hidden = layer.weight_hh, layer.weight_ih, layer.weight_hh.shape[0]
    whole = padded(hidden)
    squared, starts, drives = U.new_zeros(2, whole, whole), U.new_zeros(2, whole), U.new_zeros(2, whole)
    back = squared[1, :hidden, :hidden]  # Ũ for g, and Ũᵀ for f: rows are multiplied from the left
    torch.mul(U, U, out=back)
    squared[0, :hidden, :hidden].copy_(back.mT)
    drive, start = drives[0, :hidden], starts[1, :hidden]
    torch.sum(W.square(), 1, out=drive)
    for own in layer.biases:
        drive.addcmul_(own, own)
    torch.sum(weight.square(), 0, out=start)
    if every:
        drives[1] = starts[1]
    flows = padded_flow(squared, starts, drives, steps + 1, hidden)
    F, G = flows[0], flows[1, :steps].flip(0)  # f_0 = 0 first; one g too many
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
    if not network.is_one_layer:
        return None
    layer, readout = network.layers[0], network.decoder[0]
    for weight in (layer.weight_ih, layer.weight_hh, *layer.biases, *readout.tensors):
        if weight is not None and weight.dtype != torch.float32:
            return None
    return (layer, readout) if isinstance(readout, Dense) else None
