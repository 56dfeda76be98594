"""Machine code, kept on disk by the hash of what it was made from.

    library(text)  →  NativeLibrary, from memory, from disk, or compiled now

An entry is one file: a hash of the code, then the code. It appears whole or not at all; one that does not match its
hash is compiled anew and replaced. A folder that cannot be read or written costs time and nothing else. The least
recently used entries are removed when all of them take more than ``LIMIT`` bytes. Folder: ``HOLDFAST_CACHE``, else the
platform's cache folder.

Note [What is trusted]

Loading an entry runs it, so only what this user wrote is loaded. The folder must belong to the user and be writable by
nobody else (it is created with mode 0700), and so must each entry, which must be a plain file under one name. Symbolic
links are not followed, for the folder or for an entry. Owner and mode are read from the open descriptor, and entries
are opened relative to the folder's descriptor: nothing can be exchanged between the check and the use.

Parents matter little after that. Whoever can write to one can put another folder in place, but not one that belongs to
this user and holds what somebody else wrote. A parent that everybody can write to, without the sticky bit, is refused
all the same, since anybody could move another folder of the user's there. Parents that a group can write to are
common (umask 002, project folders) and are accepted.

The hash finds damage, not malice. A keyed hash would add nothing: whoever can write to the folder as this user can also
read the key, and an archive that brings entries can bring a key with them. Permissions decide.

Where the folder or an entry is not trusted, the code is compiled in memory, and ``CacheWarning`` says why, once in a
process. An entry that is not trusted is replaced, if the folder is. Windows has no such modes: the default folder is
private to the user there, and no check is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
import secrets
import stat
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from holdfast.engine.targets.cpu.native import NativeLibrary, host, object_code
from holdfast.files import cache_folder

__all__ = ["CacheWarning", "folder", "library"]

FORMAT = "holdfast-fused-1"
LIMIT = 256 << 20  # bytes of all entries together
ABANDONED = 3600  # seconds after which an unfinished file is one that a killed process left
_log = logging.getLogger("holdfast.fused")
_lock = threading.Lock()
_warned = False


class CacheWarning(UserWarning):
    """Right but slower to start: compiled code on disk is not used, because another user could have written it.

    Example:
        >>> issubclass(CacheWarning, UserWarning)
        True
    """


def folder() -> Path:
    """Where compiled code is kept."""
    return cache_folder("fused")


def library(text: str) -> NativeLibrary:
    """The machine code of some LLVM assembly, compiled at most once."""
    with _lock:
        return _library(hashlib.sha256(f"{FORMAT}\n{host()}\n{text}".encode()).hexdigest(), text)


@functools.lru_cache(maxsize=256)
def _library(key: str, text: str) -> NativeLibrary:
    name = f"{key}.bin"
    with _trusted_folder() as store:
        code = None if store is None else _read(store, name)
        if code is None:
            code = object_code(text)
            if store is not None:
                _write(store, name, code)
    return NativeLibrary(code)


# -- the folder ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Store:
    """An open folder. Its files are named relative to its descriptor where the platform can do so."""

    path: Path
    descriptor: int | None

    def at(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)

    def open(self, name: str, flags: int) -> int:
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        return os.open(self.at(name), flags, 0o600, dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.at(name), dir_fd=self.descriptor)


@contextlib.contextmanager
def _trusted_folder() -> Iterator[_Store | None]:
    """The folder, made if it is missing; None, after a warning or a line in the log, if it cannot be used."""
    store = None
    try:
        store = _opened_folder(folder())
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        _log.info("compiled code is not kept: %s", error)
    try:
        yield store
    finally:
        if store is not None and store.descriptor is not None:
            os.close(store.descriptor)


def _opened_folder(path: Path) -> _Store | None:
    _make(path)
    if not hasattr(os, "geteuid"):
        return _Store(path, None)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        if not path.is_symlink():
            raise
        descriptor, fault = None, "it is a symbolic link"
    else:
        fault = _fault(os.fstat(descriptor)) or _fault_above(path)
    if fault is None:
        return _Store(path, descriptor)
    if descriptor is not None:
        os.close(descriptor)
    _warn(
        f"Holdfast keeps no compiled code in {path}, and compiles anew in each process: {fault}. "
        f"Set HOLDFAST_CACHE to a folder that only you can write to."
    )
    return None


def _make(path: Path) -> None:
    missing = [parent for parent in path.parents if not parent.exists()]
    for parent in reversed(missing):
        with contextlib.suppress(FileExistsError):
            parent.mkdir(0o775)
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)


def _fault(status: os.stat_result) -> str | None:
    """Why a file or folder is not this user's alone; None if it is."""
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _fault_above(path: Path) -> str | None:
    """Why a folder's parents are not trusted. Note [What is trusted]."""
    above = path.parent.resolve()
    for parent in (above, *above.parents):
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"everybody can write to {parent} (mode {stat.S_IMODE(mode):04o})"
    return None


