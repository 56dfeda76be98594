"""A whole network one input at a time: embedding, recurrent layer, readout.

    z_t = W h_t + b        the answer after the inputs so far, as if the sequence ended here

The readout reads the current state alone, whether the model answers at every step or at each sequence's last, so that
every step has its answer and nothing has to be kept besides the state.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from holdfast.errors import DTypeError, SettingError, ShapeError
from holdfast.layers import Stream

if TYPE_CHECKING:
    from holdfast.train.model import SequenceModel

__all__ = ["ModelStream"]


class ModelStream(Stream):
    """What ``SequenceModel.stream`` returns: one answer per input.

    Law: the answer at step t is that of the model for the first t inputs, in evaluation mode.

    Args:
        model: the network.
        batch: how many sequences run in parallel.

    Shape:
        ``step`` takes (batch, features) and returns (batch, outputs), or (features,) and (outputs,) if ``batch`` is 1.
        Tokens are whole numbers, (batch,), or () if ``batch`` is 1. ``state`` is that of the layer.

    Example:
        >>> from torch import nn
        >>> from holdfast import SGORNN
        >>> from holdfast.train import SequenceModel
        >>> model, xs = SequenceModel(SGORNN(2, 8), nn.Linear(8, 1)), torch.randn(5, 2)
        >>> stream = model.stream()
        >>> answers = [stream.step(x) for x in xs]
        >>> torch.testing.assert_close(answers[3], model(xs[:4].unsqueeze(1))[0][0].detach())
    """

    def __init__(self, model: SequenceModel, batch: int = 1):
        make = getattr(model.rnn, "stream", None)
        if make is None:
            raise SettingError(
                f"A stream of {type(model).__name__} expects a layer with a stream() of its own, got "
                f"{type(model.rnn).__name__}; use a layer of Holdfast, or holdfast.from_torch of this one."
            )
        self.model, self.rnn = model, make(batch)
        self.batch = self.rnn.batch
        self._take()

    def _take(self) -> None:
        with torch.inference_mode(False):
            self._readout = copy.deepcopy(self.model.readout).eval().requires_grad_(False)
            self._table = None if self.model.embedding is None else self.model.embedding.weight.detach().clone()

    def step(self, x: Tensor) -> Tensor:
        """The answer after one more input, or token, per sequence."""
        inputs = x if self._table is None else self._embedded(x)
        return self._answers(self.rnn.step(inputs), inputs)

    def run(self, xs: Tensor) -> Tensor:
        """The answers (time, batch, outputs) after each of the inputs (time, batch, features), or tokens (time, batch),
        as ``step`` gives them one by one; without the batch if it is 1 and ``xs`` has none.

        Example:
            >>> from torch import nn
            >>> from holdfast import GRU
            >>> from holdfast.train import SequenceModel
            >>> model = SequenceModel(GRU(2, 8), nn.Linear(8, 1), every_step=True)
            >>> stream, xs = model.stream(), torch.randn(5, 2)
            >>> answers = torch.cat([stream.run(xs[:3]), stream.run(xs[3:])])
            >>> torch.testing.assert_close(answers, model(xs.unsqueeze(1))[0].squeeze(1).detach())
        """
        inputs = xs if self._table is None else self._embedded(xs, "time")
        return self._answers(self.rnn.run(inputs), inputs)

    def _answers(self, output: Tensor, inputs: Tensor) -> Tensor:
        return self._readout(torch.cat((output, inputs.detach()), dim=-1) if self.model.direct else output)

    def _embedded(self, x: Any, *before: str) -> Tensor:
        assert self._table is not None
        shapes = [(self.batch,)] + ([()] if self.batch == 1 else [])
        if not isinstance(x, Tensor) or x.is_floating_point() or x.dtype == torch.bool:
            came = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise DTypeError(f"A stream of tokens expects a tensor of whole numbers, got {came}.")
        if x.dim() < len(before) or tuple(x.shape[len(before) :]) not in shapes:
            wanted = " or ".join(str((*before, *shape)).replace("'", "") for shape in shapes)
            raise ShapeError(f"A stream of tokens expects x of shape {wanted}, got {tuple(x.shape)}.")
        if x.numel() and (x.min() < 0 or x.max() >= len(self._table)):
            raise SettingError(
                f"A stream of tokens expects numbers from 0 to {len(self._table) - 1}, got {int(x.min())} to "
                f"{int(x.max())}."
            )
        return self._table[x]

    def reset(self, *, weights: bool = False) -> None:
        """Start anew; with ``weights``, from the model's weights as they are now."""
        if weights:
            self._take()
        self.rnn.reset(weights=weights)

    @property
    def state(self) -> Any:
        """The layer's state: the second result of a call of the model."""
        return self.rnn.state

    @state.setter
    def state(self, state: Any) -> None:
        self.rnn.state = state
