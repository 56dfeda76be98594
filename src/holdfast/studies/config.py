"""What a run and a study are told, and how the files that say it are read.

A run is three tables, ``task``, ``cell`` and ``train``. A study is a file with defaults for them, runs that override
some keys, scales that override others, and what the paper says comes out:

    settings = defaults ← run.set ← scale.set ← scale.each.<run>.set ← value tried ← seed      (1)

A key may be dotted, ``"train.lr" = 1e-3``, or a table, ``train = { lr = 1e-3 }``: both set that key and no other.
"""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from holdfast.errors import ConfigError, HoldfastError, SettingError
from holdfast.studies.schema import UNWRITTEN, key, structured, table_of
from holdfast.tasks.catalogue import PRESETS, TASKS
from holdfast.train.model import LAYERS, build
from holdfast.train.settings import Network, Training

__all__ = [
    "Claim",
    "Each",
    "Figure",
    "Run",
    "RunSettings",
    "Scale",
    "Study",
    "Try",
    "Until",
    "find_studies",
    "find_study",
    "load_study",
    "overridden",
    "run_settings",
    "to_table",
]


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """All that decides a training run.

    Args:
        task: options of a task, such as ``holdfast.tasks.Addition(steps=500)``.
        network, training: the rest.
        task_name: what ``holdfast.tasks.TASKS`` calls the task.

    Example:
        >>> settings = run_settings({"task": {"name": "addition"}, "train": {"updates": 10}})
        >>> settings.task_name, settings.network.name, settings.training.updates
        ('addition', 'sgornn', 10)
    """

    task: Any
    network: Network
    training: Training
    task_name: str


def run_settings(table: Mapping[str, Any], source: str = "settings") -> RunSettings:
    """The settings that three tables hold: ``{"task": {"name": …}, "cell": {…}, "train": {…}}``.

    Args:
        table: the tables; ``cell`` may be left out.
        source: the file's name, for errors.

    Example:
        >>> run_settings({"task": {"name": "addition", "steps": 5}, "train": {"updates": 1, "optimizer": "sgd"}})
        Traceback (most recent call last):
        holdfast.errors.ConfigError: settings: unknown key 'optimizer' in train; known: batch, ..., updates.
    """
    known = ("task", "cell", "train")
    for name in table:
        if name not in known:
            raise ConfigError(f"{source}: unknown key {name!r}; known: {', '.join(sorted(known))}.")
    task = table.get("task", {})
    if not isinstance(task, Mapping) or not isinstance(task_name := task.get("name"), str):
        raise ConfigError(f"{source}: task expects a table with the task's name; known: {', '.join(sorted(TASKS))}.")
    if task_name not in TASKS:
        raise ConfigError(f"{source}: unknown task {task_name!r}; known: {', '.join(sorted(TASKS))}.")
    options = {**PRESETS.get(task_name, {}), **{name: value for name, value in task.items() if name != "name"}}
    settings = RunSettings(
        task=structured(TASKS[task_name], options, source, "task"),
        network=structured(Network, table.get("cell", {}), source, "cell"),
        training=structured(Training, table.get("train", {}), source, "train"),
        task_name=task_name,
    )
    _check_network(settings.network, source)
    return settings


def to_table(settings: RunSettings) -> dict[str, Any]:
    """The tables of ``settings``, every default written out. ``run_settings`` of them gives ``settings`` back.

    Example:
        >>> settings = run_settings({"task": {"name": "addition"}, "train": {"updates": 10}})
        >>> run_settings(to_table(settings)) == settings
        True
    """
    return {
        "task": {"name": settings.task_name, **table_of(settings.task)},
        "cell": table_of(settings.network),
        "train": table_of(settings.training),
    }


