"""A truncated model, one input at a time, with a ring of the last k inputs.

    ring[t mod k] ← x_t;   y_t^k = the output of the window ring[t - k + 1], ..., ring[t]       (1)

A step costs k steps of the recurrence and the memory of k inputs. In return, inputs more than k steps back have no
effect at all, not even NaN. For speed alone, stream with the recurrence itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.errors import SettingError, positive_size

__all__ = ["TruncatedStream"]


class TruncatedStream:
    """What ``Truncated.stream`` returns: call it with one input after another.

    Law: the outputs are those of the truncated model with stride 1 over the whole sequence.

    Args:
        truncated: the model.
        batch: how many sequences run in parallel.

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.stability import truncate
        >>> short, xs = truncate(RNN(3, 4), k=5), torch.randn(12, 2, 3)
        >>> stream = short.stream(batch=2)
        >>> with torch.no_grad():
        ...     torch.testing.assert_close(torch.stack([stream(x) for x in xs]), short(xs)[0])
    """

    def __init__(self, truncated: Any, batch: int = 1):
        self.truncated, self.k, self.batch = truncated, truncated.k, positive_size("TruncatedStream", "batch", batch)
        self.reset()

    def reset(self) -> None:
        """Forget all inputs: the next one is the first."""
        layer = self.truncated.layer
        like = layer.cells[0].example_weight()
        self.ring = torch.zeros(self.k, self.batch, layer.input_size, dtype=like.dtype, device=like.device)
        self.seen = 0

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """The output (batch, hidden) after the input (batch, input); (hidden,) after (input,) if batch is 1."""
        layer, rows = self.truncated.layer, x.unsqueeze(0) if x.dim() == 1 and self.batch == 1 else x
        layer.cells[0].check_input(rows, (str(self.batch), "input_size"), "TruncatedStream")
        if rows.shape[0] != self.batch:
            raise SettingError(
                f"TruncatedStream expects a batch of {self.batch}, got {rows.shape[0]} inputs; build one of that size."
            )
        self.ring[self.seen % self.k] = rows  # (1)
        self.seen += 1
        window = self.ring[: self.seen] if self.seen < self.k else self.ring.roll(-(self.seen % self.k), 0)
        start = layer.initial_state(self.batch, window)
        output = layer.through_layers(window, start, need_output=False)[1][0][-1]
        return output.squeeze(0) if x.dim() == 1 else output
