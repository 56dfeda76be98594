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

__all__ = ["Design", "History", "first_half"]

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

    def scales(self, history: History) -> tuple[np.ndarray, np.ndarray]:
        """Centre c and deviation s of every channel."""
        z = self.view.scale(history.values)
        centre = z[: first_half(len(z))].mean(axis=0) if self.view.base == "level" else np.zeros(z.shape[1])
        w = self.view.differences(z - centre)[self.view.start + (self.view.base in ("last", "both", "season")) :]
        spread = w[: first_half(len(z))].std(axis=0) if len(w) else np.zeros(z.shape[1])
        whole = np.where(spread > 0, spread, w.std(axis=0) if len(w) else 0.0)  # constant at first
        return centre, np.where(whole > 0, whole, 1.0)

    def inputs(self, histories: list[History]) -> list[np.ndarray]:
        """(1), for every step of every series."""
        own, lagged = [], []
        for history in histories:
            centre, spread = self.scales(history)
            w = np.nan_to_num(self.view.differences(self.view.scale(history.values) - centre) / spread)
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

    def simple(self, history: History, h: int) -> np.ndarray:
        """ẑ_{t+h} at every step t."""
        centre, _ = self.scales(history)
        return self.view.base_forecast(self.view.scale(history.values) - centre, h) + centre

    def targets(self, history: History, h: int) -> np.ndarray:
        """(3) at every step t; NaN where there is no simple forecast, and no rows where there is no z_{t+h} yet."""
        z = self.view.scale(history.values)
        return (z[h:] - self.simple(history, h)[: len(z) - h]) / self.scales(history)[1]

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
    return np.concatenate([np.nan_to_num(shifted(w, lag)) for lag in range(min(lags, len(w)))], axis=1)
