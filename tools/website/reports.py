"""The newest dated report of each benchmark."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from website.links import ROOT

__all__ = ["Report", "report"]


@dataclasses.dataclass(frozen=True)
class Report:
    """The newest dated report of a benchmark: its paragraphs and tables, by heading ("" before the first)."""

    path: Path
    sections: dict[str, list[str]]

    @property
    def machine(self) -> str:
        return self.sections[""][0]

    def quoted(self, heading: str) -> list[str]:
        """The paragraphs and tables below a heading, without the line on the machine."""
        return [plain(it) for it in self.sections[heading] if it != self.machine]

    def cell(self, heading: str, row: str, column: str) -> str:
        """A cell of the first table below ``heading`` whose first column holds ``row``."""
        return next(it for it in self.rows(heading) if next(iter(it.values())) == row)[column]

    def rows(self, heading: str) -> list[dict[str, str]]:
        """The rows of the first table below ``heading``, by column."""
        table = next(it for it in self.sections[heading] if it.startswith("|"))
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        return [dict(zip(head, row, strict=True)) for row in rows]


def report(benchmark: str) -> Report:
    """The newest ``benchmarks/<date>-<benchmark>.md``."""
    path = max((ROOT / "benchmarks").glob(f"????-??-??-{benchmark}.md"))
    blocks = [it.strip() for it in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")) if it.strip()]
    sections: dict[str, list[str]] = {"": []}
    for block in blocks[1:]:  # the first is the title
        if block.startswith("## "):
            sections[block[3:]] = []
        else:
            sections[list(sections)[-1]].append(block)
    return Report(path.relative_to(ROOT), sections)


PLAIN = {
    "ms an update": "ms per update",
    "a process each": "one process each",
    "in brackets the part of the recurrence's time": "with the share of the recurrence's time in brackets",
    "and the part of the recurrence's time": "and the share of the recurrence's time",
    "and the part of the time of": "and the share of the time of",
    "the ways of a row in turns": "the variants in a row taking turns",
    "κ⁽¹⁾ is computed anew at every step, but for one column.": "κ⁽¹⁾ is computed again at every step, except in the "
    "column *every 10 steps*.",
    "Milliseconds of a step, medians, and the medians of the turns' ratios to SGD.": "Median milliseconds per step and "
    "median ratio to SGD.",
    "looks for numbers that are none": "looks for non-finite values",
    "loop: a product with a vector a step, in Python": "*loop* is one matrix-vector product per step, in Python",
    "Footnote 3: κ⁽²⁾ as S2 computes it, the flows given.": "*Footnote 3* is κ⁽²⁾ as the paper "
    "computes it, given the flows.",
    "κ in float64, but in float32 in the steps of one layer": "κ in float64, or in float32 for a network of one layer",
    "Models are made anew for each run, since where their memory lies moves a ratio by a tenth.": "Each run builds new "
    "models, because the memory layout can change a ratio by a tenth.",
    "Medians of 1 rounds": "One round",
    "no cache | with it": "without cache | with cache",
    "| cell | way |": "| cell | implementation |",
    "of ours | most memory": "relative to ours | peak memory",
    " of it; target": " of the reference loop; target",
    "The most memory this process held grew by": "The peak memory of the process grew by",
    " meanwhile, of which": ", of which",
    "the input aside": "without the input",
}
"""Idioms of the benchmark scripts, and what this page says instead. Words only, never numbers."""


def plain(block: str) -> str:
    """A paragraph or table of a report in plain words."""
    text = block if block.startswith(("|", "- ")) else " ".join(block.split())
    for idiom, words in PLAIN.items():
        text = text.replace(idiom, words)
    return text[0].upper() + text[1:] if text.startswith("target") else text
