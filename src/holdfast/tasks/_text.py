"""What text tasks have in common: reading files, splitting words, and the three protocols.

    stream    the text in as many rows as the batch has, side by side: the state can be carried     (1) S4
    windows   windows of the text, shuffled, each from a zero state                                 (2) S3
    samples   a fixed random choice of disjoint windows, each from a zero state                     (3) S1

The target at every step is the next token.
"""

from __future__ import annotations

import dataclasses
import gzip
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast.errors import DataError, SettingError
from holdfast.tasks._base import Arrays, Sequences, Spec, Stream, Task
from holdfast.tasks.fetch import Source, read_bytes
from holdfast.tasks.glove import read_glove
from holdfast.tasks.vocabulary import END, Vocabulary

__all__ = ["Protocol", "Tokeniser", "WordText", "contents", "decoded", "first", "keras_words", "language_task", "words"]

Protocol = Literal["stream", "windows", "samples"]
Tokeniser = Literal["spaces", "keras"]

_PROTOCOLS = ("stream", "windows", "samples")
_S1_SIZES = {"train": 10_000, "validation": 1_000, "test": 2_000}
# ASCII alone: str.split would also split at the no-break spaces inside tokens
_WORD = re.compile(r"[^ \t\n\r\f\v]+")
# the characters that Keras' Tokenizer takes for spaces unless told otherwise; the apostrophe is not among them
_KERAS_SPACES = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def contents(source: Source, folder: str | Path | None) -> tuple[bytes, str]:
    """A file's bytes, and its name for messages: the official file, checked, or the one of its name in ``folder``."""
    if folder is None:
        return read_bytes(source), source.path
    name = Path(source.path).name
    for path in (Path(folder, name), Path(folder, f"{name}.gz")):
        if path.is_file():
            try:
                data = path.read_bytes()
                return (gzip.decompress(data) if path.suffix == ".gz" else data), str(path)
            except (OSError, EOFError, zlib.error) as error:
                raise DataError(f"{path} cannot be read: {error}.") from error
    raise DataError(f"{folder} holds neither {name} nor {name}.gz; put one there, or leave folder out.")


