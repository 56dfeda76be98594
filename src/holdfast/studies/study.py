"""A study: a TOML file with what to run and what the paper reports.

It has defaults for the tables ``task``, ``cell`` and ``train`` of a run, runs that override some keys, scales that
override others, and the paper's claims:

    settings = defaults ← run.set ← scale.set ← scale.each.<run>.set ← value tried ← seed      (1)
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from holdfast.errors import ConfigError, SettingError
from holdfast.files import shipped_folder
from holdfast.runs.schema import UNWRITTEN, key, listed, read_file, structured
from holdfast.runs.settings import merged, overridden, run_settings
from holdfast.studies.procedures import PROCEDURES
from holdfast.train.metrics import HIGHER_IS_BETTER
from holdfast.train.settings import check_range

__all__ = [
    "Claim",
    "Each",
    "Figure",
    "Run",
    "Scale",
    "Study",
    "Try",
    "Until",
    "attempt_digest",
    "find_studies",
    "find_study",
    "load_study",
    "matches",
    "settings_digest",
    "studies_folder",
]


@dataclasses.dataclass(frozen=True)
class Until:
    """When a tried value is good enough: a metric and its bound, as in ``Claim``."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise SettingError("until needs either at_most or at_least.")

    def reached(self, value: float | None) -> bool:
        """Whether ``value`` is good enough; a missing one is not."""
        if value is None:
            return False
        return value <= self.at_most if self.at_most is not None else value >= self.at_least  # pyright: ignore


@dataclasses.dataclass(frozen=True)
class Try:
    """Values of one key, tried in order until one is good enough; the best is reported beside the others.

    Args:
        key: dotted, ``"train.lr"``.
        values: in the order they are tried.
        until: when to stop.

    Example:
        >>> Try("train.lr", (1e-2, 1e-3), Until("validation.mse", at_most=0.04)).values[0]
        0.01
    """

    key: str
    values: tuple[Any, ...]
    until: Until

    def __post_init__(self) -> None:
        if not self.values:
            raise SettingError("try needs at least one entry in values.")


