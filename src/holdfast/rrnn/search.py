"""Algorithm 1 for a whole batch: one tree per sample, in one tensor program.

    make (making.py), score (scoring.py), choose (choosing.py); once per round

Nothing here is recorded for the gradient: grow.py evaluates the chosen candidates and the runners-up again, with it.

Source: S1, Algorithm 1. Symbols: docs/notation.md.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.rrnn.choosing import Choosing
from holdfast.rrnn.grow import Found
from holdfast.rrnn.making import Made
from holdfast.rrnn.normalise import BirthNorm
from holdfast.rrnn.scoring import Scoring
from holdfast.rrnn.sets import Sets
from holdfast.rrnn.tree import Matrices

__all__ = ["search"]


@torch.no_grad()
def search(
    leaves: Tensor,
    matrices: Matrices,
    sets: Sets,
    scorer: nn.Module,
    *,
    norm: BirthNorm | None = None,
    runner_up: bool = True,
) -> Found:
    """Algorithm 1 for every sample of a batch, without gradients.

    Args:
        leaves: (leaves, batch, p), at least two leaves: data, previous states, auxiliary vectors, in this order.
        matrices: the tuples.
        sets: operators, activations, rounds.
        scorer: α, from (..., p) to (...). ``TwoLayerScorer`` has a faster way on the CPU.
        norm: normalise candidates.
        runner_up: also find the second-best of each round.

    Example:
        >>> from holdfast.rrnn import TwoLayerScorer
        >>> leaves = torch.stack((torch.randn(2, 3), torch.randn(2, 3), torch.zeros(2, 3)))
        >>> found = search(leaves, Matrices.identity(3, leaves), Sets(tuples=1, rounds=4), TwoLayerScorer(3, 8))
        >>> (found.choices[:, :, 0] < found.choices[:, :, 1]).all()
        tensor(True)
    """
    with np.errstate(all="ignore"):  # an overflow is reported by the loss
        made = Made(leaves.detach(), matrices.detached(), sets, norm)
        score, choosing = Scoring(scorer, made.layout, made.leaves), Choosing(made)
        choices, runners = [], []
        for k in range(sets.rounds):
            born, affine = made.add_node(k - 1, choosing.pool[k - 1]) if k else made.add_leaves()  # (1), what is new
            score(born, affine, choosing.room())
            choosing.take(k)
            chosen, runner = choosing.choose(k, runner_up)  # (2), (3)
            choices.append(chosen)
            runners.append(runner)
    table, device = made.layout.table, leaves.device
    chosen, runner = (torch.from_numpy(np.stack(places)).to(device) for places in (choices, runners))
    statistics = None if norm is None else torch.stack([torch.stack(pair) for pair in made.statistics])
    others = torch.where(runner[..., None] < 0, -1, table[runner])
    return Found(table[chosen], others, torch.from_numpy(choosing.pool).to(device), statistics)
