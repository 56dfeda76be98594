"""Files appear whole or not at all."""

import contextlib
import resource

import pytest

from holdfast import files
from holdfast.files import cache_folder, whole_file, write_atomically


def test_a_file_that_is_not_written_whole_does_not_appear(tmp_path):
    path = tmp_path / "kept"
    path.write_bytes(b"old")
    with contextlib.suppress(KeyboardInterrupt), whole_file(path) as file:
        file.write(b"new, but")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    """A real failure in the middle of a write: no file of this process may grow beyond ten bytes."""
    path, before = tmp_path / "note", resource.getrlimit(resource.RLIMIT_FSIZE)
    write_atomically(path, "old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomically(path, "new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["note"]


def test_the_cache_follows_the_environment_then_the_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    assert cache_folder("data") == tmp_path / "data"
    monkeypatch.delenv("HOLDFAST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(files.sys, "platform", "linux")
    assert cache_folder("data") == tmp_path / "holdfast" / "data"
