"""Inputs and targets of a direct forecast: what is known at step t, and what is to be said about step t + h.

    f_t     = (w_t, …, w_{t-L+1}; columns of the past, 4 lags; reservoir states at t)       (1) for every horizon
    f_{t,h} = (k_{t+h}, k_{t+h} - its simple forecast)                                      (2) columns k known ahead
    r_{t,h} = (z_{t+h} - ẑ_{t+h}) / s                                                       (3)

w, z, ẑ are those of a ``View``; s is the deviation of w in the first half of a series: later values play no part in it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from holdfast.estimators.forecasting.states import states
from holdfast.estimators.forecasting.views import View, shifted
from holdfast.layers import Reservoir

__all__ = ["Design", "History", "Seen", "first_half"]

RESERVOIR_WEIGHT = 0.3  # of all states together, beside lags of weight 1
KNOWN_WEIGHT = 10.0  # columns known ahead are few and say much: they are hardly shrunk
PAST_LAGS = 4


@dataclasses.dataclass(frozen=True)
class History:
    """One series: its values, columns of its past, and columns known ahead, which may go on after the values end.

    Example:
        >>> History(np.zeros((9, 1)), np.zeros((9, 0)), np.zeros((12, 2))).steps
        9
    """

    values: np.ndarray  # (time, channels)
    past: np.ndarray  # (time, columns)
    known: np.ndarray  # (time or later, columns)

    @property
    def steps(self) -> int:
        return len(self.values)


@dataclasses.dataclass(frozen=True)
class Seen:
    """A series on the scale of a view, and centre c and deviation s of every channel."""

    z: np.ndarray
    centre: np.ndarray
    spread: np.ndarray


@dataclasses.dataclass(frozen=True)
class Design:
    """(1) to (3) for one view.

    Args:
        view: scale and simple forecast.
        lags: L.
        side_mean, side_std: of the columns of the past, then of those known ahead.
        reservoir: gives the states; None for none.
    """

    view: View
    lags: int
    side_mean: np.ndarray
    side_std: np.ndarray
    reservoir: Reservoir | None = None

    def seen(self, history: History) -> Seen:
        """One series in this view."""
        z = self.view.scale(history.values)
        half = first_half(len(z))
        centre = z[:half].mean(axis=0) if self.view.base == "level" else np.zeros(z.shape[1])
        w = self.view.differences(z - centre)
        early, whole = w[self.view.missing : half], w[self.view.missing :]
        spread = early.std(axis=0) if len(early) > 1 else np.zeros(z.shape[1])
        if (spread == 0).any() and len(whole):  # constant at first
            spread = np.where(spread > 0, spread, whole.std(axis=0))
        return Seen(z, centre, np.where(spread > 0, spread, 1.0))

    def inputs(self, histories: list[History]) -> list[np.ndarray]:
        """(1), for every step of every series."""
        own, lagged = [], []
        for history in histories:
            seen = self.seen(history)
            w = np.nan_to_num(self.view.differences(seen.z - seen.centre) / seen.spread)
            sides = np.concatenate([history.past, history.known[: history.steps]], axis=1)
            side = np.nan_to_num(self.view.differences((sides - self.side_mean) / self.side_std))
            own.append(np.concatenate([w, side], axis=1))
            lagged.append(np.concatenate([_lags(w, self.lags), _lags(side, PAST_LAGS)], axis=1))
        if self.reservoir is None:
            return lagged
        hs = states(self.reservoir, own)
        return [np.concatenate(pair, axis=1) for pair in zip(lagged, hs, strict=True)]

    def ahead(self, history: History, h: int) -> np.ndarray:
        """(2) at every step t for which k_{t+h} is there."""
        columns = history.known.shape[1]
        k = (history.known - self.side_mean[-columns:]) / self.side_std[-columns:] if columns else history.known
        simple = np.nan_to_num(self.view.base_forecast(k, h))
        return KNOWN_WEIGHT * np.concatenate([k[h:], k[h:] - simple[: max(0, len(k) - h)]], axis=1)

    def simple(self, seen: Seen, h: int) -> np.ndarray:
        """ẑ_{t+h} at every step t."""
        return self.view.base_forecast(seen.z - seen.centre, h) + seen.centre

    def targets(self, seen: Seen, h: int) -> np.ndarray:
        """(3) at every step t; NaN where there is no simple forecast, and no rows where there is no z_{t+h} yet."""
        return (seen.z[h:] - self.simple(seen, h)[: len(seen.z) - h]) / seen.spread

    def weights(self, width: int) -> np.ndarray:
        """How much each of the ``width`` columns of (1) counts once it is standardised."""
        weights = np.ones(width)
        if self.reservoir is not None:
            units = len(self.reservoir.cells) * self.reservoir.units
            weights[-units:] = RESERVOIR_WEIGHT * np.sqrt((width - units) / units)
        return weights


def first_half(steps: int) -> int:
    """Steps that scales are taken from; every origin of the evaluation comes later."""
    return max(2, steps // 2)


def _lags(w: np.ndarray, lags: int) -> np.ndarray:
    return np.concatenate([np.nan_to_num(shifted(w, lag)) for lag in range(lags)], axis=1)
