"""Unitary matrices on pairs of real numbers: uRNN's product, and plane rotations in the order of EUNN.

A row of 2n reals is (Re h, Im h) of n complex numbers. A unitary W is then the orthogonal matrix

    [[Re W, -Im W], [Im W, Re W]]                                                   (1)

    W = D_3 R_2 F⁻¹ D_2 Π R_1 F D_1                                                 (2) 7n numbers: uRNN
        D = diag(exp(iω)),  R = I - 2 v vᴴ / ‖v‖²,  F the unitary Fourier transform, Π a fixed permutation
    W = D F_A F_B F_A F_B ...                                                       (3) L factors of n/2 planes: EUNN
        F_A turns the planes (1, 2), (3, 4), ...;  F_B the planes (2, 3), (4, 5), ...
    W = D F_1 F_2 ... F_log₂(n)                                                     (4) in the order of a fast transform
        F_i turns the planes (2pk + j, p(2k + 1) + j),  p = n / 2^i,  k < 2^(i-1),  j < p
    a plane of (3), (4):  [[e^{iφ} cos θ, -sin θ], [e^{iφ} sin θ, cos θ]]           (5)

(3) with L = n has n² parameters and reaches every unitary matrix. (5) is the inverse of the plane that the paper
prints, as its proof, W = D R⁻¹ ... R⁻¹, and its program have it: with e^{iφ} on the other side, next to D, the phases
of the first factor would repeat those of D.

A phase turns the plane (Re h_j, Im h_j), and a rotation by θ turns (Re h_j, Re h_k) and (Im h_j, Im h_k) alike. So (3)
and (4) are products of plane rotations of 2n reals, and ``holdfast.linalg.givens.rotate`` runs them. With φ = ω = 0 on
n reals they are GORU's.

Sources: Arjovsky, Shah & Bengio (2016), §4, for (2); Jing et al. (2017), §3 and §4, for (3) to (5). Symbols:
docs/notation.md.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.constraints.orthogonal import DenseMap, OrthogonalMap, Square
from holdfast.errors import SettingError, one_of, positive_size
from holdfast.linalg import givens
from holdfast.linalg.fourier import fourier, fourier_rotations, fourier_sublayers, prime_powers
from holdfast.linalg.norms import orthogonality_tolerance
from holdfast.types import Hidden, Weights

__all__ = ["FourierProduct", "PlaneRotations", "complex_pairs"]

Order = Literal["tunable", "fft"]
Planes = list[tuple[int, int]]


def complex_pairs(who: str, size: int) -> int:
    """The number of complex units n in ``size`` = 2n reals, or an error if it is odd.

    Example:
        >>> complex_pairs("URNNCell", 128)
        64
    """
    if positive_size(who, "hidden_size", size) % 2:
        raise SettingError(
            f"{who} expects an even hidden_size, the real and imaginary parts of its complex units, got {size}; "
            f"take {size + 1}."
        )
    return size // 2


# Note [Dense or in factors]
# A product with the dense matrix costs O(size²). The factors cost O(size) for each sublayer of the Fourier transform,
# and phases and reflections about as much as 30 sublayers. Milliseconds for an update of uRNN on 200 steps and 32
# samples, one thread, dense / in factors, with the number of sublayers: size 714, 222 / 43 (21); 720, 219 / 41 (17);
# 332, 53 / 34 (46); 262, 35 / 36 (69); 216, 24 / 13 (14); 142, 12 / 14 (39); 128, 10 / 7 (9). For one sample: size 714,
# 22 / 18; 216, 3 / 6. So the factors are taken where they save a third or more for 32 samples. By this rule a prime
# number of units is dense. A prime factor above 128 saves little, and its tables take long to build. A GPU uses
# the dense matrix: the factors were not measured there.
_LEAST, _EACH, _PRIME = 120, 4, 128


def _faster_in_factors(size: int) -> bool:
    """Whether the factors of (2) are faster on a CPU than the dense matrix: Note [Dense or in factors]."""
    n = size // 2
    return size > _LEAST + _EACH * fourier_sublayers(n) and max(p for p, _ in prime_powers(n)) < _PRIME


class FourierProduct(DenseMap):
    """uRNN's unitary matrix (2) in the form (1), from 3.5 size numbers.

    A step multiplies by the factors of (2) where this is faster: on a CPU, for n above about 90 that is a product of
    small primes. Otherwise the matrix is built once per sequence, in O(size² log size), and a step multiplies by it.
    Both have the same values up to rounding.

    Law: U is orthogonal for all parameters and commutes with the multiplication by i. It has 7n numbers for n² of a
    unitary matrix, so it reaches a surface inside them; ``contains`` tests for (1) only.

    Args:
        size: 2n, even.
        factors: multiply by the factors (True) or by the dense matrix (False); default: by size and device.

    Example:
        >>> U = FourierProduct(8)
        >>> sum(weight.numel() for weight in U.parameters()), U.contains(U.matrix())
        (28, True)

    References:
        Arjovsky, Shah & Bengio (2016), Unitary evolution recurrent neural networks.
    """

    permutation: Tensor

    def __init__(self, size: int, *, factors: bool | None = None):
        super().__init__(size)
        n = complex_pairs("FourierProduct", size)
        self.factors = factors
        self.phases = nn.Parameter(torch.empty(3, n))  # ω of D_1, D_2, D_3
        self.reflectors = nn.Parameter(torch.empty(2, size))  # v of R_1, R_2: real parts, then imaginary ones
        self.register_buffer("permutation", torch.randperm(n))
        # Not a buffer: a module in float32 that becomes one in float64 needs angles in float64.
        fast = _faster_in_factors(size) if factors is None else factors
        self._rotations = fourier_rotations(n) if fast else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw phases from ±π and reflectors from ±1, as printed, and keep the permutation."""
        nn.init.uniform_(self.phases, -math.pi, math.pi)
        nn.init.uniform_(self.reflectors, -1.0, 1.0)

    def weights(self) -> Weights:
        phases, order = self.phases, self.permutation
        is_native = phases.device.type == "cpu" and phases.dtype in (torch.float32, torch.float64)
        if self._rotations is None or (self.factors is None and not is_native):
            return super().weights()
        phases = torch.stack((phases[0], phases[1][order.argsort()], phases[2]))  # D_2 Π = Π D, the phases in order
        order = order.roll(-1).flip(0)  # F⁻¹ Π = F J Π, J the order 0, n - 1, ..., 1
        v = math.sqrt(2) * self.reflectors / self.reflectors.norm(dim=1, keepdim=True)
        real, imaginary = v.chunk(2, dim=1)
        reflectors = torch.stack((v, torch.cat((-imaginary, real), dim=1)), dim=1)  # v and i v
        angles, permutations = self._rotations
        tables = torch.cat((order, order + len(order))), angles.to(v), permutations.to(order)
        return phases.cos(), phases.sin(), reflectors, *tables

    def transform(self, h: Hidden, weights: Weights) -> Hidden:
        if len(weights) == 1:
            return super().transform(h, weights)
        cos, sin, reflectors, order, angles, permutations = weights
        x = fourier(_turned(h, cos[0], sin[0]), angles, permutations)
        x = _turned(_mirrored(x, *reflectors[0]), cos[1], sin[1])
        x = fourier(x, angles, permutations, order)
        return _turned(_mirrored(x, *reflectors[1]), cos[2], sin[2])

    def complex_matrix(self) -> Tensor:
        """W of (2), (n, n) and complex."""
        d1, d2, d3 = torch.polar(torch.ones_like(self.phases), self.phases).unsqueeze(-1)
        v1, v2 = torch.complex(*self.reflectors.chunk(2, dim=1))
        W = torch.fft.fft(torch.diag(d1[:, 0]), dim=0, norm="ortho")  # F D_1, column by column
        W = d2 * _reflected(W, v1)[self.permutation]
        return d3 * _reflected(torch.fft.ifft(W, dim=0, norm="ortho"), v2)

    def matrix(self) -> Square:
        W = self.complex_matrix()
        return torch.cat((torch.cat((W.real, -W.imag), 1), torch.cat((W.imag, W.real), 1)))  # (1)

    def _reaches(self, Q: Square) -> bool:
        return is_complex(Q)


