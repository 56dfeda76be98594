"""Nonlinearities: the names that cells know, and one table of what is proved about each.

    L = sup |φ'|,  S = sup |φ''|,  M = sup |φ|,  |φ(0)|             (1) slopes: what bounds need
    φ(z) = max_r (s_r z + c_r)                                      (2) S5 (3), piecewise affine and convex
    φ(z) = s_r z + c_r  for  k_{r-1} < z ≤ k_r                      (3) S5 (4), with r found by (4)
    r = #{j : z > k_j},   k_j = (c_j - c_{j+1}) / (s_{j+1} - s_j)   (4) S5 (5): slopes rise, so lines win in order
    φ(a z) = a φ(z) for a > 0,  φ(z) = z for z ≥ 0                  (5) homogeneous: what path norms need

    tanh       L = 1       S = 4/(3√3) ≈ 0.770, where tanh² z = 1/3       M = 1     φ(0) = 0
    sigmoid    1/4         1/(6√3) ≈ 0.096                                1         1/2
    softplus   1           1/4                                            ∞         log 2
    smooth_relu 1          2                                              ∞         0: 0, z² to 1/2, z - 1/4
    gelu       1.129       √(2/π) ≈ 0.798, at 0; L at √2                  ∞         0
    relu, leaky_relu, abs, identity, MaxAffine: from their lines. L = max |s_r|, and S = ∞ if there is a knot

S4 calls tanh 1-smooth in §6.2 and 2-smooth in A.3.1; its S is the number above. Sources: S5, §2 and §4, for (2)-(4);
S2 for (5); the numbers: calculus, docs/theory/s4-stability.md. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import NoBoundError, SettingError
from holdfast.types import Nonlinearity

__all__ = [
    "NONLINEARITIES",
    "MaxAffine",
    "Regions",
    "Slopes",
    "identity",
    "is_homogeneous",
    "name_of",
    "nonlinearity_named",
    "regions_of",
    "register_slopes",
    "slopes",
    "smooth_relu",
]


def identity(z: Tensor) -> Tensor:
    """Return z itself. A named function, so that a cell that holds it can be pickled."""
    return z


def smooth_relu(z: Tensor) -> Tensor:
    """ReLU with its kink rounded off: 0 for z ≤ 0, z² for 0 < z < 1/2, z - 1/4 from there on.

    Example:
        >>> smooth_relu(torch.tensor([-1.0, 0.25, 0.5, 2.0]))
        tensor([0.0000, 0.0625, 0.2500, 1.7500])
    """
    inner = torch.clamp(z, 0.0, 0.5)
    return inner * inner + torch.relu(z - 0.5)


@dataclasses.dataclass(frozen=True)
class Regions:
    """The affine regions of φ, from left to right: (3).

    Args:
        knots: k, where φ bends, in increasing order; one fewer than the regions.
        slopes: s, one per region.
        intercepts: c, one per region.

    Example:
        >>> relu = Regions(knots=(0.0,), slopes=(0.0, 1.0), intercepts=(0.0, 0.0))
        >>> relu.bits(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([False, False,  True])
    """

    knots: tuple[float, ...]
    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]

    @property
    def convex(self) -> bool:
        """Whether φ is (2): its slopes increase."""
        return all(left < right for left, right in zip(self.slopes, self.slopes[1:], strict=False))

    @property
    def bits_per_unit(self) -> int:
        """One bit per knot: on which side of it z lies. Two units differ in as many bits as knots lie between them."""
        return len(self.knots)

    @property
    def readable_from_output(self) -> bool:
        """Whether φ(z) determines the region: φ does not decrease, and increases beyond its first knot."""
        return bool(self.knots) and self.slopes[0] >= 0

    def bits(self, z: Tensor) -> Tensor:  # (..., units) to (..., units · knots)
        """Whether z > k, for every unit and knot."""
        return self._above(z, self.knots)

    def bits_of_output(self, output: Tensor) -> Tensor:
        """The same bits from φ(z), if ``readable_from_output``."""
        at_knots = [s * k + c for k, s, c in zip(self.knots, self.slopes, self.intercepts, strict=False)]
        return self._above(output, at_knots)

    def _above(self, values: Tensor, levels: Sequence[float]) -> Tensor:
        if len(levels) == 1:
            return values > levels[0]
        return (values.unsqueeze(-1) > values.new_tensor(levels)).flatten(-2)

    def lines(self, bits: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Slope and intercept of every unit, (..., units); None for intercepts that are all zero."""
        slopes = torch.tensor(self.slopes, dtype=dtype, device=bits.device)
        if not self.knots:
            raise SettingError("Regions.lines expects at least one knot; an affine φ has no pattern to read.")
        region = bits.long() if len(self.knots) == 1 else bits.unflatten(-1, (-1, len(self.knots))).sum(-1)  # (4)
        if not any(self.intercepts):
            return slopes[region], None
        return slopes[region], torch.tensor(self.intercepts, dtype=dtype, device=bits.device)[region]


@dataclasses.dataclass(frozen=True)
class MaxAffine:
    """An elementwise maxout (2), as a nonlinearity for any cell.

    Args:
        slopes, intercepts: of the lines, in any order. Lines that are nowhere the largest are dropped.

    Example:
        >>> from holdfast import RNN
        >>> phi = MaxAffine(slopes=(0.0, 0.5, 1.0), intercepts=(0.0, 0.0, -1.0))
        >>> phi(torch.tensor([-1.0, 1.0, 4.0])), phi.regions.knots
        (tensor([0.0000, 0.5000, 3.0000]), (0.0, 2.0))
        >>> layer = RNN(3, 5, nonlinearity=phi)
    """

    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.slopes or len(self.slopes) != len(self.intercepts):
            raise SettingError(
                "MaxAffine expects one intercept per slope and at least one of each, "
                f"got {self.slopes} and {self.intercepts}."
            )

    @functools.cached_property
    def regions(self) -> Regions:
        """The lines that are the largest somewhere, from left to right, and where they meet (4)."""
        highest: dict[float, float] = {}
        for slope, intercept in zip(self.slopes, self.intercepts, strict=True):
            highest[float(slope)] = max(float(intercept), highest.get(float(slope), -math.inf))
        kept: list[tuple[float, float]] = []
        knots: list[float] = []
        for slope, intercept in sorted(highest.items()):
            while kept:
                knot = (kept[-1][1] - intercept) / (slope - kept[-1][0])  # from here on the steeper line is above
                if not knots or knot > knots[-1]:
                    knots.append(knot)
                    break
                kept.pop()
                knots.pop()
            kept.append((slope, intercept))
        return Regions(tuple(knots), tuple(s for s, _ in kept), tuple(c for _, c in kept))

    def __call__(self, z: Tensor) -> Tensor:
        lines = [slope * z + intercept for slope, intercept in zip(self.slopes, self.intercepts, strict=True)]
        return functools.reduce(torch.maximum, lines)  # (2)


@dataclasses.dataclass(frozen=True)
class Slopes:
    """What is known about one nonlinearity: one row of the table.

    Args:
        lipschitz: L ≥ |φ'|.
        smoothness: S ≥ |φ''|; infinity at a kink.
        sup: M ≥ |φ|; infinity if φ is unbounded.
        at_zero: |φ(0)|.
        regions: (3), if φ is piecewise affine.

    Example:
        >>> Slopes(lipschitz=1.0, smoothness=0.77, sup=1.0, at_zero=0.0).homogeneous, slopes("abs").homogeneous
        (False, True)
    """

    lipschitz: float
    smoothness: float
    sup: float
    at_zero: float
    regions: Regions | None = None

    def __post_init__(self) -> None:
        bounds = {name: getattr(self, name) for name in ("lipschitz", "smoothness", "sup", "at_zero")}
        if not all(value >= 0 for value in bounds.values()) or not math.isfinite(self.lipschitz + self.at_zero):
            raise SettingError(
                f"Slopes expects bounds of at least 0, with lipschitz and at_zero finite, got {bounds}; "
                "without a Lipschitz constant there is nothing to certify."
            )

    @classmethod
    def of(cls, regions: Regions) -> Slopes:
        """(1) of a piecewise affine φ, read from its lines."""
        at_zero = regions.intercepts[sum(knot < 0 for knot in regions.knots)]
        smoothness = math.inf if regions.knots else 0.0
        return cls(max(map(abs, regions.slopes)), smoothness, math.inf, abs(at_zero), regions)

    @property
    def homogeneous(self) -> bool:
        """Whether φ is ReLU, leaky ReLU, the absolute value or the identity: (5)."""
        lines = self.regions
        return lines is not None and lines.knots in ((), (0.0,)) and lines.slopes[-1] == 1 and not any(lines.intercepts)


def _leaky(slope: float) -> Slopes:
    return Slopes.of(Regions((0.0,), (float(slope), 1.0), (0.0, 0.0)))


_GELU_LIPSCHITZ = 0.5 * (1 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi)  # φ'(√2) = Φ(√2) + √2 Φ'(√2)

# The table: a name, what is known, and every callable or module class that is this function, the default one first.
_TABLE: dict[str, tuple[Slopes, tuple[Any, ...]]] = {
    "tanh": (Slopes(1.0, 4 / (3 * math.sqrt(3)), 1.0, 0.0), (torch.tanh, nn.functional.tanh, nn.Tanh)),
    "sigmoid": (Slopes(0.25, 1 / (6 * math.sqrt(3)), 1.0, 0.5), (torch.sigmoid, nn.functional.sigmoid, nn.Sigmoid)),
    "relu": (_leaky(0.0), (torch.relu, nn.functional.relu, nn.ReLU)),
    "leaky_relu": (_leaky(0.01), (nn.functional.leaky_relu,)),
    "abs": (_leaky(-1.0), (torch.abs,)),
    # torch's is linear above 20, which is off by 2e-9
    "softplus": (Slopes(1.0, 0.25, math.inf, math.log(2)), (nn.functional.softplus,)),
    "smooth_relu": (Slopes(1.0, 2.0, math.inf, 0.0), (smooth_relu,)),
    "gelu": (Slopes(_GELU_LIPSCHITZ, math.sqrt(2 / math.pi), math.inf, 0.0), (nn.functional.gelu,)),
    "identity": (Slopes.of(Regions((), (1.0,), (0.0,))), (identity, nn.Identity)),
}
NONLINEARITIES: dict[str, Nonlinearity] = {name: same[0] for name, (_, same) in _TABLE.items()}
_KNOWN: dict[Any, Slopes] = {phi: known for known, same in _TABLE.values() for phi in same}


def nonlinearity_named(who: str, phi: str | Nonlinearity) -> Nonlinearity:
    """The elementwise function of this name, or ``phi`` itself if it is callable."""
    if callable(phi):
        return phi
    if phi not in NONLINEARITIES:
        known = ", ".join(NONLINEARITIES)
        raise SettingError(f"{who} expects nonlinearity to be one of {known}, or any callable, got {phi!r}.")
    return NONLINEARITIES[phi]


def name_of(phi: str | Callable[..., Tensor]) -> str:
    """The name of a nonlinearity, for messages."""
    return phi if isinstance(phi, str) else getattr(phi, "__name__", repr(phi))


def _known(phi: str | Callable[..., Tensor]) -> Slopes | None:
    if isinstance(phi, str):
        return _TABLE[phi][0] if phi in _TABLE else None
    if isinstance(phi, MaxAffine):
        return Slopes.of(phi.regions)
    if isinstance(phi, nn.LeakyReLU):
        return _leaky(phi.negative_slope)
    if isinstance(phi, functools.partial) and phi.func is nn.functional.leaky_relu and not phi.args:
        return _leaky(phi.keywords.get("negative_slope", 0.01))
    return (_KNOWN.get(phi) if isinstance(phi, Hashable) else None) or _KNOWN.get(type(phi))


def slopes(phi: str | Callable[..., Tensor]) -> Slopes:
    """The table's row for a nonlinearity, given by name or as the callable that a cell holds.

    Law: |φ(a) - φ(b)| ≤ L |a - b| and |φ'(a) - φ'(b)| ≤ S |a - b| for all a, b.

    Example:
        >>> round(slopes(torch.tanh).smoothness, 4), slopes("abs").regions.slopes
        (0.7698, (-1.0, 1.0))
    """
    if (known := _known(phi)) is None:
        raise NoBoundError(
            f"No slopes are known for the nonlinearity {name_of(phi)}; known: {', '.join(_TABLE)}. If yours has a "
            "Lipschitz constant, register it: register_slopes(phi, Slopes(lipschitz, smoothness, sup, at_zero))."
        )
    return known


def register_slopes(phi: Callable[..., Tensor], bounds: Slopes) -> None:
    """Add a nonlinearity of your own to the table. Every bound relies on these numbers without checking them.

    Example:
        >>> def squash(z):
        ...     return z / torch.sqrt(1 + z * z)
        >>> register_slopes(squash, Slopes(lipschitz=1.0, smoothness=0.86, sup=1.0, at_zero=0.0))
        >>> slopes(squash).sup
        1.0
    """
    _KNOWN[phi] = bounds


def is_homogeneous(phi: str | Callable[..., Tensor]) -> bool:
    """Whether the table knows φ to be (5).

    Example:
        >>> is_homogeneous(torch.relu), is_homogeneous(torch.tanh)
        (True, False)
    """
    return (known := _known(phi)) is not None and known.homogeneous


def regions_of(phi: str | Callable[..., Tensor]) -> Regions:
    """The regions of a nonlinearity, or an error if it is not known to be piecewise affine and convex.

    Known are ReLU, leaky ReLU with any slope below 1, the absolute value, the identity, and ``MaxAffine``.

    Example:
        >>> regions_of(torch.abs).slopes
        (-1.0, 1.0)
        >>> regions_of(torch.tanh)
        Traceback (most recent call last):
        holdfast.errors.SettingError: ... expected a piecewise affine, convex nonlinearity ..., got tanh; ...
    """
    known = _known(phi)
    if known is None or known.regions is None or not known.regions.convex:
        raise SettingError(
            "holdfast.spline expected a piecewise affine, convex nonlinearity (relu, leaky_relu with a slope below 1, "
            f"abs, identity or holdfast.spline.MaxAffine), got {name_of(phi)}; for a smooth one use "
            "holdfast.spline.linearise."
        )
    return known.regions
