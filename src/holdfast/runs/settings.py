"""Settings of one run: three tables, ``task``, ``cell`` and ``train``, of a TOML or JSON file or of code.

A key may be dotted, ``"train.lr" = 1e-3``, or a table, ``train = { lr = 1e-3 }``: both set that key and no other.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigError
from holdfast.runs.schema import checked_value, structured, table_of
from holdfast.tasks.catalogue import PRESETS, TASKS
from holdfast.train.model import made_options, option_types
from holdfast.train.settings import ModelSettings, Training

__all__ = ["RunSettings", "merged", "overridden", "run_settings", "to_table"]


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Everything that decides a training run.

    Args:
        task: options of a task, such as ``holdfast.tasks.Addition(steps=500)``.
        network, training: the rest.
        task_name: the task's name in ``holdfast.tasks.TASKS``.

    Example:
        >>> settings = run_settings({"task": {"name": "addition"}, "train": {"updates": 10}})
        >>> settings.task_name, settings.network.name, settings.training.updates
        ('addition', 'sgornn', 10)
    """

    task: Any
    network: ModelSettings
    training: Training
    task_name: str


def run_settings(table: Mapping[str, Any], source: str = "settings") -> RunSettings:
    """The settings in three tables: ``{"task": {"name": …}, "cell": {…}, "train": {…}}``. Builds and loads nothing.

    Args:
        table: the tables; ``cell`` may be left out.
        source: the file's name, for errors.

    Example:
        >>> run_settings({"task": {"name": "addition", "steps": 5}, "train": {"updates": 1, "optimizer": "sgd"}})
        Traceback (most recent call last):
        holdfast.errors.ConfigError: settings: unknown key 'optimizer' in train; known: batch, ..., weights.
    """
    known = ("cell", "task", "train")
    for name in table:
        if name not in known:
            raise ConfigError(f"{source}: unknown key {name!r}; known: {', '.join(known)}.")
    task = table.get("task", {})
    if not isinstance(task, Mapping) or not isinstance(task_name := task.get("name"), str):
        raise ConfigError(f"{source}: task must be a table with a name; known tasks: {', '.join(sorted(TASKS))}.")
    if task_name not in TASKS:
        raise ConfigError(f"{source}: unknown task {task_name!r}; known: {', '.join(sorted(TASKS))}.")
    options = {**PRESETS.get(task_name, {}), **{name: value for name, value in task.items() if name != "name"}}
    settings = RunSettings(
        task=structured(TASKS[task_name], options, source, "task"),
        network=structured(ModelSettings, table.get("cell", {}), source, "cell"),
        training=structured(Training, table.get("train", {}), source, "train"),
        task_name=task_name,
    )
    _check_options(settings.network, source)
    return settings


def _check_options(network: ModelSettings, source: str) -> None:
    """The options that only this cell knows, against its signature: names and types."""
    try:
        options = made_options(network)
    except (ValueError, TypeError, AttributeError, RuntimeError, OverflowError) as error:  # SettingError among them
        raise ConfigError(f"{source}: cell: {error}") from None
    for name, hint in option_types(network.name).items():
        if name in network.options and options[name] is network.options[name]:  # not made into an object
            checked_value(hint, options[name], source, f"cell.options.{name}")


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