def is_complex(Q: Square) -> bool:
    """Whether Q is of the form (1), up to rounding."""
    (a, b), (c, d) = ((row.chunk(2, dim=1)) for row in Q.chunk(2))
    tolerance = orthogonality_tolerance(Q.dtype)
    return bool(((a - d).abs().max() <= tolerance) & ((b + c).abs().max() <= tolerance))


def _reflected(W: Tensor, v: Tensor) -> Tensor:
    """R W of (2)."""
    return W - torch.outer(v, (2 / v.abs().square().sum()) * (v.conj() @ W))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """D x of (2), row by row."""
    real, imaginary = x.chunk(2, dim=-1)
    return torch.cat((cos * real - sin * imaginary, sin * real + cos * imaginary), dim=-1)


def _mirrored(x: Tensor, v: Tensor, iv: Tensor) -> Tensor:
    """R x of (2), row by row, for v of length √2 and i v: in reals, I - v vᵀ - (iv)(iv)ᵀ."""
    one, other = (x * v).sum(dim=-1, keepdim=True), (x * iv).sum(dim=-1, keepdim=True)
    return x - one * v - other * iv


class PlaneRotations(OrthogonalMap):
    """Plane rotations in the order of EUNN, (3) or (4), on complex numbers in the form (1) or on real ones.

    Law: U is orthogonal for all angles; of complex numbers, it commutes with the multiplication by i. The tunable
    order with capacity n reaches every unitary matrix. ``contains`` tests for the form and, of real numbers, for the
    determinant 1.

    Args:
        size: 2n for n complex units, n for real ones; even.
        order: "tunable" (3), or "fft" (4), for which n is a power of 2.
        capacity: L of (3); default 2. The order "fft" has log₂ n factors and takes none.
        complex: complex or real numbers.
        spread: angles start uniform in ±spread.

    Example:
        >>> U = PlaneRotations(16, capacity=8)  # 8 complex units at full capacity: 64 numbers
        >>> sum(weight.numel() for weight in U.parameters()), U.contains(U.matrix())
        (64, True)

    References:
        Jing et al. (2017), Tunable efficient unitary neural networks (EUNN) and their application to RNNs.
    """

    permutations: Tensor
    places: Tensor

    def __init__(
        self,
        size: int,
        order: Order = "tunable",
        capacity: int | None = None,
        *,
        complex: bool = True,
        spread: float = math.pi,
    ):
        super().__init__(size)
        one_of("PlaneRotations", "order", order, ("tunable", "fft"))
        if size % 2:
            raise SettingError(f"PlaneRotations turns features in pairs and expects an even size, got {size}.")
        self.units = n = size // 2 if complex else size
        if n < 2:
            raise SettingError(
                f"PlaneRotations expects at least 2 units to turn, got size={size} for {n} complex ones."
            )
        self.order, self.complex, self.spread = order, complex, spread
        self.capacity = _capacity(order, capacity, n)
        planes = _planes(order, self.capacity, n)
        turns = sum(map(len, planes))
        self.angles = nn.Parameter(torch.empty(turns))  # θ of (5), factor by factor
        if complex:
            self.plane_phases = nn.Parameter(torch.empty(turns))  # φ
            self.phases = nn.Parameter(torch.empty(n))  # ω of D
        permutations, places = _sublayers(planes, n, complex)
        self.register_buffer("permutations", permutations, persistent=False)  # these follow from the settings
        self.register_buffer("places", places, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Redraw all angles and phases from ±spread."""
        for weight in self.parameters():
            nn.init.uniform_(weight, -self.spread, self.spread)

    def weights(self) -> Weights:
        still = self.angles.new_zeros(1)
        parts = (still, self.angles, self.plane_phases, self.phases) if self.complex else (still, self.angles)
        return torch.cat(parts)[self.places], self.permutations

    def transform(self, h: Hidden, weights: Weights) -> Hidden:
        return givens.rotate(h, *weights)

    def matrix(self) -> Square:
        return givens.rotation_matrix(*self.weights())

    def _reaches(self, Q: Square) -> bool:
        return is_complex(Q) if self.complex else torch.linalg.slogdet(Q.detach()).sign.item() > 0

    def extra_repr(self) -> str:
        kind = "complex" if self.complex else "real"
        return f"size={self.size}, {self.units} {kind} units, order={self.order!r}, capacity={self.capacity}"


def _capacity(order: Order, capacity: int | None, n: int) -> int:
    if order == "fft":
        if n & (n - 1):
            raise SettingError(
                f'PlaneRotations in order "fft" expects a power of 2 units, got {n}; take {1 << n.bit_length()}, or '
                f'the order "tunable".'
            )
        if capacity is not None:
            raise SettingError(f'PlaneRotations in order "fft" has log₂ n factors; leave out capacity={capacity}.')
        return n.bit_length() - 1
    capacity = positive_size("PlaneRotations", "capacity", 2 if capacity is None else capacity)
    if capacity > n:
        raise SettingError(
            f"PlaneRotations expects a capacity of at most {n}, the number of units, which reaches every matrix; got "
            f"{capacity}."
        )
    return capacity


def _planes(order: Order, factors: int, n: int) -> list[Planes]:
    """The planes of each factor of (3) or (4), units counted from 0."""
    if order == "tunable":
        return [[(j, j + 1) for j in range(i % 2, n - 1, 2)] for i in range(factors)]
    widths = [n >> (i + 1) for i in range(factors)]
    return [[(2 * p * k + j, p * (2 * k + 1) + j) for k in range(n // (2 * p)) for j in range(p)] for p in widths]


def _sublayers(planes: list[Planes], n: int, complex: bool) -> tuple[Tensor, Tensor]:
    """(3) or (4) as sublayers of ``rotate``: its permutations, and which angle turns which pair of it.

    An angle is a place in (0, θ, φ, ω): pairs that no plane has turn by the first. Of real numbers, the units are
    numbered so that the first factor turns unit j against unit j + n/2, which is how ``rotate`` leaves them.
    """
    turns, size = sum(map(len, planes)), 2 * n if complex else n
    layers: list[tuple[Planes, list[int]]] = []  # pairs of reals and the places of their angles
    if complex:
        layers.append(([(j, n + j) for j in range(n)], [1 + 2 * turns + j for j in range(n)]))  # D
    first = 1
    for factor in planes:
        theta = list(range(first, first + len(factor)))
        first += len(factor)
        pairs = [*factor, *((n + j, n + k) for j, k in factor)] if complex else factor
        idle = sorted(set(range(size)).difference(*pairs))
        rest = list(zip(idle[::2], idle[1::2], strict=True))
        layers.append(([*pairs, *rest], [*theta, *(theta if complex else ()), *(0 for _ in rest)]))
        if complex:
            phases = {j: place + turns for (j, _), place in zip(factor, theta, strict=True)}
            layers.append(([(j, n + j) for j in range(n)], [phases.get(j, 0) for j in range(n)]))
    orders = [torch.tensor([*(j for j, _ in pairs), *(k for _, k in pairs)]) for pairs, _ in layers]
    # (Q_j x)_p = x_{π_j(p)}: from the order that the sublayer applied before leaves to the one that this one turns
    before = [*orders[1:], orders[0] if not complex else torch.arange(size)]
    permutations = torch.stack([left.argsort()[order] for left, order in zip(before, orders, strict=True)])
    return permutations, torch.tensor([places for _, places in layers])