def _check_network(network: Network, source: str) -> None:
    """What the types of its fields leave open: the layer's name, sizes, and the options that only its cell knows."""
    if network.name not in LAYERS:
        raise ConfigError(f"{source}: unknown cell {network.name!r}; known: {', '.join(sorted(LAYERS))}.")
    for name in ("hidden_size", "layers"):
        if (value := getattr(network, name)) < 1:
            raise ConfigError(f"{source}: cell.{name} expects at least 1, got {value}.")
    for name in ("dropout", "input_dropout", "output_dropout"):
        if not 0 <= (value := getattr(network, name)) < 1:
            raise ConfigError(f"{source}: cell.{name} expects at least 0 and less than 1, got {value}.")
    if isinstance(network.embedding, int) and network.embedding < 1:
        raise ConfigError(f"{source}: cell.embedding expects at least 1, got {network.embedding}.")
    if isinstance(network.initial_state, float) and not 0 <= network.initial_state < float("inf"):
        raise ConfigError(f"{source}: cell.initial_state expects at least 0, got {network.initial_state}.")
    small = dataclasses.replace(network, hidden_size=4, layers=1, dropout=0.0, tied=False)
    with torch.random.fork_rng(devices=()):  # a check must not move the numbers that a run draws
        try:
            build(small, _Probe())
        except HoldfastError as error:
            raise ConfigError(f"{source}: cell: {error}") from None
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ConfigError(f"{source}: cell.options: {network.name} refuses {network.options}: {error}.") from None


@dataclasses.dataclass(frozen=True)
class _Probe:
    """The smallest task there can be, to see whether a cell takes its options."""

    input_size: int = 2
    output_size: int = 1
    tokens: bool = False
    every_step: bool = False


@dataclasses.dataclass(frozen=True)
class Until:
    """When a value that is tried is good enough: a metric and its bound, as in ``Claim``."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise SettingError("until expects at_most or at_least, one of them.")

    def reached(self, value: float | None) -> bool:
        """Whether ``value`` is good enough; a missing one is not."""
        if value is None:
            return False
        return value <= self.at_most if self.at_most is not None else value >= self.at_least  # pyright: ignore


@dataclasses.dataclass(frozen=True)
class Try:
    """Values of one key, tried in order until one is good enough; the best is reported, and what the others gave.

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
            raise SettingError("try expects at least one of values.")


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
        if not _is_name(self.name):
            raise SettingError(f"a run's name is made of letters, digits, '.', '-' and '_'; got {self.name!r}.")

    @property
    def title(self) -> str:
        """What tables and legends call it."""
        return self.label or self.name


@dataclasses.dataclass(frozen=True)
class Each:
    """What a scale changes for some runs alone.

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
        if self.seeds == () or (self.tries is not None and self.tries < 1):
            raise SettingError("a scale expects at least one seed and at least one try.")


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
    """

    set: dict[str, Any] = dataclasses.field(default_factory=dict)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    runs: tuple[str, ...] = ("*",)
    tries: int | None = None
    each: dict[str, Each] = dataclasses.field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise SettingError(f"a scale expects at least one seed and no seed twice; got {list(self.seeds)}.")
        if not all(0 <= seed < 2**63 for seed in self.seeds) or (self.tries is not None and self.tries < 1):
            raise SettingError("a scale expects seeds of at least 0 and at least one try.")


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence of the paper that a run can bear out or not.

    Args:
        text: the claim, in our words.
        run: whose metric.
        metric: ``"validation.mse"``; a difference, ``"train.accuracy - test.accuracy"``; "parameters",
            "cell_parameters", "seconds"; or "diverged", the share of trainings that met a number that is none.
        pick: "best": at the evaluation whose monitored metric is best; "last": at the end.
        at_most, at_least, equals: the bound on the mean over seeds; the first two together are a range.
        than, better_by: or a comparison: at least this much better than another run's; below 0: worse by no more.
        better: "lower" or "higher"; known by the metric's name if left out.
        paper: what the paper gives.
        scales: at which the claim is judged; at others it is *not run*.
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

    def __post_init__(self) -> None:
        bounded = self.at_most is not None or self.at_least is not None
        if bounded + (self.equals is not None) + (self.than is not None) != 1:
            raise SettingError("a claim expects at_most, at_least or both; or equals; or than.")

    @property
    def lower_is_better(self) -> bool:
        """Accuracies want to be high; errors, losses and gaps low."""
        if self.better is not None:
            return self.better == "lower"
        return " - " in self.metric or not self.metric.endswith(("accuracy", "r2"))


