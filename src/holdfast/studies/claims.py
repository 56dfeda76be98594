"""Whether a claim is confirmed: met, not met, undecided, or not run.

    m = mean over seeds,  s = √(Σ (x - m)² / (n - 1))          (1)
    e = √(p (1 - p) / N), the error of an accuracy on N answers   (2)

A bound is compared with m, and so is another run: seed by seed where both ran the same seeds. N follows from the
settings. A claim is not met if a seed has no number because its run diverged. It is undecided if m is closer to the
bound than e; if it is closer than s, unless three or more seeds are all on the wrong side of the bound; or if it has
fewer than three seeds without a stated reason.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Literal

from holdfast.runs.settings import run_settings
from holdfast.studies.procedures import ANSWERS
from holdfast.studies.result import StudyResult
from holdfast.studies.study import Claim, Study

__all__ = ["STATUSES", "Judged", "Summary", "answer_count", "judge", "shown", "summary"]

_ROUNDING = 1e-12
"""A mean that differs from a bound only by rounding meets it."""
_SEEDS = 3
"""Fewer seeds say nothing about their spread."""
_COUNTS = ("parameters", "cell_parameters")
"""The same for every seed."""

Status = Literal["met", "not met", "undecided", "not run"]
STATUSES: tuple[Status, ...] = ("met", "not met", "undecided", "not run")


@dataclasses.dataclass(frozen=True)
class Summary:
    """(1) of one number over seeds.

    Args:
        mean, spread: None without a number; ``spread`` also with only one.
        count: seeds with a number.
        missing: seeds whose run has no such number.
    """

    mean: float | None
    spread: float | None
    count: int
    missing: int = 0

    def text(self, metric: str) -> str:
        """``0.0312 ± 0.004 (n = 3)``."""
        if self.mean is None:
            return "diverged" if self.missing else "not run"
        spread = "" if self.spread is None else f" ± {shown(self.spread, metric, spread=True)}"
        lost = f", {self.missing} without" if self.missing else ""
        return f"{shown(self.mean, metric)}{spread} (n = {self.count}{lost})"


@dataclasses.dataclass(frozen=True)
class Judged:
    """A claim and its result.

    Args:
        claim: of the study.
        status: the verdict.
        why: it is undecided, in a few words.
        ours: the claim's number over seeds.
        theirs: that of the run it is compared with, if any.
        scale: of the result.

    Example:
        >>> claim = Claim("it learns", run="a", metric="test.accuracy", at_least=0.9)
        >>> Judged(claim, "met", Summary(0.95, 0.01, 3), None, "small").text
        '95.00% ± 1.00% (n = 3)'
    """

    claim: Claim
    status: Status
    ours: Summary
    theirs: Summary | None
    scale: str
    why: str = ""

    @property
    def verdict(self) -> str:
        """The status as Markdown, with the reason if it is undecided."""
        marks = {
            "met": "met",
            "not met": "**not met**",
            "undecided": f"*undecided*: {self.why}",
            "not run": "*not run*",
        }
        return marks[self.status]

    @property
    def few(self) -> str:
        """Why fewer than three seeds decided the claim; empty if it has three or they did not decide it."""
        seeds = min(it.count for it in (self.ours, self.theirs) if it is not None)
        return self.claim.few if self.status in ("met", "not met") and seeds < _SEEDS else ""

    @property
    def text(self) -> str:
        """The result, as in the table."""
        if self.status == "not run":
            return "not run"
        ours = self.ours.text(self.claim.metric)
        return ours if self.theirs is None else f"{ours} against {self.theirs.text(self.claim.metric)}"


def judge(study: Study, result: StudyResult | None, scale: str) -> tuple[Judged, ...]:
    """Every claim of a study, judged by a result at a scale.

    Example:
        >>> from holdfast.studies.study import Run, Scale
        >>> claim = Claim("it has 1,411 parameters", run="a", metric="parameters", equals=1411)
        >>> study = Study("Tiny", run=(Run("a"),), scale={"small": Scale()}, claim=(claim,))
        >>> judge(study, None, "small")[0].status
        'not run'
    """
    return tuple(_judged(claim, study, result or StudyResult(study.name, scale), scale) for claim in study.claim)


def summary(values: Sequence[float | None]) -> Summary:
    """(1).

    Example:
        >>> summary([1.0, 3.0, None])
        Summary(mean=2.0, spread=1.4142135623730951, count=2, missing=1)
    """
    there = [value for value in values if value is not None and math.isfinite(value)]
    spread = statistics.stdev(there) if len(there) > 1 else None
    return Summary(statistics.fmean(there) if there else None, spread, len(there), len(values) - len(there))


def shown(value: float | str, metric: str, *, spread: bool = False) -> str:
    """A number as a table prints it: accuracies in per cent, counts whole, the rest to four digits.

    Example:
        >>> shown(0.9407, "test.accuracy"), shown(1411, "parameters"), shown(0.031234, "validation.mse")
        ('94.07%', '1,411', '0.03123')
    """
    if isinstance(value, str):
        return value
    if metric.endswith("accuracy"):
        return f"{100 * value:.2f}%"
    if metric.endswith("perplexity"):
        return f"{value:,.2f}"
    if metric in ("parameters", "cell_parameters", "updates") and not spread:
        return f"{value:,.0f}"
    if metric == "diverged":
        return f"{100 * value:.0f}%"
    return f"{value:.2g}" if spread else f"{value:.4g}"


def answer_count(study: Study, scale: str, run: str, score: str) -> int | None:
    """N of (2): on how many answers a score of a run is counted at a scale, by the settings; None if they do not say.

    Example:
        >>> from holdfast.studies.study import Run, Scale
        >>> task = {"task": {"name": "mnist", "limit": 500}, "train": {"epochs": 1}}
        >>> study = Study("Tiny", run=(Run("a"),), scale={"small": Scale()}, defaults=task)
        >>> answer_count(study, "small", "a", "test.accuracy")
        500
    """
    one = next(it for it in study.run if it.name == run)
    if scale not in study.scale or "name" not in (table := study.table(one, scale, 0)).get("task", {}):
        return None
    task, split = run_settings(table, f"{study.name}: run {run}").task, score.rpartition(".")[0]
    own = ANSWERS[one.procedure](task, study.options(one, scale)) if one.procedure in ANSWERS else {}
    return own[split] if split in own else task.answers(split) if hasattr(task, "answers") else None


def _judged(claim: Claim, study: Study, result: StudyResult, scale: str) -> Judged:
    ours = summary(result.values(claim.run, claim.metric, claim.pick))
    theirs = None if claim.than is None else summary(result.values(claim.than, claim.metric, claim.pick))
    asked = claim.scales is None or scale in claim.scales
    ran = bool(result.of(claim.run)) and (claim.than is None or bool(result.of(claim.than)))
    if not (asked and ran):
        return Judged(claim, "not run", ours, theirs, scale)
    if ours.mean is None or ours.missing:
        return Judged(claim, "not met", ours, theirs, scale)
    margin = _margin(claim, ours.mean, theirs)
    values = result.values(claim.run, claim.metric, claim.pick) if claim.than is None else []
    every = [_margin(claim, value, None) for value in values if value is not None]
    failed = len(every) >= _SEEDS and max(every) < 0  # whatever their spread: one of them may have exploded
    why = "" if failed else _doubt(claim, margin, ours, theirs, result)
    why = why or _chance(claim, margin, study, result, scale)
    return Judged(claim, "undecided" if why else "met" if margin >= 0 else "not met", ours, theirs, scale, why)


def _margin(claim: Claim, mean: float, theirs: Summary | None) -> float:
    """How far the mean is on the right side of the claim's bound; below 0 on the wrong one, 0 within rounding of it."""
    if claim.equals is not None:
        return 0.0 if math.isclose(mean, claim.equals, rel_tol=_ROUNDING) else -abs(mean - claim.equals)
    if theirs is not None:
        if theirs.mean is None:  # every seed of the other diverged: any number is better than none
            return math.inf
        gain = theirs.mean - mean if claim.lower_is_better else mean - theirs.mean
        margins = [gain - claim.better_by]
    else:
        margins = [mean - claim.at_least] if claim.at_least is not None else []
        margins += [claim.at_most - mean] if claim.at_most is not None else []
    return 0.0 if abs(min(margins)) <= _ROUNDING else min(margins)


