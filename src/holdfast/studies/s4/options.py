"""Options of a procedure, checked: unknown ones are named beside the known, missing ones get their default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigError

__all__ = ["checked"]


def checked(label: str, name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` over ``defaults``.

    Example:
        >>> checked("tiny", "reach", {"tokens": 5}, {"tokens": 10, "distances": 50})
        {'tokens': 5, 'distances': 50}
        >>> checked("tiny", "reach", {"token": 5}, {"tokens": 10})
        Traceback (most recent call last):
        holdfast.errors.ConfigError: tiny: the procedure reach has no option 'token'; known: tokens.
    """
    for option in options:
        if option not in defaults:
            known = ", ".join(sorted(defaults))
            raise ConfigError(f"{label}: the procedure {name} has no option {option!r}; known: {known}.")
    return {**defaults, **options}
