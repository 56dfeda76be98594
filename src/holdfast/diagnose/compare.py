"""Two diagnoses side by side: their measures in a table, and one page."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from holdfast.diagnose.diagnosis import Diagnosis
from holdfast.diagnose.page import page
from holdfast.errors import DataError, SettingError
from holdfast.files import write_atomically

__all__ = ["Comparison", "compare"]

SHOWN = {
    "growth": "growth of gradients with distance",
    "memory": "steps that gradients reach",
    "coverage": "share of steps that the loss reaches",
    "lyapunov": "largest Lyapunov exponent",
    "observed_rate": "measured contraction",
    "rate": "proved contraction",
    "stuck": "share of saturated units",
    "dead": "share of dead units",
    "unused": "share of unused units",
    "start": "effect of the initial state",
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Diagnoses side by side.

    Args:
        diagnoses: at least two.

    Example:
        >>> import torch, holdfast
        >>> xs = torch.randn(20, 4, 3)
        >>> both = compare(holdfast.diagnose(torch.nn.GRU(3, 8), xs), holdfast.diagnose(torch.nn.RNN(3, 8), xs))
        >>> both.rows()[0][0]
        'layer 1: growth of gradients with distance'
    """

    diagnoses: tuple[Diagnosis, ...]

    def rows(self) -> list[list[str]]:
        """The main measures of each layer, one column per diagnosis."""
        names = list(dict.fromkeys(row.name for one in self.diagnoses for row in one.rows))
        made = []
        for name in names:
            own = [{row.name: row.measures for row in one.rows}.get(name, {}) for one in self.diagnoses]
            for key, text in SHOWN.items():
                values = [measures.get(key) for measures in own]
                if any(value is not None for value in values):
                    made.append([f"{name}: {text}", *map(_number, values)])
        return made

    def save(self, path: str | Path) -> Path:
        """Write the page."""
        try:
            write_atomically(path, page(self.diagnoses))
        except OSError as error:
            raise DataError(
                f"The page could not be written to {path}: {error.strerror}; choose another file."
            ) from None
        return Path(path)


def compare(*diagnoses: Diagnosis) -> Comparison:
    """Put diagnoses side by side, on one page and in one table.

    Example:
        >>> compare()
        Traceback (most recent call last):
        holdfast.errors.SettingError: compare expects at least two diagnoses, got 0.
    """
    if len(diagnoses) < 2:
        raise SettingError(f"compare expects at least two diagnoses, got {len(diagnoses)}.")
    return Comparison(tuple(diagnoses))


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"
