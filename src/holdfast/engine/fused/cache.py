"""Machine code, kept on disk by the hash of what it was made from.

    library(text)  →  NativeLibrary, from memory, from disk, or compiled now

An entry is one file: a hash of the code, then the code. It appears whole or not at all; one that does not match its
hash is compiled anew and replaced. A folder that cannot be read or written costs time and nothing else. Folder:
``HOLDFAST_CACHE``, else the platform's cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
from pathlib import Path

from holdfast.engine.fused.native import NativeLibrary, host, object_code
from holdfast.files import cache_folder, write_atomically

__all__ = ["folder", "library"]

FORMAT = "holdfast-fused-1"
_log = logging.getLogger("holdfast.fused")
_lock = threading.Lock()


def folder() -> Path:
    """Where compiled code is kept."""
    return cache_folder("fused")


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
    try:
        folder().mkdir(parents=True, exist_ok=True)
        write_atomically(folder() / f"{key}.bin", hashlib.sha256(code).digest() + code)
    except (OSError, RuntimeError) as error:
        _log.info("compiled code could not be kept: %s", error)
