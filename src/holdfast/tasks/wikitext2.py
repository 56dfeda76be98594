"""WikiText-2: predict the next word of Wikipedia's good articles.

    perplexity = exp(mean of -ln p(x_{t+1} | x_1 … x_t))        (1)

33,278 words, ``<unk>`` and ``<eos>`` (one a line, also for empty ones) among them; 2,088,628 tokens to train on,
217,646 to validate on and 245,569 to test on. **A perplexity depends on the protocol**: say which.

Sources: Merity et al. (2016). S4 §7.2 and its appendix read it as a "stream", 20 rows side by side, in windows of 35
(the stable models) and 65 steps (the truncated ones).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from holdfast.tasks._base import Task
from holdfast.tasks._text import Protocol, language_task, word_rows
from holdfast.tasks.fetch import Source

__all__ = ["WikiText2"]


def _source(name: str, mirror: str, sha256: str, size: int) -> Source:
    return Source(
        f"wikitext2/{name}",
        sha256,
        size,
        urls=(
            "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip",
            f"https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/{mirror}",
        ),
        member=f"wikitext-2/{name}",
        how="The text is Wikipedia's (CC BY-SA 3.0).",
    )


_SOURCES = {
    "train": _source(
        "wiki.train.tokens",
        "train.txt",
        "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        10_797_148,
    ),
    "validation": _source(
        "wiki.valid.tokens",
        "valid.txt",
        "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        1_121_681,
    ),
    "test": _source(
        "wiki.test.tokens",
        "test.txt",
        "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
        1_256_449,
    ),
}


@dataclasses.dataclass(frozen=True)
class WikiText2:
    r"""The next word, scored by perplexity (1).

    Args:
        window: steps of a window.
        protocol: "stream", a state can be carried from window to window (S4); "windows", each begins afresh and they
            are shuffled; "samples", a fixed random choice of disjoint windows.
        train, validation, test: samples in each split; 10,000, 1,000 and 2,000 if None. Only with "samples".
        limit: only the first so many tokens of every split, for a quick try.
        size: keep only the most frequent words, so many with ``<unk>``, which the others become.
        vectors: a GloVe file: where the embedding starts. See ``read_glove``.
        dim: length of its vectors, where the file holds several.
        folder: a folder with your own wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens (or .gz): any text in
            UTF-8, words between blanks. Its hashes are not checked.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for split in ("train", "valid", "test"):
        ...         _ = Path(folder, f"wiki.{split}.tokens").write_text(" = Roses = \n\n a rose is a rose \n")
        ...     task = WikiText2(window=4, folder=folder).load()
        >>> task.vocabulary.tokens[:3], task.spec.metric
        (('<eos>', '=', 'a'), 'perplexity')
    """

    window: int = 35
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
            window=self.window,
            protocol=self.protocol,
            metric="perplexity",
            sizes={"train": self.train, "validation": self.validation, "test": self.test},
            vectors=self.vectors,
            dim=self.dim,
        )
