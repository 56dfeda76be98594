"""Ridge regressions on a growing set of rows, in closed form, for all penalties at once.

    B_λ = (XᵀX + λ n I)⁻¹ XᵀR = V (D + λ n)⁻¹ Vᵀ XᵀR,  XᵀX = V D Vᵀ           (1) X, R centred, n rows

XᵀX, XᵀR and the means are sums over rows, so that rows that come later are added and nothing is computed twice.
"""

from __future__ import annotations

import dataclasses

import numpy as np

__all__ = ["LAMBDAS", "MIN_ROWS", "Line", "RidgeSums"]

LAMBDAS = 10.0 ** np.arange(-4, 4)
MIN_ROWS = 5  # with fewer, the answer is 0: the simple forecast stays as it is


@dataclasses.dataclass(frozen=True)
class Line:
    """x ↦ (x - mean) B + level."""

    mean: np.ndarray
    coefficients: np.ndarray  # (columns, answers)
    level: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return (x - self.mean) @ self.coefficients + self.level


class RidgeSums:
    """The sums behind (1).

    Example:
        >>> x = np.arange(12.0)[:, None]
        >>> sums = RidgeSums(1, 1)
        >>> sums.add(x, 2 * x + 1)
        >>> float(sums.lines([1e-12])[0](np.array([[20.0]]))[0, 0].round(6))
        41.0
    """

    def __init__(self, columns: int, answers: int):
        self.rows = 0
        self.gram, self.cross = np.zeros((columns, columns)), np.zeros((columns, answers))
        self.sum_x, self.sum_r = np.zeros(columns), np.zeros(answers)

    def add(self, x: np.ndarray, r: np.ndarray) -> None:
        """Rows that have become known."""
        self.rows += len(x)
        self.gram += x.T @ x
        self.cross += x.T @ r
        self.sum_x += x.sum(axis=0)
        self.sum_r += r.sum(axis=0)

    def lines(self, lambdas: np.ndarray | list[float]) -> list[Line]:
        """(1), one line for each λ."""
        if self.rows < MIN_ROWS:
            zero = Line(np.zeros_like(self.sum_x), np.zeros_like(self.cross), np.zeros_like(self.sum_r))
            return [zero] * len(lambdas)
        mean, level = self.sum_x / self.rows, self.sum_r / self.rows
        values, vectors = np.linalg.eigh(self.gram - np.outer(mean, self.sum_x))
        rotated = vectors.T @ (self.cross - np.outer(mean, self.sum_r))
        values = np.maximum(values, 0.0)[:, None]
        return [Line(mean, vectors @ (rotated / (values + l * self.rows)), level) for l in lambdas]
