"""What goes wrong, by name. A message says who speaks, what was expected, what came and what to do."""

from __future__ import annotations

__all__ = [
    "ConversionError",
    "DTypeError",
    "DeviceError",
    "FusedError",
    "FusedFallbackWarning",
    "HoldfastError",
    "OutsideSetError",
    "SettingError",
    "ShapeError",
    "StateDictError",
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
