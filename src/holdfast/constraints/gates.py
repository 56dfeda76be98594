"""Two scalar gates, kept where the theorems need them.

    α = σ(a),  β = σ(b)                 (1) two free numbers behind two gates in (0, 1)
    β ≤ 1 - 2α                          (2) ``clip="2alpha"``: S3 (3), for Theorem 1
    β ≤ 1 - α                           (3) ``clip="alpha"``: the premise of Theorem 2
    α_0 = 1/T,  β_0 = 1 - 2/T           (4) ``horizon=T``: a start that remembers T steps

Sources: Kusupati et al. (2018), §3.1 for (1); S3 §2 for (2), (3). Symbols: docs/notation.md.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.errors import SettingError, one_of

__all__ = ["ScalarGates"]

Scalar = Float[Tensor, ""]

_SLOPES = {"2alpha": 2, "alpha": 1}


class ScalarGates(nn.Module):
    """α and β of (1), with β clipped by (2), by (3) or not at all.

    The clip is a minimum, and its gradient is the true one: where it is active β = 1 - 2α, so α receives -2 times β's
    gradient and ``beta_logit`` none. A tie counts as unclipped. The interval (0, 1 - 2α] of (2) is
    empty once α ≥ 1/2, so there α is held at 1/2 and β at 0, and neither logit has a gradient: start well below.

    Law: 0 < α < 1, 0 ≤ β < 1 and the clip hold exactly, for all logits and hence under any optimiser: not up to
    rounding, but for the real numbers that the two floating-point results are. β = 0 only if α = 1/2 under (2).

    Args:
        alpha_logit, beta_logit: start of a and b; default -3 and 3, as in FastRNN. SGORNN's are -3.75 and 3.
        clip: ``"2alpha"`` for (2), ``"alpha"`` for (3), or None.
        horizon: T > 2; start by (4) instead. With ``clip="2alpha"`` this start lies on the edge of the clip.

    Example:
        >>> alpha, beta = ScalarGates(clip="2alpha", horizon=100)()
        >>> round(alpha.item(), 4), round(beta.item(), 4)
        (0.01, 0.98)

    References:
        Kusupati et al. (2018), FastGRNN.
    """

    def __init__(
        self,
        alpha_logit: float | None = None,
        beta_logit: float | None = None,
        clip: Literal["2alpha", "alpha"] | None = None,
        horizon: int | None = None,
    ):
        super().__init__()
        one_of("ScalarGates", "clip", clip, (*_SLOPES, None))
        if horizon is not None:
            if alpha_logit is not None or beta_logit is not None:
                raise SettingError(
                    f"ScalarGates expects either horizon or logits, got horizon={horizon}, alpha_logit={alpha_logit}, "
                    f"beta_logit={beta_logit}; leave out one or the other."
                )
            if not horizon > 2:
                raise SettingError(f"ScalarGates expects a horizon above 2 steps, got {horizon}.")
            alpha_logit, beta_logit = -math.log(horizon - 1), math.log(horizon / 2 - 1)  # (4)
        self.clip = clip
        self.start = -3.0 if alpha_logit is None else alpha_logit, 3.0 if beta_logit is None else beta_logit
        if not all(map(math.isfinite, self.start)):
            raise SettingError(f"ScalarGates expects finite logits, got {self.start}.")
        self.alpha_logit = nn.Parameter(torch.empty(()))
        self.beta_logit = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha_logit, self.start[0])
        nn.init.constant_(self.beta_logit, self.start[1])

    def forward(self) -> tuple[Scalar, Scalar]:
        alpha, beta = _open_sigmoid(self.alpha_logit), _open_sigmoid(self.beta_logit)  # (1)
        if self.clip is None:
            return alpha, beta
        if self.clip == "2alpha":
            alpha = torch.where(alpha <= 0.5, alpha, 0.5)
        bound = _one_minus(_SLOPES[self.clip] * alpha)  # (2), (3)
        return alpha, torch.where(beta <= bound, beta, bound)

    def contains(self, alpha: float | Tensor, beta: float | Tensor) -> bool:
        """Whether (α, β) lies in the set of these gates.

        Example:
            >>> ScalarGates(clip="2alpha").contains(0.1, 0.8), ScalarGates(clip="2alpha").contains(0.1, 0.9)
            (True, False)
        """
        alpha, beta = (gate.item() if isinstance(gate, Tensor) else gate for gate in (alpha, beta))
        if not (0 < alpha < 1 and 0 <= beta < 1):
            return False
        return self.clip is None or _SLOPES[self.clip] * alpha + beta <= 1

    def extra_repr(self) -> str:
        return f"clip={self.clip!r}"


def _open_sigmoid(logit: Tensor) -> Tensor:
    """σ, kept away from 0 and 1, which it reaches in floating point beyond ±100 or sooner, where its slope is 0."""
    info = torch.finfo(logit.dtype)
    return torch.sigmoid(logit).clamp(info.tiny, 1 - info.eps / 2)


def _one_minus(x: Tensor) -> Tensor:
    """1 - x for x in (0, 1], rounded down. Below 1/2 it is exact; in [1/2, 1) its last place is eps/2."""
    difference = 1 - x
    return difference - (1 - difference < x).to(x.dtype) * (torch.finfo(x.dtype).eps / 2)
