"""Write the pages that are generated: results, speed, reference, the README's results and every report.md.

    python tools/pages.py            write the pages (make pages)
    python tools/pages.py --check    write nothing; exit with 1 if a page is out of date

Every number on them comes from a result.json or from the newest dated report of a benchmark.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from website.choose import Measured, choose_page
from website.claims import OVER_5000_STEPS, Outcome, results_page, studied
from website.figures import FIGURES, draw
from website.forecasts import forecasting_page
from website.generated import errors_page, theory_page
from website.links import ROOT
from website.reports import report
from website.sequences import SCORES, STUDY, sequences_page
from website.speed import comparison_page, speed_page
from website.tables import GENERATED, renewed, table

from holdfast.studies import Study, find_studies, load_study, read_result
from holdfast.studies import report as study_report

__all__ = ["FIGURES", "PAGES", "main", "studied"]

# -- README ------------------------------------------------------------------------------------------------------------


def readme() -> str:
    """The README with its generated block renewed."""
    return renewed("README.md", _headlines())


def _headlines() -> str:
    outcomes = [it for study in studied() for it in study.outcomes]
    counts = Counter(it.status for it in outcomes)
    addition = _outcome(outcomes, "s3/addition", *OVER_5000_STEPS)
    size = _outcome(outcomes, "s3/addition", "SGORNN has 1,411 parameters")
    stable = _outcome(
        outcomes, "s4/wikitext2", "the stable model's test perplexity is no higher than the unconstrained one's"
    )
    scan = report("scan")
    of_rnn, of_lstm = (scan.cell("", "SGORNN, 14 rotations", column) for column in ("of RNN(relu)", "of LSTM"))
    lines = [
        f"- **SGORNN (S3) learns the addition problem over 5,000 steps** with {size.ours.split()[0]} parameters. "
        f"Validation error: {addition.ours}, where a constant answer gives 0.167 ({_linked(addition)}).",
        "- **A stable RNN (S4) is no worse than an unconstrained one.** Test perplexity on reduced "
        f"WikiText-2: {stable.ours} ({_linked(stable)}).",
        f"- **The compiled scan is fast on a CPU.** SGORNN's forward and backward pass takes {of_rnn} of the time of "
        f"`torch.nn.RNN` and {of_lstm} of `torch.nn.LSTM` ([setting]({scan.path.as_posix()})).",
    ]
    total = (
        f"The studies check {counts.total()} claims of five papers, most at reduced scale: {counts['met']} are met, "
        f"{counts['not met']} are not met, {counts['undecided']} are undecided (most need seeds) and "
        f"{counts['not run']} were not run. [Results](docs/results.md) lists "
        "every claim, [speed](docs/speed.md) every benchmark."
    )
    return "\n".join(lines) + "\n\n" + total


def _outcome(outcomes: Iterable[Outcome], study: str, *claims: str) -> Outcome:
    """The first of these claims that was run."""
    there = {it.claim: it for it in outcomes if it.study == study}
    found = next((there[claim] for claim in claims if there[claim].status != "not run"), there[claims[0]])
    if found.status != "met":
        raise SystemExit(f"The README calls {study}, {found.claim!r}, a result, but it is {found.status}.")
    return found


def _linked(it: Outcome) -> str:
    return f"{it.seeds} seed{'' if it.seeds == '1' else 's'}, [report]({it.report.as_posix()})"


# -- reference ---------------------------------------------------------------------------------------------------------

REFERENCE = {
    "holdfast": "cells, layers, constraints and `scan`",
    "holdfast.stability": "contraction, certificates, truncation and bounds",
    "holdfast.optim": "path norms and the optimisers built on them",
    "holdfast.spline": "affine maps, partition codes and templates",
    "holdfast.rrnn": "RRNN layers, trees and their loss",
    "holdfast.tasks": "data",
    "holdfast.train": "models and the training loop",
    "holdfast.runs": "one run: settings, training, resuming and loading",
    "holdfast.studies": "studies, claims and reports",
    "holdfast.estimators": "models for your own sequences, and the choice between them",
    "holdfast.diagnose": "what is wrong with a recurrent network, and why",
    "holdfast.constraints": "constraints on weights",
    "holdfast.linalg.givens": "plane rotations",
    "holdfast.linalg.fourier": "the Fourier transform as plane rotations",
    "holdfast.linalg.skew": "orthogonal matrices by exponential, Cayley and Householder maps",
    "holdfast.linalg.norms": "norms",
}


def reference_page() -> str:
    """docs/reference.md: every public name with the first line of its docstring."""
    parts = [
        GENERATED,
        "# Reference",
        "This page lists every public name with the first line of its docstring. `help(holdfast.SGORNN)` shows a whole "
        "docstring, with arguments and an example. The guides in [usage](usage) explain how the names work together.",
        "The papers are RRNN (S1), Path-SGD (S2), SGORNN (S3), stable recurrence (S4) and max-affine splines (S5): see "
        "[notation.md](notation.md). A number alone, such as (1), is an equation at the top of the module.",
    ]
    for package, content in REFERENCE.items():
        module = importlib.import_module(package)
        rows = [[f"`{name}`", _first_line(getattr(module, name))] for name in sorted(module.__all__, key=str.lower)]
        parts += [f"## {package}", f"{content[0].upper()}{content[1:]}.", table(["name", "summary"], rows)]
    return "\n\n".join(parts) + "\n"


def _first_line(thing: object) -> str:
    """The first line of its own docstring. A constant has none."""
    ours = str(getattr(thing, "__module__", "")).startswith("holdfast")
    text = inspect.getdoc(thing) if ours and callable(thing) else None
    return text.split("\n\n")[0].replace("``", "`") if text else "A constant."


# -- all ---------------------------------------------------------------------------------------------------------------


def measured() -> Measured:
    """What docs/choose.md stands on."""
    outcomes = {(it.study, it.claim): it for study in studied() for it in study.outcomes}
    scores = json.loads(SCORES.read_text(encoding="utf-8"))["sets"]
    return Measured(outcomes, functools.cache(report), scores, table)


def reports() -> dict[str, Callable[[], str]]:
    """The report.md of every result, with the figures that it has: words and tables anew, no figure drawn."""
    found = {}
    for path in find_studies(ROOT / "studies"):
        study = load_study(path, ROOT / "studies")
        for scale in study.scale:
            page = ROOT / "results" / study.name / scale / "report.md"
            if page.is_file():
                found[page.relative_to(ROOT).as_posix()] = functools.partial(_report, study, page)
    return found


def _report(study: Study, page: Path) -> str:
    figures = re.findall(r"^!\[.*\]\((.*)\)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    result = read_result(page.with_name("result.json"))
    if result is None:
        raise SystemExit(f"{page} has no result.json beside it.")
    return study_report(study, result, figures)


PAGES: dict[str, Callable[[], str]] = {
    "docs/results.md": results_page,
    "docs/speed.md": speed_page,
    "docs/reference.md": reference_page,
    "docs/theory.md": lambda: theory_page(studied(), table),
    "docs/errors.md": lambda: errors_page(table),
    "docs/choose.md": lambda: choose_page(measured()),
    "docs/usage/forecasting.md": forecasting_page,
    **({"docs/sequences.md": sequences_page} if STUDY.is_file() else {}),
    "docs/comparison.md": comparison_page,
    "README.md": readme,
    **reports(),
}


def main(arguments: Sequence[str]) -> int:
    stale = []
    for name, made in PAGES.items():
        path, text = ROOT / name, made()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
    if stale and "--check" not in arguments:
        draw(report, ROOT / "benchmarks" / "figures")
    if stale:
        print(f"{'Out of date' if '--check' in arguments else 'Wrote'}: {', '.join(stale)}.")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
