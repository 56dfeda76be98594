"""The tokens of a text as numbers.

    index(token) = its rank among the tokens of the training split, by (count falling, token rising)   (1)
    index(any other token) = index(<unk>)                                                              (2)

Ties are broken by the tokens themselves, so that the same text gives the same indices everywhere.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import DataError, SettingError

__all__ = ["END", "NODE", "PADDING", "UNKNOWN", "Vocabulary"]

UNKNOWN, END, PADDING, NODE = "<unk>", "<eos>", "<pad>", "<node>"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Tokens and their indices.

    Args:
        tokens: token number i at place i, none twice.
        unknown: the token among them for all others, or None if a token that is not there is an error.

    Example:
        >>> vocabulary = Vocabulary.of("the cat and the dog".split())
        >>> vocabulary.tokens
        ('the', 'and', 'cat', 'dog', '<unk>')
        >>> vocabulary.encode(["the", "horse"])
        tensor([0, 4], dtype=torch.int32)
        >>> vocabulary.decode([0, 4])
        ['the', '<unk>']
    """

    tokens: tuple[str, ...]
    unknown: str | None = None

    def __post_init__(self) -> None:
        if len(self._indices) != len(self.tokens):
            twice = next(token for index, token in enumerate(self.tokens) if self._indices[token] != index)
            raise SettingError(f"Vocabulary expects every token once, got {twice!r} more than once.")
        if self.unknown is not None and self.unknown not in self._indices:
            raise SettingError(f"Vocabulary expects {self.unknown!r}, the unknown token, among its tokens.")

    @classmethod
    def of(
        cls,
        tokens: Iterable[str],
        *,
        size: int | None = None,
        unknown: str | None = UNKNOWN,
        extra: Sequence[str] = (),
    ) -> Vocabulary:
        """The vocabulary of a text (1).

        Args:
            tokens: the text, token by token, or a mapping from tokens to counts.
            size: number of tokens to keep, ``unknown`` and ``extra`` included; the rarest are left out.
            unknown: the token for all others (2), last if the text itself does not have it; None for no such token.
            extra: tokens after all others, such as one for padding.

        Example:
            >>> Vocabulary.of({"a": 3, "b": 2, "c": 2}, size=3, unknown="?").tokens
            ('a', 'b', '?')
        """
        counts = tokens if isinstance(tokens, Mapping) else collections.Counter(tokens)
        ranked = sorted((token for token in counts if token not in extra), key=lambda token: (-counts[token], token))
        needed = [token for token in (unknown,) if token is not None] + list(extra)
        if size is not None:
            if size <= len(needed):
                raise SettingError(f"Vocabulary expects a size above {len(needed)}, got {size}.")
            room = size - len(needed)  # the unknown token has a place of its own, wherever its rank puts it
            kept = set([token for token in ranked if token != unknown][:room]) | {unknown}
            ranked = [token for token in ranked if token in kept]
        if unknown is not None and unknown not in counts:
            ranked.append(unknown)
        return cls((*ranked, *extra), unknown)

    @functools.cached_property
    def _indices(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._indices

    def index(self, token: str) -> int:
        """The index of one token (1, 2).

        Example:
            >>> Vocabulary(("a", "b")).index("c")
            Traceback (most recent call last):
            holdfast.errors.DataError: 'c' is not one of the 2 tokens of this vocabulary, which has no unknown token.
        """
        if (found := self._indices.get(token)) is not None:
            return found
        if self.unknown is None:
            raise DataError(
                f"{token!r} is not one of the {len(self)} tokens of this vocabulary, which has no unknown token."
            )
        return self._indices[self.unknown]

    def encode(self, tokens: Sequence[str]) -> Tensor:
        """The indices of a text, (tokens,), as 32-bit integers (1, 2).

        Example:
            >>> Vocabulary(("a", "b")).encode("abba")
            tensor([0, 1, 1, 0], dtype=torch.int32)
        """
        if self.unknown is None:
            found = map(self.index, tokens)
        else:
            indices, other = self._indices, self._indices[self.unknown]
            found = (indices.get(token, other) for token in tokens)
        return torch.from_numpy(np.fromiter(found, np.int32, len(tokens)))

    def decode(self, indices: Iterable[int] | Tensor) -> list[str]:
        """The tokens of a row of indices.

        Example:
            >>> "".join(Vocabulary(("a", "b")).decode(torch.tensor([0, 1, 1, 0])))
            'abba'
        """
        numbers = indices.tolist() if isinstance(indices, Tensor) else indices
        return [self.tokens[index] for index in numbers]
