"""Files that appear whole or not at all, and the folder for what can be made again.

Note [Neighbours]: a file is written as ``.NAME.xxxxxxxx.part`` beside its place and then renamed. A writer that is
killed leaves that neighbour behind. A living writer holds a lock (``flock``) on its neighbour until the rename, and the
system drops the lock when a process ends, however it ends. So a neighbour whose lock is free belongs to nobody, and the
next writer of the same name removes it. Where there are no locks (Windows, some network disks) nothing is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal

__all__ = [
    "alone_in",
    "cache_folder",
    "remove_leftovers",
    "sha256_of",
    "shipped_folder",
    "whole_file",
    "write_atomically",
]


@contextlib.contextmanager
def whole_file(path: Path | str) -> Iterator[IO[bytes]]:
    """A file to write to that takes its name when all of it is written, or never.

    The bytes go to a neighbour first, reach the disk, and take the name in one step: a reader, or a machine that comes
    back after a crash, sees the old file or the new one. A failure leaves the old one and no neighbour behind, and is
    the ``OSError`` that it was.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> with whole_file(folder / "note.txt") as file:
        ...     _ = file.write(b"all of it")
        >>> (folder / "note.txt").read_text(), len(list(folder.iterdir()))
        ('all of it', 1)
    """
    path = Path(path)
    remove_leftovers(path)
    handle, neighbour = _neighbour(path)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.chmod(neighbour, 0o644)  # a temporary file is for its owner alone, results and caches may be shared
            if sys.platform != "win32":  # still open, and so still locked: see Note [Neighbours]
                os.replace(neighbour, path)
        if sys.platform == "win32":  # an open file cannot be renamed there
            os.replace(neighbour, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(neighbour)
        raise
    with contextlib.suppress(OSError):  # the folder's own entry; some file systems refuse this, and lose nothing by it
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_atomically(path: Path | str, data: bytes | str) -> None:
    """Write a file whole or not at all, as ``whole_file`` does.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_atomically(folder / "note.txt", "all of it")
        >>> (folder / "note.txt").read_text()
        'all of it'
    """
    with whole_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def remove_leftovers(path: Path | str) -> list[Path]:
    """Remove what killed writers of ``path`` left beside it, and return it; see Note [Neighbours].

    A neighbour that a living process writes to, in whatever program, is left alone.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / ".note.txt.a1b2c3d4.part").write_text("half of")
        >>> [left.name for left in remove_leftovers(folder / "note.txt")], list(folder.iterdir())
        (['.note.txt.a1b2c3d4.part'], [])
    """
    path = Path(path)
    ours = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}\.part")  # as tempfile names them
    try:
        with os.scandir(path.parent) as entries:
            found = [entry.path for entry in entries if ours.fullmatch(entry.name)]
    except OSError:  # the folder cannot be listed; the writer says so if it matters
        return []
    return [Path(neighbour) for neighbour in found if _removed(neighbour)]


def sha256_of(path: Path | str) -> str:
    """The SHA-256 digest of a file, in hexadecimal digits.

    Example:
        >>> write_atomically(path := Path(tempfile.mkdtemp()) / "note.txt", "all of it")
        >>> sha256_of(path)[:8]
        '07630777'
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _neighbour(path: Path) -> tuple[int, str]:
    """A new file beside ``path``, open and locked."""
    while True:
        handle, neighbour = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        held = _lock(handle)
        if held is None or (held and _still_at(handle, neighbour)):
            return handle, neighbour
        os.close(handle)  # another process took it for a leftover between its making and its lock: once more


def _removed(neighbour: str) -> bool:
    """Remove a neighbour unless its writer lives."""
    try:
        handle = os.open(neighbour, os.O_RDWR)
    except OSError:
        return False
    try:
        if _lock(handle) and _still_at(handle, neighbour):
            os.unlink(neighbour)
            return True
    except OSError:
        pass
    finally:
        os.close(handle)
    return False


def _lock(handle: int) -> bool | None:
    """Lock an open file: True if it was free, False if another process has it, None where there are no locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _still_at(handle: int, path: str) -> bool:
    """Whether ``path`` is the open file, and not a later one or none."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


@contextlib.contextmanager
def alone_in(folder: Path | str) -> Iterator[None]:
    """Hold a folder against other processes that ask for it in the same way; it is free when this one ends, however.

    Raises:
        BlockingIOError: another process has it. Windows and some network disks have no such lock: there the call always
            succeeds.

    Example:
        >>> with alone_in(tempfile.mkdtemp()):
        ...     pass
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # the disk has no locks
            pass
        yield
    finally:
        os.close(handle)


def cache_folder(kind: str) -> Path:
    """Where what can be made or fetched again is kept: ``HOLDFAST_CACHE``, else the platform's cache folder.

    Example:
        >>> cache_folder("data").name
        'data'
    """
    if "HOLDFAST_CACHE" in os.environ:
        return Path(os.environ["HOLDFAST_CACHE"]) / kind
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "holdfast" / kind


def shipped_folder(kind: Literal["studies", "results"]) -> Path:
    """The studies, or the tables of their results, that come with Holdfast: those of the wheel, or of the clone.

    Example:
        >>> shipped_folder("studies").joinpath("s3", "addition.toml").is_file()
        True
    """
    inside = Path(__file__).parent / "_shipped" / kind  # put there by setup.py
    return inside if inside.is_dir() else Path(__file__).parents[2] / kind
