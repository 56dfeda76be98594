"""Partition codes in the plane, after more and more steps. S5 Figure 2.

    d = √Hamming                                                   (1) the Euclidean distance of the bits

t-SNE needs only each code's nearest neighbours, so no matrix of all pairs is formed. Each frame starts from the
one before, and points keep their place from frame to frame.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import MissingExtraError, SettingError
from holdfast.spline.code import PartitionCode
from holdfast.spline.neighbours import nearest

__all__ = ["Frames", "tsne_through_time"]


@dataclasses.dataclass(frozen=True, eq=False)
class Frames:
    """The position of every code, frame by frame.

    Args:
        steps: after how many.
        positions: (frames, codes, 2).

    Example:
        >>> Frames((10, 20), torch.zeros(2, 7, 2)).steps[-1]
        20
    """

    steps: tuple[int, ...]
    positions: Tensor


def tsne_through_time(
    codes: PartitionCode, steps: Sequence[int] | None = None, *, perplexity: float = 30.0, seed: int = 0
) -> Frames:
    """The t-SNE of the codes after each of ``steps``.

    Args:
        codes: of the sequences.
        steps: numbers of steps; default: six frames, evenly spaced, the last at the end.
        perplexity: scikit-learn's; below the number of codes.
        seed: of the first frame's positions.

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.spline import partition_code
        >>> code = partition_code(RNN(3, 5, nonlinearity="relu"), torch.randn(8, 12, 3))
        >>> tsne_through_time(code, [4, 8], perplexity=3.0).positions.shape
        torch.Size([2, 12, 2])
    """
    try:
        from scipy.sparse import csr_matrix
        from sklearn.manifold import TSNE
    except ModuleNotFoundError:
        raise MissingExtraError("t-SNE needs scikit-learn: pip install 'holdfast[spline]'.") from None
    if not 1 <= perplexity < len(codes):
        raise SettingError(f"t-SNE expects a perplexity from 1 to below {len(codes)} codes, got {perplexity}.")
    if steps is None:
        steps = sorted({max(1, round(codes.steps * part / 6)) for part in range(1, 7)})
    count, near = len(codes), min(len(codes) - 1, int(3 * perplexity + 1))  # as many as scikit-learn looks at
    where = 1e-4 * np.random.default_rng(seed).standard_normal((count, 2))
    itself = torch.arange(count)
    rows, frames = np.arange(count + 1) * (near + 1), []
    for step in steps:
        found = nearest(codes.until(step), itself, near)
        distances = torch.cat([torch.zeros(count, 1), found.distances.sqrt()], dim=1)  # (1); itself comes first
        indices = torch.cat([itself.unsqueeze(1), found.indices], dim=1)
        entries = distances.double().numpy().ravel(), indices.numpy().ravel(), rows
        graph = csr_matrix(entries, shape=(count, count))
        settings: dict[str, Any] = {"metric": "precomputed", "init": where.astype(np.float32), "random_state": seed}
        plane = TSNE(2, perplexity=perplexity, n_jobs=1, **settings)
        frame = plane.fit_transform(graph)
        frames.append(torch.from_numpy(frame.astype(np.float64)))
        where = 1e-4 * frame / max(float(frame.std()), 1e-12)
    return Frames(tuple(steps), torch.stack(frames))
