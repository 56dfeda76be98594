"""From a study to its result: runs × seeds × values tried, each in a folder of its own.

A finished run is never repeated. A finished attempt leaves ``measured.json`` in its folder; the study's
``result.json`` is assembled from them after every run, so a study that is killed, or divided among processes by
``only``, loses nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import CheckpointError, ConfigError, Interrupted
from holdfast.files import write_atomically
from holdfast.runs.environment import environment
from holdfast.runs.measured import Measured
from holdfast.runs.schema import listed, read_file, structured
from holdfast.studies.procedures import PROCEDURES
from holdfast.studies.report import write_report
from holdfast.studies.result import Attempt, SeedResult, StudyResult, read_result, write_result
from holdfast.studies.study import Run, Study, attempt_digest, matches, settings_digest

__all__ = ["run_study"]


def run_study(
    study: Study,
    scale: str,
    results: str | Path = "results",
    *,
    runs: str | Path = "runs",
    only: Sequence[str] | None = None,
    progress: bool = True,
) -> StudyResult:
    """Run the parts of a study that have no result at this scale yet, and write result, report and figures.

    Args:
        study: from ``load_study``.
        scale: one of its scales.
        results: where results go: ``<results>/<study>/<scale>/``.
        runs: where logs and checkpoints go: ``<runs>/<study>/<scale>/<run>/``.
        only: names or patterns of runs; the others keep their results.
        progress: show it.

    Raises:
        Interrupted: SIGINT or SIGTERM was received. The same call resumes.

    Example:
        >>> import tempfile
        >>> from holdfast.studies.study import Scale
        >>> tiny = {"task": {"name": "addition", "steps": 4, "validation": 8}, "train": {"updates": 1, "batch": 4}}
        >>> study, folder = Study("Tiny", run=(Run("a"),), scale={"small": Scale()}, defaults=tiny), tempfile.mkdtemp()
        >>> run_study(study, "small", folder, runs=folder, progress=False).values("a", "updates")
        [1]
    """
    folder, work = Path(results) / study.name / scale, Path(runs) / study.name / scale
    chosen, known = _chosen(study, scale, only), _known(study, scale, folder)
    try:
        for run in chosen:
            for seed in study.seeds(run, scale):
                if (run.name, seed) not in known:
                    _seed_result(study, scale, run, seed, work, progress=progress)
                    _write(study, scale, folder, work)
    except Interrupted as error:
        message = f"{error} To resume the study: holdfast study run {study.name} --scale {scale}"
        raise Interrupted(message, error.signal) from None
    result = _write(study, scale, folder, work)
    _copy_pictures(study, scale, chosen, folder, work)
    write_report(study, result, folder)
    return result


def _copy_pictures(study: Study, scale: str, runs: Sequence[Run], folder: Path, work: Path) -> None:
    """Pictures that procedures drew, ``picture-*.png``, beside the report as ``<run>-picture-*.png``."""
    for run in runs:
        for seed in study.seeds(run, scale)[:1]:  # a picture is of one network, not of a mean
            for value in study.values(run, scale):
                made = work / run.name / f"seed-{seed}-{attempt_digest(study, scale, run, seed, value)}"
                for picture in sorted(made.glob("picture-*.png")):
                    write_atomically(folder / f"{run.name}-{picture.name}", picture.read_bytes())


def _seed_result(
    study: Study, scale: str, run: Run, seed: int, work: Path, *, progress: bool = True, make: bool = True
) -> SeedResult | None:
    """Try the values in order until one is good enough. With ``make=False``, None if that needs another run."""
    attempts: list[Attempt] = []
    for value in study.values(run, scale):
        table, options = study.table(run, scale, seed, value), study.options(run, scale)
        folder = work / run.name / f"seed-{seed}-{attempt_digest(study, scale, run, seed, value)}"
        measured = _read_measured(folder / "measured.json")
        if measured is None:
            if not make:
                return None
            folder.mkdir(parents=True, exist_ok=True)
            tried = "" if value is None else f", {run.search.key if run.search else ''} = {value}"
            label = f"{run.name}, seed {seed}{tried}"
            measured = PROCEDURES[run.procedure](table, options, folder, progress=progress, label=label)
            write_result(folder / "measured.json", measured)
        attempts.append(Attempt(value, measured))
        if run.search and run.search.until.reached(measured.value(run.search.until.metric)):
            break
    return SeedResult(
        run=run.name,
        seed=seed,
        settings=settings_digest(study, scale, run, seed),
        attempts=tuple(attempts),
        chosen=_best(run, attempts),
        date=datetime.date.today().isoformat(),
        environment=environment(),
    )


def _best(run: Run, attempts: Sequence[Attempt]) -> int:
    """The attempt to report: the best by the metric of ``until``; one that diverged only if nothing else has one."""
    if run.search is None:
        return 0
    until = run.search.until
    sign = 1 if until.at_most is not None else -1

    def rank(index: int) -> tuple[bool, float]:
        value = attempts[index].measured.value(until.metric)
        return value is None, 0.0 if value is None else sign * value

    return min(range(len(attempts)), key=rank)


def _known(study: Study, scale: str, folder: Path) -> dict[tuple[str, int], SeedResult]:
    """What ``result.json`` has of this study as it now is, by run and seed."""
    result, known = read_result(folder / "result.json"), {}
    for run in study.runs_at(scale):
        for entry in result.of(run.name) if result else ():
            if entry.settings == settings_digest(study, scale, run, entry.seed):
                known[run.name, entry.seed] = entry
    return known


def _write(study: Study, scale: str, folder: Path, work: Path) -> StudyResult:
    """``result.json`` from all that has ended so far, by this process or another."""
    known, entries = _known(study, scale, folder), []
    for run in study.runs_at(scale):
        for seed in study.seeds(run, scale):
            entry = known.get((run.name, seed)) or _seed_result(study, scale, run, seed, work, make=False)
            entries += [entry] if entry is not None else []
    result = StudyResult(study.name, scale, tuple(entries))
    try:
        write_result(folder / "result.json", result)
    except OSError as error:
        raise CheckpointError(
            f"Could not write {folder / 'result.json'}: {error.strerror}. The runs are kept."
        ) from None
    return result


def _read_measured(path: Path) -> Measured | None:
    if not path.is_file():
        return None
    hint = "Delete it, and its run is measured again."
    try:
        return structured(Measured, read_file(path, hint), str(path))
    except ConfigError as error:
        raise error if hint in str(error) else ConfigError(f"{error} {hint}") from None


def _chosen(study: Study, scale: str, only: Sequence[str] | None) -> tuple[Run, ...]:
    runs = study.runs_at(scale)
    for pattern in only or ():
        if not any(matches(run.name, (pattern,)) for run in runs):
            known = listed(run.name for run in runs)
            raise ConfigError(f"--only {pattern} matches no run of {study.name} at {scale}; known: {known}.")
    return tuple(run for run in runs if only is None or matches(run.name, only))
