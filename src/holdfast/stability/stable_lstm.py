"""An LSTM that is stable after every update: the sets of S4's Proposition 5 as parametrisations.

    ‖U_i,j‖₁, ‖U_o,j‖₁ ≤ λ - f̄,  ‖U_g,j‖₁ ≤ (λ - f̄)/4,  ‖U_f,j‖₁ ≤ q = (λ - f̄)(1 - f̄)      (1) Proposition 5, each row j
    B ‖W_f,j‖₂ ≤ ½ m,  b_f,j ≤ ½ m,  m = logit f̄ - q                                       (2) so that no f exceeds f̄
    row ↦ sign ⊙ max(|row| - τ, 0),  τ such that the sum is the radius                     (3) onto an ℓ1 ball

(2) is the forget gate's cone of project.py, cut down to a box, since weights and biases are parametrised one by one;
without a bias W has all of m. Everything inside is left as it is, and (3) has a derivative almost everywhere.

Source: S4, §6.3 and A.3.2. Proofs: docs/theory/s4-stability.md, §4 and §9.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from holdfast.cells import LSTMCell
from holdfast.cells.nonlinearity import name_of
from holdfast.errors import DTypeError, NoBoundError, SettingError
from holdfast.stability.contraction import check_input_bound
from holdfast.stability.project import l1_level

__all__ = ["stable_lstm"]


def stable_lstm(cell: LSTMCell, rate: float = 1.0, *, input_bound: float, forget: float) -> LSTMCell:
    """Constrain an LSTM's weights to (1) and (2), under any optimiser; return the cell.

    Law: ``contraction_rate(cell, input_bound) <= rate``, up to rounding, after every step of every optimiser.

    Args:
        cell: with tanh; of a layer: ``layer.cells[0]``. It starts at the image of its weights.
        rate: λ.
        input_bound: B ≥ ‖x_t‖₂.
        forget: f̄, the largest value of a forget gate; between 0.5 and the rate.

    Example:
        >>> from holdfast.stability import contraction_rate
        >>> cell = stable_lstm(LSTMCell(3, 4), rate=0.95, input_bound=1.0, forget=0.8)
        >>> contraction_rate(cell, 1.0) <= 0.95
        True
    """
    if not isinstance(cell, LSTMCell):
        raise DTypeError(f"stable_lstm expects an LSTMCell, got {type(cell).__name__}; of a layer: layer.cells[0].")
    if cell.phi is not torch.tanh:
        raise NoBoundError(f"stable_lstm expects an LSTM with tanh, got {name_of(cell.phi)}.")
    if parametrize.is_parametrized(cell):
        raise SettingError("stable_lstm expects plain parameters, got a cell that is parametrised already.")
    if not 0 < rate <= 1:
        raise SettingError(f"stable_lstm expects a rate in (0, 1], got {rate}; a rate above 1 is not stable.")
    bound = check_input_bound(input_bound, "l2")
    if not 0.5 < forget < rate:
        raise SettingError(f"stable_lstm expects forget in (0.5, rate) = (0.5, {rate:g}), got {forget}.")
    room, radius_f = rate - forget, (rate - forget) * (1 - forget)
    most = math.log(forget / (1 - forget)) - radius_f
    if most <= 0:
        raise SettingError(f"stable_lstm expects a larger forget, got {forget:g}, which leaves no room for the inputs.")
    parametrize.register_parametrization(cell, "weight_hh", _Rows((room, radius_f, room / 4, room)))  # (1)
    share = most if cell.bias is None else most / 2
    if bound > 0:
        parametrize.register_parametrization(cell, "weight_ih", _Lengths(share / bound))  # (2)
    if cell.bias is not None:
        parametrize.register_parametrization(cell, "bias", _Ceiling(share))
    return cell


class _Onto(nn.Module):
    """A map onto a set, for ``parametrize``. A weight of the set is its own preimage."""

    def __init__(self, limit: Any):
        super().__init__()
        self.limit = limit

    def right_inverse(self, W: Tensor) -> Tensor:
        return W


class _Rows(_Onto):
    """(3) for every row, with a radius for each gate, stacked i, f, g, o."""

    def forward(self, X: Tensor) -> Tensor:
        radius = torch.tensor(self.limit, dtype=X.dtype, device=X.device).repeat_interleave(len(X) // 4).unsqueeze(1)
        level = l1_level(X.abs(), radius).clamp_min(0)  # below 0: the row is inside
        return torch.sign(X) * (X.abs() - level).clamp_min(0)


class _Lengths(_Onto):
    """Forget rows shortened to a radius."""

    def forward(self, X: Tensor) -> Tensor:
        i, f, g, o = X.chunk(4)
        lengths = f.norm(dim=1, keepdim=True).clamp_min(torch.finfo(X.dtype).tiny)
        return torch.cat([i, f * (self.limit / lengths).clamp(max=1), g, o])


class _Ceiling(_Onto):
    """Forget biases kept below a ceiling."""

    def forward(self, X: Tensor) -> Tensor:
        i, f, g, o = X.chunk(4)
        return torch.cat([i, f.clamp(max=self.limit), g, o])
