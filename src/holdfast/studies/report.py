"""A result beside the paper's, as Markdown. Claims that are not met or undecided stay in the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.errors import CheckpointError
from holdfast.files import write_atomically
from holdfast.studies.claims import STATUSES, Judged, judge, shown, summary
from holdfast.studies.figures import draw_all
from holdfast.studies.result import SeedResult, StudyResult, read_result, result_folder
from holdfast.studies.study import Run, Study, settings_digest

__all__ = ["Row", "overview", "overview_table", "report", "write_report"]

_RARE = {"group": ("",), "CPU seconds": ("",), "rewinds": ("",), "skipped": ("", "0")}
"""Columns of the table of runs that are left out if all cells are such; the first comes first, the others last."""


def report(study: Study, result: StudyResult, figures: Sequence[str | Path] = ()) -> str:
    """The report of a study at a scale: claims, runs, figures, and where they were measured.

    Args:
        study: what was run.
        result: its result.
        figures: picture files to link, beside the page.

    Example:
        >>> from holdfast.studies.study import Scale
        >>> study = Study("Tiny", source="S3, §3.1", run=(Run("a"),), scale={"small": Scale()}, name="s3/tiny")
        >>> print(report(study, StudyResult("s3/tiny", "small")).splitlines()[0])
        # Tiny
    """
    parts = [f"# {study.title}", _head(study, result)]
    if study.claim:
        parts += ["## Claims", _claims(judge(study, result, result.scale))]
    parts += ["## Runs", _runs(study, result)]
    if searched := _searched(study, result):
        parts += ["### What was tried", searched]
    if ended := _ended(study, result):
        parts += ["### Runs that ended early", ended]
    if figures:
        titles = {figure.name: figure.title for figure in study.figure}
        links = [f"![{titles.get(Path(path).stem, Path(path).stem)}]({Path(path).name})" for path in figures]
        parts += ["## Figures", "\n\n".join(links)]
    parts += ["## Setting", _setting(study, result)]
    if study.note:
        parts += ["## What differs from print", study.note.strip()]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_report(study: Study, result: StudyResult, folder: str | Path) -> Path:
    """Write ``report.md`` and its figures into ``folder``.

    Example:
        >>> import tempfile
        >>> write_report(Study("Tiny"), StudyResult("tiny", "small"), tempfile.mkdtemp()).name
        'report.md'
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figures = draw_all(study, result, folder)
        figures += [path for run in study.run for path in sorted(folder.glob(f"{run.name}-picture-*.png"))]
        write_atomically(folder / "report.md", report(study, result, figures))
    except OSError as error:
        raise CheckpointError(f"Could not write the report into {folder}: {error.strerror}.") from None
    return folder / "report.md"


@dataclasses.dataclass(frozen=True)
class Row:
    """A claim in the table over all studies.

    Args:
        study, claim, paper, ours, scale: what its columns say.
        status: "met", "not met", "undecided" or "not run".
        verdict: the same as Markdown, with the reason if it is undecided.
    """

    study: str
    claim: str
    paper: str
    ours: str
    scale: str
    status: str
    verdict: str


def overview(studies: Iterable[Study], results: str | Path | None = None) -> list[Row]:
    """One row per claim: each study at its largest scale with a result; scales are in the file's order, small first.

    Example:
        >>> from holdfast.studies.study import Claim, Scale
        >>> claim = Claim("it has 1,411 parameters", run="a", metric="parameters", equals=1411, paper="1,411")
        >>> study = Study("Tiny", run=(Run("a"),), scale={"small": Scale()}, claim=(claim,), name="s3/tiny")
        >>> [(row.claim, row.status) for row in overview([study], "no-such-folder")]
        [('it has 1,411 parameters', 'not run')]
    """
    rows = []
    for study in studies:
        folders = {name: result_folder(study.name, name, results) for name in study.scale}
        at = [(name, read_result(folder / "result.json")) for name, folder in folders.items()]
        there = [(name, result) for name, result in at if result is not None and name != "smoke"]
        scale, result = there[-1] if there else ("", None)
        for judged in judge(study, result, scale):
            paper = shown(judged.claim.paper, judged.claim.metric)
            rows.append(
                Row(study.name, judged.claim.text, paper, judged.text, scale or "-", judged.status, judged.verdict)
            )
    return rows


