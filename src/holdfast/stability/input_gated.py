"""minGRU and minLSTM, whose gates see the input alone, in the largest-entry norm.

    h₊ = (1 - z) ⊙ h + z ⊙ c,   λ = max_j max_x (1 - z_j) = max_j σ(-(b_j - B ‖W_z,j‖))     (1) minGRU
    h₊ = f' ⊙ h + (1 - f') ⊙ c,  f' = σ(q),  q = softplus(-i) - softplus(-f)                (2) minLSTM
    λ = max_j σ(softplus(-i_min) - softplus(-f_max))                                        (3) q rises in f, falls in i
    |h_j| ≤ max_x |c_j|                                                                     (4) means of candidates

The map is linear in h, unit by unit, so λ is also a Euclidean rate. (1) is exact over the inputs of length B. (3) may
be above the largest f', since one input need not open f and close i as far as two would. Second-order constants follow
by the rules of gated.py. Proofs: docs/theory/s4-stability.md, §11.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from holdfast.cells import MinGRUCell, MinLSTMCell
from holdfast.cells.nonlinearity import slopes
from holdfast.stability.gated import Box, Jet, Wrt

__all__ = ["mingru_step", "minlstm_step"]


def mingru_step(cell: MinGRUCell, inputs: Box, wrt: Wrt = "state") -> Jet:
    """h₊ of a step, over all inputs of ``inputs`` and all states within (4). Law: as ``lstm_step``."""
    (gate, candidate), (centre, offset) = _rows(cell, inputs, wrt, 2)
    z = gate.sigmoid(centre)
    c = _candidate(cell, candidate, offset)
    return z.mix(torch.sigmoid(centre - gate.sup), c, _state(c, wrt))  # (1)


def minlstm_step(cell: MinLSTMCell, inputs: Box, wrt: Wrt = "state") -> Jet:
    """The same for (2)."""
    (f, i, candidate), (b_f, b_i, offset) = _rows(cell, inputs, wrt, 3)
    high = softplus(-(b_i - i.sup)) - softplus(-(b_f + f.sup))  # (3)
    low = softplus(-(b_i + i.sup)) - softplus(-(b_f - f.sup))
    slope_i, slope_f = torch.sigmoid(-(b_i - i.sup)), torch.sigmoid(-(b_f - f.sup))
    radius = (high - low) / 2
    q = i.through(radius, slope_i, 0.25) + f.through(torch.zeros_like(radius), slope_f, 0.25)
    c = _candidate(cell, candidate, offset)
    return q.sigmoid((high + low) / 2).mix(torch.sigmoid(low), _state(c, wrt), c)


def _rows(
    cell: MinGRUCell | MinLSTMCell, inputs: Box, wrt: Wrt, parts: int
) -> tuple[tuple[Jet, ...], tuple[Tensor, ...]]:
    """W x of each part as a jet, and the part's bias."""
    weight = cell.weight_ih.detach().double().cpu()
    bias = torch.zeros(len(weight), dtype=torch.float64) if cell.bias is None else cell.bias.detach().double().cpu()
    own = math.sqrt(inputs.length**2 + (cell.bias is not None))  # |dw·x + db| ≤ own · ‖(dw, db)‖
    outside = 0.0 if wrt == "state" else 1.0
    jets = tuple(Jet.of(inputs.reach(W), s=outside * W.abs().sum(dim=1), w=own) for W in weight.chunk(parts))
    return jets, bias.chunk(parts)


def _candidate(cell: MinGRUCell | MinLSTMCell, drive: Jet, offset: Tensor) -> Jet:
    known, reach = slopes(cell.phi), drive.sup + offset.abs()
    sup = (known.at_zero + known.lipschitz * reach).clamp(max=known.sup)
    curvature = known.smoothness if math.isfinite(known.smoothness) else 0.0  # a kink: step.py leaves these out
    return drive.through(sup, known.lipschitz, curvature)


def _state(candidate: Jet, wrt: Wrt) -> Jet:
    return Jet.of(candidate.sup, s=1.0 if wrt == "state" else 0.0)  # (4)
