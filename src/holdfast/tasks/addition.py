"""The addition problem: remember one number over many steps and add it to another.

    x_t = (u_t, c_t),  u_t ~ U[0, 1],  c_t = 1 at two marked steps, one in each half, else 0   (1)
    y = Σ_t u_t c_t                                                                            (2)

Sources: S3 §3.1, (10); S2 §5; the three-class form in S5 §5 and appendix.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

from holdfast.errors import SettingError
from holdfast.tasks._base import Batch, Drawn, Spec, Task

__all__ = ["Addition"]


@dataclasses.dataclass(frozen=True)
class Addition:
    """Addition over ``steps`` steps.

    The best constant answer, y = 1, has a mean squared error of 2 · 1/12 = 1/6. In the ``three-class`` form the u_t are
    bits and the answer is the class 0, 1 or 2; always answering 1 is right half the time.

    Args:
        steps: T, at least 2.
        form: "sum" (regression) or "three-class".
        validation, test: sequences in those sets; S3 records validation on 10 batches of 64.

    Example:
        >>> task = Addition(steps=50).load()
        >>> batch = task.train_batch(0, 4, seed=0)
        >>> batch.inputs.shape, torch.equal(batch.inputs.prod(dim=-1).sum(dim=0), batch.targets[:, 0])
        (torch.Size([50, 4, 2]), True)
    """

    steps: int = 500
    form: Literal["sum", "three-class"] = "sum"
    validation: int = 640
    test: int = 1000

    def load(self) -> Task:
        if self.steps < 2:
            raise SettingError(f"Addition expects at least 2 steps, got {self.steps}.")
        if self.form not in ("sum", "three-class"):
            raise SettingError(f'Addition expects form to be "sum" or "three-class", got {self.form!r}.')
        if self.form == "sum":
            spec = Spec(2, 1, "mse", "mse", baseline=1 / 6)
        else:
            spec = Spec(2, 3, "cross_entropy", "accuracy", classes=("0", "1", "2"), baseline=0.5)
        sizes = {"train": self.validation, "validation": self.validation, "test": self.test}
        return Drawn(spec, self._draw, sizes)

    def _draw(self, count: int, generator: torch.Generator) -> Batch:
        numbers = torch.rand(self.steps, count, generator=generator)
        if self.form == "three-class":
            numbers = numbers.round()
        half = self.steps // 2
        first = torch.randint(0, half, (1, count), generator=generator)
        second = torch.randint(half, self.steps, (1, count), generator=generator)
        marked = torch.cat([first, second])
        xs = torch.stack([numbers, torch.zeros_like(numbers).scatter_(0, marked, 1.0)], dim=-1)  # (1)
        answer = numbers.gather(0, marked).sum(dim=0)  # (2)
        return Batch(xs, answer.unsqueeze(1) if self.form == "sum" else answer.long())
