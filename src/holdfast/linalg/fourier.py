"""The Fourier transform as a product of plane rotations, which a compiled step runs in O(n log n).

    F x,  (F x)_k = n^{-1/2} Σ_j exp(-2πi jk/n) x_j              (1) on rows (Re x, Im x) of 2n reals
    F = U(Θ)                                                     (2) U of ``holdfast.linalg.givens``, (1) there
    n = a b, coprime:   k ↦ (k mod a, k mod b),  j = b j_1 + a j_2 mod n       (3) transforms of a, then of b
    n = a b:            k = k_1 + a k_2,  j = b j_1 + j_2                      (4) likewise, between them the phases
                                                                                   exp(-2πi j_2 k_1 / n)
    p an odd prime:     s_j, d_j = (x_j ± x_{p-j}) / √2;  X_k, X_{p-k} = (E_k ± O_k) / √2                 (5)
                        E = C (x_0, s),  O = -i S d;  C, S orthogonal: 2 cos(2πjk/p) / √p, 2 sin(2πjk/p) / √p,
                        with 1/√2 for each of j, k = 0 in C

A sum and a difference are a rotation by π/4 of the real and of the imaginary parts, up to order and sign. A phase
rotates (Re x_j, Im x_j). C and S are rotations of neighbours, as many sublayers as rows. Factors ±1 and ±i and all
orders are carried along as names of features, and the last sublayer puts features into place. Rotations that do not
share a feature share a sublayer.

Sources: Cooley & Tukey (1965) for (4); Good (1958) for (3); Clements et al. (2016) for the rotations of C and S.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from holdfast.linalg import givens
from holdfast.linalg.givens import Angles, Permutations, Rows

__all__ = ["fourier", "fourier_rotations", "fourier_sublayers", "prime_powers"]

Feature = tuple[int, int]  # a number is the sign, ±1, times a feature
Number = tuple[Feature, Feature]  # its real and its imaginary part


def fourier(x: Rows, angles: Angles, permutations: Permutations, order: Tensor | None = None) -> Rows:
    """F x, or F of x[order], row by row: by ``torch.fft``, or by rotations where ``rotate`` is one operator.

    Law: lengths are kept. F⁻¹ is F of the features in the order 0, n - 1, ..., 1.

    Args:
        x: (Re, Im) of n complex numbers along the last dimension.
        angles, permutations: those of ``fourier_rotations(n)``, constants here: they get no gradient.
        order: 2n features, an order of n complex numbers.

    Example:
        >>> angles, permutations = fourier_rotations(2)
        >>> fourier(torch.tensor([[3.0, 1.0, 0.0, 0.0]]), angles.float(), permutations)
        tensor([[2.8284, 1.4142, 0.0000, 0.0000]])
    """
    if givens.is_primitive():
        if order is not None:  # part of the permutation that is applied first
            permutations = torch.cat((permutations[:-1], order[permutations[-1:]]))
        return givens.rotate(x, angles.detach(), permutations)
    x = x if order is None else x.index_select(-1, order)
    z = torch.fft.fft(torch.complex(*x.chunk(2, dim=-1)), norm="ortho")
    return torch.cat((z.real, z.imag), dim=-1)


def fourier_rotations(n: int) -> tuple[Angles, Permutations]:
    """Θ in float64 and π, with ``rotate(x, Θ, π)`` equal to F x for every row x = (Re, Im).

    Example:
        >>> x = torch.randn(3, 12, dtype=torch.complex128)
        >>> y = givens.rotate(torch.cat((x.real, x.imag), 1), *fourier_rotations(12))
        >>> torch.testing.assert_close(torch.complex(*y.chunk(2, 1)), torch.fft.fft(x, norm="ortho"))
    """
    angles, permutations = _tables(n)
    return torch.from_numpy(angles.copy()), torch.from_numpy(permutations.copy())


def fourier_sublayers(n: int) -> int:
    """How many sublayers ``fourier_rotations(n)`` has at most, without building it: few for small prime factors.

    Example:
        >>> [fourier_sublayers(n) for n in (357, 360, 512)], fourier_sublayers(359)
        ([21, 17, 14], 183)
    """
    count = 1  # the last one
    for p, power in prime_powers(n):
        times = round(math.log(power, p))
        stages = (times + 1) // 2 if p == 2 else times  # transforms of 4, and of 2 if one is left
        one = {2: 1, 3: 3}.get(p, (p + 5) // 2)
        count += one * times + stages - 1
    return count


def prime_powers(n: int) -> list[tuple[int, int]]:
    """Every prime p that divides n, with its power pᵉ.

    Example:
        >>> prime_powers(360)
        [(2, 8), (3, 9), (5, 5)]
    """
    found, p = list[tuple[int, int]](), 2
    while n > 1:
        p = n if p * p > n else p
        power = 1
        while n % p == 0:
            n, power = n // p, power * p
        found += [(p, power)] if power > 1 else []
        p += 1
    return found


@functools.lru_cache(maxsize=16)
def _tables(n: int) -> tuple[np.ndarray, np.ndarray]:
    network = _Network(n)
    numbers = network.transform([((j, 1), (n + j, 1)) for j in range(n)])
    last = list[tuple[int, int, float]]()
    for (real, sign), (imaginary, other) in numbers:  # (a, b), (-a, -b); or (a, -b), (-a, b) from (b, a)
        turn = 0.0 if sign > 0 else math.pi
        last.append((real, imaginary, turn) if sign == other else (imaginary, real, -sign * math.pi / 2))
    angles, permutations, before = list[list[float]](), list[np.ndarray](), np.arange(2 * n)
    for layer in (*network.layers, last):
        idle = sorted(set(range(2 * n)).difference(*((i, j) for i, j, _ in layer)))
        pairs = [*layer, *((i, j, 0.0) for i, j in zip(idle[::2], idle[1::2], strict=True))]
        order = np.array([*(i for i, _, _ in pairs), *(j for _, j, _ in pairs)])
        permutations.append(np.argsort(before)[order])
        angles.append([angle for _, _, angle in pairs])
        before = order
    return np.array(angles[::-1]), np.array(permutations[::-1])


class _Network:
    """Rotations of 2n features, (feature, feature, angle), each in the first sublayer that both are free for."""

    def __init__(self, n: int):
        self.layers: list[list[tuple[int, int, float]]] = []
        self._free = [0] * (2 * n)

    def transform(self, xs: list[Number]) -> list[Number]:
        n, powers = len(xs), prime_powers(len(xs))
        if n == 1:
            return xs
        if n == 2:
            return list(self._sum_and_difference(*xs))
        if len(powers) > 1:  # (3)
            a, b = powers[0][1], n // powers[0][1]
            columns = [self.transform([xs[(b * i + a * j) % n] for i in range(a)]) for j in range(b)]
            rows = [self.transform([column[k] for column in columns]) for k in range(a)]
            return [rows[k % a][k % b] for k in range(n)]
        prime = powers[0][0]
        if n == prime:
            return self._odd_prime(xs)
        a = 4 if prime == 2 and n > 4 else prime  # (4)
        b = n // a
        columns = [self.transform([xs[b * i + j] for i in range(a)]) for j in range(b)]
        rows = [self.transform([self._phase(columns[j][k], j * k, n) for j in range(b)]) for k in range(a)]
        return [rows[k % a][k // a] for k in range(n)]

    def _odd_prime(self, xs: list[Number]) -> list[Number]:
        p, half = len(xs), len(xs) // 2
        pairs = [self._sum_and_difference(xs[j], xs[p - j]) for j in range(1, half + 1)]
        even = self._orthogonal([xs[0], *(s for s, _ in pairs)], p, "cos")
        odd = [_turned(x, -1) for x in self._orthogonal([d for _, d in pairs], p, "sin")]
        ends = [self._sum_and_difference(e, o) for e, o in zip(even[1:], odd, strict=True)]
        return [even[0], *(x for x, _ in ends), *(x for _, x in reversed(ends))]

    def _orthogonal(self, xs: list[Number], p: int, function: str) -> list[Number]:
        right, signs, left = _neighbours(p, function)
        for j, angle in right:
            self._rotate(xs[j], xs[j + 1], angle)
        xs = [_turned(x, 0 if sign > 0 else 2) for x, sign in zip(xs, signs, strict=True)]
        for j, angle in left:
            self._rotate(xs[j], xs[j + 1], angle)
        return xs

    def _sum_and_difference(self, x: Number, y: Number) -> tuple[Number, Number]:
        self._rotate(x, y, math.pi / 4)  # to (x - y, x + y) / √2
        return y, x

    def _phase(self, x: Number, part: int, n: int) -> Number:
        """Multiply x by exp(-2πi part/n): quarter turns by name, and the rest, at most an eighth, by a rotation."""
        quarters = round(4 * part / n)
        rest = 4 * part - quarters * n
        if rest:
            self._turn(*x, -math.pi / 2 * rest / n)
        return _turned(x, -quarters)

    def _rotate(self, x: Number, y: Number, angle: float) -> None:
        for a, b in zip(x, y, strict=True):
            self._turn(a, b, angle)

    def _turn(self, a: Feature, b: Feature, angle: float) -> None:
        (i, sign), (j, other) = a, b
        place = max(self._free[i], self._free[j])
        self._free[i] = self._free[j] = place + 1
        if place == len(self.layers):
            self.layers.append([])
        self.layers[place].append((i, j, sign * other * angle))


def _turned(x: Number, quarters: int) -> Number:
    """Multiply x by i^quarters: other names of the same features."""
    for _ in range(quarters % 4):
        (real, sign), imaginary = x[1], x[0]
        x = (real, -sign), imaginary
    return x


Turns = list[tuple[int, float]]  # rotations of rows j and j + 1


@functools.lru_cache(maxsize=32)
def _neighbours(p: int, function: str) -> tuple[Turns, list[float], Turns]:
    """C ("cos") or S ("sin") of (5) as rotations of neighbours, then signs, then rotations of neighbours.

    Entries below the diagonal are emptied one antidiagonal after another, by rotations of columns and of rows in turn,
    so that rotations of one antidiagonal after another fit into as many sublayers as there are rows.
    """
    count = np.arange(p // 2 + 1)
    angles = 2 * math.pi * (np.outer(count, count) % p) / p
    if function == "cos":
        scale = np.where(count == 0, math.sqrt(0.5), 1.0)
        U = 2 / math.sqrt(p) * np.cos(angles) * np.outer(scale, scale)
    else:
        U = 2 / math.sqrt(p) * np.sin(angles[1:, 1:])
    n, right, left = len(U), list[tuple[int, float]](), list[tuple[int, float]]()
    for i in range(1, n):
        for j in range(i):
            row, column = (n - 1 - j, i - 1 - j) if i % 2 else (n - i + j, j)
            other = U[row, column + 1] if i % 2 else U[row - 1, column]
            angle = math.atan2(U[row, column], other)
            cos, sin = math.cos(angle), math.sin(angle)
            turn = np.array([[cos, sin], [-sin, cos]])
            if i % 2:
                U[:, column : column + 2] = U[:, column : column + 2] @ turn
                right.append((column, angle))
            else:
                U[row - 1 : row + 1] = turn @ U[row - 1 : row + 1]
                left.append((row - 1, angle))
    return right, [float(sign) for sign in np.sign(np.diag(U))], left[::-1]