@dataclasses.dataclass(frozen=True)
class Figure:
    """A picture of curves: the mean over seeds, and the standard deviation as a band.

    Args:
        name: the file's.
        title: above it.
        kind: "curves".
        x: "update", "epoch", or what else a curve has.
        y: a metric, or a difference of two.
        runs: names or patterns; a line each.
        log: a logarithmic y axis.
        baseline: a dashed line.
        y_label, x_label: ``y`` and ``x`` if left out.
        y_limits: where the y axis ends; by the curves if left out.
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
        if not _is_name(self.name):
            raise SettingError(f"a figure's name is made of letters, digits, '.', '-' and '_'; got {self.name!r}.")


@dataclasses.dataclass(frozen=True)
class Study:
    """A table or a figure of a paper: what is run, and what the paper says comes out.

    Args:
        title, source: what it reproduces, and where that is printed.
        note: what differs from print and why.
        defaults: settings that every run starts from.
        run, scale, claim, figure: its parts.
        sweep: ranges of a search, read by ``holdfast.studies.sweep``.
        metric: what the table of runs shows; the one a run's ``paper`` names, if left out.
        pick: "best" or "last", as in ``Claim``, for that table.
        name: ``<paper>/<table>``, from the file's place.
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
            raise SettingError(f"two runs are called {twice[0]!r}; give each a name of its own.")
        for claim in self.claim:
            for name in (claim.run, claim.than):
                if name is not None and name not in names:
                    raise SettingError(
                        f"the claim {claim.text!r} is about an unknown run {name!r}; known: {_list(names)}."
                    )
            for name in claim.scales or ():
                self.at(name)
        patterns = [pattern for figure in self.figure for pattern in figure.runs]
        for scale in self.scale.values():
            patterns += [*scale.runs, *scale.each]
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                raise SettingError(f"no run is called {pattern!r}; known: {_list(names)}.")

    def at(self, scale: str) -> Scale:
        """The scale of that name."""
        if scale not in self.scale:
            raise ConfigError(f"{self.name} has no scale {scale!r}; known: {_list(self.scale)}.")
        return self.scale[scale]

    def runs_at(self, scale: str) -> tuple[Run, ...]:
        """The runs of a scale, in the file's order."""
        return tuple(run for run in self.run if _matches(run.name, self.at(scale).runs))

    def seeds(self, run: Run, scale: str) -> tuple[int, ...]:
        """The seeds of a run at a scale."""
        own = [each.seeds for each in self._each(run, scale) if each.seeds is not None]
        return own[-1] if own else self.at(scale).seeds

    def values(self, run: Run, scale: str) -> tuple[Any, ...]:
        """The values of ``try`` that a scale allows; one None without a ``try``."""
        if run.search is None:
            return (None,)
        limits = [each.tries for each in self._each(run, scale) if each.tries is not None]
        return run.search.values[: limits[-1] if limits else self.at(scale).tries]

    def options(self, run: Run, scale: str) -> dict[str, Any]:
        """What a procedure is given beside the settings."""
        options = merged(run.options, self.at(scale).options)
        for each in self._each(run, scale):
            options = merged(options, each.options)
        return options

    def table(self, run: Run, scale: str, seed: int, value: Any = None) -> dict[str, Any]:
        """(1), as tables."""
        table = overridden(self.defaults, run.set)
        table = overridden(table, self.at(scale).set)
        for each in self._each(run, scale):
            table = overridden(table, each.set)
        if value is not None and run.search is not None:
            table = overridden(table, {run.search.key: value})
        return overridden(table, {"train.seed": seed}) if "train" in table or run.procedure == "train" else table

    def _each(self, run: Run, scale: str) -> Iterator[Each]:
        return (each for pattern, each in self.at(scale).each.items() if fnmatch.fnmatchcase(run.name, pattern))


