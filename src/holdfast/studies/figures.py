"""Curves of a study: the mean over seeds as a line, the standard deviation as a band, as in S3's Figure 4."""

from __future__ import annotations

import fnmatch
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import MissingExtraError
from holdfast.studies.config import Figure, Run, Study
from holdfast.studies.result import Measured, StudyResult, difference

__all__ = ["draw", "draw_all"]

_COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8e5ea2", "#e08e2b", "#4d4d4d", "#17a2a2", "#a0522d")  # apart in grey too
_STYLES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))


def draw_all(study: Study, result: StudyResult, folder: str | Path) -> list[Path]:
    """Draw every figure of a study that has something to show into ``folder``; return the files.

    Example:
        >>> draw_all(Study("Tiny"), StudyResult("tiny", "small"), ".")
        []
    """
    paths = (draw(study, result, figure, Path(folder) / f"{figure.name}.png") for figure in study.figure)
    return [path for path in paths if path is not None]


def draw(study: Study, result: StudyResult, figure: Figure, path: str | Path) -> Path | None:
    """Draw one figure into a PNG file. None, and no file, if no run of it has a curve yet."""
    lines = [(run, *_band(run, result, figure)) for run in study.run if _shown(run, figure)]
    lines = [line for line in lines if line[1]]
    if not lines:
        return None
    plt = _pyplot()
    picture, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    groups = len({run.group for run, *_ in lines}) > 1
    for index, (run, xs, means, spreads) in enumerate(lines):
        colour = _COLOURS[index % len(_COLOURS)]
        label = f"{run.title}, {run.group}" if groups and run.group else run.title
        style, mark = _STYLES[index // len(_COLOURS) % len(_STYLES)], "o" if len(xs) == 1 else None
        axes.plot(xs, means, color=colour, label=label, linestyle=style, marker=mark, linewidth=1.6)
        if any(spread > 0 for spread in spreads):
            low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
            high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
            axes.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)
        for x, y in _ends(run, result, figure):  # where a run diverged, a cross says that the line was not cut by us
            axes.plot([x], [y], color=colour, marker="x", markersize=8, markeredgewidth=2)
    if figure.baseline is not None:
        axes.axhline(figure.baseline, color="#777777", linestyle=":", linewidth=1.2, label="baseline")
    if figure.log:
        axes.set_yscale("log")
    if figure.y_limits is not None:
        axes.set_ylim(*figure.y_limits)
    axes.set_title(figure.title)
    axes.set_xlabel(figure.x_label or figure.x)
    axes.set_ylabel(figure.y_label or figure.y)
    axes.grid(True, which="major", alpha=0.25)
    axes.legend(fontsize=9, framealpha=0.85)
    picture.text(0.995, 0.005, f"{study.name}: {result.scale}", ha="right", va="bottom", fontsize=6, color="#777777")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=130, metadata={"Software": None})  # no version inside: the same curves give the same file
    plt.close(picture)
    return Path(path)


def _shown(run: Run, figure: Figure) -> bool:
    return any(fnmatch.fnmatchcase(run.name, pattern) for pattern in figure.runs)


def _band(run: Run, result: StudyResult, figure: Figure) -> tuple[list[float], list[float], list[float]]:
    """x, mean and standard deviation over the seeds that have a number there."""
    at: dict[float, list[float]] = {}
    for entry in result.of(run.name):
        for x, y in _points(entry.measured, figure):
            at.setdefault(x, []).append(y)
    xs = sorted(at)
    spreads = [statistics.stdev(at[x]) if len(at[x]) > 1 else 0.0 for x in xs]
    return xs, [statistics.fmean(at[x]) for x in xs], spreads


def _ends(run: Run, result: StudyResult, figure: Figure) -> list[tuple[float, float]]:
    diverged = [entry.measured for entry in result.of(run.name) if entry.measured.status == "diverged"]
    return [points[-1] for measured in diverged if (points := _points(measured, figure))]


def _points(measured: Measured, figure: Figure) -> list[tuple[float, float]]:
    first, minus, second = difference(figure.y)
    xs, ys = measured.curve.get(figure.x, ()), _column(measured.curve, first)
    if minus:
        others = _column(measured.curve, second)
        ys = [None if a is None or b is None else a - b for a, b in zip(ys, others, strict=False)]
    pairs = [(x, y) for x, y in zip(xs, ys, strict=False) if x is not None and y is not None and math.isfinite(y)]
    return [(x, y) for x, y in pairs if y > 0] if figure.log else pairs


def _column(curve: dict[str, tuple[float | None, ...]], name: str) -> Sequence[float | None]:
    return curve.get(name, ())


def _pyplot() -> Any:
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise MissingExtraError("Figures need matplotlib: pip install 'holdfast[train]'.") from None
    matplotlib.use("Agg")  # draws into files; needs no screen
    import matplotlib.pyplot as plt

    return plt
