"""docs/sequences.md: models for anybody's sequences on public sets, and the study behind the defaults."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

from website.links import ROOT
from website.tables import GENERATED, table

__all__ = ["SCORES", "STUDY", "sequences_page"]

SCORES, STUDY = (ROOT / "results/sequences" / name for name in ("scores.json", "study.json"))
COLUMNS = ("automatic", "reservoir", "nearest neighbour", "ridge on the raw series", "plain GRU", "MiniRocket")


def sequences_page() -> str:
    """docs/sequences.md: models for anybody's sequences on public sets, and the study behind the defaults."""
    scores = json.loads(SCORES.read_text(encoding="utf-8"))
    study = json.loads(STUDY.read_text(encoding="utf-8"))
    development = list(next(iter(study["scores"].values())))
    parts = [
        GENERATED,
        "# Sequences of other packages",
        "This page scores the models of [own-data-models.md](usage/own-data-models.md) on public sets that the "
        "packages aeon and sktime ship, with their official splits. Accuracies are on the test set; higher is better. "
        "For numbers, the table shows the mean squared error per that of the training mean; lower is better. "
        "MiniRocket is aeon's. Its score and the reservoir's are means of 3 seeds, the others are of one. The plain "
        "GRU has 128 units and a readout of the last state. It trains for at most 500 updates.",
        _automatic(scores["sets"]),
        f"Measured on {scores['environment']}.",
        "## Development sets",
        "Defaults were chosen by the test scores of these sets, so the scores of the reservoir and of the automatic "
        "choice are optimistic here.",
        _scores({name: scores["sets"][name] for name in development}),
        "## Other sets",
        "Scores of these sets decided no default, with three exceptions below. Six are official splits. "
        "ElectricDevices and mitdb are windows of labelled recordings; solar, Uschange, seatbelts and "
        "PBS_dataset are windows of series with a number to predict: see benchmarks/sequence_sets.py. On mitdb the "
        "best scores are those of the most common class, so it decides nothing.",
        "**Windows of one series mislead the choice.** They overlap, so a sequence that is left out is nearly in the "
        "training set, and left-out errors are far too low: on seatbelts the reservoir's is 0.28 and ridge's 0.51, "
        "while on the later half ridge wins by far. `Forecaster` is made for series and validates on later windows.",
        "The first score of the reservoir on Uschange was an error of 94,759. A feature that hardly varied in the "
        "training set had carried the answers away. Features have a least deviation since then, the best of four "
        "values on five development sets, Uschange and solar, and all scores of the reservoir are with it. So these "
        "two count as development sets for this, and PickupGestureWiimoteZ does for the rule of the choice.",
        _scores({name: row for name, row in scores["sets"].items() if name not in development}),
        "## All sets",
        _means(scores["sets"]),
        "## Which weights to keep when few sequences validate",
        _few_validation(),
        "## What matters in a reservoir",
        f"Cells of {study['units']} units, test scores on the development sets, means of "
        f"{len(next(iter(next(iter(study['scores'].values())).values())))} seeds. Differences of a few "
        "thousandths in the mean are within the spread over seeds. The first row is what the others change.",
        _study(study["scores"], development, scores["sets"]),
    ]
    return "\n\n".join(parts) + "\n"


WAYS = {
    "best": "constant rate, best validation score",
    "last": "constant rate, last weights",
    "falling": "rate that falls to zero, last weights",
    "everything": "the same, trained on the validation sequences too",
}


def _few_validation() -> str:
    """Test accuracies of the ways to end a training, and how often one is better than the other."""
    runs = json.loads((ROOT / "results/sequences/few_validation.json").read_text(encoding="utf-8"))["runs"]
    rows = [[key, str(run["validation sequences"]), *(f"{run[way]:.3f}" for way in WAYS)] for key, run in runs.items()]
    rows.append(["**mean**", "", *(f"{statistics.mean(run[way] for run in runs.values()):.3f}" for way in WAYS)])
    lost = sum(run["best"] < run["falling"] for run in runs.values())
    text = (
        "One cell, `holdfast train --data FILE --cell CELL`, on development sets: test accuracy by how the training "
        f"ends. The weights of the best validation score lose to the last ones of a falling rate in {lost} of "
        f"{len(runs)} runs. So this is the default with fewer than 50 validation sequences. To train on the "
        "validation sequences as well makes no difference that these runs, one seed each, could show. It leaves no "
        "score to look at."
    )
    return f"{text}\n\n{table(['run', 'validation sequences', *WAYS.values()], rows)}"


def _automatic(rows: dict[str, dict[str, Any]]) -> str:
    """What the automatic choice chose, and under which rule."""
    others = [f"{name} ({row['chosen']})" for name, row in rows.items() if row["chosen"] != "reservoir"]
    minutes, cells = ({row[key] for row in rows.values()} for key in ("minutes", "cells"))
    assert len(minutes) == len(cells) == 1
    assert {row["clock"] for row in rows.values()} == {"computing"}
    return (
        f"The automatic choice had {minutes.pop():g} minutes of computing on one core per set, to train "
        f"{cells.pop()}. Only a cell that was tried on all folds can be chosen. It chose the reservoir "
        + (f"except on {', '.join(others)}." if others else "on every set.")
    )


def _scores(rows: dict[str, dict[str, Any]]) -> str:
    shown = [name for name in COLUMNS if any(name in row for row in rows.values())]
    head = ["set", "sequences", "steps", "channels", *shown]
    lines = []
    for name, row in rows.items():
        values = {it: f"{_mean(row[it]):.3f}" for it in shown if it in row}
        best = (min if row["regression"] else max)(values.values(), key=float)
        cells = [f"**{best}**" if values.get(it) == best else values.get(it, "") for it in shown]
        what = f"{name} (error)" if row["regression"] else name
        lines.append([what, f"{row['train']} + {row['test']}", str(row["steps"]), str(row["channels"]), *cells])
    return table(head, lines)


def _means(rows: dict[str, dict[str, Any]]) -> str:
    """Mean accuracies over the sets with classes that all models were scored on."""
    shown = [name for name in COLUMNS if any(name in row for row in rows.values())]
    scored = [row for row in rows.values() if not row["regression"] and all(it in row for it in shown)]
    means = [f"{sum(_mean(row[it]) for row in scored) / len(scored):.3f}" for it in shown]
    return f"Mean accuracy over {len(scored)} sets with classes:\n\n{table(shown, [means])}"


def _study(variants: dict[str, dict[str, list[float]]], sets: Sequence[str], scored: dict[str, Any]) -> str:
    classes = [name for name in sets if not scored[name]["regression"]]
    rows = []
    for variant, found in variants.items():
        values = [f"{_mean(found[name]):.3f}" if name in found else "" for name in sets]
        mean = sum(_mean(found[name]) for name in classes) / len(classes) if all(n in found for n in classes) else None
        rows.append([variant, *values, "" if mean is None else f"{mean:.3f}"])
    return table(["variant", *(name if name in classes else f"{name} (error)" for name in sets), "mean"], rows)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
