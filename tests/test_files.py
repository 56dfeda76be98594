"""Files appear whole or not at all."""

import contextlib
import os
import resource
import signal
import subprocess
import sys

import pytest

from holdfast import files
from holdfast.files import cache_folder, remove_leftovers, whole_file, write_atomically


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


WRITER = """
import sys
from holdfast.files import whole_file
with whole_file(sys.argv[1]) as file:
    file.write(b"half of")
    file.flush()
    print(flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def a_writer_in_the_middle(path):
    """A process of its own that has written half of ``path`` and waits for a line before the other half."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], **pipes) as writer:
        writer.stdout.readline()
        try:
            yield writer
        finally:
            writer.kill()


def test_what_a_killed_writer_leaves_is_removed_by_the_next_one(tmp_path):
    """A real process, killed with SIGKILL in the middle of a write."""
    path = tmp_path / "last.safetensors"
    with a_writer_in_the_middle(path) as writer:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        (left,) = tmp_path.iterdir()
        assert left.name.endswith(".part")
        write_atomically(path, "new")
    assert [file.name for file in tmp_path.iterdir()] == ["last.safetensors"]


def test_what_a_living_writer_writes_is_left_alone(tmp_path):
    """Another process writes the same name in the meantime; both succeed, and the later one has the name."""
    path = tmp_path / "last.safetensors"
    with a_writer_in_the_middle(path) as writer:
        write_atomically(path, "ours")
        assert remove_leftovers(path) == []
        assert len(list(tmp_path.iterdir())) == 2
        assert path.read_text() == "ours"
        writer.communicate(b"\n")
        assert writer.returncode == 0
    assert path.read_text() == "half of"
    assert len(list(tmp_path.iterdir())) == 1


def test_no_one_elses_file_is_removed(tmp_path):
    """Only names that whole_file gives, and only those beside the same file."""
    others = [".note.part", ".note.txt.part", "note.txt.a1b2c3d4.part", ".note.txt.A1B2C3D4.part", ".b.a1b2c3d4.part"]
    for name in others:
        (tmp_path / name).write_text("")
    write_atomically(tmp_path / "note.txt", "new")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*others, "note.txt"])


def test_writers_that_race_never_lose_a_file(tmp_path):
    """Four processes write one name as fast as they can, each sweeping before it writes: none fails."""
    program = "import sys\nfrom holdfast.files import write_atomically\n"
    program += "for n in range(60): write_atomically(sys.argv[1], str(n) * 100)"
    racers = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "x")]) for _ in range(4)]
    assert [racer.wait(timeout=120) for racer in racers] == [0, 0, 0, 0]
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
