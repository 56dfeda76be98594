"""Text by character: predict the next character.

    bits = mean of -log₂ p(x_{t+1} | x_1 … x_t)        (1) bits per character

| corpus | symbols | train / validation / test | window |
| --- | --- | --- | --- |
| "ptb" | 50 | 5,017,482 / 393,042 / 442,423, as distributed | 50 (S2) |
| "text8" | 27 | 90 / 5 / 5 million | 180 (S2) |
| "text8-10m" | 27 | 9 / 0.5 / 0.5 million | 180 |
| "enwik8" | 205 bytes | 90 / 5 / 5 million | 180 |
| "s1" | 27 | samples of 20 characters: 10,000 / 1,000 / 2,000 | 20 (S1) |

"text8-10m" is a prefix of ten million characters, **derived** from enwik8 by the published filter rules and not copied
from the official text8. Numbers on it are not comparable with published ones. "s1" is enwik8 after S1's cleaning: see
``letters``.

Sources: S2 §5.3 (PTB, text8), S1 §5.1 (Wiki-5k and Wiki-10k: 5,000 and 10,000 training samples).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import SettingError
from holdfast.tasks._base import Task
from holdfast.tasks._text import Protocol, contents, first, language_task
from holdfast.tasks.fetch import Source
from holdfast.tasks.ptb import LDC
from holdfast.tasks.vocabulary import Vocabulary

__all__ = ["Characters", "letters"]

_PTB_URL = "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz"
_WIKIPEDIA = "The text is Wikipedia's (GFDL, CC BY-SA)."


def _ptb(split: str, sha256: str, size: int) -> Source:
    name = f"ptb.char.{split}.txt"
    return Source(f"ptb/{name}", sha256, size, (_PTB_URL,), f"./simple-examples/data/{name}", LDC)


_ENWIK8 = Source(
    "enwik8/enwik8",
    "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
    100_000_000,
    urls=("https://mattmahoney.net/dc/enwik8.zip",),
    member="enwik8",
    how=_WIKIPEDIA,
)


@dataclasses.dataclass(frozen=True)
class _Corpus:
    """Either one file per split, or one file: the first 90% for training, 5% for validation, 5% for the test."""

    sources: dict[str, Source]
    window: int
    protocol: Protocol = "stream"

    @property
    def one_text(self) -> bool:
        return "whole" in self.sources


_CORPORA = {
    "ptb": _Corpus(
        {
            "train": _ptb("train", "e313d91425e06c4f0a8fb6e881dcce0c291f2a0e9f4dda54833069b122f91da9", 10_034_964),
            "validation": _ptb("valid", "21661f63ec355085879458b6524644d4add5573541b4be14fb52ab2e2e995eb8", 786_084),
            "test": _ptb("test", "1ef5607ac3c463b16e38bfe7900dd3bfc91de5a96e0f21e7eab5188b465b8ebe", 884_846),
        },
        window=50,
    ),
    "text8": _Corpus(
        {
            "whole": Source(
                "text8/text8",
                "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
                100_000_000,
                urls=("https://mattmahoney.net/dc/text8.zip",),
                member="text8",
                how=f'{_WIKIPEDIA} (The corpus "text8-10m" is a file of its own.)',
            )
        },
        window=180,
    ),
    "text8-10m": _Corpus(
        {
            "whole": Source(
                "text8/text8.first10M",
                "e5bc9580d197612032534e743716f44813367eaabd73165f4691b7a9d3490eb0",
                10_000_000,
                how=f'{_WIKIPEDIA} It was derived from enwik8; the corpus "text8" is the official file.',
            )
        },
        window=180,
    ),
    "enwik8": _Corpus({"whole": _ENWIK8}, window=180),
    "s1": _Corpus({"whole": _ENWIK8}, window=20, protocol="samples"),
}

_CHUNK = 1 << 22
# XML tags, HTML tags inside the articles (with escaped brackets), and characters that are escaped once or twice
_MARKUP = re.compile(rb"<[^<>\n]*>|&lt;[/!A-Za-z][^<>\n]*?&gt;|&(?:amp;)?#?[0-9A-Za-z]{1,8};")
_TO_LETTERS = bytes(
    symbol if chr(symbol) in "abcdefghijklmnopqrstuvwxyz" else symbol + 32 if 65 <= symbol <= 90 else 32
    for symbol in range(256)
)
_PTB_SYMBOLS = bytes.maketrans(b"_", b" ")


@dataclasses.dataclass(frozen=True)
class Characters:
    """The next character, scored in bits (1).

    The alphabet is that of the whole corpus, ordered by frequency in the training split, so no character is unknown. In
    "enwik8" a character is a byte. The bytes of a row are ``"".join(vocabulary.decode(row)).encode("latin-1")``.

    Args:
        corpus: see the table above.
        window: steps of a window; None for the corpus's own.
        protocol: as in ``PennTreebank``; None: "samples" for "s1", else "stream".
        train, validation, test: number of samples in each split, only with "samples"; 10,000, 1,000 and 2,000 if None.
            S1's Wiki-5k has train = 5,000 and the same validation and test sets.
        limit: use only the first characters, this many: of the text before it is split, or of each file of "ptb".
        vectors, dim: as in ``PennTreebank``. GloVe files also have vectors for letters (S1).
        folder: a folder with your own files of the same names (or .gz). Their hashes are not checked. Any file named
            enwik8 works for "enwik8".

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "enwik8").write_text("to be or not to be " * 20)
        ...     task = Characters("enwik8", window=8, folder=folder).load()
        >>> "".join(task.vocabulary.decode(task.train_batch(0, 1, seed=0).inputs[:, 0]))
        'to be or'
        >>> task.spec.input_size, task.spec.metric
        (7, 'bits')
    """

    corpus: Literal["ptb", "text8", "text8-10m", "enwik8", "s1"] = "ptb"
    window: int | None = None
    protocol: Protocol | None = None
    train: int | None = None
    validation: int | None = None
    test: int | None = None
    limit: int | None = None
    vectors: str | Path | None = None
    dim: int | None = None
    folder: str | Path | None = None

    def sources(self) -> tuple[Source, ...]:
        return () if self.folder is not None else tuple(self._corpus.sources.values())

    @property
    def _corpus(self) -> _Corpus:
        if self.corpus not in _CORPORA:
            raise SettingError(f"Characters knows the corpora {', '.join(_CORPORA)}; got {self.corpus!r}.")
        return _CORPORA[self.corpus]

    def load(self) -> Task:
        corpus = self._corpus
        rows, vocabulary = _indices(self._texts())
        return language_task(
            rows,
            vocabulary,
            window=corpus.window if self.window is None else self.window,
            protocol=corpus.protocol if self.protocol is None else self.protocol,
            metric="bits",
            sizes={"train": self.train, "validation": self.validation, "test": self.test},
            vectors=self.vectors,
            dim=self.dim,
            one_text=corpus.one_text,
        )

    def _texts(self) -> dict[str, bytes]:
        """One byte per character, by the name of the split."""
        part, texts = first(self.limit), {}
        for split, source in self._corpus.sources.items():
            data, _ = contents(source, self.folder)
            if self.corpus == "ptb":  # spaces separate the symbols, and _ is a space
                data = data.translate(_PTB_SYMBOLS, b" ")
                data = data.replace(b"\r", b"")
            elif self.corpus == "s1":
                data = letters(data, self.limit)
            texts[split] = data[part]
        if self._corpus.one_text:
            whole = texts.pop("whole")
            train, validation = len(whole) * 90 // 100, len(whole) * 95 // 100
            return {"train": whole[:train], "validation": whole[train:validation], "test": whole[validation:]}
        return texts


def letters(text: bytes, limit: int | None = None) -> bytes:
    r"""S1's cleaning, which leaves the 26 letters of English and the space.

    Tags and escaped characters of XML and HTML are removed, with what is inside the brackets. Text between tags stays.
    Letters become lower case. Every run of anything else (numbers, punctuation, wiki markup, letters with accents)
    becomes one space. S1 §5.1 does not specify the last two rules, which are ours.

    Args:
        text: as in enwik8.
        limit: stop after this many characters.

    Example:
        >>> letters(b"<title>Apollo 11</title>\n'''Apollo''' &amp;mdash; see [[Moon|the Moon]]&lt;br /&gt;.")
        b'apollo apollo see moon the moon '
    """
    pieces, length, after_blank = [], 0, True  # no space at the beginning
    for chunk in _line_chunks(text):
        symbols = np.frombuffer(_MARKUP.sub(b" ", chunk).translate(_TO_LETTERS), np.uint8)
        blank = symbols == 32
        again = blank & np.concatenate(([after_blank], blank[:-1]))
        pieces.append(symbols[~again].tobytes())
        length, after_blank = length + len(pieces[-1]), bool(blank[-1])
        if limit is not None and length >= limit:
            break
    return b"".join(pieces)[:limit]


def _line_chunks(text: bytes) -> Iterator[bytes]:
    """The text in pieces of whole lines, so that no tag is cut and a corpus of 100 MB is not copied whole."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin + _CHUNK) + 1 or len(text)
        yield text[begin:end]
        begin = end


def _indices(texts: dict[str, bytes]) -> tuple[dict[str, Tensor], Vocabulary]:
    """One row of bytes per split, and the alphabet by frequency in the training split. Empties ``texts``."""
    counts = {split: _counts(text) for split, text in texts.items()}
    used = np.flatnonzero(np.sum([*counts.values()], axis=0)).tolist()
    used.sort(key=lambda symbol: (-int(counts["train"][symbol]), symbol))
    table = bytearray(256)
    for index, symbol in enumerate(used):
        table[symbol] = index
    rows = {}
    for split in list(texts):
        # translate needs no 64-bit indices, unlike an array lookup; each text is freed once it is translated
        row = texts.pop(split).translate(bytes(table))
        rows[split] = torch.frombuffer(bytearray(row), dtype=torch.uint8) if row else torch.zeros(0, dtype=torch.uint8)
    return rows, Vocabulary(tuple(map(chr, used)))


def _counts(text: bytes) -> np.ndarray:
    symbols, counts = np.frombuffer(text, np.uint8), np.zeros(256, np.int64)
    for begin in range(0, len(symbols), _CHUNK):  # bincount makes 64-bit integers of what it counts
        counts += np.bincount(symbols[begin : begin + _CHUNK], minlength=256)
    return counts
