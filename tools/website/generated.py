"""Blocks of pages that ``make pages`` writes: claims by paper, and errors in print.

<!-- generated: s3 --> ... <!-- end of generated -->
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from website.links import ROOT

__all__ = ["ERRORS", "errors_page", "filled", "theory_page"]

ERRORS = {  # rows of docs/differences.md that are errors of the print, not gaps or choices, by heading
    "RRNN, S1": (
        *("Lemma 1", "Theorem 6", "Appendix E.2, order of λ", "Theorem 7", "Theorem 8"),
        "Appendix E.2 against Tables 2, 3",
    ),
    "Path-SGD, S2": ("Lemma 1", "footnote 3", "inputs at time 0", "Path-SGD with Adam, §5.3"),
    "SGORNN, S3": ("learning rate on the addition problem", "rotations", "Theorem 1", "Theorem 2 and Corollary 1"),
    "Stable recurrence, S4": ("Lemma 2", "tanh", "Proposition 5", "Proposition 4"),
    "Max-affine splines, S5": (
        *("Theorem 2", "indices of 𝒜_h", "Theorem 3, cross-entropy", "Theorem 3, squared error"),
        *("Theorem 3, assumption", "bird audio", "Tables 2 and 4"),
    ),
}


def filled(name: str, blocks: dict[str, str]) -> str:
    """The page with each of its blocks renewed. A block that nobody fills is an error."""
    text = (ROOT / name).read_text(encoding="utf-8")

    def block(match: re.Match) -> str:
        return f"<!-- generated: {match[1]} -->\n\n{blocks[match[1]]}\n\n<!-- end of generated -->"

    return re.sub(r"<!-- generated: (\S+) -->\n.*?<!-- end of generated -->", block, text, flags=re.DOTALL)


def theory_page(studies: Sequence[Any], table: Callable[..., str]) -> str:
    """docs/theory.md: how many claims of each paper were met, and those that were not."""
    blocks = {}
    for paper in ("s1", "s2", "s3", "s4", "s5"):
        outcomes = [it for study in studies if study.name.startswith(f"{paper}/") for it in study.outcomes]
        counts = Counter(it.status for it in outcomes)
        said = ", ".join(f"{counts[it]} {it}" for it in ("met", "not met", "undecided", "not run"))
        text = f"**Measured.** Of {len(outcomes)} claims: {said}."
        missed = [it for it in outcomes if it.status == "not met"]
        if missed:
            rows = [[it.claim, it.paper, it.ours, f"[{it.study}](../{it.report.as_posix()})"] for it in missed]
            text += "\n\n**Not confirmed.**\n\n" + table(["claim", "paper", "ours", "report"], rows)
        else:
            text += " None of those that were decided contradicts the paper."
        blocks[paper] = text
    return filled("docs/theory.md", blocks)


def errors_page(table: Callable[..., str]) -> str:
    """docs/errors.md: the rows of docs/differences.md that ``ERRORS`` names."""
    rows = []
    for heading, names in ERRORS.items():
        found = differences(heading)
        method, _, paper = heading.partition(", ")
        rows += [[f"{method} ({paper})", name, *found[name]] for name in names]
    return filled("docs/errors.md", {"errors": table(["paper", "where", "what we found", "what holds", "test"], rows)})


def differences(heading: str) -> dict[str, list[str]]:
    """The rows of a table of docs/differences.md, by their first column."""
    text = (ROOT / "docs/differences.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    cells = ([it.strip() for it in line.strip().strip("|").split(" | ")] for line in lines)
    return {it[0]: it[1:] for it in cells}
