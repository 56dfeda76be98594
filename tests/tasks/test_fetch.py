"""A file is found where it lies, downloaded where it does not, and believed only by its hash."""

import dataclasses
import functools
import gzip
import hashlib
import http.server
import io
import logging
import os
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from holdfast.errors import DataError, MissingExtraError, SettingError
from holdfast.tasks import Source, fetch, locate, read_bytes, read_text, status

TEXT = b"the whole text\n" * 5000


def source_of(contents, path="set/file.txt", **kwargs):
    return Source(path, hashlib.sha256(contents).hexdigest(), len(contents), **kwargs)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """HOLDFAST_DATA and the cache, both empty."""
    data, cache = tmp_path / "given", tmp_path / "cache"
    data.mkdir()
    monkeypatch.setenv("HOLDFAST_DATA", str(data))
    monkeypatch.setenv("HOLDFAST_CACHE", str(cache))
    return data, cache / "data"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server on this machine, its folder, and the requests that came."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served, asked = tmp_path / "served", []
    served.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            asked.append(self.path)

        def do_GET(self):
            if self.path.startswith("/half/"):  # announces all of a file and sends half of it
                contents = (served / self.path.removeprefix("/half/")).read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(contents)))
                self.end_headers()
                self.wfile.write(contents[: len(contents) // 2])
            else:
                super().do_GET()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=served)) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}", served, asked
        web.shutdown()
        thread.join()


def put(folder, name, contents):
    path = Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents)
    return path


def zip_of(members):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, contents in members.items():
            archive.writestr(name, contents)
    return raw.getvalue()


def leftovers(cache):
    """Files in the cache that are neither whole nor wanted."""
    return [path for path in cache.rglob("*") if path.is_file() and path.name.startswith(".")] if cache.exists() else []


# Found on this machine


def test_holdfast_data_comes_before_the_cache(folders):
    given, cache = folders
    put(cache, "set/file.txt", TEXT)
    assert locate(source_of(TEXT)) == cache / "set/file.txt"
    put(given, "set/file.txt", TEXT)
    assert locate(source_of(TEXT)) == given / "set/file.txt"


def test_a_packed_file_is_known_by_what_is_inside(folders):
    given, _ = folders
    put(given, "set/file.txt.gz", gzip.compress(TEXT, 1))
    assert read_bytes(source_of(TEXT)) == TEXT
    assert read_text(source_of(TEXT)) == TEXT.decode()


def test_another_good_copy_is_accepted_by_its_hash(folders):
    other = b"the same, rounded otherwise"
    put(folders[0], "set/file.txt", other)
    source = source_of(TEXT, also=(hashlib.sha256(other).hexdigest(),))
    assert read_bytes(source) == other
    assert fetch.hash_of(source) == source.also[0]


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("set/file.txt", TEXT[:-1]),  # truncated
        ("set/file.txt", TEXT[:100] + b"X" + TEXT[101:]),  # one letter changed
        ("set/file.txt", b""),
        ("set/file.txt.gz", gzip.compress(TEXT)[:-20]),  # truncated
        ("set/file.txt.gz", b"not packed at all"),
        ("set/file.txt.gz", gzip.compress(TEXT)[:30] + b"\xff" * 9 + gzip.compress(TEXT)[39:]),
        ("set/file.txt.gz", gzip.compress(TEXT[:-1])),
        ("set/file.txt.gz", b""),
    ],
)
def test_a_damaged_file_is_named_with_both_hashes_and_the_way_to_get_it(folders, name, contents):
    path = put(folders[0], name, contents)
    source = source_of(TEXT, urls=("http://127.0.0.1:9/x",), how="Ask the authors.")
    for read in (locate, read_bytes, read_text):
        with pytest.raises(DataError) as caught:
            read(source)
        message = str(caught.value)
        assert str(path) in message
        assert source.sha256 in message
        assert "Ask the authors." in message
        assert "http://127.0.0.1:9/x" in message
        if path.suffix == ".txt":
            assert hashlib.sha256(contents).hexdigest() in message


def test_a_packed_file_that_unpacks_without_end_is_left_soon(folders, monkeypatch):
    """256 MiB of zeros in 256 KB: hashing stops just behind the size that the file should have."""
    put(folders[0], "set/file.txt.gz", gzip.compress(bytes(2**24)) * 16)
    read = []
    digest = fetch._digest
    monkeypatch.setattr(fetch, "_digest", lambda file, limit=None: read.append(digest(file, limit)) or read[-1])
    with pytest.raises(DataError, match="damaged"):
        locate(source_of(TEXT))
    assert read[0][1] <= len(TEXT) + 2**21


def test_a_missing_file_without_address_names_hash_and_way(folders):
    source = source_of(TEXT, how="Sign the licence at example.org.")
    with pytest.raises(DataError, match="missing") as caught:
        locate(source)
    assert source.sha256 in str(caught.value)
    assert "Sign the licence" in str(caught.value)
    assert str(folders[0]) in str(caught.value)


