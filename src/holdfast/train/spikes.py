"""Protection against spikes of the loss: weights and optimiser go back to where they were a moment before.

    ℓ_u > c m or not finite   ⇒  (w, optimiser) ← those of 20 to 40 updates ago,  lr ← 0.7 lr            (1)
    m ← m + (ℓ_u - m) / min(u, 100) otherwise,  lr ← 1.001 lr until it is the schedule's again            (2)

Through T steps, a recurrent matrix with a spectral radius of 1.02 multiplies by 1.02ᵀ, so one step too far gives a
batch a loss of any size. Clipping is enough for a gradient that is large; one that has overflowed says nothing, and
moments remember it. c is 20, or more where gradients are clipped. (1) leaves the batch out, and comes before the
update that it would have made. Copies are taken every 20 updates, and the last eight are kept: the youngest may be from
the very moment of the step too far, so (1) drops it and takes the one before. Another spike before the next copy goes
20 updates further back. m follows every loss that is accepted, so a loss that climbs over many updates is no spike.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Rewind"]

EVERY, COPIES = 20, 8  # updates between two copies, and how many are kept
MEMORY = 100  # updates of the running mean
CUT, RECOVERY = 0.7, 1.001
LEAST = 1e-6  # of the learning rate: below this the run has diverged


class Rewind:
    """(1) and (2) of one run.

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
        self.mean, self.losses, self.factor, self.count = 0.0, 0, 1.0, 0
        self.kept: list[dict[str, Any]] = []  # the oldest copy first

    def accepts(self, loss: float) -> bool:
        """Whether a batch with this loss may update the weights, which otherwise have just been put back."""
        if not self.kept:
            self.kept = [self._copy()]
        if not math.isfinite(loss) or (self.losses and loss > self.at * self.mean):
            self.restore()
            return False
        self.losses += 1
        self.mean += (loss - self.mean) / min(self.losses, MEMORY)
        self.factor = min(1.0, self.factor * RECOVERY)
        if self.losses % EVERY == 0:
            self.kept = [*self.kept[1 - COPIES :], self._copy()]
        return True

    def restore(self) -> None:
        """(1)."""
        self.kept = self.kept[:-1] or self.kept
        self.model.load_state_dict(self.kept[-1]["model"])
        self.optimiser.load_state_dict(copy.deepcopy(self.kept[-1]["optimiser"]))
        self.factor, self.count = self.factor * CUT, self.count + 1

    @property
    def diverged(self) -> bool:
        """Whether the rate has been cut so often that nothing moves any more."""
        return self.factor < LEAST

    def _copy(self) -> dict[str, Any]:
        weights = {name: _cloned(value) for name, value in self.model.state_dict().items()}
        return {"model": weights, "optimiser": copy.deepcopy(self.optimiser.state_dict())}

    def state_dict(self) -> dict[str, Any]:
        """All that the next call of ``accepts`` depends on."""
        numbers = {name: getattr(self, name) for name in ("mean", "losses", "factor", "count")}
        return {**numbers, "kept": self.kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume where ``state_dict`` was taken, bit for bit."""
        self.mean, self.losses, self.factor, self.count, self.kept = (
            state_dict[name] for name in ("mean", "losses", "factor", "count", "kept")
        )


def _cloned(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
