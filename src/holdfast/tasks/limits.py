"""How large a data file may be once it is read.

A compressed file of a few megabytes can hold gigabytes. Its size as 64-bit numbers is worked out from its headers,
before anything is allocated, and compared with a limit:

    limit = HOLDFAST_DATA_LIMIT, or a sixth of the memory that is available        (1)

A sixth, because reading, gathering, standardising and padding take 3.4 (.npz) to 5.6 (.parquet) times as much as the
numbers themselves.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from holdfast.errors import DataError, SettingError

__all__ = ["VARIABLE", "available_memory", "check_size", "data_limit"]

VARIABLE = "HOLDFAST_DATA_LIMIT"
_SHARE = 6
_UNKNOWN = 8 * 2**30  # what is taken for available where the system does not tell
_UNITS = {
    "": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def check_size(path: Path, size: int) -> None:
    """Refuse a file whose contents would take ``size`` bytes, if that is above the limit (1).

    Example:
        >>> check_size(Path("a.npz"), 10**18)
        Traceback (most recent call last):
        holdfast.errors.DataError: a.npz would take 1,000,000,000.0 GB when read as 64-bit numbers; the limit is ...
    """
    limit, source = data_limit()
    if size > limit:
        raise DataError(
            f"{path} would take {_shown(size)} when read as 64-bit numbers; the limit is {_shown(limit)} ({source}). "
            f"Use a part of the file, or, if there is memory for it, raise the limit: {VARIABLE}={-(-size // 10**9)}GB."
        )


def data_limit() -> tuple[int, str]:
    """The limit (1) in bytes, and where it comes from.

    Example:
        >>> os.environ["HOLDFAST_DATA_LIMIT"] = "1.5 GB"
        >>> data_limit()
        (1500000000, 'set by HOLDFAST_DATA_LIMIT')
        >>> del os.environ["HOLDFAST_DATA_LIMIT"]
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return available_memory() // _SHARE, "a sixth of the memory that is available"
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower())
    if match is None or match[2] not in _UNITS:
        raise SettingError(f"{VARIABLE} expects a number of bytes, such as 8GB, 500MB or 8000000000; got {text!r}.")
    return int(float(match[1]) * _UNITS[match[2]]), f"set by {VARIABLE}"


def available_memory() -> int:
    """Bytes that can be allocated without swapping, as the system and the container of this process tell.

    Example:
        >>> available_memory() > 0
        True
    """
    found = [size for size in (_meminfo(), _container()) if size is not None]
    if not found:
        try:
            found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2]
        except (AttributeError, ValueError, OSError):  # Windows
            found = [_UNKNOWN]
    return max(0, min(found))


def _meminfo() -> int | None:
    try:
        match = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else 1024 * int(match[1])


def _container(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the container of this process has left; pages of files that can be dropped are not counted as used."""
    for place, limit, used in (
        (folder, "memory.max", "memory.current"),
        (folder / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            left = int((place / limit).read_text()) - int((place / used).read_text())
            cached = re.search(r"^(?:total_)?inactive_file (\d+)", (place / "memory.stat").read_text(), re.MULTILINE)
        except (OSError, ValueError):  # no container, or one without a limit: "max"
            continue
        return left + (int(cached[1]) if cached else 0)
    return None


def _shown(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 10**8 else f"{size / 1e6:,.1f} MB"
