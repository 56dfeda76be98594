"""From tables of a file to frozen dataclasses, with errors that say where and what is known.

A dataclass is the schema: its fields are the known keys, their types what a value may be, its own ``__post_init__``
what is impossible. Values are checked by pydantic in its strict JSON mode: a list becomes a tuple and 1 becomes 1.0,
but "1" does not become 1 and true is no number.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from holdfast.errors import ConfigError, MissingExtraError, SettingError

try:
    import pydantic
except ModuleNotFoundError:
    raise MissingExtraError(
        "holdfast.studies needs pydantic; install it with: pip install 'holdfast[train]'."
    ) from None

__all__ = ["UNWRITTEN", "key", "structured", "table_of"]

Made = TypeVar("Made")

UNWRITTEN = {"key": ""}
"""Metadata of a field that no file holds."""


def key(name: str) -> dict[str, str]:
    """Metadata of a field that is called otherwise in a file, since its key is a word of Python.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Choice:
        ...     search: int = dataclasses.field(metadata=key("try"))
        >>> structured(Choice, {"try": 3}, "mine.toml")
        Choice(search=3)
    """
    return {"key": name}


def structured(kind: type[Made], table: object, source: str, where: str = "") -> Made:
    """An instance of the dataclass ``kind`` from ``table``.

    Args:
        kind: the schema.
        table: what the file holds.
        source: who speaks in an error: the file's name.
        where: which part of the file the table is; empty for the whole.

    Example:
        >>> from holdfast.train.settings import Schedule
        >>> structured(Schedule, {"kind": "linear", "over": 20000}, "mine.toml").over
        20000
        >>> structured(Schedule, {"knd": "linear"}, "mine.toml", "train.schedule")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: mine.toml: unknown key 'knd' in train.schedule; known: at, ..., patience.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{source}: {where or 'the file'} expects a table, got {_shown(table)}.")
    fields = _fields(kind)
    for name in table:
        if name not in fields:
            place = f" in {where}" if where else ""
            raise ConfigError(f"{source}: unknown key {name!r}{place}; known: {', '.join(sorted(fields))}.")
    hints, values = _hints(kind), {}
    for name, field in fields.items():
        place = f"{where}.{name}" if where else name
        if name in table:
            values[field.name] = _value(hints[field.name], table[name], source, place)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{source}: {place} is missing.")
    try:
        return kind(**values)
    except SettingError as error:
        raise ConfigError(f"{source}: {where + ': ' if where else ''}{error}") from None


def table_of(made: Any) -> dict[str, Any]:
    """The table that ``structured`` makes ``made`` from: plain dictionaries, lists, texts and numbers.

    Example:
        >>> from holdfast.train.settings import Schedule
        >>> table_of(Schedule("step", at=(0.5,)))["at"]
        [0.5]
    """
    return {name: _plain(getattr(made, field.name)) for name, field in _fields(type(made)).items()}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return table_of(value)
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def _value(hint: Any, value: object, source: str, place: str) -> Any:
    """``value`` as the type ``hint`` asks; dataclasses inside tuples, tables and unions with None are made here."""
    origin, inside = typing.get_origin(hint), [part for part in typing.get_args(hint) if dataclasses.is_dataclass(part)]
    kind: Any = hint if dataclasses.is_dataclass(hint) else inside[0] if inside else None
    if kind is not None and origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{source}: {place} expects a list of tables, got {_shown(value)}.")
        return tuple(structured(kind, part, source, f"{place}[{i}]") for i, part in enumerate(value))
    if kind is not None and origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{source}: {place} expects a table of tables, got {_shown(value)}.")
        return {name: structured(kind, part, source, f"{place}.{name}") for name, part in value.items()}
    if kind is not None:
        return None if value is None and origin is not None else structured(kind, value, source, place)
    try:
        return _adapter(hint).validate_json(json.dumps(value), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        inside = "".join(f"[{part!r}]" for part in first["loc"] if isinstance(part, int))
        raise ConfigError(f"{source}: {place}{inside}: {first['msg']}, got {_shown(value)}.") from None
    except (TypeError, ValueError, RecursionError):  # dates and times, which TOML has and settings have no use for
        place, value = _odd(value, place)
        raise ConfigError(
            f"{source}: {place} expects a number, a text, a list or a table, got {_shown(value)}."
        ) from None


def _odd(value: object, place: str) -> tuple[str, object]:
    """The first part of ``value`` that JSON has no word for, and where it is."""
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        try:
            json.dumps(part)
        except (TypeError, ValueError, RecursionError):
            return _odd(part, f"{place}[{name}]" if isinstance(name, int) else f"{place}.{name}")
    return place, value


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # ValueError: a whole number with thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


@functools.cache
def _fields(kind: type) -> dict[str, dataclasses.Field]:
    """Fields by what a file calls them."""
    fields = {field.metadata.get("key", field.name): field for field in dataclasses.fields(kind) if field.init}
    return {name: field for name, field in fields.items() if name}


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@functools.cache
def _adapter(hint: Any) -> pydantic.TypeAdapter:
    return pydantic.TypeAdapter(hint)
