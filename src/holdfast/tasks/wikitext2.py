"""WikiText-2: predict the next word of Wikipedia's good articles.

    perplexity = exp(mean of -ln p(x_{t+1} | x_1 … x_t))        (1)

33,278 words, including ``<unk>`` and ``<eos>`` (one per line, also for empty lines). 2,088,628 tokens for training,
217,646 for validation and 245,569 for the test. **A perplexity depends on the protocol**: report both.

Sources: Merity et al. (2016). S4 §7.2 and its appendix read it as a "stream", 20 rows side by side, in windows of 35
(stable models) and 65 steps (truncated models).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from holdfast.tasks._text import WordText
from holdfast.tasks.fetch import Source

__all__ = ["WikiText2"]

_MIRROR = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2"


def _source(split: str, sha256: str, size: int) -> Source:
    name = f"wiki.{split}.tokens"
    urls = "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip", f"{_MIRROR}/{split}.txt"
    how = "The text is Wikipedia's (CC BY-SA 3.0)."
    return Source(f"wikitext2/{name}", sha256, size, urls, f"wikitext-2/{name}", how)


@dataclasses.dataclass(frozen=True)
class WikiText2(WordText):
    r"""The next word, scored by perplexity (1). Arguments as in ``PennTreebank``; the default window has 35 steps.

    Files of your own are named wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for split in ("train", "valid", "test"):
        ...         _ = Path(folder, f"wiki.{split}.tokens").write_text(" = Roses = \n\n a rose is a rose \n")
        ...     task = WikiText2(window=4, folder=folder).load()
        >>> task.vocabulary.tokens[:3], task.spec.metric
        (('<eos>', '=', 'a'), 'perplexity')
    """

    window: int = 35

    SOURCES: ClassVar = {
        "train": _source("train", "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f", 10_797_148),
        "validation": _source("valid", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8", 1_121_681),
        "test": _source("test", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0", 1_256_449),
    }
