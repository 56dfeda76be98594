"""Which forecast is best, found by asking all of them at past origins; and how wide its interval must be.

    E_{m,j,i,h}   error of forecast m at origin j of series i, h steps ahead, fitted on what came before j       (1)
    known at j    all E_{m,j',·,h} with j' + h ≤ j                                                               (2)
    q_h           the ⌈(n + 1) p⌉-th smallest of n errors, h steps ahead, of what was chosen at each j by (2)    (3)

Choices at j use (2) alone, as they would have been made then. So (3) are errors of forecasts that knew nothing of what
they are compared with. If errors are exchangeable, |y_{T+h} - ŷ_{T+h}| ≤ q_h with probability at least p (split
conformal prediction, Vovk et al., 2005).
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["best_of", "known_at", "origins", "quantile", "simple_forecasts"]

MOST_ORIGINS = 24


def origins(shortest: int, horizon: int, season: int, series: int) -> list[int]:
    """Origins in steps before the end of a series, oldest first: at most 24, spread over the second half.

    Example:
        >>> origins(20, 4, 1, series=1)
        [10, 9, 8, 7, 6, 5, 4]
    """
    first = min(shortest - horizon, max(shortest // 2, 2 * season + 1, 8))
    room = shortest - horizon - first
    count = min(room + 1, max(6, min(MOST_ORIGINS, 240 // series)))
    stride = room // (count - 1) if count > 1 else 1
    return [horizon + stride * index for index in reversed(range(count))]


def simple_forecasts(y: np.ndarray, horizon: int, season: int) -> dict[str, np.ndarray]:
    """Last value, drift and seasonal naive forecasts, (horizon, channels) each.

    Example:
        >>> simple_forecasts(np.array([[1.0], [3.0]]), 2, 1)["drift"][:, 0]
        array([5., 7.])
    """
    ahead = np.arange(1, horizon + 1)[:, None]
    answers = {
        "last value": np.repeat(y[-1:], horizon, axis=0),
        "drift": y[-1] + ahead * (y[-1] - y[0]) / max(1, len(y) - 1),
    }
    if season > 1:
        answers["seasonal naive"] = y[-season:][(ahead[:, 0] - 1) % season]
    return answers


def known_at(backs: list[int], origin: int, horizon: int) -> np.ndarray:
    """(2): which errors, (origins, horizon), were known at an origin.

    Example:
        >>> known_at([3, 2, 1], 2, horizon=2)
        array([[ True,  True],
               [ True, False],
               [False, False]])
    """
    return np.subtract(backs, backs[origin])[:, None] >= np.arange(1, horizon + 1)


def best_of(errors: np.ndarray, groups: list[list[int]], known: np.ndarray, most: int = 2) -> list[int]:
    """The best member of each group by its known errors, and of those the ``most`` best.

    Args:
        errors: (members, origins, series, horizon, channels), scaled alike.
        groups: members by number; at most one of each group is taken.
        known: (origins, horizon).

    Example:
        >>> best_of(np.array([3.0, 1.0, 2.0]).reshape(3, 1, 1, 1, 1), [[0, 1], [2]], np.ones((1, 1), dtype=bool), 1)
        [1]
    """
    past = errors.mean(axis=(2, 4))[:, known].mean(axis=1)
    return sorted((min(group, key=past.__getitem__) for group in groups), key=past.__getitem__)[:most]


def quantile(scores: np.ndarray, probability: float) -> np.ndarray:
    """(3) along the first axis; the largest score where there are too few for the probability.

    Example:
        >>> float(quantile(np.arange(1.0, 20.0), 0.9))
        18.0
    """
    rank = math.ceil(round((len(scores) + 1) * probability, 9))
    return np.sort(scores, axis=0)[min(rank, len(scores)) - 1]
