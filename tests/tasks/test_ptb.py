"""Penn Treebank by word: what is read, and what each protocol makes of it."""

import gzip
import os
from pathlib import Path

import pytest
import torch

from holdfast.errors import DataError, SettingError
from holdfast.tasks.ptb import PennTreebank

TRAIN = " a rose is a rose \n is <unk> a rose \n"
FILES = {"ptb.train.txt": TRAIN, "ptb.valid.txt": " a tulip is a rose \n", "ptb.test.txt": " is a rose a rose"}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def text_of(task, split):
    return task.vocabulary.decode(task.tokens[split])


def test_every_line_ends_with_eos_also_the_last_one_without_a_line_end(folder):
    task = PennTreebank(folder=folder).load()
    assert text_of(task, "train") == ["a", "rose", "is", "a", "rose", "<eos>", "is", "<unk>", "a", "rose", "<eos>"]
    assert text_of(task, "test") == ["is", "a", "rose", "a", "rose", "<eos>"]


def test_keras_words_are_lower_case_without_punctuation_and_line_ends(folder):
    """By hand: every character of Keras' default filters is a space, the apostrophe and other letters are not."""
    text = "The U.S.-based co. 's $ N <unk> a\\b\n\tdon't café_x 1,000"
    (folder / "ptb.train.txt").write_text(text)
    task = PennTreebank(folder=folder, tokeniser="keras").load()
    expected = ["the", "u", "s", "based", "co", "'s", "n", "unk", "a", "b", "don't", "café", "x", "1", "000"]
    assert text_of(task, "train") == expected
    assert task.spec.input_size == len(set(expected)) + 1  # one more for words that only the other splits have


def test_a_word_that_is_not_in_the_training_split_is_unk(folder):
    task = PennTreebank(folder=folder).load()
    assert task.vocabulary.tokens == ("a", "rose", "<eos>", "is", "<unk>")
    assert text_of(task, "validation") == ["a", "<unk>", "is", "a", "rose", "<eos>"]


def test_targets_are_the_next_words(folder):
    batch = PennTreebank(window=3, folder=folder).load().train_batch(0, 2, seed=0)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert torch.equal(batch.inputs[1:], batch.targets[:-1])


def test_the_stream_goes_on_where_it_stopped_and_windows_do_not(folder):
    stream = PennTreebank(window=2, folder=folder).load()
    assert stream.spec.contiguous
    first, second = (stream.train_batch(index, 2, seed=0) for index in range(2))
    assert torch.equal(first.targets[-1], second.inputs[0])
    assert not PennTreebank(window=2, protocol="windows", folder=folder).load().spec.contiguous


@pytest.mark.parametrize(("protocol", "window"), [("stream", 35), ("windows", 300)])
def test_a_window_is_as_long_as_the_protocol_has_it_in_print(folder, protocol, window):
    assert PennTreebank(protocol=protocol, folder=folder).load().window == window


def test_samples_are_disjoint_pieces_of_their_own_split_and_the_same_in_every_run(folder):
    (folder / "ptb.train.txt").write_text(" ".join(f"w{number}" for number in range(60)))
    options = PennTreebank(window=4, protocol="samples", train=8, validation=1, test=1, folder=folder)
    task, again = options.load(), options.load()
    assert task.spec.splits == ("train", "validation", "test")
    train = task.data["train"]
    pieces = torch.cat([train.inputs, train.targets[:, -1:]], dim=1)
    assert len(pieces.unique()) == 8 * 5
    assert torch.equal(train.inputs[:, 1:], train.targets[:, :-1])
    assert torch.equal(train.inputs, again.data["train"].inputs)
    batch = task.train_batch(0, 3, seed=0)
    assert batch.inputs.shape == batch.targets.shape == (4, 3)


def test_more_samples_than_the_text_has_are_refused_with_both_numbers(folder):
    with pytest.raises(SettingError, match=r"hold 2 disjoint samples of 4 steps.*got a request for 3 for train"):
        PennTreebank(window=4, protocol="samples", train=3, validation=1, test=1, folder=folder).load()


def test_numbers_of_samples_mean_nothing_in_other_protocols_and_are_refused(folder):
    with pytest.raises(SettingError, match='train need protocol="samples"'):
        PennTreebank(train=3, folder=folder).load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "strem"}, "stream, windows, samples; got 'strem'"),
        ({"window": 0}, "at least 1 step"),
        ({"window": 0, "protocol": "samples"}, "at least 1 step"),
        ({"limit": 1}, "at least 2 tokens"),
        ({"size": 1}, "size above 1"),
        ({"tokeniser": "kera"}, "spaces, keras; got 'kera'"),
    ],
)
def test_impossible_options_are_refused(folder, options, message):
    with pytest.raises(SettingError, match=message):
        PennTreebank(folder=folder, **options).load()


