"""How many steps a season has: from the times of the steps, or from the series itself.

    r_k = Σ_t x_t x_{t-k} / Σ_t x_t²,  x = the differenced series                                         (1)
    a season of m steps if r_m is a peak, the highest, and r_m > √(2 ln L) √((1 + 2 Σ_{k<m} r_k²) / n)    (2)

(2) is the test of the M4 competition (Makridakis et al., 2020) with Bartlett's deviation of r_m. Its factor is the one
to expect as the largest of L normal numbers, because L lags are tried. A peak below 0.3 is no season either.
"""

from __future__ import annotations

import numpy as np

__all__ = ["autocorrelations", "season_of_times", "season_of_values"]

_DAY = 86_400.0
_USUAL = (  # seconds between two steps, at least and at most, and the season that goes with them
    (0.9 * 3600, 1.1 * 3600, 24),
    (0.9 * _DAY, 1.1 * _DAY, 7),
    (6.5 * _DAY, 7.5 * _DAY, 52),
    (27.9 * _DAY, 31.1 * _DAY, 12),
    (89.0 * _DAY, 92.1 * _DAY, 4),
    (364.0 * _DAY, 366.1 * _DAY, 1),
)


def season_of_times(times: np.ndarray) -> int | None:
    """The season that goes with dates one hour, day, week, month, quarter or year apart; None for other times.

    Example:
        >>> season_of_times(np.arange("2020-01", "2021-01", dtype="datetime64[M]"))
        12
    """
    if times.dtype.kind != "M" or len(times) < 3:
        return None
    seconds = float(np.median(np.diff(times.astype("datetime64[s]").astype(np.int64))))
    if 0.9 * 60 <= seconds < 0.9 * 3600 and _DAY % seconds == 0:  # several steps an hour: a day
        return round(_DAY / seconds)
    return next((season for low, high, season in _USUAL if low <= seconds <= high), None)


def season_of_values(values: list[np.ndarray]) -> int:
    """The season of series, (time, channels) each, by (2); 1 if the test finds none.

    Example:
        >>> season_of_values([np.tile([[1.0], [2.0], [4.0], [2.0]], (12, 1))])
        4
        >>> season_of_values([np.random.default_rng(0).standard_normal((60, 1))])
        1
    """
    found: dict[int, float] = {}
    shares = [_season(column) for y in values for column in y.T]
    for season, strength in shares:
        found[season] = found.get(season, 0.0) + strength
    return max(found, key=lambda season: found[season])


def _season(y: np.ndarray) -> tuple[int, float]:
    """The season of one column and the height of its peak, or 1 and the level to be passed."""
    most = max(2, min(len(y) // 3, 400))
    r = autocorrelations(np.diff(y), most)
    limits = np.sqrt(2 * np.log(most)) * np.sqrt((1 + 2 * (np.cumsum(np.square(r)) - np.square(r))) / len(y))
    peaks = [k for k in range(2, len(r)) if r[k - 1] >= max(r[k - 2], r[k], limits[k - 1], 0.3)]  # r[k - 1] is r_k
    if not peaks:
        return 1, 0.3
    # A multiple of the season is a peak as high as the season is: the first within a tenth of the highest
    highest = max(r[k - 1] for k in peaks)
    best = next(k for k in peaks if r[k - 1] >= 0.9 * highest)
    return best, float(r[best - 1])


def autocorrelations(x: np.ndarray, most: int) -> np.ndarray:
    """r_1 to r_most (1).

    Example:
        >>> autocorrelations(np.array([1.0, -1.0, 1.0, -1.0]), 2)
        array([-0.75,  0.5 ])
    """
    x = x - x.mean()
    size = 2 ** int(np.ceil(np.log2(2 * len(x))))
    spectrum = np.square(np.abs(np.fft.rfft(x, size)))
    r = np.fft.irfft(spectrum, size)[: most + 1]
    return np.round(r[1:] / r[0], 12) if r[0] > 0 else np.zeros(most)
