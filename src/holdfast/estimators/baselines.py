"""What a model must beat: the most common answer, the nearest neighbour, and ridge regression on the raw series.

Each is scored by leaving one training sequence out at a time, which costs no second fit: the answers of a ridge have a
closed form (ridge.py), and a neighbour is found among the others.

Note [Shares of classes]: without sequence i, its class has one member less. Where classes are equally frequent and a
model knows nothing, it then says another class of every sequence, and is wrong every time instead of every second time.
So the shares of classes are those of all sequences: what sequence i adds to the mean is put back. The sum is rounded,
so that no tie is broken by the rounding of what was put back, which knows the answer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.estimators.ridge import dual, primal

__all__ = ["baselines", "with_shares"]

MOST_NEIGHBOURS = 5000  # sequences that each one is compared with
ROUNDING = 1e-5
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
        {'most common': [0, 0, 0, 0, 0, 0],
         'nearest neighbour': [0, 0, 0, 0, 1, 1],
         'ridge on the raw series': [0, 0, 0, 1, 1, 1]}
    """
    targets = y.double() if classes is None else nn.functional.one_hot(y, classes).double()
    n, flat = len(x), x.flatten(1).double()
    mean = (targets.sum(dim=0) - targets) / max(1, n - 1)
    answers = {"most common": with_shares(mean, targets)} if classes else {"mean": mean}
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
        left_out = (primal if few else dual)(lambda: blocks, targets, penalties).left_out
        if (left_out - targets).square().mean() >= (mean - targets).square().mean():
            left_out = mean  # an endless penalty
        answers["ridge on the raw series"] = with_shares(left_out, targets) if classes else left_out
    return answers


def with_shares(left_out: Tensor, targets: Tensor) -> Tensor:
    """Left-out answers with the mean of all targets, of size 1, in them: see Note [Shares of classes].

    Example:
        >>> targets = torch.eye(2)[[0, 0, 1, 1]]
        >>> with_shares((targets.sum(dim=0) - targets) / 3, targets)[0]
        tensor([0.5000, 0.5000])
    """
    fair = left_out + (targets - targets.mean(dim=0)) / max(1, len(targets) - 1)
    return (fair / ROUNDING).round() * ROUNDING