@dataclasses.dataclass(frozen=True)
class Run:
    """One row of a table or one line of a figure.

    Args:
        name: unique in the study, and a folder's name.
        label: in tables and legends; ``name`` if empty.
        group: runs of one group stand together.
        procedure: "train", or the name of an analysis in ``holdfast.studies.PROCEDURES``; ``options`` goes to it.
        set: what differs from the defaults, (1).
        search: ``try`` in a file.
        paper: the paper's values by metric, numbers or words, printed beside ours.

    Example:
        >>> Run("sgornn", set={"cell.name": "sgornn"}, paper={"test.accuracy": 0.94}).title
        'sgornn'
    """

    name: str
    label: str = ""
    group: str = ""
    procedure: str = "train"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    set: dict[str, Any] = dataclasses.field(default_factory=dict)
    search: Try | None = dataclasses.field(default=None, metadata=key("try"))
    paper: dict[str, float | str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name(self.name)

    @property
    def title(self) -> str:
        """What tables and legends call it."""
        return self.label or self.name


@dataclasses.dataclass(frozen=True)
class Each:
    """What a scale changes for some runs only.

    Args:
        set: as in ``Scale``.
        options: for a procedure that is not a training.
        seeds: instead of the scale's.
        tries: at most this many of the values of ``try``.
    """

    set: dict[str, Any] = dataclasses.field(default_factory=dict)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] | None = None
    tries: int | None = None

    def __post_init__(self) -> None:
        _check_layer(self)


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much of a study is run.

    Args:
        set: what differs from the runs' own settings.
        options: for procedures that are not trainings.
        seeds: one run for each.
        runs: names or patterns such as ``"sgornn-*"``; all if left out.
        tries: at most this many of the values of ``try``.
        each: by a run's name or a pattern, what differs for it; later ones win.
        note: what this scale leaves out of the paper's, and what follows from it.

    Example:
        >>> Scale(set={"train.updates": 100}, seeds=(0, 1), each={"lstm*": Each(seeds=(0,))}).each["lstm*"].seeds
        (0,)
    """

    set: dict[str, Any] = dataclasses.field(default_factory=dict)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    runs: tuple[str, ...] = ("*",)
    tries: int | None = None
    each: dict[str, Each] = dataclasses.field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        _check_layer(self)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper that a run can confirm or not.

    Args:
        text: the claim, in our words.
        run: whose metric.
        metric: ``"validation.mse"``; a difference, ``"train.accuracy - test.accuracy"``; "parameters",
            "cell_parameters", "seconds"; or "diverged", the share of trainings with a non-finite loss or gradient.
        pick: "best": at the evaluation whose monitored metric is best; "last": at the end.
        at_most, at_least, equals: the bound on the mean over seeds; the first two together are a range.
        than, better_by: or a comparison: at least this much better than another run; below 0: worse by no more.
        better: "lower" or "higher"; follows from the metric's name if left out.
        paper: what the paper reports.
        scales: at which the claim is judged; at others it is *not run*.
        of: on how many answers an accuracy was counted, where the settings do not say: ``claims.answer_count``. A
            smaller difference than its standard error is *undecided*.
        few: why fewer than three seeds decide the claim; without a reason it is *undecided* then.

    Example:
        >>> Claim("SGORNN is better", run="sgornn", than="lstm", metric="test.accuracy").lower_is_better
        False
    """

    text: str
    run: str
    metric: str
    pick: Literal["best", "last"] = "best"
    at_most: float | None = None
    at_least: float | None = None
    equals: float | None = None
    than: str | None = None
    better_by: float = 0.0
    better: Literal["lower", "higher"] | None = None
    paper: float | str = ""
    scales: tuple[str, ...] | None = None
    of: int = 0
    few: str = ""

    def __post_init__(self) -> None:
        if self.of < 0:
            raise SettingError(f"of is a number of answers, at least 1, got {self.of}.")
        bounded = self.at_most is not None or self.at_least is not None
        if bounded + (self.equals is not None) + (self.than is not None) != 1:
            raise SettingError("a claim needs at_most, at_least or both; or equals; or than.")

    @property
    def lower_is_better(self) -> bool:
        """High accuracies are good; low errors, losses and gaps are."""
        if self.better is not None:
            return self.better == "lower"
        return " - " in self.metric or not self.metric.endswith((*HIGHER_IS_BETTER, "r2"))


@dataclasses.dataclass(frozen=True)
class Figure:
    """A picture of curves: the mean over seeds, and the standard deviation as a band.

    Args:
        name: the file's.
        title: above it.
        kind: "curves".
        x: "update", "epoch", or what else a curve has.
        y: a metric, or a difference of two.
        runs: names or patterns; one line for each.
        log: a logarithmic y axis.
        baseline: a dashed line.
        y_label, x_label: ``y`` and ``x`` if left out.
        y_limits: where the y axis ends; by the curves if left out.

    Example:
        >>> Figure("figure-4", "Error over time", y="validation.mse", log=True).x
        'update'
    """

    name: str
    title: str
    y: str
    kind: Literal["curves"] = "curves"
    x: str = "update"
    runs: tuple[str, ...] = ("*",)
    log: bool = False
    baseline: float | None = None
    y_label: str = ""
    x_label: str = ""
    y_limits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)


