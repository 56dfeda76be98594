"""Random Gaussian instances: noise in, an unrelated number to fit at the end.

    x_t ~ N(0, 4 I),  t = 1 … T,  y_T ~ U[-2, 2]    (1) independent of each other

Source: S4 §4.1 and its appendix on synthetic data (Figure 1): T = 200, 32 features, one instance, squared loss at the
last step. Nothing learned holds for another instance: S4 studies how the weights move.
"""

from __future__ import annotations

import dataclasses

import torch

from holdfast.errors import SettingError
from holdfast.tasks._base import Arrays, Sequences, Spec, Task

__all__ = ["GaussianInstances"]


@dataclasses.dataclass(frozen=True)
class GaussianInstances:
    """A fixed set of instances (1): the same in every epoch, another for every seed.

    The best constant answer, 0, has a mean squared error of 4² / 12 = 4/3.

    Args:
        steps: T.
        features: of an input.
        instances: in the training set; S4 takes one.
        seed: which instances.
        test: held-out instances, on which no model is better than the constant.

    Example:
        >>> task = GaussianInstances().load()
        >>> batch = task.train_batch(0, 1, seed=0)
        >>> batch.inputs.shape, torch.equal(batch.inputs, task.train_batch(7, 1, seed=3).inputs)
        (torch.Size([200, 1, 32]), True)
    """

    steps: int = 200
    features: int = 32
    instances: int = 1
    seed: int = 0
    test: int = 0

    def load(self) -> Task:
        if min(self.steps, self.features, self.instances) < 1 or self.test < 0:
            raise SettingError(
                "GaussianInstances expects at least 1 step, feature and instance and no negative test, got "
                f"steps = {self.steps}, features = {self.features}, instances = {self.instances}, test = {self.test}."
            )
        generator = torch.Generator().manual_seed(self.seed)
        splits = {"train": self._draw(self.instances, generator)}
        if self.test:
            splits["test"] = self._draw(self.test, generator)
        return Arrays(Spec(self.features, 1, "mse", "mse", baseline=4 / 3), splits)

    def _draw(self, count: int, generator: torch.Generator) -> Sequences:
        xs = 2 * torch.randn(count, self.steps, self.features, generator=generator)  # (1)
        return Sequences(xs, 4 * torch.rand(count, 1, generator=generator) - 2)  # (1)