def overview_table(rows: Sequence[Row]) -> str:
    """``overview`` as Markdown, ready for a README.

    Example:
        >>> print(overview_table([Row("s3/tiny", "it is small", "1,411", "1,411 (n = 1)", "small", "met", "met")]))
        | study | claim | paper | ours, mean ± standard deviation (seeds) | scale | |
        | --- | --- | --- | --- | --- | --- |
        | s3/tiny | it is small | 1,411 | 1,411 (n = 1) | small | met |
    """
    head = ["study", "claim", "paper", "ours, mean ± standard deviation (seeds)", "scale", ""]
    return _table(head, [[row.study, row.claim, row.paper, row.ours, row.scale, row.verdict] for row in rows])


def _head(study: Study, result: StudyResult) -> str:
    judged = judge(study, result, result.scale)
    counts = {status: sum(it.status == status for it in judged) for status in STATUSES}
    sentence = f"Scale **{result.scale}**. Claims: {', '.join(f'{n} {status}' for status, n in counts.items() if n)}."
    note = study.scale[result.scale].note.strip() if result.scale in study.scale else ""
    return "\n\n".join(part for part in (study.source, sentence if judged else "", note) if part)


def _claims(judged: Sequence[Judged]) -> str:
    head = ["claim", "paper", "ours, mean ± standard deviation (seeds)", "scale", ""]
    rows = [[it.claim.text, shown(it.claim.paper, it.claim.metric), it.text, it.scale, it.verdict] for it in judged]
    few = [f'- Few seeds decide "{it.claim.text}": {it.few}' for it in judged if it.few]
    return "\n\n".join([_table(head, rows), "\n".join(few)] if few else [_table(head, rows)])


def _runs(study: Study, result: StudyResult) -> str:
    """One row per run, in the file's order."""
    rows = []
    for run in study.run:
        entries, metric = result.of(run.name), _metric(study, run)
        if not entries:
            rows.append([run.group, run.title, "", metric, "not run", _paper(run, metric), *[""] * 6])
            continue
        values = summary(result.values(run.name, metric, study.pick)) if metric else None
        rows.append([
            run.group,
            run.title,
            _counted(entries),
            metric,
            values.text(metric) if values else "",
            _paper(run, metric),
            _statuses(entries),
            _range([entry.measured.updates for entry in entries]),
            _range([round(entry.value("seconds") or 0) for entry in entries]),
            _range([round(spent) for entry in entries if (spent := entry.value("cpu_seconds")) is not None]),
            _rewinds(entries),
            _range(_last(entries, "skipped")),
        ])  # fmt: skip
    pick = "at the best evaluation" if study.pick == "best" else "at the end"
    head = ["group", "run", "parameters", "metric", f"ours, {pick}", "paper", "ended", "updates", "seconds"]
    head += list(_RARE)[1:]
    used = [
        column
        for column, name in enumerate(head)
        if name not in _RARE or any(row[column] not in _RARE[name] for row in rows)
    ]
    return _table([head[column] for column in used], [[row[column] for column in used] for row in rows])


def _metric(study: Study, run: Run) -> str:
    return study.metric or next(iter(run.paper), "") or (run.search.until.metric if run.search else "")


def _paper(run: Run, metric: str) -> str:
    return shown(run.paper.get(metric, ""), metric)


def _counted(entries: Sequence[SeedResult]) -> str:
    counts = {(entry.measured.parameters, entry.measured.cell_parameters) for entry in entries}
    texts = [f"{whole:,} ({cell or 0:,} in the cell)" for whole, cell in sorted(counts, key=str) if whole is not None]
    return ", ".join(texts)


