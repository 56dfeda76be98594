"""Several cells on the same task, trained one after the other: a table, and a plot of their curves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import ConfigError, Interrupted
from holdfast.runs.curves import Line, draw_lines
from holdfast.runs.environment import environment
from holdfast.runs.intervals import answers_in
from holdfast.runs.load import load_run
from holdfast.runs.measured import Measured, measure
from holdfast.runs.settings import RunSettings
from holdfast.tasks import Task
from holdfast.train.loop import evaluate
from holdfast.train.metrics import HIGHER_IS_BETTER

__all__ = ["Compared", "Comparison", "compare"]


@dataclasses.dataclass(frozen=True)
class Compared:
    """One row.

    Args:
        name: of the cell.
        parameters: trainable numbers of the whole network.
        lr: learning rate at the start.
        updates, seconds: how long it was trained.
        score: of its best weights; None if it has none.
        status, reason: how it ended.
        folder: of the run.
    """

    name: str
    parameters: int
    lr: float
    updates: int
    seconds: float
    score: float | None
    status: str
    reason: str
    folder: str


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The rows, and what their scores mean.

    Args:
        split, metric: what the scores are of.
        baseline: the score of the best constant answer, where it is known.
        rows: in the order they were trained.
        figure: the plot, or None without evaluations.
        setting: all of it in one line.
        count: on how many answers an accuracy was counted, where that is known.
    """

    split: str
    metric: str
    baseline: float | None
    rows: tuple[Compared, ...]
    figure: str | None
    setting: str
    count: int | None = None


def compare(
    settings: Sequence[RunSettings],
    folder: str | Path,
    *,
    tasks: Sequence[Task] = (),
    figure: str | Path | None = None,
    progress: bool = True,
) -> Comparison:
    """Train one after the other, each in a folder named after its cell in ``folder``; finished runs are not repeated.

    Args:
        settings: of the same task, each with a cell of its own.
        folder: of all the runs.
        tasks: those of the settings, if they have been loaded before.
        figure: file of the plot; ``comparison.png`` in ``folder`` if None.
        progress: of each run.

    Example:
        >>> import tempfile
        >>> from holdfast.runs.request import Request, choose
        >>> options = {"task.steps": 4, "task.test": 8, "train.updates": 2, "cell.hidden_size": 4, "train.batch": 4}
        >>> chosen = choose(Request("addition", cells=("sgornn", "gru"), options=options))
        >>> [row.name for row in compare(chosen.settings, tempfile.mkdtemp(), progress=False).rows]
        ['sgornn', 'gru']
    """
    folder, names = Path(folder), [one.network.name for one in settings]
    if len(set(names)) < len(names):
        raise ConfigError(f"A comparison needs different cells, got {', '.join(names)}.")
    tasks = tasks or [one.task.load() for one in settings]
    rows, lines, split = [], [], ""
    for one, task in zip(settings, tasks, strict=True):
        name, place, training = one.network.name, folder / one.network.name, one.training
        try:
            found = measure(one, place, task=task, progress=progress, label=name)
        except Interrupted as error:
            raise Interrupted(f"{error} The same command again resumes all cells.", error.signal) from None
        split = "test" if "test" in task.spec.splits else training.monitored
        score = None
        if found.best:  # else it diverged before the first evaluation
            model = load_run(place, None, task).model
            scores = evaluate(model, task, split, settings[0].training.batch, carry_state=training.carry_state)
            score = scores[task.spec.metric]
        rows.append(
            Compared(
                name,
                found.parameters or 0,
                training.lr,
                found.updates,
                found.seconds,
                score,
                found.status,
                found.reason,
                str(place),
            )
        )
        lines.append(_line(name, found, f"{training.monitored}.{task.spec.metric}"))
    first, spec = settings[0].training, tasks[0].spec
    metric = {"mse": "mean squared error", "bits": "bits per symbol"}.get(spec.metric, spec.metric)
    picture = draw_lines(
        lines,
        Path(figure) if figure else folder / "comparison.png",
        title=f"{settings[0].task_name}, {first.batch} sequences per update, seed {first.seed}",
        x_label="updates",
        y_label=f"{first.monitored} {metric}",
        log=spec.metric not in HIGHER_IS_BETTER,
        baseline=spec.baseline,
        note=f"{settings[0].task_name}: one run each",
    )
    shown = None if picture is None else str(picture)
    count = answers_in(tasks[0], split) if spec.metric == "accuracy" else None
    return Comparison(split, spec.metric, spec.baseline, tuple(rows), shown, _setting(settings, rows), count)


def _line(name: str, found: Measured, metric: str) -> Line:
    """The monitored metric over the updates; a logarithmic axis has no place for values of 0 and below."""
    pairs = zip(found.curve.get("update", ()), found.curve.get(metric, ()), strict=False)
    least = -math.inf if metric.rpartition(".")[2] in HIGHER_IS_BETTER else 0.0
    points = [(x, y) for x, y in pairs if x is not None and y is not None and math.isfinite(y) and y > least]
    crosses = points[-1:] if found.status == "diverged" else []
    return Line(name, [x for x, _ in points], [y for _, y in points], [0.0] * len(points), crosses)


def _setting(settings: Sequence[RunSettings], rows: Sequence[Compared]) -> str:
    first = settings[0]
    sizes = ", ".join(dict.fromkeys(f"{one.network.hidden_size} units" for one in settings))
    optimisers = ", ".join(dict.fromkeys(one.training.optimiser for one in settings))
    steps = getattr(first.task, "steps", None)
    length = f"T = {steps}, " if steps is not None else ""
    updates = " and ".join(dict.fromkeys(f"{row.updates}" for row in rows))
    seconds = sum(row.seconds for row in rows)
    return (
        f"{length}{updates} updates of batch {first.training.batch}, {sizes}, {optimisers}, "
        f"seed {first.training.seed}; "
        f"{seconds:.0f} s in all on {environment().sentence}"
    )