def _paired(claim: Claim, result: StudyResult) -> Summary | None:
    """(1) of the differences between two runs that ran the same seeds."""
    if claim.than is None:
        return None
    ours, theirs = (
        {entry.seed: entry.value(claim.metric, claim.pick) for entry in result.of(run)}
        for run in (claim.run, claim.than)
    )
    if ours.keys() != theirs.keys():
        return None
    pairs = [(ours[seed], theirs[seed]) for seed in ours]
    return summary([None if a is None or b is None else a - b for a, b in pairs])


def _doubt(claim: Claim, margin: float, ours: Summary, theirs: Summary | None, result: StudyResult) -> str:
    """Why the number does not decide the claim; empty if it does."""
    if claim.equals is not None or claim.metric in _COUNTS or math.isinf(margin):
        return ""
    paired = _paired(claim, result)
    seeds = min(it.count for it in (ours, theirs) if it is not None)
    if seeds < _SEEDS and not claim.few:
        return "one seed" if seeds == 1 else "two seeds"
    apart = [it.spread for it in ((paired,) if paired is not None else (ours, theirs)) if it is not None]
    if abs(margin) < math.hypot(*(it or 0.0 for it in apart)):
        return "within the spread of the paired seeds" if paired is not None else "within the spread of the seeds"
    return ""


def _chance(claim: Claim, margin: float, study: Study, result: StudyResult, scale: str) -> str:
    """Why the size of the test set does not let the number decide the claim; empty if it does."""
    parts = [
        (summary(result.values(run, part, claim.pick)).mean, claim.of or answer_count(study, scale, run, part))
        for run in (claim.run, claim.than)
        if run
        for part in claim.metric.split(" - ")
        if part.endswith("accuracy")
    ]
    counted = [(p, n) for p, n in parts if p is not None and n]
    if abs(margin) >= math.sqrt(sum(p * (1 - p) / n for p, n in counted)):  # (2), as if they were independent
        return ""
    return f"within the standard error of {min(n for _, n in counted):,} answers"