def decoded(data: bytes, name: str) -> str:
    """UTF-8 as text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{name}, line {line}: expected text in UTF-8, got the byte 0x{data[error.start]:02x}."
        ) from error


def words(text: str) -> list[str]:
    """The words of a text, with ``<eos>`` at the end of every line."""
    if text and not text.endswith("\n"):
        text += "\n"
    return _WORD.findall(text.replace("\n", f" {END} "))


def keras_words(text: str) -> list[str]:
    """The words of a text as Keras' ``Tokenizer`` splits it: lower case, punctuation and line ends as spaces.

    ``<unk>`` becomes ``unk``, and "new-york" two words.
    """
    return [word for word in text.lower().translate(_KERAS_SPACES).split(" ") if word]


_TOKENISERS = {"spaces": words, "keras": keras_words}


@dataclasses.dataclass(frozen=True)
class WordText:
    """Options of a corpus that is read by word. ``PennTreebank`` explains them."""

    window: int | None = None
    protocol: Protocol = "stream"
    train: int | None = None
    validation: int | None = None
    test: int | None = None
    limit: int | None = None
    size: int | None = None
    vectors: str | Path | None = None
    dim: int | None = None
    folder: str | Path | None = None
    tokeniser: Tokeniser = "spaces"

    SOURCES: ClassVar[Mapping[str, Source]]
    WINDOWS: ClassVar[Mapping[str, int]] = {}  # by protocol; else 35

    def sources(self) -> tuple[Source, ...]:
        return () if self.folder is not None else tuple(self.SOURCES.values())

    def load(self) -> Task:
        if self.tokeniser not in _TOKENISERS:
            raise SettingError(f"tokeniser expects one of {', '.join(_TOKENISERS)}; got {self.tokeniser!r}.")
        split_words = _TOKENISERS[self.tokeniser]
        texts = {split: split_words(decoded(*contents(source, self.folder))) for split, source in self.SOURCES.items()}
        vocabulary = Vocabulary.of(texts["train"], size=self.size)
        return language_task(
            {split: vocabulary.encode(text[first(self.limit)]) for split, text in texts.items()},
            vocabulary,
            window=self.WINDOWS.get(self.protocol, 35) if self.window is None else self.window,
            protocol=self.protocol,
            metric="perplexity",
            sizes={"train": self.train, "validation": self.validation, "test": self.test},
            vectors=self.vectors,
            dim=self.dim,
        )


def first(limit: int | None) -> slice:
    """The first ``limit`` tokens, or all."""
    if limit is not None and limit < 2:
        raise SettingError(f"limit expects at least 2 tokens, one to read and one to predict; got {limit}.")
    return slice(limit)


def language_task(
    rows: Mapping[str, Tensor],
    vocabulary: Vocabulary,
    *,
    window: int,
    protocol: str,
    metric: Literal["perplexity", "bits"],
    sizes: Mapping[str, int | None],
    vectors: str | Path | None = None,
    dim: int | None = None,
    one_text: bool = False,
) -> Task:
    """Next-token prediction by one of the protocols (1) to (3).

    Args:
        rows: indices by the name of the split.
        sizes: number of samples in each split, for (3); None for S1's.
        vectors, dim: a GloVe file, and the length of its vectors.
        one_text: whether the splits are consecutive parts of one text. (3) then draws from all of it.
    """
    if protocol not in _PROTOCOLS:
        raise SettingError(f"protocol expects one of {', '.join(_PROTOCOLS)}; got {protocol!r}.")
    if protocol != "samples" and (given := [split for split, size in sizes.items() if size is not None]):
        raise SettingError(f'{", ".join(given)} need protocol="samples", since they count samples; got {protocol!r}.')
    if protocol == "stream" or protocol == "windows":
        task: Task = Stream(rows, len(vocabulary), window=window, metric=metric, protocol=protocol)
    else:
        counts = {split: _S1_SIZES[split] if (size := sizes[split]) is None else size for split in rows}
        spec = Spec(len(vocabulary), len(vocabulary), "cross_entropy", metric, tokens=True, every_step=True)
        task = Arrays(spec, _samples(rows, counts, window, one_text))
    task.vocabulary = vocabulary
    if vectors is not None:
        task.vectors = read_glove(vectors, vocabulary, dim=dim).vectors
    return task


def _samples(
    rows: Mapping[str, Tensor], counts: Mapping[str, int], window: int, one_text: bool
) -> dict[str, Sequences]:
    """(3). Train is drawn last, so that fewer training samples leave the other splits as they are."""
    if window < 1:
        raise SettingError(f"window expects at least 1 step, got {window}.")
    order = ("validation", "test", "train")
    if one_text:
        return _drawn(torch.cat([rows[split] for split in rows]), {split: counts[split] for split in order}, window)
    return {split: _drawn(rows[split], {split: counts[split]}, window)[split] for split in rows}


def _drawn(row: Tensor, counts: Mapping[str, int], window: int) -> dict[str, Sequences]:
    pieces = row[: len(row) // (window + 1) * (window + 1)].view(-1, window + 1)  # window inputs, and the last target
    if min(counts.values()) < 1 or sum(counts.values()) > len(pieces):
        wanted = ", ".join(f"{count:,} for {split}" for split, count in counts.items())
        raise SettingError(
            f"{len(row):,} tokens hold {len(pieces):,} disjoint samples of {window} steps and a target; "
            f"got a request for {wanted}. Ask for fewer samples or shorter windows."
        )
    # the same samples in every run: only weights and the order of training differ between seeds
    chosen = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))
    drawn, begin = {}, 0
    for split, count in counts.items():
        tokens = pieces[chosen[begin : begin + count]].long()  # (count, window + 1)
        drawn[split], begin = Sequences(tokens[:, :-1], tokens[:, 1:]), begin + count
    return {split: drawn[split] for split in sorted(drawn, key=("train", "validation", "test").index)}