def overridden(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``table`` with some keys set; dotted keys reach into tables. Setting updates unsets epochs, and back.

    Example:
        >>> overridden({"train": {"lr": 0.1, "epochs": 3}}, {"train.updates": 5, "cell.name": "lstm"})
        {'train': {'lr': 0.1, 'updates': 5}, 'cell': {'name': 'lstm'}}
    """
    result = copy.deepcopy(dict(table))
    for dotted, value in changes.items():
        *folders, last = dotted.split(".")
        part: Any = {last: copy.deepcopy(value)}
        for folder in reversed(folders):
            part = {folder: part}
        other = {"updates": "epochs", "epochs": "updates"}
        if isinstance(train := part.get("train"), dict) and isinstance(old := result.get("train"), dict):
            for name in other.keys() & train.keys():
                old.pop(other[name], None)
        result = merged(result, part)
    return result


def merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``table`` with ``changes`` over it, key by key, also inside tables."""
    result = dict(table)
    for name, value in changes.items():
        old = result.get(name)
        result[name] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


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
    study = structured(Study, _toml(path), path.name)
    study = dataclasses.replace(study, name=_name(path, root))
    _check_runs(study, path.name)
    return study


def find_studies(root: str | Path = "studies") -> list[Path]:
    """The study files below a folder, sorted; none if the folder is not there.

    Example:
        >>> find_studies("no-such-folder")
        []
    """
    return sorted(path for path in Path(root).rglob("*.toml") if path.is_file())


def find_study(name: str, root: str | Path = "studies") -> Study:
    """The study of that name below ``root``, or in the file of that path.

    Example:
        >>> find_study("s9/nothing", "no-such-folder")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: No study 's9/nothing' in no-such-folder, and no file of that name; known: none.
    """
    if (inside := Path(root) / f"{name}.toml").is_file():
        return load_study(inside, root)
    if (path := Path(name)).suffix == ".toml" and path.is_file():
        return load_study(path)
    known = [_name(path, root) for path in find_studies(root)]
    raise ConfigError(f"No study {name!r} in {root}, and no file of that name; known: {_list(known)}.")


def _check_runs(study: Study, source: str) -> None:
    from holdfast.studies.procedures import PROCEDURES  # procedures run what is read here

    for run in study.run:
        if run.procedure not in PROCEDURES:
            known = _list(sorted(PROCEDURES))
            raise ConfigError(f"{source}: run {run.name}: unknown procedure {run.procedure!r}; known: {known}.")
        if run.procedure != "train":
            continue
        for scale in study.scale:
            if run in study.runs_at(scale):
                for value in study.values(run, scale):
                    seed = study.seeds(run, scale)[0]
                    run_settings(study.table(run, scale, seed, value), f"{source}: run {run.name} at {scale}")


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{path.name}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path.name}: expects UTF-8 text, but byte {error.start} is not; save it as UTF-8."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path.name}: not TOML: {error}.") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets a thousand deep
        raise ConfigError(f"{path.name}: not TOML that can be read: {error}.") from None


def _name(path: Path, root: str | Path | None) -> str:
    path = path.with_suffix("")
    if root is not None and path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    parts = path.parts
    if "studies" in parts[:-1]:
        return "/".join(parts[len(parts) - parts[::-1].index("studies") :])
    return path.name


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _is_name(text: str) -> bool:
    return bool(text) and text.strip(".") != "" and all(c.isalnum() or c in ".-_" for c in text)


def _list(names: Any) -> str:
    return ", ".join(names) or "none"
