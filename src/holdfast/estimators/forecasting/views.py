"""Views of a series: on which scale, and as a difference from which simple forecast, it is learned.

    z_t = y_t or log y_t                                                                                      (1)
    level    ẑ_{t+h} = c                                      w_t = z_t - c                                   (2)
    last     ẑ_{t+h} = z_t                                    w_t = z_t - z_{t-1}                             (3)
    season   ẑ_{t+h} = z_{t+h-mk},  k = ⌈h/m⌉                 w_t = z_t - z_{t-m}                             (4)
    both     ẑ_{t+h} = z_{t+h-mk} + k (z_t - z_{t-m})         w_t = z_t - z_{t-1} - z_{t-m} + z_{t-m-1}       (5)

A model sees w and answers with z_{t+h} - ẑ_{t+h}: differencing, seasonal differencing and the logarithm are one choice.
"""

from __future__ import annotations

import dataclasses

import numpy as np

__all__ = ["View", "shifted", "views_of"]


@dataclasses.dataclass(frozen=True)
class View:
    """A scale (1) and a simple forecast (2) to (5).

    Args:
        log: whether z is the logarithm.
        base: "level", "last", "season" or "both".
        season: steps of a season, m.

    Example:
        >>> View(False, "season", 4).base_forecast(np.arange(6.0), 1)
        array([nan, nan, nan,  0.,  1.,  2.])
    """

    log: bool
    base: str
    season: int = 1

    def __str__(self) -> str:
        how = {"level": "", "last": "differences", "season": f"differences over {self.season} steps"}
        parts = [
            "logarithm" if self.log else "",
            how.get(self.base, f"differences of differences over {self.season} steps"),
        ]
        return ", ".join(part for part in parts if part) or "the values themselves"

    @property
    def start(self) -> int:
        """The first step from which this view forecasts."""
        return {"level": 0, "last": 0, "season": self.season - 1, "both": self.season}[self.base]

    @property
    def missing(self) -> int:
        """How many steps have no differences w."""
        return self.start if self.base == "level" else self.start + 1

    def scale(self, y: np.ndarray) -> np.ndarray:
        """To the scale of z (1)."""
        return np.log(y) if self.log else y

    def unscale(self, z: np.ndarray) -> np.ndarray:
        """Back to y (1), kept finite."""
        return np.exp(np.minimum(z, 700.0)) if self.log else z

    def differences(self, z: np.ndarray) -> np.ndarray:
        """The differences w of (2) to (5) at every step; NaN where it needs a step before the first."""
        if self.base in ("last", "both"):
            z = z - shifted(z, 1)
        if self.base in ("season", "both"):
            z = z - shifted(z, self.season)
        return z

    def base_forecast(self, z: np.ndarray, h: int) -> np.ndarray:
        """ẑ_{t+h} made at every step t; NaN where it needs a step before the first."""
        if self.base == "level":
            return np.zeros_like(z)
        if self.base == "last":
            return z
        seasons = -(-h // self.season)
        forecast = shifted(z, self.season * seasons - h)  # (4)
        return forecast if self.base == "season" else forecast + seasons * (z - shifted(z, self.season))  # (5)


def views_of(values: list[np.ndarray], season: int) -> list[View]:
    """The views to choose from. The logarithm needs positive values.

    Example:
        >>> [str(view) for view in views_of([np.array([[1.0], [-1.0]])], 1)]
        ['the values themselves', 'differences']
    """
    logs = (False, True) if all((y > 0).all() for y in values) else (False,)
    bases = ("level", "last", "season", "both") if season > 1 else ("level", "last")
    return [View(log, base, season) for log in logs for base in bases]


def shifted(z: np.ndarray, steps: int) -> np.ndarray:
    """z_{t-steps} at every t; NaN before the first.

    Example:
        >>> shifted(np.arange(3.0), 1)
        array([nan,  0.,  1.])
    """
    if steps == 0:
        return z
    moved = np.full(z.shape, np.nan)
    moved[steps:] = z[:-steps]
    return moved
