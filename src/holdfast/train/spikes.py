"""Protection against spikes of the loss: weights and optimiser go back to where they were a moment before.

    ℓ_u > c m or not finite   ⇒  (w, optimiser, m) ← an earlier copy,  lr ← max(0.7 lr, lr_0 / 10)       (1)
    m ← m + (min(ℓ_u, 3 m) - m) / 100 otherwise,  lr ← 1.001 lr until it is lr_0 again                   (2)
    median of the last 20 ℓ > 3 m_k, m_k the least m of a copy   ⇒  as (1)                               (3)

with lr_0 the rate of the schedule. Through T steps, a recurrent matrix with a spectral radius of 1.02 multiplies by
1.02ᵀ, so one step too far gives a batch a loss of any size. Clipping is enough for a gradient that is large; one that
has overflowed says nothing, and moments remember it. c is 20, or more where gradients are clipped. (1) leaves the batch
out, and comes before the update that it would have made. (3) is for the step too far that no single batch shows: what
had been learned is gone, and the losses after it are no spikes.

Copies are taken every 20 updates. They are kept at all ages up to 80 updates, then at ages that double, up to 2,560:
the step too far may be long past when it shows. The youngest copy may be from the very moment of that step, so (1)
drops it and takes the one before, 20 to 40 updates old. If there was another spike shortly before, the weights are in a
place with many: (1) drops as many copies as there were spikes, less one for every 200 updates since. Beyond thirty, the
run has diverged.

A large loss enters m by no more than 3 m, so that one just below a spike does not make room for the next. Up to the
hundredth loss, m is the mean of all.
"""

from __future__ import annotations

import copy
import math
import statistics
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Rewind"]

EVERY, OLDEST = 20, 128  # updates between two copies, and the age of the oldest in these
MEMORY, LARGEST = 100, 3.0  # updates of the running mean, and how many times itself enters it at most
LOST = 3.0  # (3)
CUT, RECOVERY, LEAST = 0.7, 1.001, 0.1  # of the learning rate
STATE = ("mean", "losses", "factor", "count", "row", "recent", "kept")
CALM = 200  # updates without a spike that make up for one
ROW = 30  # spikes that were not made up for: the run has diverged


class Rewind:
    """(1) to (3) of one run.

    Args:
        model: its weights and buffers are copied and put back.
        optimiser: its state likewise.
        at: c.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> rewind, before = Rewind(model, torch.optim.SGD(model.parameters(), lr=0.1)), model.weight.item()
        >>> rewind.accepts(0.5)
        True
        >>> _ = nn.init.constant_(model.weight, 1e6)
        >>> rewind.accepts(1e9), model.weight.item() == before, rewind.count, rewind.factor
        (False, True, 1, 0.7)
    """

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, at: float = 20.0):
        self.model, self.optimiser, self.at = model, optimiser, at
        self.mean, self.losses, self.factor, self.count, self.row = 0.0, 0, 1.0, 0, 0.0
        self.recent: list[float] = []  # losses since the last copy
        self.kept: list[dict[str, Any]] = []  # the oldest copy first

    def accepts(self, loss: float) -> bool:
        """Whether a batch with this loss may update the weights, which otherwise have just been put back."""
        if not self.kept:
            self.kept = [self._copy()]
        if not math.isfinite(loss) or (self.losses and loss > self.at * self.mean):
            self.restore()
            return False
        self.losses += 1
        if self.losses == 1:
            self.mean = self.kept[0]["mean"] = loss
        entering = loss if self.losses <= MEMORY else min(loss, LARGEST * self.mean)
        self.mean += (entering - self.mean) / min(self.losses, MEMORY)
        self.factor = min(1.0, self.factor * RECOVERY)
        self.recent.append(loss)
        if len(self.recent) < EVERY:
            return True
        means = [one["mean"] for one in self.kept if one["number"] * EVERY >= MEMORY]  # before, m is a few losses
        if statistics.median(self.recent) > LOST * min(means, default=math.inf):  # (3)
            self.restore()
            return False
        self.row = max(0.0, self.row - EVERY / CALM)
        self.kept, self.recent = [*self._still_kept(), self._copy()], []
        return True

    def restore(self) -> None:
        """(1)."""
        self.row += 1
        self.kept = self.kept[: -max(1, int(self.row))] or self.kept[:1]
        self.model.load_state_dict(self.kept[-1]["model"])
        self.optimiser.load_state_dict(copy.deepcopy(self.kept[-1]["optimiser"]))
        self.mean, self.recent = self.kept[-1]["mean"], []
        self.factor, self.count = max(self.factor * CUT, LEAST), self.count + 1

    @property
    def diverged(self) -> bool:
        """Whether going back has led to nothing but the next spike for too long."""
        return self.row >= ROW

    def _still_kept(self) -> list[dict[str, Any]]:
        """Copies that stay when the next one is taken: every one up to four EVERY ago, every second up to eight, ..."""

        def stays(number: int) -> bool:
            age = self.losses // EVERY - number
            return age <= OLDEST and number % (1 << max(age.bit_length() - 2, 0)) == 0

        return [one for one in self.kept if stays(one["number"])]

    def _copy(self) -> dict[str, Any]:
        weights = {name: _cloned(value) for name, value in self.model.state_dict().items()}
        state = copy.deepcopy(self.optimiser.state_dict())
        return {"model": weights, "optimiser": state, "mean": self.mean, "number": self.losses // EVERY}

    def state_dict(self) -> dict[str, Any]:
        """All that the next call of ``accepts`` depends on."""
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume where ``state_dict`` was taken, bit for bit."""
        for name in STATE:
            setattr(self, name, state_dict[name])


def _cloned(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