def test_limit_cuts_every_split_and_leaves_the_vocabulary_whole(folder):
    task = PennTreebank(limit=3, folder=folder).load()
    assert {split: len(row) for split, row in task.tokens.items()} == {"train": 3, "validation": 3, "test": 3}
    assert len(task.vocabulary) == 5


def test_size_makes_rare_words_unk(folder):
    task = PennTreebank(size=3, folder=folder).load()
    assert task.spec.input_size == 3
    assert text_of(task, "train")[:6] == ["a", "rose", "<unk>", "a", "rose", "<unk>"]


def test_the_file_may_be_packed(folder):
    path = folder / "ptb.train.txt"
    Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert text_of(PennTreebank(folder=folder).load(), "train")[:2] == ["a", "rose"]


def test_a_damaged_packed_file_is_named(folder):
    (folder / "ptb.train.txt").unlink()
    (folder / "ptb.train.txt.gz").write_bytes(gzip.compress(TRAIN.encode() * 99)[:40])
    with pytest.raises(DataError, match=r"ptb.train.txt.gz cannot be read"):
        PennTreebank(folder=folder).load()


def test_a_missing_file_of_ones_own_is_named(folder):
    (folder / "ptb.valid.txt").unlink()
    with pytest.raises(DataError, match=r"holds neither ptb.valid.txt nor ptb.valid.txt.gz"):
        PennTreebank(folder=folder).load()


def test_what_is_not_utf8_is_named_with_its_line(folder):
    (folder / "ptb.train.txt").write_bytes(b"fine\nalso fine\nnot \xff fine\n")
    with pytest.raises(DataError, match=r"ptb.train.txt, line 3: expected text in UTF-8, got the byte 0xff"):
        PennTreebank(folder=folder).load()


def test_an_official_file_that_was_changed_is_refused_with_its_hash(folder, monkeypatch):
    (folder / "ptb").mkdir()
    for name in FILES:
        (folder / name).rename(folder / "ptb" / name)
    monkeypatch.setenv("HOLDFAST_DATA", str(folder))
    with pytest.raises(DataError, match=r"ptb.train.txt is damaged.*fcea919f6cf83f35"):
        PennTreebank().load()


def test_only_official_files_are_listed_as_sources():
    assert [source.path for source in PennTreebank().sources()] == [f"ptb/{name}" for name in FILES]
    assert PennTreebank(folder="mine").sources() == ()


def test_vectors_reach_the_task_in_the_order_of_its_vocabulary(folder):
    (folder / "glove.txt").write_text("rose 1 2 3\na 4 5 6\n")
    task = PennTreebank(vectors=folder / "glove.txt", folder=folder).load()
    assert task.vectors is not None
    assert task.vectors[:2].tolist() == [[4, 5, 6], [1, 2, 3]]
    assert PennTreebank(folder=folder).load().vectors is None


def test_the_real_corpus_has_its_known_counts():
    if not Path(os.environ.get("HOLDFAST_DATA", ""), "ptb", "ptb.train.txt").is_file():
        pytest.skip("HOLDFAST_DATA holds no ptb/ptb.train.txt")
    task = PennTreebank(window=300, protocol="windows").load()
    assert {split: len(row) for split, row in task.tokens.items()} == {
        "train": 929_589,
        "validation": 73_760,
        "test": 82_430,
    }
    assert task.spec.input_size == task.spec.output_size == 10_000
    assert task.vocabulary.tokens[:4] == ("the", "<unk>", "<eos>", "N")
    assert task.epoch(1) == 929_588 // 300
    scored = sum(batch.targets.numel() for batch in task.evaluation("test", 64))
    assert scored == 82_429
    assert int((task.tokens["train"] == 2).sum()) == 42_068  # lines
    # S3's program counts 9,650 words: the 9,649 that Keras' Tokenizer finds, and its place for padding
    task = PennTreebank(window=35, protocol="windows", tokeniser="keras").load()
    assert task.spec.input_size == 9_650
    assert task.vocabulary.tokens[:4] == ("the", "unk", "n", "of")
    assert "<unk>" not in task.vocabulary.decode(task.tokens["test"])
