"""Options of a procedure, checked: unknown ones are named beside the known, missing ones get their default."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.errors import ConfigError

__all__ = ["checked"]


def checked(
    label: str, name: str, options: Mapping[str, Any], defaults: Mapping[str, Any], needed: Collection[str] = ()
) -> dict[str, Any]:
    """``options`` over ``defaults``; those ``needed`` have none.

    Example:
        >>> checked("tiny", "reach", {"tokens": 5}, {"tokens": 10, "distances": 50})
        {'tokens': 5, 'distances': 50}
        >>> checked("tiny", "reach", {"token": 5}, {"tokens": 10})
        Traceback (most recent call last):
        holdfast.errors.ConfigError: tiny: the procedure reach has no option 'token'; known: tokens.
    """
    for option in options:
        if option not in (known := sorted({*defaults, *needed})):
            raise ConfigError(f"{label}: the procedure {name} has no option {option!r}; known: {', '.join(known)}.")
    if missing := sorted(set(needed) - options.keys()):
        raise ConfigError(f"{label}: the procedure {name} needs the option {missing[0]!r}.")
    return {**defaults, **options}
