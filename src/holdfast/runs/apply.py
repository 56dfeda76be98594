"""A trained run, applied: scored on a split or on a new file, or used for predictions.

One row per sequence: its class and the probability of each class, or numbers: see ``load``.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import MissingExtraError, SettingError
from holdfast.files import write_atomically
from holdfast.runs.intervals import answers_in, wilson
from holdfast.runs.load import load_run
from holdfast.tasks import Arrays, OwnTask
from holdfast.train.loop import evaluate

__all__ = ["WRITERS", "Predicted", "Scored", "evaluate_run", "predict_run"]


@dataclasses.dataclass(frozen=True)
class Scored:
    """Scores of a run.

    Args:
        folder, which: whose weights.
        on: the split, or the file.
        scores: by name.
        metric: the main one of the task.
        baseline: the score of the best constant answer, where it is known.
        count, interval: of an accuracy, on how many answers, and its 95% interval.
        protocol: for texts, how they were cut, since a perplexity depends on it.
    """

    folder: str
    which: str
    on: str
    scores: dict[str, float]
    metric: str
    baseline: float | None = None
    protocol: str = ""
    count: int | None = None
    interval: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Predicted:
    """What ``predict_run`` wrote: the number of rows, the columns, the file."""

    rows: int
    columns: tuple[str, ...]
    path: str


def evaluate_run(
    folder: str | Path,
    split: str | None = None,
    *,
    data: str | Path | None = None,
    which: Literal["best", "last"] | None = None,
) -> Scored:
    """Score the run in ``folder``.

    Args:
        folder: of a run.
        split: of its own task; "test" if None, or the last there is.
        data: or a file in the same format as the training file, scored as a whole. With a split: the training file,
            moved to this place.
        which: the weights of its best evaluation, or its last ones; None: what its settings say.

    Example:
        >>> evaluate_run("no-such-run")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: no-such-run is not a run folder: it has no settings.json.
    """
    run = load_run(folder, which)
    settings, model = run.settings, run.model
    preparation = run.preparation if data is not None else None  # or an error: only a run on own data has one
    if preparation is not None and split is None:
        sequences = preparation.sequences(data)
        task = Arrays(preparation.spec(preparation.baseline(sequences)), {"data": sequences})
    else:
        task = run.task if data is None else run.task_in(data)
    on = (
        "data"
        if data is not None and split is None
        else split or ("test" if "test" in task.spec.splits else task.spec.splits[-1])
    )
    carry = settings.training.carry_state
    scores = evaluate(model, task, on, settings.training.batch, carry_state=carry)  # as in training: rows of a text
    protocol = getattr(task, "protocol", "") or getattr(settings.task, "protocol", "")
    protocol += ", state carried over" if carry and protocol else ""
    metric, baseline = task.spec.metric, task.spec.baseline
    if split is not None and split != "test" and isinstance(task, OwnTask):
        baseline = task.preparation.baseline(task.data[split])
    where = str(data) if on == "data" else f"{on} of {data}" if data is not None else on
    count = answers_in(task, on)
    interval = wilson(scores["accuracy"], count) if count and metric == "accuracy" else None
    return Scored(str(folder), run.which, where, scores, metric, baseline, protocol, count, interval)


def predict_run(
    folder: str | Path, data: str | Path, out: str | Path, *, which: Literal["best", "last"] | None = None
) -> Predicted:
    """Write the predictions of the run in ``folder`` for the sequences in ``data``: one row per sequence, in order.

    Args:
        folder: of a run that was trained on a file.
        data: a file in the same format as the training file; it needs no target.
        out: a .csv, .parquet or .npz file, which appears whole or not at all.
        which: the weights of its best evaluation, or its last ones; None: what its settings say.

    Example:
        >>> predict_run("no-such-run", "mine.csv", "out.txt")
        Traceback (most recent call last):
        holdfast.errors.SettingError: --out must end in .csv, .parquet or .npz; got out.txt.
    """
    out = Path(out)
    if out.suffix not in WRITERS:
        raise SettingError(f"--out must end in .csv, .parquet or .npz; got {out}.")
    run = load_run(folder, which)
    prepared, answers = run.outputs(data)
    ids, steps = list(prepared.ids), {}
    if run.preparation.kind == "tagging":
        lengths = [prepared.inputs.shape[1]] * len(prepared) if prepared.lengths is None else prepared.lengths.tolist()
        ids = [name for name, length in zip(ids, lengths, strict=True) for _ in range(length)]
        steps = {"step": [step for length in lengths for step in range(length)]}
    columns = {"sequence": ids, **steps, **_columns(run.preparation, answers)}
    write_atomically(out, WRITERS[out.suffix](columns))
    return Predicted(len(ids), tuple(columns), str(out))


def _columns(preparation: Any, answers: Tensor) -> dict[str, Any]:
    """Predictions, by the name of a column."""
    if not preparation.classes:
        numbers, prefix = preparation.answers(answers), "next " if preparation.kind == "next-step" else ""
        names = preparation.columns.features if preparation.kind == "next-step" else preparation.columns.target
        if len(names) != numbers.shape[1]:  # an array with several columns has one name
            names = tuple(f"{names[0] if len(names) == 1 else 'value'} {index}" for index in range(numbers.shape[1]))
        return {f"{prefix}{name}": numbers[:, index] for index, name in enumerate(names)}
    shares = torch.softmax(answers.double(), dim=1).numpy()
    named = {f"p({name})": shares[:, index] for index, name in enumerate(preparation.classes)}
    return {"prediction": preparation.answers(answers), **named}


def _csv(columns: dict[str, Any]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_plain(column) for column in columns.values()), strict=True))
    return text.getvalue().encode()


def _plain(column: Any) -> list[Any]:
    return [f"{value:.9g}" if isinstance(value, float) and math.isfinite(value) else value for value in list(column)]


def _parquet(columns: dict[str, Any]) -> bytes:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("Parquet files need pyarrow: pip install 'holdfast[data]'") from None
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({name: list(column) for name, column in columns.items()}), file)
    return file.getvalue()


def _npz(columns: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:  # as np.savez does, for which a column must not be called "file"
        for name, column in columns.items():
            with archive.open(f"{name}.npy", "w") as part:
                np.lib.format.write_array(part, np.asarray(column), allow_pickle=False)
    return file.getvalue()


WRITERS = {".csv": _csv, ".parquet": _parquet, ".npz": _npz}