@dataclasses.dataclass(frozen=True)
class Study:
    """A table or a figure of a paper: what is run, and what the paper reports.

    Args:
        title, source: what it reproduces, and where that is printed.
        note: what differs from print and why.
        defaults: settings that every run starts from.
        run, scale, claim, figure: its parts.
        sweep: ranges of a search, read by ``holdfast.studies.sweep``.
        metric: what the table of runs shows; the one a run's ``paper`` names, if left out.
        pick: "best" or "last", as in ``Claim``, for that table.
        name: ``<paper>/<table>``, from the file's place.

    Example:
        >>> study = Study("Tiny", run=(Run("a"), Run("b")), scale={"small": Scale(runs=("a",), seeds=(0, 1))})
        >>> [run.name for run in study.runs_at("small")], study.seeds(study.run[0], "small")
        (['a'], (0, 1))
    """

    title: str
    source: str = ""
    note: str = ""
    metric: str = ""
    pick: Literal["best", "last"] = "best"
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    run: tuple[Run, ...] = ()
    scale: dict[str, Scale] = dataclasses.field(default_factory=dict)
    claim: tuple[Claim, ...] = ()
    figure: tuple[Figure, ...] = ()
    sweep: dict[str, Any] = dataclasses.field(default_factory=dict)
    name: str = dataclasses.field(default="study", metadata=UNWRITTEN)

    def __post_init__(self) -> None:
        names = [run.name for run in self.run]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SettingError(f"two runs are named {twice[0]!r}; names must be unique.")
        for claim in self.claim:
            for name in (claim.run, claim.than):
                if name is not None and name not in names:
                    raise SettingError(
                        f"the claim {claim.text!r} names an unknown run {name!r}; known: {listed(names)}."
                    )
            for name in claim.scales or ():
                self.at(name)
        patterns = [pattern for figure in self.figure for pattern in figure.runs]
        for scale in self.scale.values():
            patterns += [*scale.runs, *scale.each]
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                raise SettingError(f"no run matches {pattern!r}; known: {listed(names)}.")

    def at(self, scale: str) -> Scale:
        """The scale of that name."""
        if scale not in self.scale:
            raise ConfigError(f"{self.name} has no scale {scale!r}; known: {listed(self.scale)}.")
        return self.scale[scale]

    def runs_at(self, scale: str) -> tuple[Run, ...]:
        """The runs of a scale, in the file's order."""
        return tuple(run for run in self.run if matches(run.name, self.at(scale).runs))

    def seeds(self, run: Run, scale: str) -> tuple[int, ...]:
        """The seeds of a run at a scale."""
        return [layer.seeds for layer in self._layers(run, scale) if layer.seeds is not None][-1]

    def values(self, run: Run, scale: str) -> tuple[Any, ...]:
        """The values of ``try`` that a scale allows; one None without a ``try``."""
        limits = [layer.tries for layer in self._layers(run, scale) if layer.tries is not None]
        return (None,) if run.search is None else run.search.values[: limits[-1] if limits else None]

    def options(self, run: Run, scale: str) -> dict[str, Any]:
        """What a procedure gets besides the settings."""
        return functools.reduce(merged, (layer.options for layer in self._layers(run, scale)), run.options)

    def table(self, run: Run, scale: str, seed: int, value: Any = None) -> dict[str, Any]:
        """(1), as tables."""
        changes = [run.set, *(layer.set for layer in self._layers(run, scale))]
        if value is not None and run.search is not None:
            changes.append({run.search.key: value})
        table = functools.reduce(overridden, changes, self.defaults)
        return overridden(table, {"train.seed": seed}) if "train" in table or run.procedure == "train" else table

    def _layers(self, run: Run, scale: str) -> list[Scale | Each]:
        """The scale and what it changes for this run; later ones win."""
        return [self.at(scale), *(each for name, each in self.at(scale).each.items() if matches(run.name, (name,)))]


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a run's name is one of these names or patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def settings_digest(study: Study, scale: str, run: Run, seed: int) -> str:
    """A digest of everything that decides the result of a run, and of nothing else.

    Example:
        >>> study = Study("Tiny", run=(Run("a"),), scale={"small": Scale()})
        >>> settings_digest(study, "small", study.run[0], 0) != settings_digest(study, "small", study.run[0], 1)
        True
    """
    parts = [attempt_digest(study, scale, run, seed, value) for value in study.values(run, scale)]
    until = run.search and vars(run.search.until)
    return _digest([parts, until] if until else parts)


