"""Data files: found on this machine or downloaded, and accepted only if their hash is correct.

    HOLDFAST_DATA/path  →  cache/data/path  →  the official address          (1) the first that exists
    sha256(contents) = the hash that the source states                       (2) else a DataError

A file may be compressed, as ``path`` + ".gz"; (2) is about its contents. A damaged file in ``HOLDFAST_DATA`` is an
error, since somebody put it there. A damaged file in the cache is downloaded again. The cache is ``HOLDFAST_CACHE``,
else the platform's cache folder.

A task's options class names its files in a method ``sources(self) -> tuple[Source, ...]``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import importlib.util
import logging
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from holdfast.errors import DataError, MissingExtraError, SettingError
from holdfast.files import cache_folder

__all__ = [
    "Source",
    "find",
    "hash_of",
    "locate",
    "problem_of",
    "read_bytes",
    "read_text",
]

_log = logging.getLogger("holdfast.tasks")
_CHUNK = 1 << 20
# what reading a damaged .gz, .zip or .tar raises; encrypted or exotic archives: RuntimeError, NotImplementedError
_UNPACKING = (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError, RuntimeError, ValueError)
_believed: dict[Path, tuple[str, int, int]] = {}  # files hashed in this process: hash, size, time of change


@dataclasses.dataclass(frozen=True)
class Source:
    """One file of a data set.

    Args:
        path: its path below ``HOLDFAST_DATA`` and in the cache, uncompressed, with "/": "ptb/ptb.train.txt".
        sha256, size: hash and bytes of its contents, uncompressed.
        urls: official addresses, tried in turn: the file, the file as .gz, or an archive with it (.zip, .tar, .tgz).
        member: its name inside the archive, if an address is one.
        how: how to get it by hand, and its licence, for the error message.
        also: hashes of other copies that are accepted.

    Example:
        >>> Source("mine/letters.txt", sha256="0" * 64, size=10).names
        ('mine/letters.txt', 'mine/letters.txt.gz')
    """

    path: str
    sha256: str
    size: int
    urls: tuple[str, ...] = ()
    member: str | None = None
    how: str = ""
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path).parts
        if not parts or self.path.startswith("/") or ".." in parts or "\\" in self.path or ":" in self.path:
            raise SettingError(f"Source expects a path below the data folder, got {self.path!r}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Its possible names in a data folder: plain or compressed."""
        return self.path, f"{self.path}.gz"


def find(source: Source) -> tuple[Path, Literal["HOLDFAST_DATA", "cache"]] | None:
    """The path of a file on this machine and the folder it is in, unchecked; None if it is missing.

    Example:
        >>> find(Source("nowhere/nothing.txt", sha256="0" * 64, size=10)) is None
        True
    """
    if (given := os.environ.get("HOLDFAST_DATA")) and not Path(given).is_dir():
        raise DataError(f"HOLDFAST_DATA is {given}, which is not a folder; correct it or unset it.")
    for name in source.names:
        if given and (path := Path(given, name)).exists():
            return path, "HOLDFAST_DATA"
    for name in source.names:
        if (path := cache_folder("data") / name).exists():
            return path, "cache"
    return None


def locate(source: Source) -> Path:
    """The path of the file on this machine, checked (1, 2), and downloaded if it is missing.

    It ends in ".gz" if the file is compressed. The hash is computed once per process, and again if the file changes.

    Raises:
        DataError: it is damaged, or missing and cannot be downloaded. The message has its hashes and how to get it.
        MissingExtraError: it must be downloaded, and pooch is not installed.

    Example:
        >>> locate(Source("nowhere/nothing.txt", sha256="0" * 64, size=10, how="There is no such file."))
        Traceback (most recent call last):
        holdfast.errors.DataError: nowhere/nothing.txt is missing...
    """
    found = find(source)
    if found is None:
        return _download(source)
    path, where = found
    if (problem := problem_of(source, path)) is not None:
        if where == "HOLDFAST_DATA" or not source.urls:
            raise _damaged(source, path, problem)
        _log.warning("%s is damaged (%s); downloading it again", path, problem)
        return _download(source)
    return path


def hash_of(source: Source) -> str:
    """The hash of the file on this machine: the source's ``sha256`` or one of ``also``.

    Example:
        >>> hash_of(Source("nowhere/nothing.txt", sha256="0" * 64, size=10))
        Traceback (most recent call last):
        holdfast.errors.DataError: nowhere/nothing.txt is missing...
    """
    return _believed[locate(source).resolve()][0]


def read_bytes(source: Source) -> bytes:
    """The contents of a file, uncompressed.

    Example:
        >>> read_bytes(Source("nowhere/nothing.txt", sha256="0" * 64, size=10))
        Traceback (most recent call last):
        holdfast.errors.DataError: nowhere/nothing.txt is missing...
    """
    path = locate(source)
    try:
        with _opened(path) as file:
            return file.read()
    except _UNPACKING as error:
        raise _damaged(source, path, f"it cannot be read ({error})") from error


