"""docs/speed.md: the tables and figures of the benchmarks; and docs/comparison.md, those of the cells."""

from __future__ import annotations

import dataclasses

from website.figures import FIGURES
from website.reports import report
from website.tables import GENERATED

__all__ = ["comparison_page", "speed_page"]


@dataclasses.dataclass(frozen=True)
class Section:
    """A benchmark on the page: what it is about, and its report's headings with a sentence on each.

    A heading that is newer than the report is left out.
    """

    title: str
    benchmark: str
    text: str
    parts: dict[str, str] = dataclasses.field(default_factory=dict)


SPEED = (
    Section(
        "Layers, forward and backward",
        "scan",
        "The fused scan compiles the `step` of any cell, including yours, into one loop over time. The columns "
        "*of RNN(relu)*, *of LSTM* and *of GRU* divide the time by that of PyTorch's module in the same run. Below 1, "
        "Holdfast is faster.",
        {
            "Layers": "These layers are more than a cell over time. They are compared with what one would write in "
            "PyTorch for the same numbers.",
            "First call": "The first call of a cell compiles it. The machine code is then cached on disk.",
            "Memory": "",
            "Sizes": "",
            "Peers": "",
        },
    ),
    Section(
        "Every size",
        "grid",
        "RNN, LSTM and GRU are compared with PyTorch's module of the same name, SGORNN and FastRNN with its RNN. D is "
        "the number of inputs. The report has the numbers of the figure as tables.",
        {"One sequence of 200 steps": "", "bfloat16": ""},
    ),
    Section(
        "One step at a time", "stream", "`layer.stream()` takes one input per call, as data from a sensor come in."
    ),
    Section(
        "On a microcontroller",
        "device",
        "`holdfast export RUN --to model.c` writes a network as C. These are counts of an emulated device.",
        {"Published sizes": ""},
    ),
    Section(
        "Models of your own sequences",
        "reservoir",
        "These are fits of `SequenceClassifier`, and of `holdfast train --data FILE` from the file to the run folder.",
    ),
    Section(
        "All steps at once",
        "parallel",
        "Layers that are linear in the state have a parallel form. On two cores the fused loop is faster.",
    ),
    Section("The training loop", "loop", "This is what `holdfast.train.fit` costs beyond a hand-written update."),
    Section(
        "Thousands of words",
        "wide-readout",
        "In training, the loss of a readout with 1,000 classes or more never stores all logits.",
    ),
    Section("A diagnosis", "diagnose", "`holdfast diagnose` measures a network and writes a page."),
    Section(
        "Path-SGD",
        "path-sgd",
        "A step of Path-SGD (S2) computes the curvature κ of the path norm and divides the gradient by it.",
        {"A step": "", "How κ grows": ""},
    ),
    Section("RRNN", "rrnn", "RRNN (S1) searches for its cell. The baseline follows the paper's Algorithm 1 literally."),
    Section(
        "Affine maps and partition codes",
        "spline",
        "These functions compute what a ReLU network is in the view of max-affine splines (S5).",
    ),
    Section(
        "Truncated models and projections",
        "truncate",
        "`truncate` replaces a layer by one that reads the last k inputs, as in stable recurrence (S4). With stride 1 "
        "it is slower than the recurrence. It pays off for one long sequence and a large stride.",
        {"One long sequence": "", "More sequences at a time": "", "What ε costs": "", "Projections": ""},
    ),
)


def picture(name: str) -> list[str]:
    """The figure of a benchmark, or of a part of it, if one is drawn."""
    return [f"![{FIGURES[name][1]}](../benchmarks/figures/{name}.png)"] if name in FIGURES else []


def speed_page() -> str:
    """docs/speed.md: the tables of the newest benchmark reports."""
    parts = [
        GENERATED,
        "# Speed",
        "This page collects the newest report of each benchmark. `make bench` runs them all. `holdfast bench` times "
        "the layers on your machine.",
        "T is the number of steps, B the batch size and H the number of units.",
    ]
    for section in SPEED:
        it = report(section.benchmark)
        parts += [f"## {section.title}", section.text, *picture(section.benchmark), *it.quoted("")]
        for heading, text in section.parts.items():
            if heading not in it.sections:
                continue
            drawn = picture(f"{section.benchmark}-{heading.lower()}")
            parts += [f"### {heading}", *([text] if text else []), *drawn, *it.quoted(heading)]
        parts.append(f"[Report](../{it.path.as_posix()}): {it.machine}")
    return "\n\n".join(parts) + "\n"


COMPARED = """
Which cell should you take? This page trains each of them with about the same number of parameters on the same
tasks, with the same optimiser and the same search of learning rates. No cell is left out because it loses. The settings
are those that a cell starts with, and the budget is small: a cell that loses here may win with its paper's settings.
[Choose a cell](choose.md) asks what you have and answers. `python benchmarks/cells.py` repeats the runs.
"""


def comparison_page() -> str:
    """docs/comparison.md: the newest report of benchmarks/cells.py."""
    it = report("cells")
    parts = [GENERATED, "# Cells compared", COMPARED.strip(), *picture("cells"), *it.quoted("")]
    for heading in it.sections:
        if heading:
            parts += [f"## {heading}", *it.quoted(heading)]
    return "\n\n".join([*parts, f"[Report](../{it.path.as_posix()}): {it.machine}"]) + "\n"
