"""What the choice between ways needs to know of this machine, read once."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

from holdfast.engine.targets.cpu.native import host

__all__ = ["registers", "second_cache"]

TYPICAL = 1 << 20  # bytes of a second cache where the system does not say


@functools.cache
def second_cache() -> int:
    """Bytes of a core's own second cache."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level, size = ((index / name).read_text().strip() for name in ("level", "size"))
            if level == "2":
                return int(size.rstrip("K")) << 10
        except (OSError, ValueError):
            continue
    try:
        return os.sysconf("SC_LEVEL2_CACHE_SIZE") or TYPICAL
    except (AttributeError, ValueError, OSError):
        return TYPICAL


@functools.cache
def registers() -> int:
    """Vector registers of 256 bits; a CPU with shorter ones uses several for each."""
    if "+avx512vl" in host():
        return 32
    return 16 if platform.machine().lower() in ("x86_64", "amd64", "arm64", "aarch64") else 8
