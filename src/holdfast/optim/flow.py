"""Linear flows through time, by block doubling: a few matrix products instead of one product with a vector per step.

    x_t = x_{t-1} M + d_t,  x_0 = d_0                           (1) a flow, in rows
    v M^(t+n) = (v Mᵗ) Mⁿ;  d constant: x_t = Σ_{k≤t} d Mᵏ      (2) n rows give the next n in one product
    y_t = d_t;  y_t ← y_t + y_{t-n} Mⁿ for n = 1, 2, ..., m/2   (3) d varying: then x_t = y_t + x_{t-m} Mᵐ
    ρ(M) ≤ ‖Mⁿ‖^(1/n) → ρ(M)                                    (4) Gelfand: the rate at which (1) can grow

The squared network of S2's Theorem 3 has no nonlinearity, since all of it is non-negative, and its input is constant:
its states and their gradients are such flows. Derivations: docs/theory/s2-path-norm.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.engine.kernels.flow import compiled_flow, fits

__all__ = ["doublings", "driven_flow", "growth_rate", "krylov_rows", "powers_of", "squarings", "steady_flow"]


def doublings(size: int, steps: int, driven: bool) -> int:
    """How often to square M: k squarings against 2 steps / 2ᵏ products of 2ᵏ rows, in units of size² multiplications.

    A squaring costs ``size``, and a varying drive 2 ``steps`` more for (3). Each product costs its rows, the same for
    all k, and an overhead of 2 + 10⁵ / size² rows for reading M and for the call. Measured for sizes of 128 to 2048.

    Example:
        >>> doublings(128, 100, driven=False), doublings(512, 1000, driven=False), doublings(2048, 50, driven=False)
        (3, 3, 0)
    """
    once, passing = size + (2 * steps if driven else 0), 2 + 1e5 / size**2
    most = max(0, steps.bit_length() - 1)
    return min(range(most + 1), key=lambda k: k * once + 2 * passing * steps / 2**k)


def squarings(matrix: Tensor, steps: int, driven: bool) -> int:
    """How often M is squared before its flows: ``doublings``, and never where the compiled loop fits.

    Example:
        >>> squarings(torch.eye(512, dtype=torch.float64), 1000, driven=False)
        3
    """
    return 0 if fits(matrix) else doublings(len(matrix), steps, driven)


def powers_of(matrix: Tensor, count: int) -> list[Tensor]:
    """M, M², M⁴, ..., M^(2^count).

    Example:
        >>> [power.item() for power in powers_of(torch.tensor([[3.0]]), 2)]
        [3.0, 9.0, 81.0]
    """
    powers = [matrix]
    for _ in range(count):
        powers.append(powers[-1] @ powers[-1])
    return powers


def krylov_rows(powers: Sequence[Tensor], start: Tensor, rows: int) -> Tensor:
    """``start``, ``start`` M, ``start`` M², ..., (rows, size), by (2), or by ``compiled_flow`` where that fits.

    Args:
        powers: M, M², M⁴, ..., as ``powers_of`` gives them.

    Example:
        >>> krylov_rows(powers_of(torch.tensor([[2.0]]), 1), torch.ones(1), 5).flatten().tolist()
        [1.0, 2.0, 4.0, 8.0, 16.0]
    """
    if len(powers) == 1 and fits(powers[0]):
        return compiled_flow(powers[0], start, torch.zeros_like(start), rows)
    block = start.unsqueeze(0)
    for power in powers[:-1]:
        block = torch.cat([block, block @ power])
    blocks = [block]
    for _ in range(len(block), rows, len(block)):
        blocks.append(blocks[-1] @ powers[-1])
    return torch.cat(blocks)[:rows]


def steady_flow(powers: Sequence[Tensor], drive: Tensor, rows: int) -> Tensor:
    """(1) with a constant drive and x_0 = 0, (rows, size), by (2), or by ``compiled_flow`` where that fits.

    Example:
        >>> steady_flow(powers_of(torch.tensor([[2.0]]), 1), torch.ones(1), 6).flatten().tolist()
        [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]
    """
    none = torch.zeros_like(drive)
    if len(powers) == 1 and fits(powers[0]):
        return compiled_flow(powers[0], none, drive, rows)
    return torch.cat([none[None], krylov_rows(powers, drive, rows - 1).cumsum(0)])


def driven_flow(powers: Sequence[Tensor], drive: Tensor) -> Tensor:
    """(1) with the drive (rows, size), by (3), or by ``compiled_flow`` where that fits.

    Example:
        >>> drive = torch.tensor([[0.0], [1.0], [0.0], [5.0]])
        >>> driven_flow(powers_of(torch.tensor([[2.0]]), 1), drive).flatten().tolist()
        [0.0, 1.0, 2.0, 9.0]
    """
    if len(powers) == 1 and fits(powers[0]):
        return compiled_flow(powers[0], drive[0], drive, len(drive))
    summed = drive
    for k, power in enumerate(powers[:-1]):
        lag = 2**k
        summed = torch.cat([summed[:lag], torch.addmm(summed[lag:], summed[:-lag], power)])
    size = 2 ** (len(powers) - 1)
    blocks = [summed[:size]]
    for begin in range(size, len(drive), size):
        here = summed[begin : begin + size]
        blocks.append(torch.addmm(here, blocks[-1][: len(here)], powers[-1]))
    return torch.cat(blocks)


def growth_rate(matrix: Tensor, steps: int) -> float:
    """log₂ of (4) for the first n = 2ᵏ ≥ ``steps``, which is close to log₂ ρ(M); not below 0.

    The squares are normalised and their scale is carried beside them, so nothing overflows.

    Example:
        >>> round(growth_rate(torch.tensor([[2.0, 100.0], [0.0, 4.0]]), 1000), 2)
        2.01
    """
    power, scale, n = matrix, 0.0, 1
    while True:
        norm = float(torch.linalg.matrix_norm(power, ord=torch.inf))
        if norm == 0:  # nilpotent up to underflow: no growth in the long run
            return 0.0
        power, scale = power / norm, scale + math.log2(norm)
        if n >= steps:
            return max(0.0, scale / n)
        power, scale, n = power @ power, 2 * scale, 2 * n
