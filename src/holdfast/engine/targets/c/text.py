"""Numbers and tables as C."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

__all__ = ["Table", "counted", "in_comment", "index_type", "number", "plain_name", "times"]

WIDTH = 100
_KINDS = {"float32": "float", "int8": "int8_t", "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t"}


def number(value: float) -> str:
    """The shortest literal that is the same float32.

    Example:
        >>> number(0.1), number(2), number(-1e-9), number(float('inf'))
        ('0.1f', '2.0f', '-1e-09f', 'INFINITY')
    """
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if np.isnan(single):
        return "NAN"
    if np.isinf(single):
        return "INFINITY" if single > 0 else "-INFINITY"
    return f"{single!s}f"


def index_type(count: int) -> np.dtype:
    """The smallest unsigned type that counts to ``count``."""
    return np.min_scalar_type(max(count - 1, 0))


def plain_name(text: str) -> str:
    """A parameter's name as part of a C identifier.

    Example:
        >>> plain_name("recurrent.angles")
        'recurrent_angles'
    """
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in text)


def counted(count: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "row"), counted(2, "row")
        ('1 row', '2 rows')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def in_comment(text: str) -> str:
    """Text that cannot end a comment or open another: it may have come from a data file.

    Example:
        >>> in_comment("a */ int x;")
        'a * / int x;'
    """
    for mark, safe in (("*/", "* /"), ("/*", "/ *"), ("??", "? ?")):
        text = text.replace(mark, safe)
    return "".join(c if c.isprintable() else " " for c in text)


def times(factor: int, row: str) -> str:
    """``factor`` times a row."""
    return f"{factor} * {row}" if row.isidentifier() or row.isdigit() else f"{factor} * ({row})"


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A ``static const`` array: it stays in flash.

    Example:
        >>> print(Table("net_bias", np.array([1, -0.5], np.float32), "bias, 2 entries").text)
        /* bias, 2 entries */
        static const float net_bias[2] = {
            1.0f, -0.5f,
        };
    """

    name: str
    values: np.ndarray
    comment: str

    @property
    def bytes(self) -> int:
        return self.values.nbytes

    @property
    def text(self) -> str:
        flat = self.values.reshape(-1)
        words = [number(v) for v in flat] if flat.dtype == np.float32 else [str(v) for v in flat.tolist()]
        head = f"static const {_KINDS[flat.dtype.name]} {self.name}[{len(words)}] = {{"
        return "\n".join([f"/* {self.comment} */", head, *_filled(words), "};"])


def _filled(words: Sequence[str]) -> list[str]:
    """Words with commas, as many to a line as fit."""
    per = max(1, (WIDTH - 4) // (max(map(len, words)) + 2))
    return [f"    {', '.join(words[i : i + per])}," for i in range(0, len(words), per)]
