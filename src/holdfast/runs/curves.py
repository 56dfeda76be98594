"""Curves as a PNG file: one line per run, a band of one standard deviation, a cross where a run diverged."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import MissingExtraError

__all__ = ["Line", "band", "draw_lines", "pyplot"]

_COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8e5ea2", "#e08e2b", "#4d4d4d", "#17a2a2", "#a0522d")  # apart in grey too
_STYLES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve.

    Args:
        label: in the legend.
        xs, ys: its points.
        spreads: half the height of the band at each point. See ``band``.
        crosses: points where runs diverged.

    Example:
        >>> Line("sgornn", [1.0, 2.0], [0.1, 0.05], [0.0, 0.0]).label
        'sgornn'
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    spreads: Sequence[float]
    crosses: Sequence[tuple[float, float]] = ()


def draw_lines(
    lines: Sequence[Line],
    path: str | Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
    log: bool = False,
    baseline: float | None = None,
    y_limits: tuple[float, float] | None = None,
    note: str = "",
) -> Path | None:
    """Draw the lines that have points into ``path``. None, and no file, if none has.

    Example:
        >>> draw_lines([], "empty.png", title="", x_label="", y_label="") is None
        True
    """
    lines = [line for line in lines if line.xs]
    if not lines:
        return None
    plt = pyplot()
    picture, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for index, line in enumerate(lines):
        colour = _COLOURS[index % len(_COLOURS)]
        style, mark = _STYLES[index // len(_COLOURS) % len(_STYLES)], "o" if len(line.xs) == 1 else None
        axes.plot(line.xs, line.ys, color=colour, label=line.label, linestyle=style, marker=mark, linewidth=1.6)
        if any(spread > 0 for spread in line.spreads):
            axes.fill_between(line.xs, *band(line, log=log), color=colour, alpha=0.18, linewidth=0)
        for x, y in line.crosses:
            axes.plot([x], [y], color=colour, marker="x", markersize=8, markeredgewidth=2)
    if baseline is not None:
        axes.axhline(baseline, color="#777777", linestyle=":", linewidth=1.2, label="baseline")
    if log:
        axes.set_yscale("log")
    if y_limits is not None:
        axes.set_ylim(*y_limits)
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True, which="major", alpha=0.25)
    axes.legend(fontsize=9, framealpha=0.85)
    picture.text(0.995, 0.005, note, ha="right", va="bottom", fontsize=6, color="#777777")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=130, metadata={"Software": None})  # no version inside: the same curves give the same file
    plt.close(picture)
    return Path(path)


def band(line: Line, *, log: bool = False) -> tuple[list[float], list[float]]:
    """The lower and upper ends of a line's band: y ± spread.

    On a logarithmic axis the lower end is y² / (y + spread), as far below y as y + spread is above it. There,
    y - spread would reach the bottom of the picture wherever the spread exceeds y.

    Example:
        >>> line = Line("sgornn", [1.0, 2.0], [4.0, 1.0], [4.0, 0.0])
        >>> band(line), band(line, log=True)
        (([0.0, 1.0], [8.0, 1.0]), ([2.0, 1.0], [8.0, 1.0]))
    """
    points = list(zip(line.ys, line.spreads, strict=True))
    low = [y * y / (y + spread) if log and y > 0 else y - spread for y, spread in points]
    return low, [y + spread for y, spread in points]


def pyplot() -> Any:
    """matplotlib.pyplot, drawing into files."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise MissingExtraError("Figures need matplotlib: pip install 'holdfast[train]'.") from None
    matplotlib.use("Agg")  # needs no screen
    import matplotlib.pyplot as plt

    return plt
