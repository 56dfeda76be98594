"""Exceptions, warnings, and the checks that every package shares.

A message has three parts: what was expected and by whom, what was found, and what to do. Each error is also one of
Python's own, so that code which knows nothing of Holdfast can catch it.

Example:
    >>> issubclass(ShapeError, ValueError), issubclass(DTypeError, TypeError), issubclass(DivergedError, RuntimeError)
    (True, True, True)
    >>> issubclass(StateDictError, RuntimeError), issubclass(MissingExtraError, ImportError)
    (True, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

__all__ = [
    "CheckpointError",
    "ConfigError",
    "ConversionError",
    "DTypeError",
    "DataError",
    "DeviceError",
    "DivergedError",
    "FusedError",
    "FusedFallbackWarning",
    "HoldfastError",
    "Interrupted",
    "LostProcessError",
    "MissingExtraError",
    "NoBoundError",
    "OutsideSetError",
    "SettingError",
    "ShapeError",
    "StateDictError",
    "UncheckedWarning",
    "UnsupportedError",
    "one_of",
    "positive_number",
    "positive_size",
]


class HoldfastError(Exception):
    """The root of every error that Holdfast raises on purpose.

    Example:
        >>> issubclass(ShapeError, HoldfastError) and issubclass(ShapeError, ValueError)
        True
    """


class ShapeError(HoldfastError, ValueError):
    """A tensor has another shape than the layer or function expects.

    Example:
        >>> raise ShapeError("RNNCell expects x of shape (batch, 3), got (2, 9).")
        Traceback (most recent call last):
        holdfast.errors.ShapeError: RNNCell expects x of shape (batch, 3), got (2, 9).
    """


class DTypeError(HoldfastError, TypeError):
    """Tensors of different number types meet, or one is not of floating point."""


class DeviceError(HoldfastError, ValueError):
    """Tensors on different devices meet."""


class SettingError(HoldfastError, ValueError):
    """An argument has a value that the layer cannot work with."""


class OutsideSetError(HoldfastError, ValueError):
    """A weight is assigned that lies outside the set it is constrained to."""


class ConversionError(HoldfastError, ValueError):
    """A layer has no counterpart on the other side of ``from_torch`` or ``to_torch``."""


class StateDictError(HoldfastError, ValueError, RuntimeError):
    """A ``state_dict`` belongs to another kind of layer; also a ``RuntimeError``, as PyTorch raises one here."""


class DataError(HoldfastError, ValueError):
    """A data file is missing, damaged or not what it should be; the message says how to get it."""


class ConfigError(HoldfastError, ValueError):
    """A study or settings file has an unknown key or an impossible value."""


class CheckpointError(HoldfastError, ValueError):
    """A checkpoint or model file is damaged, of another kind, or cannot be written."""


class DivergedError(HoldfastError, RuntimeError):
    """A loss or a gradient is no longer finite; the message names the update, the parameter and the last checkpoint."""


class Interrupted(HoldfastError):
    """A run was asked to stop, and saved itself; the message says how to resume.

    Example:
        >>> Interrupted("Stopped by SIGINT after update 7 of 10.", signal=2).signal
        2
    """

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal


class LostProcessError(HoldfastError, RuntimeError):
    """Another process of the same job has died; the message says how to resume."""


class MissingExtraError(HoldfastError, ImportError):
    """A library that only some of Holdfast needs is not installed; the message says how to install it."""


class NoBoundError(HoldfastError, NotImplementedError):
    """No bound is proved for this cell, this nonlinearity or this setting.

    Example:
        >>> issubclass(NoBoundError, NotImplementedError)
        True
    """


class UnsupportedError(HoldfastError, NotImplementedError):
    """A target of an export, or another machine, cannot do what a model asks for; the message names it.

    Example:
        >>> issubclass(UnsupportedError, NotImplementedError)
        True
    """


class FusedError(HoldfastError, RuntimeError):
    """``backend="fused"``, "parallel" or "triton" was asked for by name and cannot run this cell or this call."""


class FusedFallbackWarning(UserWarning):
    """Right but slower: a scan ran on ``reference`` because the fused backend does not know the cell."""


class UncheckedWarning(UserWarning):
    """A file of a run was read that has no checksum, so damage to it cannot be noticed."""


def positive_size(who: str, name: str, value: Any) -> int:
    """``value`` if it is a whole number of at least 1; else an error in the name of ``who``.

    Example:
        >>> positive_size("RNN", "hidden_size", 0)
        Traceback (most recent call last):
        holdfast.errors.SettingError: RNN expects hidden_size to be a whole number of at least 1, got 0.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(f"{who} expects {name} to be a whole number of at least 1, got {value!r}.")
    return value


def positive_number(who: str, name: str, value: Any) -> float:
    """``value`` as a float if it is positive and finite; else an error in the name of ``who``.

    Example:
        >>> positive_number("SpectralBall", "radius", 0)
        Traceback (most recent call last):
        holdfast.errors.SettingError: SpectralBall expects radius to be positive and finite, got 0.
    """
    if not (value > 0 and math.isfinite(value)):
        raise SettingError(f"{who} expects {name} to be positive and finite, got {value}.")
    return float(value)


def one_of(who: str, name: str, value: Any, known: Iterable[Any]) -> None:
    """Raise in the name of ``who`` unless ``value`` is one of ``known``.

    Example:
        >>> one_of("kappa", "form", "print", ("exact", "published"))
        Traceback (most recent call last):
        holdfast.errors.SettingError: kappa expects form to be one of exact, published, got 'print'.
    """
    if value not in (known := tuple(known)):
        raise SettingError(f"{who} expects {name} to be one of {', '.join(map(str, known))}, got {value!r}.")
