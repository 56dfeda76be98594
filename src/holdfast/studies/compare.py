"""Several runs side by side: the same task, one network after the other, a table and a picture of their curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import ConfigError, Interrupted
from holdfast.studies.config import Figure, Run, RunSettings, Study, to_table
from holdfast.studies.environment import environment
from holdfast.studies.figures import draw
from holdfast.studies.procedures import train
from holdfast.studies.result import Attempt, Measured, SeedResult, StudyResult
from holdfast.studies.run import load_run
from holdfast.tasks import Spec
from holdfast.train.loop import evaluate

__all__ = ["Compared", "Comparison", "compare"]


@dataclasses.dataclass(frozen=True)
class Compared:
    """One row.

    Args:
        name: of the cell.
        parameters: free numbers of the whole network.
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
    """The rows, and what their scores are.

    Args:
        split, metric: what the scores are of.
        baseline: the best constant answer's, where it is known.
        rows: in the order they were trained.
        figure: the picture, or None without evaluations.
        setting: all of it in a line.
    """

    split: str
    metric: str
    baseline: float | None
    rows: tuple[Compared, ...]
    figure: str | None
    setting: str


def compare(
    settings: Sequence[RunSettings], folder: str | Path, *, figure: str | Path | None = None, progress: bool = True
) -> Comparison:
    """Train one after the other, each in a folder named for its cell below ``folder``; what has ended is not run again.

    Args:
        settings: of the same task, each with a cell of its own.
        folder: of all the runs.
        figure: file of the picture; ``comparison.png`` in ``folder`` if None.
        progress: of each run.

    Example:
        >>> import tempfile
        >>> from holdfast.studies.request import Request, choose
        >>> options = {"task.steps": 4, "task.test": 8, "train.updates": 2, "cell.hidden_size": 4, "train.batch": 4}
        >>> chosen = choose(Request("addition", cells=("sgornn", "gru"), options=options))
        >>> [row.name for row in compare(chosen.settings, tempfile.mkdtemp(), progress=False).rows]
        ['sgornn', 'gru']
    """
    folder, names = Path(folder), [one.network.name for one in settings]
    if len(set(names)) < len(names):
        raise ConfigError(f"A comparison is of different cells; got {', '.join(names)}.")
    rows, curves, spec, split = [], [], None, ""
    for one in settings:
        name, place = one.network.name, folder / one.network.name
        try:
            measured = train(to_table(one), {}, place, progress=progress, label=name)
        except Interrupted as error:
            raise Interrupted(f"{error} All cells go on with the same command as before.", error.signal) from None
        curves.append(measured)
        spec, split, score = _score(one, place, measured, settings[0].training.batch)
        rows.append(
            Compared(
                name,
                measured.parameters or 0,
                one.training.lr,
                measured.updates,
                measured.seconds,
                score,
                measured.status,
                measured.reason,
                str(place),
            )
        )
    assert spec is not None
    picture = _draw(settings, curves, spec, Path(figure) if figure else folder / "comparison.png")
    return Comparison(split, spec.metric, spec.baseline, tuple(rows), picture, _setting(settings, rows))


def _score(settings: RunSettings, folder: Path, measured: Measured, batch: int) -> tuple[Spec, str, float | None]:
    """The best weights on the test split, or on the one that training was watched by where there is none."""
    if measured.best:
        _, model, task = load_run(folder, "best")
    else:  # diverged before the first evaluation
        model, task = None, settings.task.load()
    split = "test" if "test" in task.spec.splits else _monitor(settings)
    if model is None:
        return task.spec, split, None
    scores = evaluate(model, task, split, batch, carry_state=settings.training.carry_state)
    return task.spec, split, scores[task.spec.metric]


def _draw(settings: Sequence[RunSettings], curves: Sequence[Measured], spec: Spec, path: Path) -> str | None:
    """The curves as a figure of a study with a run a cell."""
    seed, here = settings[0].training.seed, environment()
    monitor = _monitor(settings[0])
    what = {"mse": "mean squared error", "bits": "bits a symbol"}.get(spec.metric, spec.metric)
    figure = Figure(
        path.stem,
        f"{settings[0].task_name}, {settings[0].training.batch} sequences an update, seed {seed}",
        f"{monitor}.{spec.metric}",
        log=spec.metric not in ("accuracy",),
        baseline=spec.baseline,
        y_label=f"{monitor} {what}",
        x_label="updates",
    )
    runs = tuple(Run(one.network.name, label=one.network.name) for one in settings)
    results = tuple(
        SeedResult(run.name, seed, "", (Attempt(None, measured),), 0, "", here)
        for run, measured in zip(runs, curves, strict=True)
    )
    study = Study(figure.title, run=runs, figure=(figure,), name=settings[0].task_name)
    drawn = draw(study, StudyResult(study.name, "one run each", results), figure, path)
    return None if drawn is None else str(drawn)


def _monitor(settings: RunSettings) -> str:
    on = settings.training.evaluate_on
    return settings.training.monitor or ("validation" if "validation" in on else on[0])


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
