"""What S2's studies do beside training: κ⁽²⁾ held against κ⁽¹⁾, and the best of several starts.

    ‖κ⁽²⁾‖₂ / ‖κ⁽¹⁾‖₂,  norms over all parameters, or over U alone       (1) S2 §5.1, the table of Figure 2
    argmin over starts and learning rates of the error on validation     (2) S2 §5.2, how IRNN is reported

(1) takes the weights as they are drawn: no text is read, only its number of words counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.optim import kappa_first, kappa_second, path_network
from holdfast.studies.config import overridden
from holdfast.studies.options import checked
from holdfast.studies.procedures import columns, procedure, train
from holdfast.studies.result import Measured
from holdfast.studies.schema import structured
from holdfast.tasks import Spec
from holdfast.train.metrics import better
from holdfast.train.model import build
from holdfast.train.settings import Network

__all__ = ["best_of_starts", "kappa_ratio"]


@procedure("kappa-ratio")
def kappa_ratio(
    table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str
) -> Measured:
    """(1) for the network of ``cell`` at its start, as a curve over T; ``ratio-20`` is that of T = 20.

    Args:
        options: ``words``, the vocabulary's size, and ``steps``, a list of T.

    Example:
        >>> cell = {"name": "rnn", "hidden_size": 4, "embedding": 4, "options": {"nonlinearity": "relu"}}
        >>> found = kappa_ratio({"cell": cell}, {"words": 9, "steps": [2, 4]}, Path(), progress=False, label="tiny")
        >>> found.curve["steps"], found.value("ratio-2", "last") < found.value("ratio-4", "last")
        ((2, 4), True)
    """
    checked(label, "kappa-ratio", options, {}, needed=("words", "steps"))
    torch.manual_seed(table.get("train", {}).get("seed", 0))
    words = options["words"]
    spec = Spec(words, words, "cross_entropy", "perplexity", tokens=True, every_step=True)
    begin = time.perf_counter()
    model = build(structured(Network, table.get("cell", {}), label, "cell"), spec)
    network = path_network(model)
    recurrent = [layer.weight_hh for layer in network.layers]
    rows = []
    for steps in options["steps"]:
        first, second = kappa_first(network, steps), kappa_second(network, steps)
        rows.append({
            "steps": steps,
            "ratio": _norm(second.values()) / _norm(first.values()),
            "recurrent": _norm(second[weight] for weight in recurrent) / _norm(first[weight] for weight in recurrent),
        })  # fmt: skip
    last = {f"{name}-{row['steps']}": row[name] for row in rows for name in ("ratio", "recurrent")}
    whole, cell = (sum(weight.numel() for weight in part.parameters()) for part in (model, model.rnn))
    seconds = round(time.perf_counter() - begin, 3)
    return Measured(best=last, last=last, curve=columns(rows), parameters=whole, cell_parameters=cell, seconds=seconds)


@procedure("best-of-starts")
def best_of_starts(
    table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool = True, label: str = "training"
) -> Measured:
    """(2): trainings from several starts at several learning rates, of which the best is reported.

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
    checked(label, "best-of-starts", options, {"trial": None}, needed=("starts", "rates", "metric"))
    first = table.get("train", {}).get("seed", 0)
    trial = {} if options.get("trial") is None else {"train.updates": options["trial"]}
    tried: list[tuple[dict[str, Any], Measured]] = []
    for rate in options["rates"]:
        for seed in range(first, first + options["starts"]):
            changes = {"train.lr": rate, "train.seed": seed}
            name = f"{label}: start {seed}, train.lr = {rate}"
            where = folder / f"{'trial' if trial else 'full'}-{seed}-{rate}"
            measured = train(overridden(table, changes | trial), {}, where, progress=progress, label=name)
            tried.append((changes, measured))
    changes, chosen = _best(tried, options["metric"])
    seconds = sum(measured.seconds for _, measured in tried)
    if trial:
        where = folder / f"full-{changes['train.seed']}-{changes['train.lr']}"
        name = f"{label}: the best of its starts"
        chosen = train(overridden(table, changes), {}, where, progress=progress, label=name)
        seconds += chosen.seconds
    counted = {
        "starts.diverged": sum(measured.status == "diverged" for _, measured in tried) / len(tried),
        "starts.lr": changes["train.lr"],
        "starts.seed": changes["train.seed"],
    }
    return Measured(
        status=chosen.status,
        reason=chosen.reason,
        best=chosen.best | counted,
        last=chosen.last | counted if chosen.last else {},
        curve=chosen.curve,
        parameters=chosen.parameters,
        cell_parameters=chosen.cell_parameters,
        updates=chosen.updates,
        seconds=round(seconds, 3),
    )


def _best(tried: list[tuple[dict[str, Any], Measured]], metric: str) -> tuple[dict[str, Any], Measured]:
    """The best that did not diverge or, if all did, the best at its best."""
    there = [one for one in tried if one[1].status != "diverged"] or tried
    best = there[0]
    for one in there[1:]:
        value = one[1].value(metric)
        if value is not None and better(metric.rpartition(".")[2], value, best[1].value(metric)):
            best = one
    return best


def _norm(values: Iterable[Tensor]) -> float:
    return math.sqrt(sum(value.square().sum().item() for value in values))
