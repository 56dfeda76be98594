"""GloVe files: text, packed or in an archive; damaged ones are refused with the line."""

import gzip
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import DataError
from holdfast.tasks.glove import read_glove
from holdfast.tasks.vocabulary import Vocabulary

WORDS = Vocabulary(("cat", "dog", "the", "<unk>"))
TEXT = "the 0.5 -1.5 2\n, 0 0 1\ncat 1e-2 3 4\n. . . 7 7 7\n"
ROWS = [[0.01, 3, 4], [0, 0, 0], [0.5, -1.5, 2], [0, 0, 0]]


def test_rows_are_in_the_order_of_the_vocabulary_and_zero_where_the_file_has_no_word(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(TEXT)
    read = read_glove(path, WORDS)
    torch.testing.assert_close(read.vectors, torch.tensor(ROWS))
    assert read.found.tolist() == [True, False, True, False]
    assert read.coverage == 0.5


def test_a_packed_file_and_an_archive_hold_the_same(tmp_path):
    (tmp_path / "glove.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    with zipfile.ZipFile(tmp_path / "glove.zip", "w") as archive:
        archive.writestr("glove.3d.txt", TEXT)
        archive.writestr("README", "not this one")
    for name in ("glove.txt.gz", "glove.zip"):
        torch.testing.assert_close(read_glove(tmp_path / name, WORDS).vectors, torch.tensor(ROWS))


def test_dim_chooses_among_the_texts_of_an_archive(tmp_path):
    path = tmp_path / "glove.6B.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("glove.6B.3d.txt", TEXT)
        archive.writestr("glove.6B.13d.txt", "cat" + " 1" * 13)
    assert read_glove(path, WORDS, dim=3).vectors.shape == (4, 3)
    assert read_glove(path, WORDS, dim=13).vectors.shape == (4, 13)
    for dim in (None, 5):
        with pytest.raises(DataError, match=r"holds glove.6B.3d.txt, glove.6B.13d.txt: expected one text"):
            read_glove(path, WORDS, dim=dim)


def test_a_word_with_blanks_is_found_by_the_length_of_its_vector(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(TEXT)
    assert read_glove(path, Vocabulary((". . .",))).vectors.tolist() == [[7, 7, 7]]


def test_the_first_of_two_lines_for_a_word_counts(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("cat 1 2\ncat 3 4\n")
    assert read_glove(path, Vocabulary(("cat",))).vectors.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2 3\ncat 1 2\n", "line 2: expected a word and 3 numbers, got 3 fields"),
        ("the 1 2 3\n\ncat 1 2 3\n", "line 2: expected a word and 3 numbers"),
        ("the 1 2 3\ncat 1 2 3 dog 1 2 3\n", "line 2: expected a word and 3 numbers, got 8 fields"),
        ("the 1 2 3\ncat 1 two 3\n", "line 2: expected numbers.*two"),
        ("the 1 2 3\ncat 1 nan 3\n", "line 2: expected finite numbers, got nan"),
        ("the\n", "line 1: expected a word and some numbers"),
        ("a 1 2\nb 3 4\n", "2 lines, but none of the 4 words"),
        ("", "0 lines, but none of the 4 words"),
    ],
)
def test_a_damaged_line_is_named_by_its_number(tmp_path, text, message):
    path = tmp_path / "glove.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_glove(path, WORDS)


def test_vectors_of_another_length_than_asked_for_are_refused(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2 3 4\ncat 1 2 3 4\n")
    for dim in (2, 3, 5):
        with pytest.raises(DataError, match=f"line 1: expected a word and {dim} numbers, got 5 fields"):
            read_glove(path, WORDS, dim=dim)


def test_truncated_archives_and_missing_files_are_named(tmp_path):
    (tmp_path / "glove.txt.gz").write_bytes(gzip.compress(TEXT.encode() * 100)[:50])
    (tmp_path / "glove.zip").write_bytes(b"PK\x03\x04 and no more")
    for name in ("glove.txt.gz", "glove.zip"):
        with pytest.raises(DataError, match=f"{name} cannot be read"):
            read_glove(tmp_path / name, WORDS)
    with pytest.raises(DataError, match="There is no GloVe file"):
        read_glove(tmp_path / "nothing.txt", WORDS)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=60))
def test_any_other_file_is_a_clear_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("glove") / "glove.txt"
    path.write_bytes(b"zebra 1 2\n" + data)
    with pytest.raises(DataError, match=r"glove.txt"):
        read_glove(path, Vocabulary(("no such word",)))


def test_a_path_may_be_a_string(tmp_path):
    Path(tmp_path, "glove.txt").write_text(TEXT)
    assert read_glove(str(tmp_path / "glove.txt"), WORDS).vectors.dtype == torch.get_default_dtype()
