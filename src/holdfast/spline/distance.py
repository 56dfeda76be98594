"""How far apart codes are, and how many there are.

    d(a, b) = #{bits in which a and b differ} = (D - ⟨±a, ±b⟩) / 2          (1) D bits, ±a with -1 for 0
    regions = #{different codes}                                             (2)

(1) makes distances of all pairs one matrix product, a block of bits at a time. √d is the Euclidean distance of the
bits, as in S5's figures.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.spline.code import PartitionCode

__all__ = ["count_regions", "hamming", "regions_through_time"]

_BYTES = 1024  # of each code at a time: 8,192 numbers
_ROWS = 1024  # codes at a time


def hamming(codes: PartitionCode, others: PartitionCode | None = None) -> Tensor:
    """The distance (1) of every pair, int32, (codes, others); of all pairs of ``codes`` without others.

    The result can be large; ``nearest`` and ``farthest`` do not form it.

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.spline import partition_code
        >>> code = partition_code(RNN(3, 5, nonlinearity="relu"), torch.randn(7, 4, 3))
        >>> distances = hamming(code)
        >>> distances.shape, distances.diagonal().tolist()
        (torch.Size([4, 4]), [0, 0, 0, 0])
    """
    others = codes if others is None else others
    if codes.packed.shape[1:] != others.packed.shape[1:] or codes.bits != others.bits:
        raise ShapeError(
            f"hamming expects codes of one shape, got {tuple(codes.packed.shape[1:])} and "
            f"{tuple(others.packed.shape[1:])}."
        )
    mine, theirs = codes.packed.flatten(1), others.packed.flatten(1)
    distances = torch.empty(len(mine), len(theirs), dtype=torch.int32)
    for begin in range(0, len(mine), _ROWS):
        for start in range(0, len(theirs), _ROWS):
            a, b = mine[begin : begin + _ROWS], theirs[start : start + _ROWS]
            products = torch.zeros(len(a), len(b), dtype=torch.float32)  # whole numbers, exact below 2²⁴
            for byte in range(0, a.shape[1], _BYTES):
                products.addmm_(_signs(a[:, byte : byte + _BYTES]), _signs(b[:, byte : byte + _BYTES]).mT)
            distances[begin : begin + _ROWS, start : start + _ROWS] = (8 * a.shape[1] - products) / 2  # (1)
    return distances


def _signs(packed: Tensor) -> Tensor:
    """Bits as ±1, (codes, 8 · bytes)."""
    return torch.from_numpy(np.unpackbits(packed.numpy(), axis=-1)).float().mul_(2).sub_(1)


def count_regions(codes: PartitionCode) -> int:
    """The number of regions of the input space that these sequences occupy: (2).

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.spline import partition_code
        >>> xs = torch.randn(7, 4, 3)
        >>> count_regions(partition_code(RNN(3, 5, nonlinearity="relu"), torch.cat([xs, xs], dim=1))) <= 4
        True
    """
    rows = codes.flat()
    return len(np.unique(rows.view(np.dtype((np.void, rows.shape[1])))))


def regions_through_time(codes: PartitionCode) -> Tensor:
    """The number of regions (2) after every step, (time): how the partition is refined.

    Law: it never decreases, and ends at ``count_regions``.

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.spline import partition_code
        >>> code = partition_code(RNN(3, 5, nonlinearity="relu"), torch.randn(7, 50, 3))
        >>> counts = regions_through_time(code)
        >>> counts[-1].item() == count_regions(code), (counts.diff() >= 0).all().item()
        (True, True)
    """
    rows = codes.packed.flatten(2).numpy()  # (sequences, time, bytes)
    region, counts = np.zeros((len(rows), 1), np.int64), []
    for step in range(rows.shape[1]):  # a region after t steps is one after t - 1 and what step t adds
        both = np.concatenate([region.view(np.uint8), rows[:, step]], axis=1)
        _, number = np.unique(both.view(np.dtype((np.void, both.shape[1]))), return_inverse=True)
        region = number.reshape(-1, 1).astype(np.int64)
        counts.append(int(region.max()) + 1)
    return torch.tensor(counts)
