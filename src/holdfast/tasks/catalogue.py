"""Every task by its name, and where its files are."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from holdfast.errors import SettingError
from holdfast.tasks.addition import Addition
from holdfast.tasks.bird import BirdAudio
from holdfast.tasks.characters import Characters
from holdfast.tasks.copying import Copying
from holdfast.tasks.fetch import Source, find, problem_of
from holdfast.tasks.gaussian import GaussianInstances
from holdfast.tasks.har import HAR
from holdfast.tasks.own_data import OwnData
from holdfast.tasks.pixels import PixelMNIST
from holdfast.tasks.ptb import PennTreebank
from holdfast.tasks.sst import SentimentTrees
from holdfast.tasks.wikitext2 import WikiText2

__all__ = ["TASKS", "TaskFile", "options", "status"]

TASKS: dict[str, type] = {
    "addition": Addition,
    "copying": Copying,
    "gaussian": GaussianInstances,
    "mnist": PixelMNIST,
    "har": HAR,
    "bird": BirdAudio,
    "ptb": PennTreebank,
    "ptb-characters": Characters,
    "wikitext2": WikiText2,
    "text8": Characters,
    "enwik8": Characters,
    "sst": SentimentTrees,
    "own": OwnData,
}
"""Options classes by the name of the task in settings and on the command line. A new task is one more entry."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "ptb-characters": {"corpus": "ptb"},
    "text8": {"corpus": "text8"},
    "enwik8": {"corpus": "enwik8"},
}
"""Options that a name implies."""


def options(name: str, **settings: Any) -> Any:
    """The options of a task by its name; ``.load()`` makes the task.

    Lists become tuples, as settings files have no tuples.

    Raises:
        SettingError: no such task or option, with those there are; or a value of another type.

    Example:
        >>> options("addition", steps=50)
        Addition(steps=50, form='sum', validation=640, test=1000)
        >>> options("addition", length=50)
        Traceback (most recent call last):
        holdfast.errors.SettingError: addition has no option 'length'; known: form, steps, test, validation.
    """
    if name not in TASKS:
        raise SettingError(f"There is no task {name!r}; known: {', '.join(TASKS)}.")
    fields = {field.name: field for field in dataclasses.fields(TASKS[name])}
    for key in settings:
        if key not in fields:
            raise SettingError(f"{name} has no option {key!r}; known: {', '.join(sorted(fields))}.")
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    given = {**PRESETS.get(name, {}), **given}
    hints = get_type_hints(TASKS[name])
    for key, value in given.items():
        if not _fits(value, hints[key]):
            raise SettingError(f"{name} expects {key} to be {fields[key].type}, got {value!r}.")
    for key, field in fields.items():
        if key not in given and field.default is field.default_factory is dataclasses.MISSING:
            raise SettingError(f"{name} needs the option {key!r}.")
    return TASKS[name](**given)


@dataclasses.dataclass(frozen=True)
class TaskFile:
    """One file of a task on this machine.

    Args:
        task: name of the task.
        source: what the file is.
        found: its path, or None.
        where: the folder it is in.
        problem: what is wrong with it, if it was checked and is damaged.

    Example:
        >>> TaskFile("ptb", Source("ptb/ptb.train.txt", "0" * 64, 5_101_618), None, "absent").where
        'absent'
    """

    task: str
    source: Source
    found: Path | None
    where: Literal["HOLDFAST_DATA", "cache", "absent"]
    problem: str | None = None


def status(*, check: bool = False) -> list[TaskFile]:
    """Every file that a task reads, and whether it is present; with ``check``, also whether its hash is correct.

    Example:
        >>> sorted({file.task for file in status()})
        ['enwik8', 'har', 'mnist', 'ptb', 'ptb-characters', 'sst', 'text8', 'wikitext2']
    """
    files = []
    for name, kind in TASKS.items():
        if not hasattr(kind, "sources"):
            continue
        for source in options(name).sources():
            found, where = find(source) or (None, "absent")
            problem = problem_of(source, found) if check and found else None
            files.append(TaskFile(name, source, found, where, problem))
    return files


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from a settings file is of a type that options have."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, {float: (int, float), Path: (str, Path)}.get(hint, hint))
