"""GloVe vectors from a file of the user, as the start of an embedding.

    line:  word x_1 x_2 … x_d        (1)
    row i of the result = x of the word with index i, or zeros if the file has no such word   (2)

Files: https://nlp.stanford.edu/projects/glove/, as text, as .gz, or inside the original .zip. Holdfast does not
download them: the smallest archive has 860 MB.

Source: Pennington et al. (2014); used by S1 §5 (100 numbers per word or letter) and S5, appendix B.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import DataError
from holdfast.tasks.vocabulary import Vocabulary

__all__ = ["WordVectors", "read_glove"]

_UNPACKING = (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, NotImplementedError)


@dataclasses.dataclass(frozen=True)
class WordVectors:
    """Vectors of a vocabulary.

    Args:
        vectors: (vocabulary, dim); zeros where the file has no vector.
        found: (vocabulary,) which words it has.

    Example:
        >>> WordVectors(torch.zeros(4, 2), torch.tensor([True, True, False, True])).coverage
        0.75
    """

    vectors: Tensor
    found: Tensor

    @property
    def coverage(self) -> float:
        """The share of the vocabulary that has a vector."""
        return self.found.sum().item() / len(self.found)


def read_glove(path: str | Path, vocabulary: Vocabulary, *, dim: int | None = None) -> WordVectors:
    r"""The vectors of a vocabulary's words (2), as they are spelled there, from a GloVe file (1).

    The number of fields is checked in every line, the numbers only for words in the vocabulary. Some words of larger
    files contain spaces: the last ``dim`` fields of a line are its vector.

    Args:
        path: the file: text, .gz, or .zip.
        vocabulary: whose words to look up.
        dim: length of the vectors; also chooses among the texts of a .zip ("glove.6B.100d.txt"). None: as in
            the first line.

    Raises:
        DataError: a damaged line, with its number; a file without any of the words.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "two.txt")
        ...     _ = path.write_text("the 0.5 1.0\ncat -1.0 0.25\n")
        ...     read = read_glove(path, Vocabulary(("cat", "dog")))
        >>> read.vectors, read.coverage
        (tensor([[-1.0000,  0.2500], [ 0.0000,  0.0000]]), 0.5)
    """
    path = Path(path)
    wanted = {token.encode(): index for index, token in enumerate(vocabulary.tokens)}
    rows: dict[int, np.ndarray] = {}
    number = 0
    try:
        with _lines(path, dim) as lines:
            for number, line in enumerate(lines, 1):
                fields = line.count(b" ")  # of the vector, if the word has no space
                dim = fields if dim is None else dim
                # a word has few spaces, the first one none: as many as a vector has are two lines run together
                if dim < 1 or not dim <= fields <= (dim if number == 1 else 2 * dim):
                    came = f"got {fields + 1} fields"
                    raise DataError(f"{path}, line {number}: expected a word and {dim or 'some'} numbers, {came}.")
                word = line[: line.index(b" ")] if fields == dim else line.rsplit(b" ", dim)[0]
                if (index := wanted.get(word)) is not None and index not in rows:
                    rows[index] = _vector(line[len(word) + 1 :].split(b" "), path, number)
    except _UNPACKING as error:
        raise DataError(f"{path} cannot be read after line {number}: {error}.") from error
    if not rows:
        raise DataError(f"{path} has {number:,} lines, but none of the {len(vocabulary):,} words of this vocabulary.")
    vectors = torch.zeros(len(vocabulary), len(next(iter(rows.values()))))
    found = torch.tensor(sorted(rows))
    vectors[found] = torch.from_numpy(np.stack([rows[index] for index in sorted(rows)])).to(vectors.dtype)
    return WordVectors(vectors, torch.zeros(len(vocabulary), dtype=torch.bool).index_fill_(0, found, True))


def _vector(values: list[bytes], path: Path, number: int) -> np.ndarray:
    try:
        vector = np.array(values, dtype=np.float64)
    except ValueError as error:
        raise DataError(f"{path}, line {number}: expected numbers, {error}.") from error
    if not np.isfinite(vector).all():
        raise DataError(f"{path}, line {number}: expected finite numbers, got {vector[~np.isfinite(vector)][0]}.")
    return vector


@contextlib.contextmanager
def _lines(path: Path, dim: int | None) -> Iterator[Iterator[bytes]]:
    """The lines of the text without their ends, one at a time, since the larger files have gigabytes."""
    with contextlib.ExitStack() as stack:
        if not path.is_file():
            raise DataError(
                f"There is no GloVe file {path}; download one from https://nlp.stanford.edu/projects/glove/."
            )
        if path.suffix == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(path))
            file: IO[bytes] = stack.enter_context(archive.open(_text_in(archive, path, dim)))
        elif path.suffix == ".gz":
            file = stack.enter_context(gzip.open(path))  # pyright: ignore[reportAssignmentType]
        else:
            file = stack.enter_context(path.open("rb"))
        yield (line.rstrip(b" \r\n") for line in file)


def _text_in(archive: zipfile.ZipFile, path: Path, dim: int | None) -> str:
    names = [name for name in archive.namelist() if name.endswith(".txt")]
    if dim is not None and len(names) > 1:
        names = [name for name in names if re.search(rf"(?<!\d){dim}d", name)]
    if len(names) != 1:
        raise DataError(
            f"{path} holds {', '.join(archive.namelist()) or 'nothing'}: expected one text (.txt), or several "
            "and a dim that chooses among them (100: glove.6B.100d.txt)."
        )
    return names[0]
