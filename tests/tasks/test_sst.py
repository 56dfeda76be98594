"""Stanford Sentiment Treebank: trees, classes, phrases, padding."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import DataError, SettingError
from holdfast.tasks.sst import SentimentTrees, parse_tree, post_order

TRAIN = """(3 (2 It) (4 (2 's) (4 good)))
(1 (1 Bad) (2 .))
(2 (2 A) (2 (2 2\u00a01\\/2) (2 (2 hour) (2 film))))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.txt").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "dev.txt").write_text("(4 (4 Good) (2 .))\n(0 (2 It) (0 stinks))")
    (tmp_path / "test.txt").write_text("(0 (2 It) (0 (2 is) (0 bad)))\n\n(2 (2 A) (2 film))\n(3 good)\n")
    return tmp_path


NODES = st.recursive(
    st.tuples(st.integers(0, 4), st.sampled_from(["good", "bad", "film", "-LRB-"])),
    lambda inner: st.tuples(st.integers(0, 4), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=12,
)


def written(node):
    label, inside = node
    return f"({label} {inside if isinstance(inside, str) else ' '.join(map(written, inside))})"


def phrases(node):
    """Label and words of every node, children before their parent."""
    label, inside = node
    if isinstance(inside, str):
        return [(label, (inside,))]
    below = [phrases(child) for child in inside]
    return [*(phrase for child in below for phrase in child), (label, sum((child[-1][1] for child in below), ()))]


@settings(max_examples=30, deadline=None)
@given(NODES)
def test_parsing_gives_back_every_labelled_phrase(node):
    tree = parse_tree(written(node))
    assert [(label, tree.words[begin:end]) for label, begin, end in tree.nodes] == phrases(node)


@settings(max_examples=30, deadline=None)
@given(st.text("()0123456 ab", max_size=30))
def test_any_other_text_is_a_clear_error(line):
    try:
        tree = parse_tree(line, "mine.txt, line 7")
    except DataError as error:
        assert str(error).startswith("mine.txt, line 7: expected")  # noqa: PT017
    else:
        assert tree.nodes[-1][1:] == (0, len(tree.words))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "expected a tree"),
        ("(3 (2 It)", "expected a closing bracket"),
        ("(3 good))", "expected the end of the line"),
        ("(3 good) (2 .)", "expected the end of the line"),
        ("good", "expected an opening bracket"),
        (")", "expected an opening bracket"),
        ("(5 good)", "label from 0 to 4 after '\\(', got '5'"),
        ("(good)", "label from 0 to 4 after '\\(', got 'good'"),
        ("(", "got 'the end of the line'"),
        ("(3 )", "empty one"),
        ("(3 very good)", "second word"),
        ("(3 (2 very) good)", "beside nodes, 'good'"),
        ("(3 very (3 good))", "closing bracket after the word 'very'"),
    ],
)
def test_what_is_wrong_with_a_tree_is_said(line, message):
    with pytest.raises(DataError, match=message):
        parse_tree(line)


def test_a_tree_may_be_deeper_than_the_recursion_limit():
    depth = 20_000
    tree = parse_tree("(2 " * depth + "deep" + ")" * depth)
    assert (tree.words, len(tree.nodes)) == (("deep",), depth)


def test_a_damaged_tree_is_named_with_its_line(folder):
    (folder / "dev.txt").write_text("(3 good)\n(4 (2 cut\n")
    with pytest.raises(DataError, match=r"dev.txt, line 2: expected a closing bracket"):
        SentimentTrees(folder=folder).load()


@pytest.mark.parametrize(
    ("classes", "train", "test"), [(2, [1, 0], [0, 1]), (3, [2, 0, 1], [0, 1, 2]), (5, [3, 1, 2], [0, 2, 3])]
)
def test_labels_become_classes(folder, classes, train, test):
    task = SentimentTrees(classes, folder=folder).load()
    assert task.data["train"].targets.tolist() == train
    assert task.data["test"].targets.tolist() == test
    assert len(task.spec.classes) == task.spec.output_size == classes


def test_the_vocabulary_is_that_of_the_training_sentences(folder):
    two, five = (SentimentTrees(classes, folder=folder).load().vocabulary for classes in (2, 5))
    assert set(two.tokens) == {"It", "'s", "good", "Bad", ".", "<unk>"}
    assert set(five.tokens) == {*two.tokens, "A", "2\u00a01\\/2", "hour", "film"}
    lower = SentimentTrees(2, lower=True, folder=folder).load().vocabulary
    assert set(lower.tokens) == {"it", "'s", "good", "bad", ".", "<unk>"}


def test_words_that_training_does_not_have_are_unk(folder):
    task = SentimentTrees(2, folder=folder).load()
    sentence = task.data["validation"].inputs[1]
    assert task.vocabulary.decode(sentence) == ["It", "<unk>"]


def test_phrases_are_every_labelled_node_of_the_training_trees_and_of_no_other(folder):
    task = SentimentTrees(5, phrases=True, folder=folder).load()
    assert [len(task.data[split]) for split in task.spec.splits] == [5 + 3 + 7, 2, 3]
    data = task.data["train"]
    texts = [
        " ".join(task.vocabulary.decode(row[:length])) for row, length in zip(data.inputs, data.lengths, strict=True)
    ]
    examples = set(zip(texts, data.targets.tolist(), strict=True))
    assert {("It", 2), ("'s good", 4), ("It 's good", 3), ("Bad", 1), ("hour film", 2)} <= examples


def test_neutral_phrases_are_left_out_with_two_classes(folder):
    task = SentimentTrees(2, phrases=True, folder=folder).load()
    assert task.data["train"].targets.tolist() == [1, 1, 1, 0, 0]  # good, 's good, the sentence; Bad, the sentence


def test_padding_at_the_end_comes_with_lengths_and_batches_are_cut_to_their_longest(folder):
    task = SentimentTrees(5, folder=folder).load()
    batch = next(task.evaluation("train", 2))
    assert batch.inputs.shape == (3, 2)
    assert batch.lengths.tolist() == [3, 2]
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64


def test_padding_in_front_makes_one_length_and_needs_none(folder):
    task = SentimentTrees(5, padding="front", folder=folder).load()
    for data in task.data.values():
        assert data.lengths is None
        assert data.inputs.shape[1] == 4
    assert task.vocabulary.decode(task.data["train"].inputs[0]) == ["<pad>", "It", "'s", "good"]


def test_max_length_keeps_the_first_words(folder):
    data = SentimentTrees(5, max_length=2, folder=folder).load().data["train"]
    assert data.inputs.shape == (3, 2)
    assert data.lengths.tolist() == [2, 2, 2]


def test_a_choice_of_test_sentences_is_the_same_in_every_run(folder):
    (folder / "test.txt").write_text("".join(f"({number % 5} word{number})\n" for number in range(40)))
    options = SentimentTrees(5, test=15, folder=folder)
    one, other = (options.load().data["test"] for _ in range(2))
    assert len(one) == 15
    assert torch.equal(one.targets, other.targets)
    with pytest.raises(SettingError, match="test expects 1 to 40 sentences, got 41"):
        SentimentTrees(5, test=41, folder=folder).load()


def test_the_baseline_is_the_share_of_the_largest_class_in_test(folder):
    assert SentimentTrees(3, folder=folder).load().spec.baseline == pytest.approx(1 / 3)


def test_vectors_reach_the_task_in_the_order_of_its_vocabulary(folder):
    (folder / "glove.txt").write_text("good 1 -1\nfilm 2 2\n")
    task = SentimentTrees(2, vectors=folder / "glove.txt", folder=folder).load()
    assert task.vectors.shape == (task.spec.input_size, 2)
    assert task.vectors[task.vocabulary.index("good")].tolist() == [1, -1]
    assert task.vectors.abs().sum() == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 4}, "2, 3 or 5, got 4"),
        ({"padding": "middle"}, "'middle'"),
        ({"max_length": 0}, "at least 1"),
    ],
)
def test_impossible_options_are_refused(folder, options, message):
    with pytest.raises(SettingError, match=message):
        SentimentTrees(**options, folder=folder).load()


