"""WikiText-2: what is read, down to empty lines and odd blanks."""

import os
from pathlib import Path

import pytest

from holdfast.errors import DataError
from holdfast.tasks.wikitext2 import WikiText2

TEXT = " \n = Roses = \n \n a rose\u00a0tree is <unk> \n"


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").write_text(TEXT, encoding="utf-8")
    return tmp_path


def test_an_empty_line_is_an_eos(folder):
    task = WikiText2(window=3, folder=folder).load()
    text = task.vocabulary.decode(task.tokens["train"])
    assert text == ["<eos>", "=", "Roses", "=", "<eos>", "<eos>", "a", "rose\u00a0tree", "is", "<unk>", "<eos>"]


def test_line_ends_of_windows_make_no_tokens(folder):
    (folder / "wiki.train.tokens").write_bytes(TEXT.replace("\n", "\r\n").encode())
    crlf = WikiText2(folder=folder).load()
    assert crlf.vocabulary.decode(crlf.tokens["train"]) == crlf.vocabulary.decode(crlf.tokens["validation"])


def test_every_protocol_predicts_by_perplexity(folder):
    for protocol in ("stream", "windows"):
        spec = WikiText2(window=2, protocol=protocol, folder=folder).load().spec
        assert (spec.metric, spec.loss, spec.tokens, spec.every_step) == ("perplexity", "cross_entropy", True, True)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"wiki.train.tokens"):
        WikiText2(folder=tmp_path).load()


def test_the_real_corpus_has_its_known_counts():
    if not Path(os.environ.get("HOLDFAST_DATA", ""), "wikitext2").is_dir():
        pytest.skip("HOLDFAST_DATA holds no wikitext2")
    task = WikiText2().load()
    assert {split: len(row) for split, row in task.tokens.items()} == {
        "train": 2_088_628,
        "validation": 217_646,
        "test": 245_569,
    }
    assert task.spec.input_size == 33_278
    assert int((task.tokens["train"] == task.vocabulary.index("<eos>")).sum()) == 36_718  # lines
