"""From tables of a file to frozen dataclasses, with errors that say where and what is known.

A dataclass is the schema: its fields are the known keys, their types the allowed values, and its ``__post_init__``
checks the rest. Values are checked by pydantic in its strict JSON mode: a list becomes a tuple and 1 becomes 1.0, but
"1" does not become 1 and true is not a number.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from holdfast.errors import ConfigError, MissingExtraError, SettingError

try:
    import pydantic
except ModuleNotFoundError:
    raise MissingExtraError("holdfast.runs needs pydantic: pip install 'holdfast[train]'.") from None

__all__ = ["UNWRITTEN", "checked_value", "key", "listed", "read_file", "structured", "table_of"]

Made = TypeVar("Made")

UNWRITTEN = {"key": ""}
"""Metadata of a field that is never in a file."""


def key(name: str) -> dict[str, str]:
    """Metadata of a field whose key in a file is a reserved word of Python.

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
        >>> from holdfast.train.settings import LRSchedule
        >>> structured(LRSchedule, {"kind": "linear", "over": 20000}, "mine.toml").over
        20000
        >>> structured(LRSchedule, {"knd": "linear"}, "mine.toml", "train.schedule")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: mine.toml: unknown key 'knd' in train.schedule; known: at, ..., warmup.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{source}: {where or 'the file'} must be a table, got {_shown(table)}.")
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


def read_file(path: str | Path, hint: str = "") -> dict[str, Any]:
    """The tables in a JSON or TOML file, by its extension.

    Args:
        path: the file.
        hint: what to do about a damaged one, for the error.

    Example:
        >>> read_file("no-such-file.toml")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: no-such-file.toml cannot be read: No such file or directory.
    """
    path = Path(path)
    kind, parse = ("JSON", json.loads) if path.suffix == ".json" else ("TOML", tomllib.loads)
    try:
        table = parse(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8, and numbers of thousands of digits
        raise ConfigError(f"{path} is not valid {kind}: {error}.{hint and ' '}{hint}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path} must hold a table, got a {type(table).__name__}.")
    return table


def listed(names: Iterable[str]) -> str:
    """Names, as an error lists them."""
    return ", ".join(names) or "none"


def table_of(made: Any) -> dict[str, Any]:
    """The table that ``structured`` makes ``made`` from: plain dictionaries, lists, texts and numbers.

    Example:
        >>> from holdfast.train.settings import LRSchedule
        >>> table_of(LRSchedule("step", at=(0.5,)))["at"]
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
            raise ConfigError(f"{source}: {place} must be a list of tables, got {_shown(value)}.")
        return tuple(structured(kind, part, source, f"{place}[{i}]") for i, part in enumerate(value))
    if kind is not None and origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{source}: {place} must be a table of tables, got {_shown(value)}.")
        return {name: structured(kind, part, source, f"{place}.{name}") for name, part in value.items()}
    if kind is not None:
        return None if value is None and origin is not None else structured(kind, value, source, place)
    return checked_value(hint, value, source, place)


def checked_value(hint: Any, value: object, source: str, place: str) -> Any:
    """``value`` as the type ``hint``, which is not a dataclass.

    Example:
        >>> checked_value(tuple[int, ...], [1, 2], "mine.toml", "sizes")
        (1, 2)
        >>> checked_value(bool, "yes", "mine.toml", "cell.options.bias")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: mine.toml: cell.options.bias: Input should be a valid boolean, got 'yes'.
    """
    try:
        return _adapter(hint).validate_json(json.dumps(value), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        inside = "".join(f"[{part!r}]" for part in first["loc"] if isinstance(part, int))
        raise ConfigError(f"{source}: {place}{inside}: {first['msg']}, got {_shown(value)}.") from None
    except (TypeError, ValueError, RecursionError):  # dates and times, which TOML has and settings have no use for
        place, value = _odd(value, place)
        raise ConfigError(f"{source}: {place} must be a number, text, list or table, got {_shown(value)}.") from None


def _odd(value: object, place: str) -> tuple[str, object]:
    """The first part of ``value`` that JSON cannot hold, and where it is."""
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
    return pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(arbitrary_types_allowed=True))
