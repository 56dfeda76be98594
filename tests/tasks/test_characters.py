"""Text by character: alphabets, splits, S1's cleaning."""

import os
import re
import string
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import SettingError
from holdfast.tasks import characters
from holdfast.tasks.characters import Characters, letters

WIKI = b"<page>\n<title>Tulip 7</title>\nA '''tulip''' &amp;mdash; it's [[Plant|a plant]].&lt;br /&gt;\n" * 40


def text_of(task, row):
    return "".join(task.vocabulary.decode(row))


def official(*names):
    for name in names:
        folder = Path(os.environ.get("HOLDFAST_DATA", ""))
        if not any((folder / f"{name}{end}").is_file() for end in ("", ".gz")):
            pytest.skip(f"HOLDFAST_DATA holds no {name}")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "enwik8").write_bytes(WIKI)
    for split, text in {"train": "t o _ b e \n ", "valid": "o r _ x \n ", "test": "b e \n "}.items():
        (tmp_path / f"ptb.char.{split}.txt").write_text(text)
    return tmp_path


def test_ptb_is_read_without_the_blanks_between_symbols(folder):
    task = Characters("ptb", window=2, folder=folder).load()
    assert text_of(task, task.tokens["train"]) == "to be\n"
    assert text_of(task, task.tokens["validation"]) == "or x\n"
    assert text_of(task, task.tokens["test"]) == "be\n"


def test_the_alphabet_covers_all_splits_and_has_no_unknown_symbol(folder):
    task = Characters("ptb", window=2, folder=folder).load()
    assert set(task.vocabulary.tokens) == set("to be\nrx")
    assert task.vocabulary.unknown is None
    assert set(task.vocabulary.tokens[-2:]) == set("rx")  # not in the training split: last


def test_enwik8_is_cut_ninety_to_five_to_five_and_nothing_is_lost(folder):
    task = Characters("enwik8", window=5, folder=folder).load()
    rows = task.tokens
    assert [len(rows[split]) / len(WIKI) for split in ("train", "validation", "test")] == pytest.approx(
        [0.9, 0.05, 0.05]
    )
    whole = torch.cat([rows[split] for split in ("train", "validation", "test")])
    assert text_of(task, whole).encode("latin-1") == WIKI


@settings(max_examples=20, deadline=None)
@given(st.binary(min_size=60, max_size=300))
def test_every_byte_survives(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "enwik8").write_bytes(data)
    task = Characters("enwik8", window=5, folder=folder).load()
    whole = torch.cat([task.tokens[split] for split in ("train", "validation", "test")])
    assert text_of(task, whole).encode("latin-1") == data
    assert task.spec.input_size == len(set(data))


def test_rows_take_one_byte_a_character_and_batches_are_long(folder):
    task = Characters("enwik8", window=5, folder=folder).load()
    assert task.tokens["train"].dtype == torch.uint8
    batch = task.train_batch(0, 3, seed=0)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert torch.equal(batch.inputs[1:], batch.targets[:-1])
    assert task.spec.metric == "bits"


def test_limit_is_as_if_the_text_ended_there(folder):
    task = Characters("enwik8", window=2, limit=100, folder=folder).load()
    assert [len(task.tokens[split]) for split in ("train", "validation", "test")] == [90, 5, 5]
    assert task.spec.input_size == len(set(WIKI[:100]))


def test_cleaning_leaves_words_of_small_letters_between_single_blanks():
    assert letters(WIKI[: len(WIKI) // 40]) == b"tulip a tulip it s plant a plant "


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from([b"<b>", b"</b>", b"&lt;", b"&gt;", b"&amp;", b"word", b"W", b"1", b"\n", b" ", b"\xe9"]))
)
def test_cleaned_text_has_twenty_seven_symbols_and_cleaning_it_again_changes_nothing(pieces):
    clean = letters(b"".join(pieces))
    assert set(clean) <= set(string.ascii_lowercase.encode() + b" ")
    assert b"  " not in clean
    assert letters(clean) == clean


def test_cleaning_in_pieces_is_cleaning_at_once(monkeypatch):
    whole = letters(WIKI)
    monkeypatch.setattr(characters, "_CHUNK", 50)
    assert letters(WIKI) == whole
    assert letters(WIKI, 123) == whole[:123]


