"""Loading machine code runs it, so code is loaded from disk only if nobody but this user can have written it."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from holdfast.engine.targets.cpu import cache
from holdfast.engine.targets.cpu.native import object_code

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no owners and modes of this kind")
as_root = pytest.mark.skipif(
    hasattr(os, "geteuid") and os.geteuid() != 0, reason="only root can make files that belong to another user"
)

OTHER = 54321  # a user who is not this one


def text(number):
    """A program that returns ``number``."""
    return f"define i32 @answer() {{ ret i32 {number} }}"


def answer(number):
    return ctypes.CFUNCTYPE(ctypes.c_int)(cache.library(text(number)).address("answer"))()


def poisoned(number=666):
    """An entry as an attacker would make it: its hash is right."""
    code = object_code(text(number))
    return hashlib.sha256(code).digest() + code


@pytest.fixture
def compiled(monkeypatch):
    """Programs compiled since the last ``new_process``, in order."""
    log = []

    def noted(program):
        log.append(program)
        return object_code(program)

    monkeypatch.setattr(cache, "object_code", noted)
    return log


@pytest.fixture
def fused(tmp_path, monkeypatch, compiled):
    """The cache folder, with one entry in it."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    new_process(compiled)
    assert answer(7) == 7
    assert compiled == [text(7)]
    new_process(compiled)
    return tmp_path / "cache" / "fused"


def new_process(compiled):
    """Forget what a process remembers."""
    cache._library.cache_clear()
    cache._warned = False
    compiled.clear()


def entry_of(folder):
    (entry,) = folder.glob("*.bin")
    return entry


def assert_not_trusted(compiled, match):
    """The answer is right, from code compiled in memory, with one warning that says why; none the second time."""
    with pytest.warns(cache.CacheWarning, match=match) as seen:
        assert (answer(7), answer(8)) == (7, 8)
    assert len(seen) == 1
    assert compiled == [text(7), text(8)]


# -- what is trusted ---------------------------------------------------------------------------------------------------


def test_a_folder_of_the_users_own_is_used_without_a_word(fused, compiled):
    assert answer(7) == 7
    assert compiled == []


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_the_folder_and_its_entries_are_for_their_owner_alone(tmp_path, monkeypatch, compiled, umask):
    """Whatever the umask; and parents that are made on the way are not writable by everybody."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "new" / "cache"))
    new_process(compiled)
    before = os.umask(umask)
    try:
        assert answer(7) == 7
    finally:
        os.umask(before)
    folder = tmp_path / "new" / "cache" / "fused"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert entry_of(folder).stat().st_mode & 0o177 == 0
    assert not folder.parent.stat().st_mode & 0o002
    new_process(compiled)
    assert answer(7) == 7
    assert compiled == []


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_trusted(fused, compiled, mode):
    entry_of(fused).write_bytes(poisoned())
    fused.chmod(mode)
    kept = entry_of(fused).read_bytes()
    assert_not_trusted(compiled, rf"others can write to it \(mode {mode:04o}\)")
    assert entry_of(fused).read_bytes() == kept  # and nothing is written there


@as_root
def test_a_folder_of_another_user_is_not_trusted(fused, compiled):
    entry_of(fused).write_bytes(poisoned())
    os.chown(fused, OTHER, -1)
    assert_not_trusted(compiled, f"belongs to user {OTHER}")


def test_a_folder_that_is_a_link_is_not_trusted(fused, compiled):
    fused.rename(fused.with_name("elsewhere"))
    fused.symlink_to("elsewhere")
    assert_not_trusted(compiled, "symbolic link")


def test_a_parent_that_is_a_link_is_followed(fused, compiled):
    """As where a home's cache folder lies on another disk."""
    fused.parent.rename(fused.parent.with_name("disk"))
    fused.parent.symlink_to("disk")
    assert answer(7) == 7
    assert compiled == []


def test_a_parent_that_everybody_can_write_to_is_not_trusted_unless_it_is_sticky(fused, compiled):
    fused.parent.chmod(0o777)
    assert_not_trusted(compiled, "everybody can write to .*cache")
    new_process(compiled)
    fused.parent.chmod(0o1777)
    assert answer(7) == 7
    assert compiled == []


def test_a_link_to_a_parent_does_not_hide_what_lies_behind_it(fused, compiled):
    open_to_all = fused.parent.with_name("open")
    open_to_all.mkdir()
    fused.parent.rename(open_to_all / "cache")
    open_to_all.chmod(0o777)
    fused.parent.symlink_to(open_to_all / "cache")
    assert_not_trusted(compiled, "everybody can write to .*open")


# -- entries -----------------------------------------------------------------------------------------------------------


def assert_replaced(fused, compiled, match):
    """Compiled anew with one warning, and put right on disk: the next process loads it without a word."""
    with pytest.warns(cache.CacheWarning, match=match) as seen:
        assert answer(7) == 7
    assert len(seen) == 1
    assert compiled == [text(7)]
    new_process(compiled)
    assert answer(7) == 7
    assert compiled == []
    assert not entry_of(fused).is_symlink()


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_an_entry_that_others_can_write_to_is_replaced(fused, compiled, mode):
    entry_of(fused).write_bytes(poisoned())
    entry_of(fused).chmod(mode)
    assert_replaced(fused, compiled, rf"others can write to it \(mode {mode:04o}\)")


@as_root
def test_an_entry_of_another_user_is_replaced(fused, compiled):
    entry_of(fused).write_bytes(poisoned())
    os.chown(entry_of(fused), OTHER, -1)
    assert_replaced(fused, compiled, f"belongs to user {OTHER}")


