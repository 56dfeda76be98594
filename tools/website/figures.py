"""Figures of the speed and comparison pages, drawn from the newest benchmark reports into benchmarks/figures/."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

__all__ = ["FIGURES", "draw"]

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7")  # told apart by colour-blind people (Okabe and Ito)


def draw(report: Callable[[str], Any], folder: Path) -> None:
    """Draw every figure of ``FIGURES`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (make, _) in FIGURES.items():
        made = make(report(name.partition("-")[0]))
        made.savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})


def _bars(
    labels: Sequence[str], series: Mapping[str, Sequence[float | None]], title: str, unit: str, log: bool
) -> Figure:
    figure = Figure(figsize=(7.5, 0.9 + 0.22 * len(labels) * len(series) + 0.12 * len(labels)), layout="constrained")
    axes, height = figure.subplots(), 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = [i + (number - (len(series) - 1) / 2) * height for i in range(len(labels))]
        axes.barh(places, [value or 0 for value in values], height, label=name, color=COLOURS[number])
        for place, value in zip(places, values, strict=True):
            if value:
                axes.text(value, place, f" {value:,.3g}" if value < 1000 else f" {value:,.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.set_title(title, fontsize=11)
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    if log:
        axes.set_xscale("log")
    if len(series) > 1:
        axes.legend(fontsize=8, loc="lower right" if not log else "best")
    return figure


def _scan(report: Any) -> Figure:
    rows = report.rows("")
    labels, values = [row["cell"] for row in rows], [float(row["ms"]) for row in rows]
    figure = _bars(labels, {"ours": values}, "T = 500, B = 64, H = 128", "ms, forward and backward", log=False)
    axes, text = figure.axes[0], " ".join(report.sections[""])
    for number, (name, ms) in enumerate(re.findall(r"`(torch\.nn\.[^`]+)` ([\d.]+) ms", text), start=1):
        axes.axvline(float(ms), color=COLOURS[number], label=name, linestyle="--")
    axes.legend(fontsize=8, loc="lower right")
    return figure


def _sizes(report: Any) -> Figure:
    rows = report.rows("Sizes")
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(("RNN relu", "LSTM", "GRU")):
        ratios = [float(row[name].rpartition("=")[2]) for row in rows]
        axes.plot(range(len(rows)), ratios, "o-", color=COLOURS[number], label=name, markersize=5, linewidth=1)
    axes.axhline(1, color="grey", linestyle="--", linewidth=1)
    axes.text(len(rows) - 0.6, 1, "as fast", va="bottom", ha="right", fontsize=8, color="grey")
    axes.set_yscale("log")
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
    axes.minorticks_off()
    axes.set_xticks(range(len(rows)), [f"H {row['H']}\nB {row['B']}" for row in rows], fontsize=8)
    axes.set_ylabel("our time / PyTorch's")
    axes.set_title("Forward and backward at T = 100; below 1, Holdfast is faster", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8)
    return figure


def _stream(report: Any) -> Figure:
    rows = [row for row in report.rows("") if row["H"] == "128"]
    columns = {"stream": "holdfast", "ONNX Runtime": "ONNX Runtime", "torch.nn cell": "torch.nn cell"}
    series = {
        label: [None if row[name] == "-" else float(row[name]) for row in rows] for name, label in columns.items()
    }
    return _bars([row["layer"] for row in rows], series, "One step of one sequence, H = 128", "microseconds", log=False)


def _device(report: Any) -> Figure:
    rows = report.rows("")
    names = list(dict.fromkeys(row["network"] for row in rows))
    series = {
        weights: [
            float(row["flash"].replace(",", "")) / 1000 for row in rows if row["weights"] == weights
        ]
        for weights in ("float32", "int8")
    }  # fmt: skip
    return _bars(names, series, "The whole program on a Cortex-M4F, HAR-2", "kB of flash", log=False)


def _cells(report: Any) -> Figure:
    tasks = [heading for heading in report.sections if heading]
    figure = Figure(figsize=(3.0 * len(tasks) + 1.2, 6.2), layout="constrained")
    names = list(dict.fromkeys(row["cell"] for task in tasks for row in report.rows(task)))
    for number, (axes, task) in enumerate(zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True)):
        what = re.match(r"Test (\w+)", report.sections[task][0])
        for row in report.rows(task):
            found = re.match(r"([\d.]+)(?: ± ([\d.]+))?", row["score ± deviation (seeds)"])
            if found:
                place, spread = names.index(row["cell"]), float(found[2] or 0)
                solved = re.match(r"([1-9]\d*) of", row["solved"])
                axes.errorbar(
                    float(found[1]), place, xerr=spread, fmt="o", color=COLOURS[2 if solved else 0], markersize=5
                )
        axes.set_yticks(range(len(names)), names if number == 0 else [""] * len(names), fontsize=9)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(axis="y", alpha=0.3)
        axes.set_title(f"{task}\n{what[1] if what else ''}", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _grid(report: Any) -> Figure:
    parts = [heading for heading in report.sections if re.match(r"(Training|Inference), D", heading)]
    figure = Figure(figsize=(3.1 * len(parts) + 0.8, 6.4), layout="constrained")
    for number, (axes, part) in enumerate(zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True)):
        rows = report.rows(part)
        sizes = [name for name in rows[0] if name.startswith("H=")]
        ratios = [[float(row[size] or "nan") for size in sizes] for row in rows]
        logs = [[math.log2(ratio) for ratio in row] for row in ratios]
        shown = axes.imshow(logs, cmap="PuOr_r", vmin=-3, vmax=3, aspect="auto")
        for i, row in enumerate(ratios):
            for j, ratio in enumerate(row):
                colour = "white" if abs(logs[i][j]) > 1.8 else "black"
                axes.text(j, i, f"{ratio:.2f}", ha="center", va="center", fontsize=7, color=colour)
        labels = [f"{row['cell']}, B = {row['B']}" for row in rows] if number == 0 else [""] * len(rows)
        axes.set_yticks(range(len(rows)), labels, fontsize=8)
        axes.set_xticks(range(len(sizes)), [size[2:] for size in sizes], fontsize=8)
        axes.set_xlabel("H")
        axes.set_title(part, fontsize=10)
        if number + 1 == len(parts):
            bar = figure.colorbar(shown, ax=axes, ticks=[-3, -2, -1, 0, 1, 2, 3], label="our time / PyTorch's")
            bar.ax.set_yticklabels(["1/8", "1/4", "1/2", "1", "2", "4", "8"])
    return figure


# By benchmark (and part): what draws it, and the text for those who do not see it.
FIGURES: dict[str, tuple[Callable[[Any], Figure], str]] = {
    "scan": (_scan, "Milliseconds of each cell beside those of PyTorch's RNN, LSTM and GRU"),
    "scan-sizes": (_sizes, "Our time over PyTorch's for RNN, LSTM and GRU at twelve sizes"),
    "grid": (
        _grid,
        "Our time over PyTorch's for five cells at 30 sizes each; violet: faster",
    ),
    "stream": (_stream, "Microseconds of one step: Holdfast, ONNX Runtime, PyTorch's cells"),
    "device": (_device, "Flash memory of four networks with float32 and int8 weights"),
    "cells": (_cells, "Scores of every cell on each task, with the deviation over seeds; solved tasks in green"),
}
