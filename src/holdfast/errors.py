"""What goes wrong, by name. A message says who speaks, what was expected, what came and what to do."""

from __future__ import annotations

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
    "OutsideSetError",
    "SettingError",
    "ShapeError",
    "StateDictError",
    "UncheckedWarning",
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
    """Tensors of different number types meet, or one is not of floating point.

    Example:
        >>> issubclass(DTypeError, TypeError)
        True
    """


class DeviceError(HoldfastError, ValueError):
    """Tensors on different devices meet.

    Example:
        >>> issubclass(DeviceError, ValueError)
        True
    """


class SettingError(HoldfastError, ValueError):
    """An argument has a value that the layer cannot work with.

    Example:
        >>> issubclass(SettingError, ValueError)
        True
    """


class OutsideSetError(HoldfastError, ValueError):
    """A weight is assigned that lies outside the set it is constrained to.

    Example:
        >>> issubclass(OutsideSetError, ValueError)
        True
    """


class ConversionError(HoldfastError, ValueError):
    """A layer has no counterpart on the other side of ``from_torch`` or ``to_torch``.

    Example:
        >>> issubclass(ConversionError, ValueError)
        True
    """


class StateDictError(HoldfastError, ValueError, RuntimeError):
    """A ``state_dict`` belongs to another kind of layer; also a ``RuntimeError``, as PyTorch raises one here.

    Example:
        >>> issubclass(StateDictError, RuntimeError)
        True
    """


class DataError(HoldfastError, ValueError):
    """A data file is missing, damaged or not what it should be; the message names it and the way to get it.

    Example:
        >>> issubclass(DataError, ValueError)
        True
    """


class ConfigError(HoldfastError, ValueError):
    """A study or settings file has an unknown key or an impossible value.

    Example:
        >>> issubclass(ConfigError, ValueError)
        True
    """


class CheckpointError(HoldfastError, ValueError):
    """A checkpoint or model file is damaged, of another kind, or cannot be written.

    Example:
        >>> issubclass(CheckpointError, ValueError)
        True
    """


class DivergedError(HoldfastError, RuntimeError):
    """A loss or a gradient is no longer finite; the message names the update, the parameter and the last checkpoint.

    Example:
        >>> issubclass(DivergedError, RuntimeError)
        True
    """


class Interrupted(HoldfastError):
    """A run was asked to stop, and saved itself; the message says how to go on.

    Example:
        >>> Interrupted("Stopped by SIGINT after update 7 of 10.", signal=2).signal
        2
    """

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal


class LostProcessError(HoldfastError, RuntimeError):
    """Another process of the same job has died; the message says how to resume.

    Example:
        >>> issubclass(LostProcessError, RuntimeError)
        True
    """


class MissingExtraError(HoldfastError, ImportError):
    """A library that only some of Holdfast needs is not installed; the message says how to install it.

    Example:
        >>> issubclass(MissingExtraError, ImportError)
        True
    """


class FusedError(HoldfastError, RuntimeError):
    """``backend="fused"`` was asked for by name and cannot run this cell or this call.

    Example:
        >>> issubclass(FusedError, RuntimeError)
        True
    """


class FusedFallbackWarning(UserWarning):
    """Right but slower: a scan ran on ``reference`` because the fused backend does not know the cell.

    Example:
        >>> issubclass(FusedFallbackWarning, UserWarning)
        True
    """


class UncheckedWarning(UserWarning):
    """A file of a run was read that has no checksum, so damage to it cannot be noticed.

    Example:
        >>> issubclass(UncheckedWarning, UserWarning)
        True
    """
