"""Whether a claim is confirmed: met, not met, or not run.

    m = mean over seeds,  s = √(Σ (x - m)² / (n - 1))       (1)

A bound is compared with m. A claim is not met if a seed has no number because its run diverged.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Literal

from holdfast.studies.result import StudyResult
from holdfast.studies.study import Claim, Study

__all__ = ["Judged", "Summary", "judge", "shown", "summary"]

_ROUNDING = 1e-12
"""A mean that differs from a bound only by rounding meets it."""


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
        ours: the claim's number over seeds.
        theirs: that of the run it is compared with, if any.
        scale: of the result.

    Example:
        >>> claim = Claim("it learns", run="a", metric="test.accuracy", at_least=0.9)
        >>> Judged(claim, "met", Summary(0.95, 0.01, 3), None, "small").text
        '95.00% ± 1.00% (n = 3)'
    """

    claim: Claim
    status: Literal["met", "not met", "not run"]
    ours: Summary
    theirs: Summary | None
    scale: str

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
    return tuple(_judged(claim, result or StudyResult(study.name, scale), scale) for claim in study.claim)


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


def _judged(claim: Claim, result: StudyResult, scale: str) -> Judged:
    ours = summary(result.values(claim.run, claim.metric, claim.pick))
    theirs = None if claim.than is None else summary(result.values(claim.than, claim.metric, claim.pick))
    asked = claim.scales is None or scale in claim.scales
    ran = bool(result.of(claim.run)) and (claim.than is None or bool(result.of(claim.than)))
    if not (asked and ran):
        return Judged(claim, "not run", ours, theirs, scale)
    return Judged(claim, "met" if _holds(claim, ours, theirs) else "not met", ours, theirs, scale)


def _holds(claim: Claim, ours: Summary, theirs: Summary | None) -> bool:
    if ours.mean is None or ours.missing:
        return False
    if theirs is not None:
        if theirs.mean is None:  # every seed of the other diverged: any number is better than none
            return True
        gain = theirs.mean - ours.mean if claim.lower_is_better else ours.mean - theirs.mean
        return gain >= claim.better_by - _ROUNDING
    if claim.equals is not None:
        return math.isclose(ours.mean, claim.equals, rel_tol=_ROUNDING)
    low = -math.inf if claim.at_least is None else claim.at_least
    high = math.inf if claim.at_most is None else claim.at_most
    return low - _ROUNDING <= ours.mean <= high + _ROUNDING
