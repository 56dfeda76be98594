"""Blocks of pages that ``make pages`` writes: claims by paper, errors in print, and the table behind choose.md.

<!-- generated: s3 --> ... <!-- end of generated -->
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import holdfast
from website.links import ROOT

__all__ = ["ERRORS", "MEASURED", "choose_page", "errors_page", "theory_page"]

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
# A layer, its row in the report of the scan, and a claim of a study that scores it: study, claim, which number, what.
MEASURED: dict[str, tuple[str | None, tuple[str, str, int, str] | None]] = {
    "SGORNN": (
        "SGORNN, 14 rotations",
        ("s3/addition", "SGORNN's error at T = 5000 falls below 0.04", 0, "addition, T = 5,000: error"),
    ),
    "VPRNN": (
        "VPRNN, 14 rotations",
        ("s3/addition", "VPRNN stays at the baseline at T = 5000", 0, "addition, T = 5,000: error"),
    ),
    "LSTM": ("LSTM", ("s3/addition", "LSTM stays at the baseline at T = 5000", 0, "addition, T = 5,000: error")),
    "FastRNN": (
        "FastRNN",
        ("s3/ptb", "SGORNN has a lower test perplexity than FastRNN", 1, "Penn Treebank, reduced: perplexity"),
    ),
    "RNN": (
        "RNN tanh",
        (
            "s4/wikitext2",
            "the stable model's test perplexity is no higher than the unconstrained one's",
            1,
            "WikiText-2, reduced: perplexity",
        ),
    ),
    "GRU": (
        "GRU, PyTorch's",
        ("s1/wiki10k", "RRNN-GRU is better than GRU on the test set", 1, "Wiki-10k: bits per character"),
    ),
    "ExpRNN": ("ExpRNN", None),
    "LinearRNN": (None, None),
}


def _filled(name: str, blocks: dict[str, str]) -> str:
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
    return _filled("docs/theory.md", blocks)


def errors_page(table: Callable[..., str]) -> str:
    """docs/errors.md: the rows of docs/differences.md that ``ERRORS`` names."""
    rows = []
    for heading, names in ERRORS.items():
        found = differences(heading)
        method, _, paper = heading.partition(", ")
        rows += [[f"{method} ({paper})", name, *found[name]] for name in names]
    return _filled("docs/errors.md", {"errors": table(["paper", "where", "what we found", "what holds", "test"], rows)})


def differences(heading: str) -> dict[str, list[str]]:
    """The rows of a table of docs/differences.md, by their first column."""
    text = (ROOT / "docs/differences.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    cells = ([it.strip() for it in line.strip().strip("|").split(" | ")] for line in lines)
    return {it[0]: it[1:] for it in cells}


def choose_page(studies: Sequence[Any], scan: Any, table: Callable[..., str]) -> str:
    """docs/choose.md: parameters, speed and a score of each cell, from code, benchmark and studies."""
    outcomes = {(it.study, it.claim): it for study in studies for it in study.outcomes}
    rows = []
    for name, (row, claim) in MEASURED.items():
        size = sum(weight.numel() for weight in getattr(holdfast, name)(2, 128).parameters())
        speed = f"{scan.cell('', row, 'ms')} ms, {scan.cell('', row, 'of LSTM')} of LSTM" if row else ""
        score = ""
        if claim:
            study, text, which, what = claim
            it = outcomes[study, text]
            value = it.ours.split(" against ")[which]
            seeds = f"{it.seeds} seed{'' if it.seeds == '1' else 's'}"
            score = f"{what} {value} ({seeds}, [report](../{it.report.as_posix()}))"
        rows.append([f"`{name}`", f"{size:,}", speed, score])
    head = ["layer", "parameters, 2 inputs, H = 128", "forward + backward", "a score"]
    note = (
        f"Speed: T = 500, B = 64, H = 128, as a share of `torch.nn.LSTM`'s time, from the [scan "
        f"benchmark](../{scan.path.as_posix()}). Scores are of reduced studies, so compare them only within one task. "
        "A constant answer has an error of 0.167 on the addition problem. [Results](results.md) has all claims, "
        "[speed](speed.md) all benchmarks."
    )
    return _filled("docs/choose.md", {"choose": f"{table(head, rows)}\n\n{note}"})
