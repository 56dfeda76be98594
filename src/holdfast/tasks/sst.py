"""Stanford Sentiment Treebank: the sentiment of a sentence about a film.

    (3 (2 It) (4 (2 's) (4 good)))        (1) a tree: every node has a label from 0, very negative, to 4, very positive

    5 classes: the labels. 3 classes: {0, 1}, {2}, {3, 4}. 2 classes: {0, 1}, {3, 4}; 2 is left out.      (2)

    It 's good <node> <node>              (3) the tree in post-order: <node> joins the two phrases before it

Sentences for training, validation and test: 8,544, 1,101 and 2,210; with 2 classes 6,920, 872 and 1,821.

Sources: Socher et al. (2013). S5, appendix B: 2 classes, and every labelled phrase of the training sentences as an
example. S1 §5.1: 3 classes, 1,000 validation and 2,000 test sentences, padded in front to one length.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import DataError, SettingError
from holdfast.tasks._base import Arrays, Sequences, Spec, Task
from holdfast.tasks._text import contents, decoded
from holdfast.tasks.fetch import Source
from holdfast.tasks.glove import read_glove
from holdfast.tasks.vocabulary import NODE, PADDING, Vocabulary

__all__ = ["SentimentTrees", "Tree", "parse_tree", "post_order"]


def _source(split: str, sha256: str, size: int) -> Source:
    return Source(
        f"sst/trees/{split}.txt",
        sha256,
        size,
        urls=("https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",),
        member=f"trees/{split}.txt",
    )


_SOURCES = {
    "train": _source("train", "e2f3f41b0b1e6d4dddc0effe3bfc2d27ed8928079aa9a03d652311614fc5feb7", 2_160_058),
    "validation": _source("dev", "0e9336aed6e4730e19f58d00a77b3f0297efdb755f7b5e598c98a05e3f97ea40", 280_825),
    "test": _source("test", "6e54806dee95cf80cd918e7dfb3f6770f6df24bf826f289a4d1f709e1c8f6761", 559_614),
}

_CLASSES = {  # (2)
    2: ({0: 0, 1: 0, 3: 1, 4: 1}, ("negative", "positive")),
    3: ({0: 0, 1: 0, 2: 1, 3: 2, 4: 2}, ("negative", "neutral", "positive")),
    5: ({label: label for label in range(5)}, ("very negative", "negative", "neutral", "positive", "very positive")),
}

# ASCII spaces alone: some words contain a no-break space ("2 1/2")
_PIECE = re.compile(r"[()]|[^() \t\r\n\f\v]+")
_LABELS = {str(label): label for label in range(5)}


@dataclasses.dataclass(frozen=True)
class Tree:
    """A sentence and its labelled phrases (1).

    Args:
        words: of the sentence.
        nodes: (label, begin, end) of every phrase ``words[begin:end]``; the whole sentence comes last.

    Example:
        >>> Tree(("good",), ((3, 0, 1),)).nodes[-1][0]
        3
    """

    words: tuple[str, ...]
    nodes: tuple[tuple[int, int, int], ...]


def parse_tree(line: str, where: str = "the tree") -> Tree:
    """One tree (1), however deep. A node holds a label and either one word or other nodes.

    Args:
        line: the tree.
        where: what an error calls it.

    Raises:
        DataError: it is not such a tree.

    Example:
        >>> tree = parse_tree("(3 (2 It) (4 (2 's) (4 good)))")
        >>> tree.words, tree.nodes[-2:]
        (('It', "'s", 'good'), ((4, 1, 3), (3, 0, 3)))
        >>> parse_tree("(3 (2 It)", "mine.txt, line 7")
        Traceback (most recent call last):
        holdfast.errors.DataError: mine.txt, line 7: expected a closing bracket, got the end of the line.
    """
    words: list[str] = []
    nodes: list[tuple[int, int, int]] = []
    opened: list[list[int]] = []  # label, begin, and what is inside: 0 nothing yet, 1 a word, 2 nodes
    pieces = iter(_PIECE.findall(line))
    for piece in pieces:
        if nodes and not opened:
            raise DataError(f"{where}: expected the end of the line after the tree, got {piece!r}.")
        if piece == "(":
            if opened:
                if opened[-1][2] == 1:
                    raise DataError(f"{where}: expected a closing bracket after the word {words[-1]!r}, got '('.")
                opened[-1][2] = 2
            label = next(pieces, "the end of the line")
            if label not in _LABELS:
                raise DataError(f"{where}: expected a label from 0 to 4 after '(', got {label!r}.")
            opened.append([_LABELS[label], len(words), 0])
        elif not opened:
            raise DataError(f"{where}: expected an opening bracket, got {piece!r}.")
        elif piece == ")":
            label, begin, inside = opened.pop()
            if not inside:
                raise DataError(f"{where}: expected a word or a node inside every node, got an empty one.")
            nodes.append((label, begin, len(words)))
        else:
            if opened[-1][2]:
                raise DataError(f"{where}: expected a bracket, got a second word or one beside nodes, {piece!r}.")
            opened[-1][2] = 1
            words.append(piece)
    if opened or not nodes:
        raise DataError(f"{where}: expected {'a closing bracket' if opened else 'a tree'}, got the end of the line.")
    return Tree(tuple(words), tuple(nodes))


def post_order(tree: Tree, where: str = "the tree") -> tuple[str, ...]:
    """The symbols (3) of a binary tree: words, and ``<node>`` for each phrase of two phrases.

    Args:
        tree: the tree.
        where: what an error calls it.

    Raises:
        DataError: a node has one child or more than two.

    Example:
        >>> post_order(parse_tree("(3 (2 It) (4 (2 's) (4 good)))"))
        ('It', "'s", 'good', '<node>', '<node>')
    """
    if NODE in tree.words:
        raise DataError(f"{where}: expected words other than {NODE!r}, which stands for a node with trees = true.")
    spans: list[tuple[int, int]] = []  # of the phrases that wait for a parent
    symbols = []
    for _, begin, end in tree.nodes:
        inside = len(spans)
        while inside and spans[inside - 1][0] >= begin:
            inside -= 1
        children = len(spans) - inside
        if children not in (0, 2):
            raise DataError(
                f"{where}: expected two children in every node with trees = true, got {children} in the phrase "
                f"{' '.join(tree.words[begin:end])!r}."
            )
        del spans[inside:]
        spans.append((begin, end))
        symbols.append(NODE if children else tree.words[begin])
    return tuple(symbols)


@dataclasses.dataclass(frozen=True)
class SentimentTrees:
    r"""The class of a sentence (2), scored by accuracy.

    Words are used as in the trees. The vocabulary is that of the training examples. All other words are ``<unk>``.

    Args:
        classes: 2, 3 or 5 (2).
        phrases: train on every labelled node of the training trees, one word or many, besides whole sentences (S5):
            98,794 examples with 2 classes, 318,582 with 3 or 5. Validation and test are always whole sentences.
        trees: give the trees (3) instead of their words, for a Tree-LSTM. They must be binary, as SST's are. With
            ``phrases`` every subtree is an example.
        lower: convert to lower case, as in GloVe's 6B files.
        max_length: use only the first words of an example, this many.
        padding: "end", with lengths, so that nothing is read after the last word; or "front" (S1): a token ``<pad>``
            in front of the shorter ones, which is read like a word.
        validation, test: number of sentences, a fixed random choice (S1: 1,000 and 2,000). None: all.
        size, vectors, dim: as in ``PennTreebank``.
        folder: a folder with your own train.txt, dev.txt and test.txt (or .gz), one tree per line. Hashes are not
            checked.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for split in ("train", "dev", "test"):
        ...         _ = Path(folder, f"{split}.txt").write_text("(3 (2 It) (4 (2 's) (4 good)))\n(1 (1 Bad) (2 .))\n")
        ...     task = SentimentTrees(classes=2, folder=folder).load()
        >>> batch = next(task.evaluation("test", 2))
        >>> batch.inputs.shape, batch.lengths, batch.targets
        (torch.Size([3, 2]), tensor([3, 2]), tensor([1, 0]))
    """

    classes: Literal[2, 3, 5] = 2
    phrases: bool = False
    trees: bool = False
    lower: bool = False
    max_length: int | None = None
    padding: Literal["end", "front"] = "end"
    validation: int | None = None
    test: int | None = None
    size: int | None = None
    vectors: str | Path | None = None
    dim: int | None = None
    folder: str | Path | None = None

    def sources(self) -> tuple[Source, ...]:
        return () if self.folder is not None else tuple(_SOURCES.values())

    def answers(self, split: str) -> int | None:
        """How many answers a score on a split counts; None if that takes reading the data.

        Example:
            >>> SentimentTrees(classes=2).answers("test"), SentimentTrees(classes=3, test=600).answers("test")
            (1821, 600)
        """
        chosen = {"validation": self.validation, "test": self.test}.get(split)
        if chosen is not None or self.folder is not None or (split == "train" and self.phrases):
            return chosen
        counts = (6920, 872, 1821) if self.classes == 2 else (8544, 1101, 2210)
        return dict(zip(_SOURCES, counts, strict=True)).get(split)

    def load(self) -> Task:
        if self.classes not in _CLASSES:
            raise SettingError(f"SentimentTrees expects classes to be 2, 3 or 5, got {self.classes!r}.")
        if self.padding not in ("end", "front"):
            raise SettingError(f'SentimentTrees expects padding to be "end" or "front", got {self.padding!r}.')
        if self.max_length is not None and self.max_length < 1:
            raise SettingError(f"SentimentTrees expects a max_length of at least 1, got {self.max_length}.")
        if self.trees and (self.padding == "front" or self.max_length is not None):
            raise SettingError(
                'SentimentTrees expects whole trees with trees = true; leave out max_length and padding = "front".'
            )
        examples = {split: self._examples(split) for split in _SOURCES}
        counts = collections.Counter(word for text, _ in examples["train"] for word in text)
        extra = (PADDING,) if self.padding == "front" else (NODE,) if self.trees else ()
        vocabulary = Vocabulary.of(counts, size=self.size, extra=extra)
        longest = max(len(text) for split in examples.values() for text, _ in split)
        splits = {split: self._sequences(some, vocabulary, longest) for split, some in examples.items()}
        names, answers = _CLASSES[self.classes][1], splits["test"].targets
        spec = Spec(
            len(vocabulary),
            len(names),
            "cross_entropy",
            "accuracy",
            tokens=True,
            classes=names,
            baseline=answers.bincount().max().item() / len(answers),
            node=vocabulary.index(NODE) if self.trees else None,
        )
        task = Arrays(spec, splits)
        task.vocabulary = vocabulary
        if self.vectors is not None:
            task.vectors = read_glove(self.vectors, vocabulary, dim=self.dim).vectors
        return task

    def _examples(self, split: str) -> list[tuple[Sequence[str], int]]:
        """Words and class of every example of a split, in the order of the file."""
        data, name = contents(_SOURCES[split], self.folder)
        text, classes = decoded(data, name), _CLASSES[self.classes][0]
        if self.lower:
            text = text.lower()
        examples = []
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            tree = parse_tree(line, f"{name}, line {number}")
            symbols = post_order(tree, f"{name}, line {number}") if self.trees else ()
            nodes = tree.nodes if self.phrases and split == "train" else tree.nodes[-1:]
            for place, (label, begin, end) in enumerate(nodes, len(tree.nodes) - len(nodes) + 1):
                if label in classes:
                    text = tree.words[begin:end][: self.max_length]
                    if self.trees:  # a subtree of n words is the 2n - 1 symbols up to its own
                        text = symbols[place - 2 * (end - begin) + 1 : place]
                    examples.append((text, classes[label]))
        if not examples:
            raise DataError(f"{name} has no tree of one of the {self.classes} classes.")
        wanted = {"validation": self.validation, "test": self.test}.get(split)
        return examples if wanted is None else _chosen(examples, wanted, split)

    def _sequences(self, examples: list[tuple[Sequence[str], int]], vocabulary: Vocabulary, longest: int) -> Sequences:
        lengths = torch.tensor([len(text) for text, _ in examples])
        targets = torch.tensor([answer for _, answer in examples])
        tokens = vocabulary.encode([word for text, _ in examples for word in text])
        if self.padding == "front":
            return Sequences(_padded(tokens, lengths, longest, vocabulary.index(PADDING), front=True), targets)
        return Sequences(_padded(tokens, lengths, int(lengths.max()), 0, front=False), targets, lengths)


def _padded(tokens: Tensor, lengths: Tensor, longest: int, filler: int, *, front: bool) -> Tensor:
    """Rows of ``lengths`` tokens as one array, (rows, longest)."""
    places = np.arange(longest)
    filled = places >= longest - lengths.numpy()[:, None] if front else places < lengths.numpy()[:, None]
    padded = torch.full(filled.shape, filler, dtype=torch.int32)
    padded[torch.from_numpy(filled)] = tokens
    return padded


def _chosen(examples: list[tuple[Sequence[str], int]], count: int, split: str) -> list[tuple[Sequence[str], int]]:
    if not 1 <= count <= len(examples):
        raise SettingError(f"{split} expects 1 to {len(examples):,} sentences, got {count:,}.")
    # the same sentences in every run: only weights and the order of training differ between seeds
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))
    return [examples[index] for index in order[:count].sort().values.tolist()]