def read_text(source: Source) -> str:
    """The contents of a UTF-8 text, uncompressed, with its line ends unchanged.

    Example:
        >>> read_text(Source("nowhere/nothing.txt", sha256="0" * 64, size=10))
        Traceback (most recent call last):
        holdfast.errors.DataError: nowhere/nothing.txt is missing...
    """
    try:
        return read_bytes(source).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{source.path} is not text in UTF-8: {error}.") from error


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def problem_of(source: Source, path: Path) -> str | None:
    """Why (2) does not hold for the file at ``path``, or None if it does."""
    try:
        stat, key = path.stat(), path.resolve()
        digest, *known = _believed.get(key, ("", 0, 0))
        if digest in (source.sha256, *source.also) and known == [stat.st_size, stat.st_mtime_ns]:
            return None
        with _opened(path) as file:
            digest, length = _digest(file, source.size if path.suffix == ".gz" else None)
    except _UNPACKING as error:
        return f"it cannot be read ({error or type(error).__name__})"
    if digest not in (source.sha256, *source.also):
        return f"its contents have {length:,} bytes and the sha256 {digest}"
    _believed[key] = (digest, stat.st_size, stat.st_mtime_ns)
    return None


def _digest(file: IO[bytes], limit: int | None = None) -> tuple[str, int]:
    """Hash and length. Reading stops soon after ``limit`` bytes: a compressed file may expand without end."""
    digest, length = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        length += len(chunk)
        if limit is not None and length > limit:
            break
    return digest.hexdigest(), length


def _damaged(source: Source, path: Path, problem: str) -> DataError:
    expected = f"expected {source.size:,} bytes with the sha256 {source.sha256}"
    return DataError(
        f"{path} is damaged: {expected}, but {problem}. Delete it and download it again. {_way(source)}".rstrip()
    )


def _way(source: Source) -> str:
    parts = [source.how] if source.how else []
    if source.urls:
        inside = f" (as {source.member} in the archive)" if source.member else ""
        parts.append(f"Official source: {' or '.join(source.urls)}{inside}.")
    return " ".join(parts)


def _download(source: Source) -> Path:
    given, cached = os.environ.get("HOLDFAST_DATA") or "not set", cache_folder("data")
    missing = (
        f"{source.path} is missing: it is neither in HOLDFAST_DATA ({given}) nor in the cache ({cached}). "
        f"Expected: {source.size:,} bytes with the sha256 {source.sha256}."
    )
    if not source.urls:
        raise DataError(f"{missing} It has no address to download from. {_way(source)}".rstrip())
    try:
        import pooch
    except ImportError as error:
        advice = "To download it, pip install 'holdfast[train]'; or put it there by hand."
        raise MissingExtraError(f"{missing} {advice} {_way(source)}") from error
    failures = []
    for url in source.urls:
        try:
            return _keep(source, url, pooch)
        except DataError as error:
            failures.append(f"{url}: {error}")
        except Exception as error:  # the libraries under pooch raise errors of their own; the next address may work
            failures.append(f"{url}: {type(error).__name__}: {error}")
    raise DataError(f"{missing} Downloading failed: {'; '.join(failures)}. Put it there by hand. {_way(source)}")


def _keep(source: Source, url: str, pooch: Any) -> Path:
    """Download ``url``, extract the file if it is an archive, check it, and move it into the cache."""
    folder = (cache_folder("data") / source.path).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=folder, prefix=".download.")
    except OSError as error:
        raise DataError(f"the cache {folder} cannot be written ({error}); set HOLDFAST_CACHE to another") from error
    with temporary as inside:
        got = Path(inside, "got")
        _log.info("downloading %s", url)
        with _progress(source.path) as bar:
            pooch.HTTPDownloader(progressbar=bar, chunk_size=_CHUNK >> 4, timeout=60)(url, str(got), None)
        with got.open("rb") as file:
            digest, packed = _digest(file)[0], file.seek(0) == 0 and file.read(2) == b"\x1f\x8b"
        if digest not in (source.sha256, *source.also):
            if source.member is not None:
                got = _member(source, got, Path(inside, "member"))
            elif packed:
                got = got.rename(got.with_suffix(".gz"))
        if (problem := problem_of(source, got)) is not None:
            raise DataError(f"the download is not the file: {problem}")
        target = got.replace(cache_folder("data") / source.names[got.suffix == ".gz"])
    _believed[target.resolve()] = _believed.pop(got.resolve())
    return target


def _member(source: Source, archive: Path, target: Path) -> Path:
    """Copy one file out of an archive. Names in the archive are never used as paths."""
    try:
        with contextlib.ExitStack() as stack:
            if zipfile.is_zipfile(archive):
                file = stack.enter_context(stack.enter_context(zipfile.ZipFile(archive)).open(str(source.member)))
            elif tarfile.is_tarfile(archive):
                file = stack.enter_context(tarfile.open(archive)).extractfile(str(source.member))
            else:
                raise DataError("the download is not an archive")
            if file is None:
                raise KeyError(source.member)
            with target.open("wb") as copy:
                while (chunk := file.read(_CHUNK)) and copy.tell() <= source.size:
                    copy.write(chunk)
    except KeyError as error:
        raise DataError(f"the archive has no file {source.member!r}") from error
    except _UNPACKING as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"the archive is damaged ({error})") from error
    return target


@contextlib.contextmanager
def _progress(name: str) -> Iterator[Any]:
    """A bar in pooch's form (total, update, reset, close), drawn by rich; False where rich is not installed."""
    if importlib.util.find_spec("rich") is None:
        yield False
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _Bar(progress, progress.add_task(name, total=None))


class _Bar:
    """The methods that pooch calls, on a progress bar of rich."""

    total = 0  # set by pooch; 0 if the server did not say

    def __init__(self, progress: Any, task: Any):
        self._progress, self._task = progress, task

    def update(self, step: int) -> None:
        self._progress.update(self._task, total=self.total or None, advance=step)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.refresh()
