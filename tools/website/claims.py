"""docs/results.md: the claims of all studies beside what came out."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from holdfast.studies import Judged, find_studies, judge, load_study, overview, read_result
from holdfast.studies.claims import STATUSES
from website.links import ROOT
from website.tables import GENERATED, table

__all__ = ["OVER_5000_STEPS", "Outcome", "Studied", "results_page", "studied"]

PAPERS = {
    "s1": ("RRNN (S1)", "Qian, Kennedy & Klabjan, *Dynamic cell structure via recursive-recurrent neural networks*"),
    "s2": (
        "Path-SGD (S2)",
        "Neyshabur, Wu, Salakhutdinov & Srebro, *Path-normalized optimization of recurrent neural networks with ReLU "
        "activations*",
    ),
    "s3": ("SGORNN (S3)", "*SGORNN: combining scalar gates and orthogonal constraints in recurrent networks*"),
    "s4": ("Stable recurrence (S4)", "Miller & Hardt, *When recurrent models don't need to be recurrent*"),
    "s5": (
        "Max-affine splines (S5)",
        "Wang, Balestriero & Baraniuk, *A max-affine spline perspective of recurrent neural networks*",
    ),
}


OVER_5000_STEPS = (
    "SGORNN's error at T = 5000 falls below 0.04",
    "SGORNN's error at T = 5000 falls below 0.04, with the printed decay",
)
"""A claim of s3/addition in the authors' setting and in the printed one: pages show the first that was run."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A claim of a study beside what came out."""

    study: str
    claim: str
    paper: str
    ours: str
    seeds: str
    scale: str
    status: str
    verdict: str
    few: str  # why fewer than three seeds decided it

    @property
    def report(self) -> Path:
        return Path("results", self.study, self.scale, "report.md")


@dataclasses.dataclass(frozen=True)
class Studied:
    """A study that has claims, and their outcomes."""

    name: str
    title: str
    source: str
    outcomes: tuple[Outcome, ...]
    figures: tuple[tuple[str, Path], ...]  # title and path of those that were drawn


def studied() -> list[Studied]:
    """Every committed study that makes a claim, by paper and name."""
    found = []
    for path in find_studies(ROOT / "studies"):
        study = load_study(path, ROOT / "studies")
        rows = overview([study], ROOT / "results")
        if not rows:
            continue
        scale = rows[0].scale
        judged = judge(study, read_result(ROOT / "results" / study.name / scale / "result.json"), scale)
        outcomes = tuple(
            Outcome(
                study.name,
                row.claim,
                row.paper,
                _without_counts(row.ours),
                _seeds(it),
                scale,
                row.status,
                row.verdict,
                it.few,
            )
            for row, it in zip(rows, judged, strict=True)
        )
        folder = Path("results", study.name, scale)
        drawn = [(it.title, folder / f"{it.name}.png") for it in study.figure]
        figures = tuple((title, path) for title, path in drawn if (ROOT / path).is_file())
        found.append(Studied(study.name, study.title, study.source, outcomes, figures))
    return found


def _without_counts(text: str) -> str:
    return re.sub(r" \(n = \d+\)", "", text)


def _seeds(judged: Judged) -> str:
    if judged.status == "not run":
        return ""
    counts = dict.fromkeys(it.count for it in (judged.ours, judged.theirs) if it is not None)
    return " and ".join(map(str, counts))


RESULTS = """
Each study repeats one table or figure of a paper and checks what the paper claims. This page lists every claim of every
study, including those that were not met.

Most studies ran at scale `small`: real training, shortened to fit two CPU cores. *Met* and *not met* hold for that
setting only, so "stays at the baseline" means within the updates run. The report of each study says what was reduced
and what differs from the paper. `holdfast study run STUDY --scale paper` runs the published setting.

Numbers are means over seeds, with the standard deviation after ±. A claim is *undecided* if the difference is within
the spread of the seeds or the standard error of the test set, or if it rests on fewer than three seeds and the study
gives no reason why these decide. Where it gives one, the reason stands below the table. Runs with the same seeds are
compared seed by seed. *Not run* means that the claim needs a run that this scale does not include.
"""


def results_page() -> str:
    """docs/results.md: every claim of every study, misses included."""
    studies = studied()
    parts = [
        GENERATED,
        "# Results",
        *RESULTS.strip().split("\n\n"),
        _summary(studies),
    ]
    for key, (method, citation) in PAPERS.items():
        of_paper = [it for it in studies if it.name.startswith(f"{key}/")]
        parts += [f"## {method}", f"{citation}."]
        for study in of_paper:
            parts += [f"### {_heading(study.title)}", _about(study), _claims(study.outcomes)]
            parts += [f"![{title}](../{path.as_posix()})" for title, path in study.figures]
    return "\n\n".join(parts) + "\n"


def _summary(studies: Sequence[Studied]) -> str:
    rows = []
    for key, (method, _) in PAPERS.items():
        counts = Counter(it.status for study in studies if study.name.startswith(f"{key}/") for it in study.outcomes)
        rows.append([method, *(str(counts[status]) for status in STATUSES)])
    total = Counter(it.status for study in studies for it in study.outcomes)
    rows.append(["all", *(str(total[status]) for status in STATUSES)])
    return table(["paper", *STATUSES], rows)


def _heading(title: str) -> str:
    text = re.sub(r"^S\d: ", "", title)
    return text[0].upper() + text[1:]


def _about(study: Studied) -> str:
    path = study.outcomes[0].report
    if not (ROOT / path).is_file():
        return f"`{study.name}`: {study.source} No result is committed."
    return f"`{study.name}`, scale `{study.outcomes[0].scale}`: {study.source} [Report](../{path.as_posix()})."


def _claims(outcomes: Sequence[Outcome]) -> str:
    rows = [[it.claim, it.paper, "" if it.status == "not run" else it.ours, it.seeds, it.verdict] for it in outcomes]
    few = [f'- Few seeds decide "{it.claim}": {it.few}.' for it in outcomes if it.few]
    made = table(["claim", "paper", "ours", "seeds", "verdict"], rows)
    return "\n\n".join([made, "\n".join(few)] if few else [made])