def test_holdfast_data_that_is_no_folder_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path / "typo"))
    with pytest.raises(DataError, match=r"typo.*not a folder"):
        locate(source_of(TEXT))


def test_a_folder_under_the_files_name_is_an_error(folders):
    (folders[0] / "set/file.txt").mkdir(parents=True)
    with pytest.raises(DataError, match="damaged"):
        locate(source_of(TEXT))


def test_a_file_is_hashed_once_and_again_when_it_changes(folders, monkeypatch):
    path, source, hashed = put(folders[0], "set/file.txt", TEXT), source_of(TEXT), []
    digest = fetch._digest
    monkeypatch.setattr(fetch, "_digest", lambda file, limit=None: hashed.append(file.name) or digest(file, limit))
    locate(source), locate(source), read_bytes(source)
    assert len(hashed) == 1
    path.write_bytes(TEXT.swapcase())
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="damaged"):
        locate(source)
    assert len(hashed) == 2


def test_two_sources_of_one_path_are_not_confused(folders):
    put(folders[0], "set/file.txt", TEXT)
    locate(source_of(TEXT))
    with pytest.raises(DataError, match="damaged"):
        locate(source_of(b"another version"))


def test_text_that_is_not_utf8_is_an_error(folders):
    put(folders[0], "set/file.txt", b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        read_text(source_of(b"\xff\xfe"))


@pytest.mark.parametrize("path", ["../up.txt", "/etc/passwd", "a/../../b", "", "a\\b", "c:d"])
def test_a_source_lies_below_the_data_folder(path):
    with pytest.raises(SettingError, match="below the data folder"):
        source_of(TEXT, path)


# Downloaded


def test_a_missing_file_is_downloaded_into_the_cache_once(folders, server):
    address, served, asked = server
    put(served, "file.txt", TEXT)
    source = source_of(TEXT, urls=(f"{address}/file.txt",))
    assert locate(source) == folders[1] / "set/file.txt"
    assert read_bytes(source) == TEXT
    assert len(asked) == 1
    assert not leftovers(folders[1])


@pytest.mark.parametrize(
    ("name", "contents", "member"),
    [
        ("file.txt.gz", gzip.compress(TEXT), None),
        ("set.zip", zip_of({"readme": b"hello", "deep/file.txt": TEXT}), "deep/file.txt"),
        ("file.txt", TEXT, "deep/file.txt"),  # an address of the file itself beside one of an archive
    ],
)
def test_a_file_comes_packed_or_inside_an_archive(folders, server, name, contents, member):
    put(server[1], name, contents)
    assert read_bytes(source_of(TEXT, urls=(f"{server[0]}/{name}",), member=member)) == TEXT
    assert not leftovers(folders[1])


def test_a_file_comes_inside_a_tar(folders, server):
    with tarfile.open(server[1] / "set.tgz", "w:gz") as archive:
        entry = tarfile.TarInfo("./deep/file.txt")
        entry.size = len(TEXT)
        archive.addfile(entry, io.BytesIO(TEXT))
    assert read_bytes(source_of(TEXT, urls=(f"{server[0]}/set.tgz",), member="./deep/file.txt")) == TEXT


def test_the_next_address_is_tried_when_one_fails(folders, server):
    address, served, asked = server
    put(served, "good.txt", TEXT)
    put(served, "bad.txt", b"a page that says sorry")
    urls = tuple(f"{address}/{name}" for name in ("gone.txt", "bad.txt", "half/good.txt", "good.txt"))
    assert read_bytes(source_of(TEXT, urls=urls)) == TEXT
    assert sum(path in ("/bad.txt", "/good.txt") for path in asked) == 2


@pytest.mark.parametrize("name", ["gone.txt", "bad.txt", "half/good.txt", "bad.zip", "broken.zip", "empty.zip"])
def test_a_download_that_is_not_the_file_leaves_nothing_and_says_why(folders, server, name):
    address, served, _ = server
    put(served, "good.txt", TEXT)
    put(served, "bad.txt", b"a page that says sorry")
    put(served, "bad.zip", zip_of({"file.txt": TEXT[:-1]}))
    put(served, "broken.zip", zip_of({"file.txt": TEXT})[:-30])
    put(served, "empty.zip", zip_of({}))
    member = "file.txt" if name.endswith("zip") else None
    source = source_of(TEXT, urls=(f"{address}/{name}",), member=member, how="Write to them.")
    with pytest.raises(DataError) as caught:
        locate(source)
    message = str(caught.value)
    assert source.path in message
    assert source.sha256 in message
    assert f"{address}/{name}" in message
    assert "Write to them." in message
    assert not [path for path in folders[1].rglob("*") if path.is_file()]
    if name == "bad.txt":
        assert hashlib.sha256(b"a page that says sorry").hexdigest() in message


def test_a_hostile_zip_writes_nothing_outside_its_folder(folders, server, tmp_path):
    """Names that climb or are absolute never become paths, not even when one of them is the file that is asked for."""
    evil = {"../../../evil.txt": b"!", f"{tmp_path}/absolute.txt": b"!", "..\\..\\evil.txt": b"!", "file.txt": TEXT}
    put(server[1], "hostile.zip", zip_of(evil))
    before = sorted(path for path in tmp_path.rglob("*"))
    assert read_bytes(source_of(TEXT, urls=(f"{server[0]}/hostile.zip",), member="file.txt")) == TEXT
    appeared = set(tmp_path.rglob("*")) - set(before)
    assert all(folders[1] in path.parents or path in folders[1].parents or path == folders[1] for path in appeared)
    climbing = source_of(b"!", "set/small.txt", urls=(f"{server[0]}/hostile.zip",), member="../../../evil.txt")
    assert locate(climbing) == folders[1] / "set/small.txt"
    assert not list(tmp_path.rglob("evil.txt"))
    assert not list(tmp_path.rglob("absolute.txt"))


def test_a_link_in_a_tar_is_not_followed_out_of_it(folders, server, tmp_path):
    secret = put(tmp_path, "secret.txt", TEXT)
    with tarfile.open(server[1] / "set.tar", "w") as archive:
        entry = tarfile.TarInfo("file.txt")
        entry.type, entry.linkname = tarfile.SYMTYPE, str(secret)
        archive.addfile(entry)
    with pytest.raises(DataError, match="has no file"):
        locate(source_of(TEXT, urls=(f"{server[0]}/set.tar",), member="file.txt"))


def test_a_damaged_file_in_the_cache_is_downloaded_again(folders, server, caplog):
    put(folders[1], "set/file.txt", TEXT[:50])
    put(server[1], "file.txt", TEXT)
    with caplog.at_level(logging.WARNING, "holdfast.tasks"):
        assert read_bytes(source_of(TEXT, urls=(f"{server[0]}/file.txt",))) == TEXT
    assert "downloading it again" in caplog.text


def test_several_at_once_all_get_the_whole_file(folders, server):
    put(server[1], "file.txt", TEXT)
    source, came = source_of(TEXT, urls=(f"{server[0]}/file.txt",)), []
    threads = [threading.Thread(target=lambda: came.append(locate(source).read_bytes())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert came == [TEXT] * 4
    assert not leftovers(folders[1])


def test_a_cache_that_cannot_be_written_says_so(folders, server):
    put(server[1], "file.txt", TEXT)
    put(folders[1].parent, "data", b"a file where the folder should be")
    with pytest.raises(DataError, match=r"cannot be written.*HOLDFAST_CACHE"):
        locate(source_of(TEXT, urls=(f"{server[0]}/file.txt",)))


def test_without_pooch_the_error_names_the_extra_and_the_way(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'holdfast\[train\]'.*example\.org"):
        locate(source_of(TEXT, urls=("https://example.org/file.txt",)))


def test_the_download_shows_its_progress(folders, server, capsys):
    put(server[1], "file.txt", TEXT)
    locate(source_of(TEXT, urls=(f"{server[0]}/file.txt",)))
    shown = capsys.readouterr()
    assert "set/file.txt" in shown.err
    assert not shown.out


def test_without_rich_it_downloads_without_a_bar(folders, server, monkeypatch, capsys):
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    put(server[1], "file.txt", TEXT)
    assert read_bytes(source_of(TEXT, urls=(f"{server[0]}/file.txt",))) == TEXT
    assert not capsys.readouterr().err


# Listed


def test_status_says_where_every_file_is(folders, monkeypatch):
    source = source_of(TEXT, "mnist/a.txt")
    from holdfast.tasks import pixels

    monkeypatch.setattr(pixels, "SOURCES", (source, dataclasses.replace(source, path="mnist/b.txt")))
    put(folders[0], "mnist/a.txt", TEXT[:-1])
    a, b = (file for file in status() if file.task == "mnist")
    assert (a.where, a.found, a.problem) == ("HOLDFAST_DATA", folders[0] / "mnist/a.txt", None)
    assert (b.where, b.found) == ("absent", None)
    (checked,) = (file for file in status(check=True) if file.source == source)
    assert "sha256" in checked.problem


@pytest.mark.skipif("HOLDFAST_DATA" not in os.environ, reason="the real data is not here: HOLDFAST_DATA is not set")
def test_every_real_file_has_its_hash():
    there = [file for file in status(check=True) if file.where == "HOLDFAST_DATA" and file.source.size < 1e7]
    assert there
    assert [file.problem for file in there] == [None] * len(there)
