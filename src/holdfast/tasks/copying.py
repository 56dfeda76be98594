"""The copying problem: read ten symbols, wait, and say them again.

    x = (s_1 … s_10, blank × (T-1), delimiter, blank × 10)    (1) T + 20 steps
    y = (blank × (T+10), s_1 … s_10)                          (2) a class at every step

Source: Arjovsky, Shah & Bengio (2016), §5.1. The s_i are uniform over 8 symbols.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch.nn import functional

from holdfast.errors import SettingError
from holdfast.tasks._base import Batch, Drawn, Spec, Task

__all__ = ["Copying"]


@dataclasses.dataclass(frozen=True)
class Copying:
    """Copying over a delay.

    Inputs are one-hot: the blank, the symbols, the delimiter. Answers are the blank (class 0) and the symbols; the
    delimiter is never one. A model that knows everything but the symbols has a mean cross-entropy of
    10 log 8 / (T + 20).

    Args:
        delay: T, steps between the last symbol and the first answer, at least 1.
        symbols: different ones, at least 2.
        length: symbols to recall.
        validation, test: sequences in those sets.

    Example:
        >>> batch = Copying(delay=3, length=2).load().train_batch(0, 1, seed=0)
        >>> batch.inputs.argmax(dim=-1)[2:, 0]  # two symbols, and then
        tensor([0, 0, 9, 0, 0])
        >>> torch.equal(batch.targets[-2:], batch.inputs.argmax(dim=-1)[:2])
        True
    """

    delay: int = 100
    symbols: int = 8
    length: int = 10
    validation: int = 640
    test: int = 1000

    def load(self) -> Task:
        if self.delay < 1 or self.symbols < 2 or self.length < 1:
            raise SettingError(
                "Copying expects delay >= 1, symbols >= 2 and length >= 1, "
                f"got delay = {self.delay}, symbols = {self.symbols}, length = {self.length}."
            )
        baseline = self.length * math.log(self.symbols) / (self.delay + 2 * self.length)
        spec = Spec(
            self.symbols + 2, self.symbols + 1, "cross_entropy", "loss", every_step=True,
            classes=("blank", *map(str, range(1, self.symbols + 1))), baseline=baseline,
        )  # fmt: skip
        return Drawn(spec, self._draw, {"train": self.validation, "validation": self.validation, "test": self.test})

    def _draw(self, count: int, generator: torch.Generator) -> Batch:
        said = torch.randint(1, self.symbols + 1, (self.length, count), generator=generator)
        steps = self.delay + 2 * self.length
        heard, answer = torch.zeros(2, steps, count, dtype=torch.long)
        heard[: self.length], heard[self.length + self.delay - 1] = said, self.symbols + 1  # (1)
        answer[-self.length :] = said  # (2)
        return Batch(functional.one_hot(heard, self.symbols + 2).to(torch.get_default_dtype()), answer)