def test_a_file_without_a_usable_tree_is_refused(folder):
    (folder / "dev.txt").write_text("(2 (2 A) (2 film))\n")
    with pytest.raises(DataError, match=r"dev.txt has no tree of one of the 2 classes"):
        SentimentTrees(2, folder=folder).load()


def test_the_real_trees_have_their_known_counts():
    if not Path(os.environ.get("HOLDFAST_DATA", ""), "sst", "trees", "train.txt").is_file():
        pytest.skip("HOLDFAST_DATA holds no sst/trees")
    five = SentimentTrees(5).load()
    assert [len(five.data[split]) for split in five.spec.splits] == [
        SentimentTrees(5).answers(split) for split in five.spec.splits
    ]
    assert [five.data[split].targets.bincount().tolist() for split in five.spec.splits] == [
        [1092, 2218, 1624, 2322, 1288],
        [139, 289, 229, 279, 165],
        [279, 633, 389, 510, 399],
    ]
    # one leaf, one word: three leaves of the training trees contain a no-break space
    assert [int(five.data[split].lengths.sum()) for split in five.spec.splits] == [163_563, 21_274, 42_405]
    two = SentimentTrees(2, phrases=True).load()
    assert [len(two.data[split]) for split in two.spec.splits] == [98_794, 872, 1_821]
    plain = SentimentTrees(2)
    assert [plain.answers(split) for split in two.spec.splits] == [len(plain.load().data["train"]), 872, 1_821]


