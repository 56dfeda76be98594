"""How far a share of right answers can be trusted.

    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n)        Wilson's interval, z = 1.96 for 95%      (1)

It holds for few answers and for shares near 0 and 1, where p ± z √(p(1-p)/n) does not.
"""

from __future__ import annotations

import math

from holdfast.tasks import IGNORED, Arrays, Task

__all__ = ["answers_in", "wilson"]

_Z = 1.959964


def wilson(share: float, count: int) -> tuple[float, float]:
    """(1): the interval of a share of ``count`` answers.

    Example:
        >>> [round(end, 3) for end in wilson(9 / 9, 9)], [round(end, 3) for end in wilson(0.95, 1000)]
        ([0.701, 1.0], [0.935, 0.962])
    """
    scale, middle = 1 + _Z**2 / count, share + _Z**2 / (2 * count)
    half = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def answers_in(task: Task, split: str) -> int | None:
    """How many answers a split has; None where that is not known without reading all of it."""
    if not isinstance(task, Arrays) or split not in task.data:
        return None
    targets = task.data[split].targets
    return int((targets != IGNORED).sum()) if not targets.is_floating_point() else targets.numel()