def test_cleaning_ends_a_tag_at_its_line():
    """A lone bracket, as in a formula, takes no more than itself."""
    for escaped in (b"if x &lt; y then\nz &gt; y", b"if x &lt;y then\nz&gt; y", b"if x <y then\nz> y"):
        assert letters(escaped) == b"if x y then z y"


def test_s1_samples_are_disjoint_and_a_smaller_training_set_leaves_the_others_alone(folder):
    (folder / "enwik8").write_text("".join(re.findall("[a-z]", "abcdefghijklmnopqrstuvwxyz" * 60)))
    few, many = (
        Characters("s1", window=4, train=train, validation=20, test=30, folder=folder).load() for train in (50, 100)
    )
    assert few.spec.splits == ("train", "validation", "test")
    assert [len(few.data[split]) for split in few.spec.splits] == [50, 20, 30]
    for split in ("validation", "test"):
        assert torch.equal(few.data[split].inputs, many.data[split].inputs)
    assert torch.equal(few.data["train"].inputs, many.data["train"].inputs[:50])
    assert torch.equal(few.data["train"].inputs[:, 1:], few.data["train"].targets[:, :-1])
    assert few.train_batch(0, 8, seed=1).inputs.shape == (4, 8)


def test_no_character_is_drawn_twice(folder, monkeypatch):
    """Every position of the text is in one sample at most, whatever its split."""
    row = torch.arange(250)
    monkeypatch.setattr(
        characters,
        "_indices",
        lambda texts: (
            {"train": row[:220], "validation": row[220:235], "test": row[235:]},
            characters.Vocabulary(tuple(map(chr, range(250)))),
        ),
    )
    task = Characters("s1", window=4, train=30, validation=10, test=10, folder=folder).load()
    drawn = [torch.cat([data.inputs, data.targets[:, -1:]], dim=1).flatten() for data in task.data.values()]
    assert len(torch.cat(drawn).unique()) == 250


def test_impossible_options_are_refused(folder):
    with pytest.raises(SettingError, match="ptb, text8, text8-10m, enwik8, s1; got 'enwik9'"):
        Characters("enwik9").load()
    with pytest.raises(SettingError, match="got a request for 1,000 for validation, 2,000 for test, 10,000 for train"):
        Characters("s1", folder=folder).load()
    with pytest.raises(SettingError, match="at least 2 tokens"):
        Characters("enwik8", limit=0, folder=folder).load()


def test_an_empty_text_is_refused(folder):
    (folder / "enwik8").write_bytes(b"")
    with pytest.raises(SettingError, match="at least 2 tokens in train, got 0"):
        Characters("enwik8", folder=folder).load()


def test_the_real_ptb_has_its_known_counts():
    official("ptb/ptb.char.train.txt", "ptb/ptb.char.valid.txt", "ptb/ptb.char.test.txt")
    task = Characters("ptb").load()
    assert [len(task.tokens[split]) for split in task.spec.splits] == [5_017_482, 393_042, 442_423]
    assert (task.spec.input_size, task.window) == (50, 50)


def test_the_real_prefix_of_text8_has_its_known_counts():
    official("text8/text8.first10M")
    task = Characters("text8-10m").load()
    assert [len(task.tokens[split]) for split in task.spec.splits] == [9_000_000, 500_000, 500_000]
    assert (task.spec.input_size, task.window) == (27, 180)
    assert text_of(task, task.tokens["train"][:21]) == " anarchism originated"


@pytest.mark.slow
def test_the_real_enwik8_has_its_known_counts_and_gives_s1_its_samples():
    official("enwik8/enwik8")
    task = Characters("enwik8").load()
    assert [len(task.tokens[split]) for split in task.spec.splits] == [90_000_000, 5_000_000, 5_000_000]
    assert task.spec.input_size == 205
    clean = Characters("s1", limit=400_000).load()
    assert [len(clean.data[split]) for split in clean.spec.splits] == [10_000, 1_000, 2_000]
    assert clean.spec.input_size == 27
    assert clean.data["train"].inputs.shape == (10_000, 20)