def _warn(message: str) -> None:
    global _warned
    if _warned:
        _log.info(message)
        return
    _warned = True
    warnings.warn(message, CacheWarning, stacklevel=2)


# -- entries ---------------------------------------------------------------------------------------------------------


def _read(store: _Store, name: str) -> bytes | None:
    """The code of an entry; None if there is none, or none that may be run."""
    try:
        descriptor = store.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait for a writer
    except FileNotFoundError:
        return None
    except OSError as error:
        if (store.path / name).is_symlink():
            _not_run(store, name, "it is a symbolic link")
        else:
            _log.info("compiled code could not be read: %s", error)
        return None
    try:
        status = os.fstat(descriptor)
        fault = _fault_of_entry(status)
        if fault is not None:
            _not_run(store, name, fault)
            return None
        with open(descriptor, "rb", closefd=False) as file:
            entry = file.read()
        if os.utime in os.supports_fd:
            with contextlib.suppress(OSError):  # when it was last used, for _tidy
                os.utime(descriptor, ns=(time.time_ns(), status.st_mtime_ns))
    except OSError as error:
        _log.info("compiled code could not be read: %s", error)
        return None
    finally:
        os.close(descriptor)
    digest, code = entry[:32], entry[32:]
    if hashlib.sha256(code).digest() != digest:
        _log.warning("cache entry %s is damaged; compiling anew", name)
        return None
    return code


def _fault_of_entry(status: os.stat_result) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "it is not a plain file"
    return _fault(status) or ("it has a second name, a hard link" if status.st_nlink > 1 else None)


def _not_run(store: _Store, name: str, fault: str) -> None:
    _warn(f"Holdfast does not run the compiled code in {store.path / name}: {fault}. It compiles anew and replaces it.")


def _write(store: _Store, name: str, code: bytes) -> None:
    """Put an entry in its place, whole or not at all, and make room for it.

    Nothing is forced to the disk, as ``holdfast.files`` does: what a crash leaves incomplete does not match its hash.
    """
    part = f".{name}.{secrets.token_hex(8)}.part"
    try:
        with os.fdopen(store.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(store.at(part), store.at(name), src_dir_fd=store.descriptor, dst_dir_fd=store.descriptor)
    except OSError as error:
        _log.info("compiled code could not be kept: %s", error)
        store.unlink(part)
    except BaseException:
        store.unlink(part)
        raise
    with contextlib.suppress(OSError):  # another process may be tidying too
        _tidy(store)


def _tidy(store: _Store) -> None:
    """Remove the least recently used entries beyond ``LIMIT``, and what killed writers left."""
    entries = []
    with os.scandir(store.path if store.descriptor is None else store.descriptor) as files:
        for file in files:
            status = file.stat(follow_symlinks=False)
            if file.name.endswith(".part") and status.st_mtime < time.time() - ABANDONED:
                store.unlink(file.name)
            elif file.name.endswith(".bin"):
                entries.append((max(status.st_atime, status.st_mtime), status.st_size, file.name))
    total = 0
    for _, size, name in sorted(entries, reverse=True):  # from the last used
        total += size
        if total > LIMIT:
            store.unlink(name)
