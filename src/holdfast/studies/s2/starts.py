"""The best of several starts: S2, §5.2, how IRNN is reported.

argmin over starts and learning rates of the error on validation     (1)
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from holdfast.runs.measured import Measured
from holdfast.runs.settings import overridden
from holdfast.studies.procedures import procedure, train
from holdfast.train.metrics import better

__all__ = ["best_of_starts"]


@procedure("best-of-starts", {"trial": None}, needed=("starts", "rates", "metric"))
def best_of_starts(
    table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str
) -> Measured:
    """(1): trainings from several starts at several learning rates, of which the best is reported.

    The best is chosen by ``metric`` among those that did not diverge. ``starts.diverged`` is the share of all that did.

    Args:
        options: ``starts``, how many seeds, counted on from the run's; ``rates``, learning rates; ``metric``, a score
            on validation. With ``trial``, a number of updates, all are trained that long, and the best of them is then
            trained in full.

    Example:
        >>> import tempfile
        >>> table = {
        ...     "task": {"name": "addition", "steps": 4, "validation": 8},
        ...     "cell": {"hidden_size": 4},
        ...     "train": {"updates": 2, "batch": 4, "evaluate_every": 1},
        ... }
        >>> options = {"starts": 2, "rates": [1e-2, 1e-3], "metric": "validation.mse", "trial": 1}
        >>> found = best_of_starts(table, options, Path(tempfile.mkdtemp()), progress=False)
        >>> found.updates, found.value("starts.diverged")
        (2, 0.0)
    """
    first = table.get("train", {}).get("seed", 0)
    trial = {} if options["trial"] is None else {"train.updates": options["trial"]}
    tried: list[tuple[dict[str, Any], Measured]] = []
    for rate in options["rates"]:
        for seed in range(first, first + options["starts"]):
            changes = {"train.lr": rate, "train.seed": seed}
            name = f"{label}: start {seed}, train.lr = {rate}"
            where = folder / f"{'trial' if trial else 'full'}-{seed}-{rate}"
            measured = train(overridden(table, changes | trial), {}, where, progress=progress, label=name)
            tried.append((changes, measured))
    changes, chosen = _best(tried, options["metric"])
    others = [measured for _, measured in tried if measured is not chosen]
    if trial:
        others.append(chosen)
        where = folder / f"full-{changes['train.seed']}-{changes['train.lr']}"
        name = f"{label}: the best of its starts"
        chosen = train(overridden(table, changes), {}, where, progress=progress, label=name)
    counted = {
        "starts.diverged": sum(measured.status == "diverged" for _, measured in tried) / len(tried),
        "starts.lr": changes["train.lr"],
        "starts.seed": changes["train.seed"],
    }
    last = chosen.last | counted if chosen.last else {}
    whole = functools.reduce(Measured.after, others, chosen)
    return dataclasses.replace(whole, best=chosen.best | counted, last=last)


def _best(tried: list[tuple[dict[str, Any], Measured]], metric: str) -> tuple[dict[str, Any], Measured]:
    """The best that did not diverge or, if all did, the best at its best."""
    there = [one for one in tried if one[1].status != "diverged"] or tried
    best = there[0]
    for one in there[1:]:
        value = one[1].value(metric)
        if value is not None and better(metric.rpartition(".")[2], value, best[1].value(metric)):
            best = one
    return best
