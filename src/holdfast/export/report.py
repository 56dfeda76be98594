"""What all exporters share at their end: files that appear whole or not at all, and what is said about them."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from holdfast.errors import SettingError
from holdfast.files import whole_file

__all__ = ["Report", "check_new", "write_new"]


@dataclasses.dataclass(frozen=True)
class Report:
    """What an export wrote.

    Args:
        paths: the files.
        lines: about them, for a person to read: sizes, and what they take in and give out.

    Example:
        >>> Report((Path("model.onnx"),), ["model.onnx: 1,024 bytes"]).lines
        ['model.onnx: 1,024 bytes']
    """

    paths: tuple[Path, ...]
    lines: list[str]


def write_new(contents: dict[Path, bytes | str], *, force: bool = False) -> tuple[Path, ...]:
    """Write files, all of them whole or none; if one exists, it is kept and none is written, unless ``force``.

    Raises:
        SettingError: a file exists.
        OSError: a folder is missing or the disk is full; the files that were there before are still there.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "model.c"
        >>> write_new({path: "int x;"})[0].name
        'model.c'
        >>> write_new({path: "int y;"})
        Traceback (most recent call last):
        holdfast.errors.SettingError: ...model.c exists and is kept; pass force=True to overwrite it, or choose...
    """
    check_new(contents, force=force)
    path = None
    try:
        with contextlib.ExitStack() as stack:  # all bytes are on the disk before the first file takes its name
            for path, data in contents.items():
                file = stack.enter_context(whole_file(path))
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:  # a full disk does not say which file it was
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    return tuple(contents)


def check_new(paths: Iterable[Path], *, force: bool = False) -> None:
    """Raise what ``write_new`` would, before the work that makes the contents.

    Example:
        >>> check_new([Path("no-such-folder/model.c")])
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: 'no-such-folder'
    """
    for path in paths:
        if path.is_dir():
            raise SettingError(f"{path} is a folder; an export expects the name of a file to write.")
        if path.exists() and not force:
            raise SettingError(f"{path} exists and is kept; pass force=True to overwrite it, or choose another name.")
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
