"""Direct forecasts: one ridge regression per group of horizons, from what is known at step t to step t + h.

    ŷ_{t+h} = g⁻¹(ẑ_{t+h} + s · r̂_h(f_t, f_{t,h}))       (1) g: the scale of the view; r̂_h linear, ``ridge.py``

Horizons share a regression in groups 1, 2-3, 4-6, …. A group lacks the last rows: their farthest target is not known.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from holdfast.estimators.forecasting.design import Design, History, first_half
from holdfast.estimators.forecasting.ridge import Line, RidgeSums

__all__ = ["Direct", "fit_direct", "rolling_forecasts"]


@dataclasses.dataclass(frozen=True)
class Direct:
    """(1), fitted.

    Args:
        design: view, lags and reservoir.
        factors: by which the columns of f_t are multiplied.
        groups: horizons, first and last, of each regression.
        lines: one per group.
    """

    design: Design
    factors: np.ndarray
    groups: list[tuple[int, int]]
    lines: list[Line]

    def forecast(self, histories: list[History]) -> np.ndarray:
        """(series, horizon, channels), from the last step of each."""
        inputs, answers = self.design.inputs(histories), []
        for history, f in zip(histories, inputs, strict=True):
            last, seen, z = history.steps - 1, self.design.seen(history), []
            for (low, high), line in zip(self.groups, self.lines, strict=True):
                row = _row(self.design, history, f * self.factors, low, high, last)
                simple = np.stack([self.design.simple(seen, h)[last] for h in range(low, high + 1)])
                z.append(simple + seen.spread * line(row).reshape(high - low + 1, -1))
            answers.append(self.design.view.unscale(np.concatenate(z)))
        return np.stack(answers)


def fit_direct(histories: list[History], design: Design, horizon: int, penalty: float) -> Direct:
    """(1) on all rows."""
    scaled, factors = _scaled(design, histories)
    groups, lines = _groups(histories, horizon), []
    for low, high in groups:
        rows = [_rows(design, one, f, low, high) for one, f in zip(histories, scaled, strict=True)]
        x, r = (np.concatenate(part) for part in zip(*((x, r) for x, r, _ in rows), strict=True))
        sums = RidgeSums(x.shape[1], r.shape[1])
        sums.add(x, r)
        lines += sums.lines([penalty])
    return Direct(design, factors, groups, lines)


def rolling_forecasts(
    histories: list[History], design: Design, horizon: int, backs: list[int], penalties: np.ndarray
) -> np.ndarray:
    """What (1) would have said, fitted on the steps before each origin alone.

    Args:
        histories, design, horizon: as for a fit.
        backs: how many steps before the end of its series an origin lies, oldest (largest) first.
        penalties: all λ.

    Returns:
        (penalties, origins, series, horizon, channels).
    """
    scaled, _ = _scaled(design, histories)
    channels = histories[0].values.shape[1]
    seen = [design.seen(one) for one in histories]
    spreads = np.stack([one.spread for one in seen])[:, None]
    answers = np.empty((len(penalties), len(backs), len(histories), horizon, channels))
    for low, high in _groups(histories, horizon):
        rows = [_rows(design, one, f, low, high) for one, f in zip(histories, scaled, strict=True)]
        x, r, age = (np.concatenate(part) for part in zip(*rows, strict=True))
        simple = [np.stack([design.simple(one, h) for h in range(low, high + 1)], axis=1) for one in seen]
        sums, before = RidgeSums(x.shape[1], r.shape[1]), np.inf
        for origin, back in enumerate(backs):
            new = (age >= back + high) & (age < before)  # rows whose targets all lie before the origin
            sums.add(x[new], r[new])
            before = back + high
            now = np.stack(
                [
                    _row(design, one, f, low, high, one.steps - 1 - back)
                    for one, f in zip(histories, scaled, strict=True)
                ]
            )
            start = np.stack([known[one.steps - 1 - back] for one, known in zip(histories, simple, strict=True)])
            for which, line in enumerate(sums.lines(penalties)):
                answers[which, origin, :, low - 1 : high] = start + spreads * line(now).reshape(start.shape)
    return design.view.unscale(answers)


def _rows(
    design: Design, history: History, x: np.ndarray, low: int, high: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets (horizons, then channels) and age, the steps from t to the end, of all rows of one series."""
    start, end = design.view.start, max(design.view.start, history.steps - high)
    steps = np.arange(start, end)
    ahead = [design.ahead(history, h)[start:end] for h in range(low, high + 1)] if history.known.shape[1] else []
    seen = design.seen(history)
    targets = np.stack([design.targets(seen, h)[start:end] for h in range(low, high + 1)], axis=1)
    return np.concatenate([x[start:end], *ahead], axis=1), targets.reshape(len(steps), -1), history.steps - 1 - steps


def _row(design: Design, history: History, f: np.ndarray, low: int, high: int, step: int) -> np.ndarray:
    """The inputs at one step."""
    ahead = [design.ahead(history, h)[step] for h in range(low, high + 1)] if history.known.shape[1] else []
    return np.concatenate([f[step], *ahead])


def _scaled(design: Design, histories: list[History]) -> tuple[list[np.ndarray], np.ndarray]:
    """f_t of every series, and the factors they were multiplied by: weight over deviation in the first halves."""
    inputs = design.inputs(histories)
    spread = np.concatenate([x[: first_half(len(x))] for x in inputs]).std(axis=0)
    factors = design.weights(len(spread)) / np.where(spread > 1e-9, spread, 1.0)
    return [x * factors for x in inputs], factors


def _groups(histories: list[History], horizon: int) -> list[tuple[int, int]]:
    if histories[0].known.shape[1]:  # columns known ahead differ from horizon to horizon
        return [(h, h) for h in range(1, horizon + 1)]
    if sum(one.steps for one in histories) > 50 * horizon * len(histories):  # the missed rows do not matter
        return [(1, horizon)]
    groups, low = [], 1
    while low <= horizon:
        high = min(horizon, low + low // 2)
        groups.append((low, high))
        low = high + 1
    return groups
