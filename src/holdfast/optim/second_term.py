"""Pairs of recurrent edges on one path: the sum behind κ⁽²⁾, as correlations over time.

    Q = Σ_{s<t} D(a_s) U^(t-1-s) D(b_t),  D(v) = diag(v),  1 ≤ s < t ≤ T             (1) what is wanted
    Z_s = Σ_{t>s} U^(t-1-s) D(b_t) = U Z_{s+1} + D(b_{s+1}),  Q = Σ_s D(a_s) Z_s     (2) Horner: T products
    Q = local + Σ_e A_e Z_e,  A_e = Σ_{r<m} D(a_{e-r}) Uʳ                            (3) blocks of m steps, the last e:
    Z_{e-m} = Uᵐ Z_e + B_e,  B_e = Σ_{i<m} Uⁱ D(b_{e-m+1+i})                             two products per block
    local = Σ_{n<m-1} Uⁿ ⊙ Σ a_s b_{s+1+n}ᵀ,  s and s+1+n in one block               (4) one product per lag

Footnote 3 of S2 multiplies every power of U with a correlation of its own: O(T H³ + T² H²). (2) alone is O(T H³); with
m = √(2TH / (T+H)) steps per block, (3) and (4) take O(√T H³) while T ≤ H and O(T H^(5/2)) beyond. All terms are
non-negative, so no digits cancel. Derivations: docs/theory/s2-path-norm.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["block_size", "edge_pairs"]


def block_size(size: int, steps: int) -> int:
    """The m that minimises 2 m H³ + 4 (T/m) H³ + 2 m T H²: powers, blocks and lags.

    Example:
        >>> block_size(128, 100), block_size(128, 1000), block_size(2, 3)
        (11, 15, 2)
    """
    return min(steps, max(2, round(math.sqrt(2 * steps * size / (steps + size)))))


def edge_pairs(matrix: Tensor, a: Tensor, b: Tensor, block: int | None = None) -> Tensor:
    """Q of (1), (size, size), by (3) and (4).

    Args:
        matrix: U, non-negative.
        a, b: (steps, size); row s-1 holds a_s, the flow into the tail of the edge at step s, and b_s, the flow
            out of its head.
        block: m; ``block_size`` unless given. The result does not depend on it but for rounding.

    Example:
        >>> edge_pairs(torch.tensor([[2.0]]), torch.ones(3, 1), torch.ones(3, 1))  # 1 + 1 + 2
        tensor([[4.]])
    """
    steps, size = a.shape
    if steps < 2:
        return torch.zeros_like(matrix)
    m = min(steps, block or block_size(size, steps))
    powers = [torch.eye(size, dtype=matrix.dtype, device=matrix.device)]
    for _ in range(m):
        powers.append(powers[-1] @ matrix)
    jump, stack = powers[m], torch.stack(powers[:m])  # (m, size, size)

    # Zeros in front fill the first block: an edge without flow makes no pair.
    front = -steps % m
    a, b = (torch.nn.functional.pad(rows, (0, 0, front, 0)).reshape(-1, m, size) for rows in (a, b))

    pairs = torch.zeros_like(matrix)
    for lag in range(m - 1):  # (4)
        early, late = a[:, : m - 1 - lag].reshape(-1, size), b[:, lag + 1 :].reshape(-1, size)
        pairs.addcmul_(stack[lag], early.mT @ late)

    # A and B of all blocks at once: for each row k of U's powers, (blocks, m) times (m, size); for B each column.
    A = torch.bmm(a.flip(1).permute(2, 0, 1), stack.transpose(0, 1)).transpose(0, 1)  # (blocks, size, size)
    B = torch.bmm(b.permute(2, 0, 1), stack.permute(2, 0, 1)).permute(1, 2, 0)
    ahead = B[-1]
    for index in range(len(A) - 2, -1, -1):  # (3)
        pairs.addmm_(A[index], ahead)
        ahead = torch.addmm(B[index], jump, ahead)
    return pairs