BINARY = st.recursive(
    st.tuples(st.integers(0, 4), st.sampled_from(["good", "bad", "film", "-LRB-"])),
    lambda inner: st.tuples(st.integers(0, 4), st.tuples(inner, inner)),
    max_leaves=12,
)


def joined(node):
    """The tree in post-order, by recursion."""
    _, inside = node
    return (inside,) if isinstance(inside, str) else (*joined(inside[0]), *joined(inside[1]), "<node>")


@settings(max_examples=30, deadline=None)
@given(BINARY)
def test_post_order_is_the_tree(node):
    tree = parse_tree(written(node))
    assert post_order(tree) == joined(node)
    assert len(post_order(tree)) == 2 * len(tree.words) - 1


@pytest.mark.parametrize("line", ["(3 (2 good))", "(3 (2 a) (2 b) (2 c))", "(3 (2 a) (2 (2 b)))", "(3 <node>)"])
def test_what_is_no_binary_tree_is_a_clear_error(line):
    with pytest.raises(DataError, match=r"mine.txt, line 7: expected"):
        post_order(parse_tree(line), "mine.txt, line 7")


def test_trees_come_in_post_order_and_every_subtree_is_an_example(folder):
    """Words keep their indices, <node> is the last token, and lengths are 2n - 1."""
    task = SentimentTrees(classes=5, phrases=True, trees=True, folder=folder).load()
    words = SentimentTrees(classes=5, phrases=True, folder=folder).load().vocabulary.tokens
    assert task.vocabulary.tokens == (*words, "<node>")
    assert task.spec.node == len(words)
    train = next(task.evaluation("train", 100))
    rows = zip(train.inputs.T.tolist(), train.lengths.tolist(), strict=True)
    examples = [" ".join(task.vocabulary.decode(row[:length])) for row, length in rows]
    assert examples[:5] == ["It", "'s", "good", "'s good <node>", "It 's good <node> <node>"]
    assert len(examples) == 5 + 3 + 7
    batch = next(task.evaluation("test", 3))
    assert batch.lengths.tolist() == [5, 3, 1]


def test_trees_are_whole(folder):
    for changes in ({"max_length": 3}, {"padding": "front"}):
        with pytest.raises(SettingError, match="whole trees"):
            SentimentTrees(trees=True, folder=folder, **changes).load()


@pytest.mark.skipif("HOLDFAST_DATA" not in os.environ, reason="needs the data")
def test_every_tree_of_the_treebank_is_binary():
    """6,920 training trees of 2 classes and their 98,794 labelled phrases, as with words."""
    task = SentimentTrees(classes=2, phrases=True, trees=True).load()
    assert task.epoch(1) == 98_794
