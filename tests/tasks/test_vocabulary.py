"""Tokens and indices: a one-to-one map, the same for the same text, that has a place for what it does not know."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import DataError, SettingError
from holdfast.tasks.vocabulary import Vocabulary

TEXTS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40)


@settings(max_examples=30, deadline=None)
@given(TEXTS)
def test_decode_undoes_encode_on_the_text_that_was_counted(text):
    vocabulary = Vocabulary.of(text)
    assert vocabulary.decode(vocabulary.encode(text)) == text


@settings(max_examples=30, deadline=None)
@given(TEXTS, st.randoms())
def test_indices_depend_on_counts_and_not_on_the_order_of_the_text(text, random):
    shuffled = random.sample(text, len(text))
    assert Vocabulary.of(text) == Vocabulary.of(shuffled)


@settings(max_examples=30, deadline=None)
@given(TEXTS)
def test_more_frequent_tokens_have_smaller_indices(text):
    tokens = Vocabulary.of(text, unknown=None).tokens
    counts = [text.count(token) for token in tokens]
    assert counts == sorted(counts, reverse=True)


def test_equally_frequent_tokens_are_ordered_by_name():
    assert Vocabulary.of(["b", "a", "c", "b", "a", "c"], unknown=None).tokens == ("a", "b", "c")


def test_an_unknown_token_gets_the_index_of_unk():
    vocabulary = Vocabulary.of(["a", "a", "b"])
    assert vocabulary.tokens == ("a", "b", "<unk>")
    assert vocabulary.encode(["b", "z", "a"]).tolist() == [1, 2, 0]
    assert vocabulary.index("z") == 2


def test_unk_that_stands_in_the_text_keeps_its_rank():
    assert Vocabulary.of(["a", "<unk>", "<unk>", "b", "a", "a"]).tokens == ("a", "<unk>", "b")


def test_without_an_unknown_token_a_new_token_is_an_error():
    vocabulary = Vocabulary.of("ab", unknown=None)
    with pytest.raises(DataError, match="'z' is not one of the 2 tokens"):
        vocabulary.encode("az")


@pytest.mark.parametrize("text", ["a a a b b c", "a a a b b c <unk> <unk>", "a a a b b <unk> c d e f"])
def test_size_counts_all_tokens_and_drops_the_rarest(text):
    vocabulary = Vocabulary.of(text.split(), size=4, extra=("<pad>",))
    assert set(vocabulary.tokens) == {"a", "b", "<unk>", "<pad>"}
    assert vocabulary.tokens[-1] == "<pad>"


def test_impossible_vocabularies_are_refused():
    with pytest.raises(SettingError, match="'a' more than once"):
        Vocabulary(("a", "b", "a"))
    with pytest.raises(SettingError, match="unknown token"):
        Vocabulary(("a",), unknown="<unk>")
    with pytest.raises(SettingError, match="size above 1, got 1"):
        Vocabulary.of("ab", size=1)


def test_a_vocabulary_is_a_value():
    one, other = Vocabulary.of("abba"), Vocabulary.of("baab")
    assert one == other
    assert hash(one) == hash(other)
    assert "a" in one
    assert "z" not in one
    assert one.decode(torch.tensor([2])) == ["<unk>"]
