"""Figures of a study: the mean over seeds as a line, the standard deviation as a band, as in S3's Figure 4."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from holdfast.runs.curves import Line, draw_lines
from holdfast.runs.measured import Measured, difference
from holdfast.studies.result import StudyResult
from holdfast.studies.study import Figure, Run, Study, matches

__all__ = ["draw", "draw_all"]


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
    runs = [(run, _band(run, result, figure)) for run in study.run if matches(run.name, figure.runs)]
    runs = [(run, band) for run, band in runs if band[0]]
    groups = len({run.group for run, _ in runs}) > 1
    lines = [
        Line(f"{run.title}, {run.group}" if groups and run.group else run.title, *band, _ends(run, result, figure))
        for run, band in runs
    ]
    return draw_lines(
        lines,
        path,
        title=figure.title,
        x_label=figure.x_label or figure.x,
        y_label=figure.y_label or figure.y,
        log=figure.log,
        baseline=figure.baseline,
        y_limits=figure.y_limits,
        note=f"{study.name}: {result.scale}",
    )


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
    xs, ys = measured.curve.get(figure.x, ()), measured.curve.get(first, ())
    if minus:
        others = measured.curve.get(second, ())
        ys = [None if a is None or b is None else a - b for a, b in zip(ys, others, strict=False)]
    pairs = [(x, y) for x, y in zip(xs, ys, strict=False) if x is not None and y is not None and math.isfinite(y)]
    return [(x, y) for x, y in pairs if y > 0] if figure.log else pairs