def _statuses(entries: Sequence[SeedResult]) -> str:
    statuses = [entry.measured.status for entry in entries]
    texts = [(status, statuses.count(status)) for status in dict.fromkeys(statuses)]
    return texts[0][0] if len(texts) == 1 else ", ".join(f"{count} {status}" for status, count in texts)


def _rewinds(entries: Sequence[SeedResult]) -> str:
    """How often ``spikes = "rewind"`` put earlier weights back; by the last line of the log in older results."""
    known = [[it.measured.rewinds] if it.measured.rewinds is not None else _last([it], "rewinds") for it in entries]
    return _range([count for counts in known for count in counts])


def _last(entries: Sequence[SeedResult], count: str) -> list[int]:
    """A count in the last line of each log that has it."""
    counts = [entry.measured.curve.get(count, (None,))[-1] for entry in entries]
    return [round(count) for count in counts if count is not None]


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _searched(study: Study, result: StudyResult) -> str:
    rows = []
    for run in study.run:
        for entry in result.of(run.name):
            if run.search is None:
                continue
            metric = run.search.until.metric
            for index, attempt in enumerate(entry.attempts):
                measured = attempt.measured
                value = measured.value(metric)
                rows.append([
                    run.name,
                    str(entry.seed),
                    f"{run.search.key} = {attempt.value}",
                    "none" if value is None else shown(value, metric),
                    measured.status,
                    f"{measured.updates:,}",
                    "reported" if index == entry.chosen else "",
                ])  # fmt: skip
    return _table(["run", "seed", "tried", "best", "ended", "updates", ""], rows) if rows else ""


def _ended(study: Study, result: StudyResult) -> str:
    reasons = []
    for run in study.run:
        for entry in result.of(run.name):
            for attempt in entry.attempts:
                if attempt.measured.reason:
                    tried = f", {run.search.key} = {attempt.value}" if run.search else ""
                    reasons.append(f"- {run.name}, seed {entry.seed}{tried}: {attempt.measured.reason}")
    return "\n".join(reasons)


def _setting(study: Study, result: StudyResult) -> str:
    lines = [f"- {sentence}" for sentence in dict.fromkeys(it.environment.sentence for it in result.results)]
    dates = sorted({entry.date for entry in result.results})
    if dates:
        lines.append(f"- run on {dates[0]}" if len(dates) == 1 else f"- run from {dates[0]} to {dates[-1]}")
    seeds = {run.name: [entry.seed for entry in result.of(run.name)] for run in study.run}
    for numbers in dict.fromkeys(tuple(it) for it in seeds.values() if it):
        names = [name for name, it in seeds.items() if tuple(it) == numbers]
        everyone = len(names) == sum(bool(it) for it in seeds.values())
        lines.append(f"- seeds {', '.join(map(str, numbers))}" + ("" if everyone else f" of {', '.join(names)}"))
    lines.append(f"- {_compute(result.results)}")
    lines.append(f"- again: `holdfast study run {study.name} --scale {result.scale}`")
    stale = [
        run.name
        for run in study.run
        if any(it.settings != settings_digest(study, result.scale, run, it.seed) for it in result.of(run.name))
    ]
    if stale:
        lines.append(f"- the study file has changed since these were run: {', '.join(stale)}")
    return "\n".join(lines)


def _compute(entries: Sequence[SeedResult]) -> str:
    """Hours by the clock, and those of the processor as far as they are known."""
    times = [(entry.value("seconds") or 0.0, entry.value("cpu_seconds")) for entry in entries]
    clock, known = sum(passed for passed, _ in times) / 3600, [spent for _, spent in times if spent is not None]
    text = f"{clock:.2f} hours of training in all by the clock"
    if not known:
        return f"{text}; CPU time was not recorded"
    of = "" if len(known) == len(times) else f" in {len(known)} of {len(times)} results; the others did not record it"
    return f"{text}, {sum(known) / 3600:.2f} hours of CPU time{of}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[_cell(it) for it in row] for row in (head, ["---"] * len(head), *rows)]
    return "\n".join("|" + "|".join(f" {it} " if it else " " for it in line) + "|" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
