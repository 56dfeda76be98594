"""What a model must beat: the most common answer, the nearest neighbour, and ridge regression on the raw series.

Each is scored by leaving one training sequence out at a time, which costs no second fit: the answers of a ridge have a
closed form (ridge.py), and a neighbour is found among the others.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.estimators.ridge import dual, primal

__all__ = ["baselines"]

MOST_NEIGHBOURS = 5000  # sequences that each one is compared with
MOST_VALUES = 4096  # the smaller of sequences and values per sequence, for a ridge


@torch.no_grad()
def baselines(x: Tensor, y: Tensor, *, classes: int | None) -> dict[str, Tensor]:
    """The left-out answers of each baseline, (n, outputs), as logits or numbers, by name.

    Args:
        x: (n, time, channels), standardised, zeros behind the end of shorter sequences.
        y: (n,) indices of classes, or (n, outputs) numbers.
        classes: how many; None for numbers.

    Example:
        >>> x = torch.arange(6.0)[:, None, None].expand(6, 4, 1)
        >>> answers = baselines(x, torch.tensor([0, 0, 0, 1, 1, 1]), classes=2)
        >>> {name: z.argmax(dim=1).tolist() for name, z in answers.items()}
        {'most common': [1, 1, 1, 0, 0, 0],
         'nearest neighbour': [0, 0, 0, 0, 1, 1],
         'ridge on the raw series': [0, 0, 0, 1, 1, 1]}
    """
    targets = y.double() if classes is None else nn.functional.one_hot(y, classes).double()
    n, flat = len(x), x.flatten(1).double()
    answers = {"most common" if classes else "mean": (targets.sum(dim=0) - targets) / max(1, n - 1)}
    among = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:MOST_NEIGHBOURS].sort().values
    nearest = []
    for rows in torch.arange(n).split(256):
        distance = torch.cdist(flat[rows], flat[among])
        distance[rows[:, None] == among] = torch.inf
        nearest.append(among[distance.argmin(dim=1)])
    answers["nearest neighbour"] = targets[torch.cat(nearest)]
    if min(flat.shape) <= MOST_VALUES:
        penalties = [flat.shape[1] * 10.0**k for k in range(-6, 4)]
        few = n > flat.shape[1]
        blocks = flat.split(4096, dim=0 if few else 1)
        answers["ridge on the raw series"] = (primal if few else dual)(lambda: blocks, targets, penalties).left_out
    return answers
