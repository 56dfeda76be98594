"""Files that appear whole or not at all, and the folder for what can be made again."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal

__all__ = ["alone_in", "cache_folder", "shipped_folder", "whole_file", "write_atomically"]


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
    handle, neighbour = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(neighbour, 0o644)  # a temporary file is for its owner alone, results and caches may be shared
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


@contextlib.contextmanager
def alone_in(folder: Path | str) -> Iterator[None]:
    """Hold a folder against other processes that ask for it in the same way; it is free when this one ends, however.

    Raises:
        BlockingIOError: another process has it. Windows and some network disks know no such lock: there it always
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
