"""A truncated model, one input at a time, with a ring of the last k inputs.

    ring[t mod k] ← x_t;   y_t^k = the output of the window ring[t - k + 1], ..., ring[t]       (1)

A step costs k steps of the recurrence and the memory of k inputs. In return, inputs more than k steps back have no
effect at all, not even NaN. For speed alone, stream with the recurrence itself: ``layer.stream()``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import DTypeError, SettingError, ShapeError, positive_size
from holdfast.layers.stream import Stream

__all__ = ["TruncatedStream"]


class TruncatedStream(Stream):
    """What ``Truncated.stream`` returns: a ``holdfast.Stream`` whose state is the last k inputs.

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
        ...     torch.testing.assert_close(torch.stack([stream.step(x) for x in xs]), short(xs)[0])
        >>> stream.state.shape
        torch.Size([5, 2, 3])
    """

    def __init__(self, truncated: Any, batch: int = 1):
        self.truncated, self.k, self.batch = truncated, truncated.k, positive_size("TruncatedStream", "batch", batch)
        self.reset(weights=True)

    def reset(self, *, weights: bool = False) -> None:
        """Forget all inputs: the next one is the first. With ``weights``, take the model's weights as they are now."""
        if weights:
            self._layer = copy.deepcopy(self.truncated.layer).eval().requires_grad_(False)
        like = self._layer.cells[0].example_weight()
        size = self.k, self.batch, self._layer.input_size
        with torch.inference_mode(False):
            self.ring, self.seen = torch.zeros(size, dtype=like.dtype, device=like.device), 0

    @property
    def state(self) -> Tensor:
        """The last inputs, at most k, oldest first: (steps, batch, input)."""
        return self._window().clone()

    @state.setter
    def state(self, state: Tensor) -> None:
        if not isinstance(state, Tensor):
            raise DTypeError(f"TruncatedStream expects its state to be a tensor, got {type(state).__name__}.")
        if state.dim() != 3 or len(state) > self.k or state.shape[1:] != self.ring.shape[1:]:
            raise ShapeError(
                f"TruncatedStream expects a state of at most {self.k} inputs, (steps, {self.batch}, "
                f"{self._layer.input_size}), got {tuple(state.shape)}."
            )
        self._layer.cells[0].check_input(state, ("steps", "batch", "input_size"), "TruncatedStream")
        self.reset()
        self.ring[: len(state)], self.seen = state.detach(), len(state)

    @torch.no_grad()
    def step(self, x: Tensor) -> Tensor:
        """The output (batch, hidden) after the input (batch, input); (hidden,) after (input,) if batch is 1."""
        layer = self._layer
        rows = x.unsqueeze(0) if isinstance(x, Tensor) and x.dim() == 1 and self.batch == 1 else x
        layer.cells[0].check_input(rows, (str(self.batch), "input_size"), "TruncatedStream")
        if rows.shape[0] != self.batch:
            raise SettingError(
                f"TruncatedStream expects a batch of {self.batch}, got {rows.shape[0]} inputs; build one of that size."
            )
        self.ring[self.seen % self.k] = rows  # (1)
        self.seen += 1
        window = self._window()
        output = layer.through_layers(window, layer.initial_state(self.batch, window), need_output=False)[1][0][-1]
        return output.squeeze(0) if x.dim() == 1 else output

    def run(self, xs: Tensor) -> Tensor:
        """The outputs (time, batch, hidden) after each of the inputs (time, batch, input), as ``step`` gives them;
        (time, hidden) for (time, input) if batch is 1.
        """
        alone = isinstance(xs, Tensor) and xs.dim() == 2 and self.batch == 1
        rows = xs.unsqueeze(1) if alone else xs
        self._layer.cells[0].check_input(rows, ("time", str(self.batch), "input_size"), "TruncatedStream")
        outputs = [self.step(x) for x in rows]
        size = self.batch, self._layer.hidden_size
        output = torch.stack(outputs) if outputs else rows.new_empty((0, *size))
        return output.squeeze(1) if alone else output

    def _window(self) -> Tensor:
        return self.ring[: self.seen] if self.seen < self.k else self.ring.roll(-(self.seen % self.k), 0)