@pytest.mark.parametrize("kind", ["symbolic link", "hard link"])
def test_an_entry_under_another_name_is_replaced_and_what_it_named_is_left_alone(fused, compiled, kind):
    entry, own = entry_of(fused), fused.parent / "file"
    own.write_bytes(poisoned())
    entry.unlink()
    entry.symlink_to(own) if kind == "symbolic link" else entry.hardlink_to(own)
    assert_replaced(fused, compiled, kind)
    assert own.read_bytes() == poisoned()


def test_a_pipe_in_an_entrys_place_holds_nobody_up(fused, compiled):
    entry = entry_of(fused)
    entry.unlink()
    os.mkfifo(entry, 0o600)
    assert_replaced(fused, compiled, "not a plain file")


def test_a_folder_in_an_entrys_place_still_lets_the_call_answer(fused, compiled):
    entry = entry_of(fused)
    entry.unlink()
    entry.mkdir(0o700)
    with pytest.warns(cache.CacheWarning, match="not a plain file"):
        assert answer(7) == 7
    assert not list(fused.glob(".*"))


def test_an_entry_exchanged_after_the_check_is_not_read(fused, compiled, monkeypatch):
    """What was checked is the open file: a name that points elsewhere a moment later changes nothing."""
    entry, checked = entry_of(fused), cache._fault_of_entry

    def exchanged(status):
        other = fused / "other"
        other.write_bytes(poisoned())
        os.replace(other, entry)
        return checked(status)

    monkeypatch.setattr(cache, "_fault_of_entry", exchanged)
    assert answer(7) == 7
    assert compiled == []


def test_a_folder_exchanged_after_the_check_is_not_read(fused, compiled, monkeypatch):
    trap = fused.with_name("trap")
    trap.mkdir(0o777)
    (trap / entry_of(fused).name).write_bytes(poisoned())
    checked = cache._fault_above

    def exchanged(path):
        fault = checked(path)
        fused.rename(fused.with_name("away"))
        trap.rename(fused)
        return fault

    monkeypatch.setattr(cache, "_fault_above", exchanged)
    assert answer(7) == 7


PROGRAM = """
    import ctypes, os
    from holdfast.engine.targets.cpu import cache
    os.setgroups([])
    os.setgid({uid}); os.setuid({uid})
    library = cache.library({text!r})
    print("answer", ctypes.CFUNCTYPE(ctypes.c_int)(library.address("answer"))())
"""


def as_user(uid, folder, umask=0o022):
    """Compile and run ``text(7)`` as that user, in a process of its own."""
    code = textwrap.dedent(PROGRAM).format(uid=uid, text=text(7))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"HOLDFAST_CACHE": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        umask=umask,
    )
    assert done.returncode == 0, done.stderr
    return done


@as_root
def test_what_one_user_prepares_another_does_not_run(request):
    """The victim shares a folder, as in /tmp; the attacker was there first and left an entry of the right name."""
    shared = Path(tempfile.mkdtemp(dir="/tmp"))  # other users cannot enter pytest's own folder
    request.addfinalizer(lambda: shutil.rmtree(shared))
    shared.chmod(0o1777)
    first = as_user(OTHER, shared, umask=0)
    assert "answer 7" in first.stdout
    assert "CacheWarning" not in first.stderr
    entry = entry_of(shared / "fused")
    assert entry.stat().st_uid == OTHER
    entry.write_bytes(poisoned())
    entry.chmod(0o644)
    (shared / "fused").chmod(0o755)
    victim = as_user(OTHER + 1, shared)
    assert "answer 7" in victim.stdout
    assert victim.stderr.count("CacheWarning:") == 1
    assert f"belongs to user {OTHER}" in victim.stderr


# -- size --------------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_entries_make_room(fused, compiled, monkeypatch):
    first = entry_of(fused)
    size, now = first.stat().st_size, time.time()
    monkeypatch.setattr(cache, "LIMIT", 3 * size + size // 2)
    for number in range(10, 12):
        answer(number)
    for age, entry in enumerate(sorted(fused.glob("*.bin"), key=lambda p: p == first)):
        os.utime(entry, (now - 1000 * (age + 1),) * 2)  # the first is the oldest
    new_process(compiled)
    answer(7)  # and is used again
    answer(12)
    assert len(list(fused.glob("*.bin"))) == 3
    assert first.exists()
    assert sum(p.stat().st_size for p in fused.iterdir()) <= cache.LIMIT


def test_what_killed_writers_left_is_removed_and_writers_at_work_are_not(fused, compiled):
    left, at_work = fused / ".a.bin.x.part", fused / ".b.bin.x.part"
    left.write_bytes(b"half")
    at_work.write_bytes(b"half")
    os.utime(left, (time.time() - 2 * cache.ABANDONED,) * 2)
    answer(8)
    assert not left.exists()
    assert at_work.exists()


def test_a_platform_without_users_keeps_its_cache(tmp_path, monkeypatch, compiled):
    """Windows has no geteuid, and opens files by path."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.delattr(os, "geteuid")
    for name in ("O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK"):
        monkeypatch.delattr(os, name)
    monkeypatch.setattr(os, "supports_fd", set())
    new_process(compiled)
    assert answer(7) == 7
    new_process(compiled)
    assert answer(7) == 7
    assert compiled == []
    assert len(list((tmp_path / "fused").iterdir())) == 1
