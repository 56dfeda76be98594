"""Machine code, kept on disk by the hash of what it was made from.

    library(text)  →  NativeLibrary, from memory, from disk, or compiled now

An entry is one file: a hash of the code, then the code. It appears whole or not at all; one that does not match its
hash is compiled anew and replaced. A folder that cannot be read or written costs time and nothing else. Folder:
``HOLDFAST_CACHE``, else the platform's cache folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import sys
import tempfile
import threading
from pathlib import Path

from holdfast.engine.fused.native import NativeLibrary, host, object_code

__all__ = ["folder", "library"]

FORMAT = "holdfast-fused-1"
_log = logging.getLogger("holdfast.fused")
_lock = threading.Lock()


def folder() -> Path:
    """Where compiled code is kept."""
    if "HOLDFAST_CACHE" in os.environ:
        return Path(os.environ["HOLDFAST_CACHE"]) / "fused"
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "holdfast" / "fused"


def library(text: str) -> NativeLibrary:
    """The machine code of some LLVM assembly, compiled at most once."""
    with _lock:
        return _library(hashlib.sha256(f"{FORMAT}\n{host()}\n{text}".encode()).hexdigest(), text)


@functools.lru_cache(maxsize=256)
def _library(key: str, text: str) -> NativeLibrary:
    code = _read(key)
    if code is None:
        code = object_code(text)
        _write(key, code)
    return NativeLibrary(code)


def _read(key: str) -> bytes | None:
    try:
        entry = (folder() / f"{key}.bin").read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return None
    digest, code = entry[:32], entry[32:]
    if hashlib.sha256(code).digest() != digest:
        _log.warning("cache entry %s is damaged; compiling anew", key)
        return None
    return code


def _write(key: str, code: bytes) -> None:
    temporary = None
    try:
        target = folder()
        target.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(temporary, target / f"{key}.bin")
    except (OSError, RuntimeError) as error:
        _log.info("compiled code could not be kept: %s", error)
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
