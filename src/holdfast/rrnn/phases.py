"""Adam for training in turns: what is trained in several phases has moments of its own in each.

A phase is the set of parameters with a gradient. This is the same as one Adam per phase, each with the parameters that
it trains: S1's authors train the weights of RRNN-GRU by one and its scorer by another, and the readout by both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["PhasedAdam"]


class PhasedAdam(torch.optim.Adam):
    """``torch.optim.Adam`` with one state per phase. Arguments: those of ``torch.optim.Adam``.

    Law: it makes the steps of several ``Adam``s, one for each set of parameters that get gradients together.

    Example:
        >>> always, sometimes = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        >>> optimiser = PhasedAdam([always, sometimes], lr=0.1)
        >>> for phase in ([always, sometimes], [always]):
        ...     optimiser.zero_grad()
        ...     sum(phase).sum().backward()
        ...     optimiser.step()
        >>> int(optimiser.state[always]["step"]), len(optimiser.state[always]["others"])
        (1, 1)

    References:
        Qian, Kennedy, Klabjan: Dynamic cell structure via recursive-recurrent neural networks.
    """

    def step(self, closure: Any = None) -> Any:
        every = [weight for group in self.param_groups for weight in group["params"]]
        phase = tuple(number for number, weight in enumerate(every) if weight.grad is None)
        trained: list[Tensor] = [weight for weight in every if weight.grad is not None]
        others = {weight: self.state[weight].pop("others", {}) for weight in trained}
        for weight in trained:
            last = self.state[weight].pop("phase", phase)
            if last != phase:
                others[weight][_name(last)] = self.state[weight]
                self.state[weight] = others[weight].pop(_name(phase), {})
        loss = super().step(closure)
        for weight in trained:
            self.state[weight] |= {"phase": phase, "others": others[weight]}
        return loss


def _name(phase: tuple[int, ...]) -> str:
    """The parameters that rest, as a key that JSON has too."""
    return ",".join(map(str, phase))
