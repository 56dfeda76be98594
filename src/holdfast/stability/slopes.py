"""What bounds need to know of a nonlinearity: how steep it is, how bent, how large, and where it takes zero.

    L = sup |φ'|,  S = sup |φ''|,  M = sup |φ|,  |φ(0)|          (1)

    tanh       1       4/(3√3) ≈ 0.770, where tanh² z = 1/3       1     0
    sigmoid    1/4     1/(6√3) ≈ 0.096                            1     1/2
    softplus   1       1/4                                        ∞     log 2
    gelu       1.129   √(2/π) ≈ 0.798, at 0; L at √2              ∞     0
    identity   1       0                                          ∞     0
    relu, leaky_relu, abs: L = 1, a kink (S = ∞)                  ∞     0

S4 calls tanh 1-smooth in §6.2 and 2-smooth in A.3.1; its S is the number above. Source of the rest: calculus,
docs/theory/s4-stability.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from holdfast.cells._base import identity
from holdfast.errors import HoldfastError, SettingError
from holdfast.types import Nonlinearity

__all__ = ["NoBoundError", "Slopes", "register_slopes", "slopes"]


class NoBoundError(HoldfastError, NotImplementedError):
    """Nothing is proved here: of this cell, of this nonlinearity, or of this setting.

    Example:
        >>> issubclass(NoBoundError, NotImplementedError)
        True
    """


@dataclass(frozen=True)
class Slopes:
    """(1) of one nonlinearity.

    Args:
        lipschitz: L ≥ |φ'|.
        smoothness: S ≥ |φ''|; infinity at a kink.
        sup: M ≥ |φ|; infinity if φ is unbounded.
        at_zero: |φ(0)|.

    Example:
        >>> Slopes(lipschitz=1.0, smoothness=0.0, sup=math.inf, at_zero=0.0) == slopes("identity")
        True
    """

    lipschitz: float
    smoothness: float
    sup: float
    at_zero: float

    def __post_init__(self) -> None:
        if not all(value >= 0 for value in vars(self).values()) or not math.isfinite(self.lipschitz + self.at_zero):
            raise SettingError(
                f"Slopes expects bounds of at least 0, lipschitz and at_zero finite, got {vars(self)}; "
                "without a Lipschitz constant there is nothing to certify."
            )


_GELU_LIPSCHITZ = 0.5 * (1 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi)  # φ'(√2) = Φ(√2) + √2 Φ'(√2)
_KINKED = Slopes(1.0, math.inf, math.inf, 0.0)
_NAMED = {
    "tanh": Slopes(1.0, 4 / (3 * math.sqrt(3)), 1.0, 0.0),
    "sigmoid": Slopes(0.25, 1 / (6 * math.sqrt(3)), 1.0, 0.5),
    "relu": _KINKED,
    "leaky_relu": _KINKED,
    "abs": _KINKED,
    "softplus": Slopes(1.0, 0.25, math.inf, math.log(2)),  # torch's is linear above 20, which is 2e-9 off
    "gelu": Slopes(_GELU_LIPSCHITZ, math.sqrt(2 / math.pi), math.inf, 0.0),
    "identity": Slopes(1.0, 0.0, math.inf, 0.0),
}
_KNOWN: dict[object, Slopes] = {
    torch.tanh: _NAMED["tanh"],
    nn.functional.tanh: _NAMED["tanh"],
    nn.Tanh: _NAMED["tanh"],
    torch.sigmoid: _NAMED["sigmoid"],
    nn.functional.sigmoid: _NAMED["sigmoid"],
    nn.Sigmoid: _NAMED["sigmoid"],
    torch.relu: _NAMED["relu"],
    nn.functional.relu: _NAMED["relu"],
    nn.ReLU: _NAMED["relu"],
    torch.abs: _NAMED["abs"],
    nn.functional.leaky_relu: _NAMED["leaky_relu"],
    nn.functional.softplus: _NAMED["softplus"],
    nn.functional.gelu: _NAMED["gelu"],
    nn.Identity: _NAMED["identity"],
    identity: _NAMED["identity"],
}


def slopes(phi: str | Nonlinearity) -> Slopes:
    """(1) of a nonlinearity, by name or as the callable that a cell holds.

    Law: |φ(a) - φ(b)| ≤ L |a - b| and |φ'(a) - φ'(b)| ≤ S |a - b| for all a, b.

    Example:
        >>> round(slopes(torch.tanh).smoothness, 4)
        0.7698
    """
    if isinstance(phi, str):
        if phi in _NAMED:
            return _NAMED[phi]
    elif phi in _KNOWN:
        return _KNOWN[phi]
    elif type(phi) in _KNOWN:
        return _KNOWN[type(phi)]
    name = phi if isinstance(phi, str) else getattr(phi, "__name__", repr(phi))
    raise NoBoundError(
        f"No slopes are known of the nonlinearity {name}; known: {', '.join(_NAMED)}. "
        "If it has a Lipschitz constant, say so: register_slopes(phi, Slopes(lipschitz, smoothness, sup, at_zero))."
    )


def register_slopes(phi: Nonlinearity, bounds: Slopes) -> None:
    """Vouch for a nonlinearity of one's own: every bound that meets it believes these numbers.

    Example:
        >>> def squash(z):
        ...     return z / torch.sqrt(1 + z * z)
        >>> register_slopes(squash, Slopes(lipschitz=1.0, smoothness=0.86, sup=1.0, at_zero=0.0))
        >>> slopes(squash).sup
        1.0
    """
    _KNOWN[phi] = bounds
