"""Piecewise affine, convex nonlinearities: a maximum of lines, and where it bends.

    φ(z) = max_r (s_r z + c_r)                                     (1) S5 (3), for one number
    φ(z) = s_r z + c_r  for  k_{r-1} < z ≤ k_r                      (2) S5 (4), with r found by (3)
    r = #{j : z > k_j},   k_j = (c_j - c_{j+1}) / (s_{j+1} - s_j)   (3) S5 (5): slopes rise, so lines win in order

Source: S5, §2 and §4. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from holdfast.cells._base import identity
from holdfast.errors import SettingError
from holdfast.types import Nonlinearity

__all__ = ["MaxAffine", "Regions", "regions_of"]


@dataclasses.dataclass(frozen=True)
class Regions:
    """(2): the regions of one number, from left to right.

    Args:
        knots: k, where φ bends, rising; one fewer than there are regions.
        slopes: s, rising.
        intercepts: c.

    Example:
        >>> relu = Regions(knots=(0.0,), slopes=(0.0, 1.0), intercepts=(0.0, 0.0))
        >>> relu.bits(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([False, False,  True])
    """

    knots: tuple[float, ...]
    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]

    @property
    def bits_per_unit(self) -> int:
        """A bit a knot: on which side of it z lies. Two units differ in as many bits as knots lie between them."""
        return len(self.knots)

    @property
    def readable_from_output(self) -> bool:
        """Whether φ(z) tells the region: it does not fall, and rises behind its first knot."""
        return bool(self.knots) and self.slopes[0] >= 0

    def bits(self, z: Tensor) -> Tensor:  # (..., units) to (..., units · knots)
        """Whether z > k, for every unit and knot."""
        return self._above(z, self.knots)

    def bits_of_output(self, output: Tensor) -> Tensor:
        """The same from φ(z), where that is enough."""
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
        region = bits.long() if len(self.knots) == 1 else bits.unflatten(-1, (-1, len(self.knots))).sum(-1)  # (3)
        if not any(self.intercepts):
            return slopes[region], None
        return slopes[region], torch.tensor(self.intercepts, dtype=dtype, device=bits.device)[region]


@dataclasses.dataclass(frozen=True)
class MaxAffine:
    """(1) as a nonlinearity for any cell: an elementwise maxout.

    Args:
        slopes, intercepts: of the lines, in any order. Lines that are never the largest are left out.

    Example:
        >>> from holdfast import RNN
        >>> phi = MaxAffine(slopes=(0.0, 0.5, 1.0), intercepts=(0.0, 0.0, -1.0))
        >>> phi(torch.tensor([-1.0, 1.0, 4.0])), phi.regions.knots
        (tensor([0.0000, 0.5000, 3.0000]), (0.0, 2.0))
        >>> layer = RNN(3, 5, nonlinearity=phi)
    """

    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]
    regions: Regions = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.slopes or len(self.slopes) != len(self.intercepts):
            raise SettingError(
                f"MaxAffine expects as many intercepts as slopes, at least one, got {self.slopes}, {self.intercepts}."
            )
        object.__setattr__(self, "regions", _envelope(self.slopes, self.intercepts))

    def __call__(self, z: Tensor) -> Tensor:
        lines = [slope * z + intercept for slope, intercept in zip(self.slopes, self.intercepts, strict=True)]
        return functools.reduce(torch.maximum, lines)  # (1)


def regions_of(phi: Nonlinearity) -> Regions:
    """The regions of a nonlinearity, or an error if it is not known to be piecewise affine and convex.

    Known are ReLU, leaky ReLU with any slope up to 1, the absolute value, the identity, and ``MaxAffine``.

    Example:
        >>> regions_of(torch.abs).slopes
        (-1.0, 1.0)
        >>> regions_of(torch.tanh)
        Traceback (most recent call last):
        holdfast.errors.SettingError: tanh is not known to be piecewise affine and convex. ...
    """
    if isinstance(phi, MaxAffine):
        return phi.regions
    if isinstance(phi, nn.LeakyReLU):
        return _leaky(phi.negative_slope)
    if isinstance(phi, functools.partial) and phi.func is nn.functional.leaky_relu and not phi.args:
        return _leaky(phi.keywords.get("negative_slope", 0.01))
    for known, regions in _KNOWN:
        if phi is known or (isinstance(known, type) and isinstance(phi, known)):
            return regions
    name = getattr(phi, "__name__", repr(phi))
    raise SettingError(
        f"{name} is not known to be piecewise affine and convex. holdfast.spline knows ReLU, leaky ReLU, abs, the "
        "identity and holdfast.spline.MaxAffine; for a smooth function use holdfast.spline.linearise."
    )


def _leaky(slope: float) -> Regions:
    if not slope < 1:
        raise SettingError(f"A leaky ReLU is convex for slopes below 1, got {slope}; use holdfast.spline.MaxAffine.")
    return Regions((0.0,), (float(slope), 1.0), (0.0, 0.0))


_RELU = Regions((0.0,), (0.0, 1.0), (0.0, 0.0))
_LINE = Regions((), (1.0,), (0.0,))
_KNOWN = (
    (torch.relu, _RELU),
    (nn.functional.relu, _RELU),
    (nn.ReLU, _RELU),
    (nn.functional.leaky_relu, _leaky(0.01)),
    (torch.abs, Regions((0.0,), (-1.0, 1.0), (0.0, 0.0))),
    (identity, _LINE),
    (nn.Identity, _LINE),
)


def _envelope(slopes: Sequence[float], intercepts: Sequence[float]) -> Regions:
    """The lines that are the largest somewhere, from left to right, and where they meet (3)."""
    highest: dict[float, float] = {}
    for slope, intercept in zip(slopes, intercepts, strict=True):
        highest[float(slope)] = max(float(intercept), highest.get(float(slope), float("-inf")))
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
