"""Neighbours by partition code: the nearest, the farthest, and classification by them.

    ŷ(x) = the most frequent class among the k codes nearest to that of x          (1) S5 Table 3

Distances are Hamming distances; ties are ordered by index and tied votes by class, so results are reproducible.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from holdfast.errors import SettingError, ShapeError
from holdfast.spline.code import PartitionCode
from holdfast.spline.distance import hamming

__all__ = ["Neighbours", "farthest", "knn_classify", "nearest"]

_QUERIES = 512  # at a time


@dataclasses.dataclass(frozen=True, eq=False)
class Neighbours:
    """For each query, k others.

    Args:
        indices: (queries, k), nearest (or farthest) first.
        distances: Hamming's, (queries, k).

    Example:
        >>> Neighbours(torch.tensor([[4, 2]]), torch.tensor([[0, 3]])).indices[0, 0].item()
        4
    """

    indices: Tensor
    distances: Tensor


def nearest(codes: PartitionCode, queries: PartitionCode | Tensor, k: int = 5) -> Neighbours:
    """The k codes nearest to each query.

    Args:
        codes: to search.
        queries: codes, or indices of some of ``codes``, which are then not their own neighbours.
        k: how many.

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.spline import partition_code
        >>> code = partition_code(RNN(3, 5, nonlinearity="relu"), torch.randn(7, 9, 3))
        >>> nearest(code, code[:2], k=3).distances[:, 0].tolist()
        [0, 0]
    """
    return _neighbours(codes, queries, k, largest=False)


def farthest(codes: PartitionCode, queries: PartitionCode | Tensor, k: int = 5) -> Neighbours:
    """The k codes farthest from each query; arguments as in ``nearest``.

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.spline import partition_code
        >>> code = partition_code(RNN(3, 5, nonlinearity="relu"), torch.randn(7, 9, 3))
        >>> farthest(code, torch.tensor([0, 4]), k=3).indices.shape
        torch.Size([2, 3])
    """
    return _neighbours(codes, queries, k, largest=True)


def knn_classify(codes: PartitionCode, classes: Tensor, queries: PartitionCode, k: int = 1) -> Tensor:
    """The class of every query by its neighbours (1): (queries,) classes.

    Args:
        codes: of sequences whose class is known.
        classes: (codes,) whole numbers.
        queries: codes to classify.
        k: number of voters.

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.spline import partition_code
        >>> code = partition_code(RNN(3, 5, nonlinearity="relu"), torch.randn(7, 9, 3))
        >>> knn_classify(code, torch.arange(9) % 3, code[:3]).shape
        torch.Size([3])
    """
    if tuple(classes.shape) != (len(codes),):
        raise ShapeError(f"knn_classify expects a class for each of {len(codes)} codes, got {tuple(classes.shape)}.")
    votes = classes[nearest(codes, queries, k).indices]  # (queries, k)
    return torch.nn.functional.one_hot(votes, int(classes.max()) + 1).sum(1).argmax(1)


def _neighbours(codes: PartitionCode, queries: PartitionCode | Tensor, k: int, *, largest: bool) -> Neighbours:
    own = queries if isinstance(queries, Tensor) else None
    asked = codes[queries] if isinstance(queries, Tensor) else queries
    most = len(codes) - (own is not None)
    if not 1 <= k <= most:
        raise SettingError(f"Expected k from 1 to {most}, the number of other codes, got {k}.")
    indices, distances = [], []
    for begin in range(0, len(asked), _QUERIES):
        block = hamming(asked[begin : begin + _QUERIES], codes).long()
        if own is not None:
            block[torch.arange(len(block)), own[begin : begin + _QUERIES]] = (
                -1 if largest else torch.iinfo(torch.int32).max
            )
        order = torch.arange(len(codes))
        key = block * len(codes) + (len(codes) - 1 - order if largest else order)  # equal distances: by index
        chosen = key.topk(k, dim=1, largest=largest).indices
        indices.append(chosen)
        distances.append(block.gather(1, chosen))
    return Neighbours(torch.cat(indices), torch.cat(distances))