def attempt_digest(study: Study, scale: str, run: Run, seed: int, value: Any) -> str:
    """A digest of one attempt of a run: the settings with one value of ``try``, and the seed."""
    options = study.options(run, scale)
    return _digest([run.procedure, study.table(run, scale, seed, value), options, seed])


def _digest(node: Any) -> str:
    return hashlib.sha256(json.dumps(node, sort_keys=True, default=str).encode()).hexdigest()[:10]


def load_study(path: str | Path, root: str | Path | None = None) -> Study:
    r"""The study in a TOML file, with the settings of every run at every scale checked.

    Args:
        path: the file.
        root: the folder that the study's name is relative to; by default the ``studies`` above the file, or its own.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "tiny.toml"
        >>> _ = path.write_text("title = 'Tiny'\n[[run]]\nname = 'a'\nst = {}\n")
        >>> load_study(path)
        Traceback (most recent call last):
        holdfast.errors.ConfigError: tiny.toml: unknown key 'st' in run[0]; known: group, label, name, ..., try.
    """
    path = Path(path)
    study = dataclasses.replace(structured(Study, read_file(path), path.name), name=_name(path, root))
    _check_runs(study, path.name)
    return study


def studies_folder(root: str | Path | None = None) -> Path:
    """``root``, or ``studies`` in the current folder, or the studies that come with Holdfast."""
    if root is not None:
        return Path(root)
    return here if (here := Path("studies")).is_dir() else shipped_folder("studies")


def find_studies(root: str | Path | None = None) -> list[Path]:
    """The study files in ``studies_folder(root)`` and below, sorted.

    Example:
        >>> find_studies("no-such-folder")
        []
    """
    return sorted(path for path in studies_folder(root).rglob("*.toml") if path.is_file())


def find_study(name: str, root: str | Path | None = None) -> Study:
    """The study of that name in ``studies_folder(root)``, or in the file of that path.

    Example:
        >>> find_study("s9/nothing", "no-such-folder")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: There is no study 's9/nothing' in no-such-folder, and no such file; known: none.
    """
    root = studies_folder(root)
    if (inside := root / f"{name}.toml").is_file():
        return load_study(inside, root)
    if (path := Path(name)).suffix == ".toml" and path.is_file():
        return load_study(path)
    known = [_name(path, root) for path in find_studies(root)]
    raise ConfigError(f"There is no study {name!r} in {root}, and no such file; known: {listed(known)}.")


def _check_runs(study: Study, source: str) -> None:
    for run in study.run:
        if run.procedure not in PROCEDURES:
            known = listed(sorted(PROCEDURES))
            raise ConfigError(f"{source}: run {run.name}: unknown procedure {run.procedure!r}; known: {known}.")
        if run.procedure != "train":
            continue
        for scale in study.scale:
            if run in study.runs_at(scale):
                for value in study.values(run, scale):
                    seed = study.seeds(run, scale)[0]
                    run_settings(study.table(run, scale, seed, value), f"{source}: run {run.name} at {scale}")


def _name(path: Path, root: str | Path | None) -> str:
    path = path.with_suffix("")
    if root is not None and path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    parts = path.parts
    if "studies" in parts[:-1]:
        return "/".join(parts[len(parts) - parts[::-1].index("studies") :])
    return path.name


def _check_layer(layer: Each | Scale) -> None:
    check_range(layer, ("tries",), 1)
    seeds = (0,) if layer.seeds is None else layer.seeds
    if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**63 for seed in seeds):
        raise SettingError(f"seeds must be at least one number, each at least 0 and none twice; got {list(seeds)}.")


def _check_name(name: str) -> None:
    if not name.strip(".") or not all(c.isalnum() or c in ".-_" for c in name):
        raise SettingError(f"name must consist of letters, digits, '.', '-' and '_'; got {name!r}.")
