"""Streams: a recurrence one input at a time, with its state kept between the steps.

    stream = layer.stream()
    y = stream.step(x)                     y_t from x_t and the state; the same numbers as layer(xs)[0][t]
    ys = stream.run(xs)                    the same for a stretch of inputs, in one call
    saved = stream.state;  stream.reset();  stream.state = saved

A stream takes the weights as they are when it is made, and compiles the step once (engine/step.py).
"""

from __future__ import annotations

import abc
import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from holdfast.engine.step import BoundStep, rows
from holdfast.errors import DeviceError, DTypeError, SettingError, ShapeError, positive_size
from holdfast.types import State

if TYPE_CHECKING:
    from holdfast.layers.recurrent import Recurrent

__all__ = ["LayerStream", "Stream"]


class Stream(abc.ABC):
    """A model that takes one input at a time: what every ``stream()`` returns.

    It runs as in evaluation mode, without gradients, and belongs to one thread at a time. Its weights are those of the
    moment it was made; ``reset(weights=True)`` takes those of now.

    Law: the answers are those of the model over the whole sequence, to rounding.

    Example:
        >>> from holdfast import GRU, Stream
        >>> layer, xs = GRU(3, 5), torch.randn(7, 1, 3)
        >>> stream = layer.stream()
        >>> outputs = torch.stack([stream.step(x) for x in xs])
        >>> torch.testing.assert_close(outputs, layer(xs)[0].detach())
        >>> isinstance(stream, Stream), torch.equal(stream.state[0], outputs[-1])
        (True, True)
    """

    batch: int

    @abc.abstractmethod
    def step(self, x: Any) -> Any:
        """The answer after one more input per sequence."""

    @abc.abstractmethod
    def run(self, xs: Any) -> Any:
        """The answers after each of several inputs per sequence, time first, as ``step`` gives them one by one."""

    @abc.abstractmethod
    def reset(self, *, weights: bool = False) -> None:
        """Start anew: the next input is the first. With ``weights``, from the model's weights as they are now."""

    @property
    @abc.abstractmethod
    def state(self) -> Any:
        """What the stream remembers, as tensors of its own. Save it, and assign it to continue from there."""

    @state.setter
    @abc.abstractmethod
    def state(self, state: Any) -> None: ...

    def __call__(self, x: Any) -> Any:
        """``step``."""
        return self.step(x)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled, since it holds compiled code and its memory; keep its "
            "state, make a new stream and assign the state to it."
        )


class LayerStream(Stream):
    """What ``layer.stream()`` returns: a layer in one direction, one input at a time.

    Args:
        layer: any ``Recurrent``. Dropout is off and a random start is zero, as in evaluation.
        batch: how many sequences run in parallel.

    Shape:
        ``step`` takes (batch, input) and returns (batch, hidden), or (input,) and (hidden,) if ``batch`` is 1.
        ``state`` has the shape of the layer's ``h_n``: (layers, batch, hidden), or a tuple of such tensors.

    Example:
        >>> from holdfast import LSTM
        >>> layer, xs = LSTM(3, 5, num_layers=2), torch.randn(7, 4, 3)
        >>> stream = layer.stream(batch=4)
        >>> with torch.no_grad():
        ...     stream.state = layer(xs[:6])[1]  # continue where a call has ended
        ...     torch.testing.assert_close(stream.step(xs[6]), layer(xs)[0][6])
    """

    def __init__(self, layer: Recurrent, batch: int = 1):
        self.batch = positive_size(f"{type(layer).__name__}.stream", "batch", batch)
        if layer.bidirectional:
            raise SettingError(
                f"{type(layer).__name__}.stream expects a layer in one direction, got bidirectional=True: the other "
                "direction starts at the last input. Train a layer with bidirectional=False, or call the layer on "
                "whole sequences."
            )
        self.layer, self._who = layer, f"A stream of {type(layer).__name__}"
        self._bind()

    def _bind(self) -> None:
        layer, source = self.layer, rows(self.batch, self.layer.input_size, self.layer.cells[0])
        self._source, self._steps = source, list[BoundStep]()
        for cell in layer.cells:
            self._steps.append(BoundStep(cell, source, backend=layer.backend))
            source = self._steps[-1].state[0]
        with torch.no_grad(), torch.inference_mode(False):
            start = layer.initial_state(self.batch, source, noise=False)
            self._start = tuple(entry.clone() for entry in start)  # (layers, batch, size)
        self._runs, self.output = tuple(step.run for step in self._steps), source
        self._kind, self._device, self._shape = source.dtype, source.device, self._source.shape
        self._row_shape, self._row = (self._shape[1:], source[0]) if self.batch == 1 else (None, source)
        self._write(self._start)

    def step(self, x: Tensor) -> Tensor:
        """The output (batch, hidden) after the input (batch, input); (hidden,) after (input,) if ``batch`` is 1."""
        output = self.output
        if not isinstance(x, Tensor) or x.dtype is not self._kind or x.device != self._device:
            raise self._wrong_kind(x)
        if (shape := x.shape) != self._shape:
            if shape != self._row_shape:
                raise ShapeError(f"{self._who} expects x of shape {self._shapes()}, got {tuple(shape)}.")
            output = self._row
        self._source.copy_(x.detach() if x.requires_grad else x)
        for run in self._runs:
            run()
        return output.clone()

    def run(self, xs: Tensor) -> Tensor:
        """The outputs (time, batch, hidden) after each of the inputs (time, batch, input), as ``step`` gives them one
        by one; (time, hidden) for (time, input) if ``batch`` is 1. A call costs little more than its arithmetic.

        Example:
            >>> from holdfast import RNN
            >>> layer, xs = RNN(3, 5), torch.randn(7, 3)
            >>> stream = layer.stream()
            >>> pieces = stream.run(xs[:4]), stream.run(xs[4:])
            >>> torch.testing.assert_close(torch.cat(pieces), layer(xs)[0].detach())
        """
        if not isinstance(xs, Tensor) or xs.dtype is not self._kind or xs.device != self._device:
            raise self._wrong_kind(xs, "xs")
        alone = xs.shape[1:] == self._row_shape
        if not alone and (xs.dim() != 3 or xs.shape[1:] != self._shape):
            raise ShapeError(f"{self._who} expects xs of shape {self._shapes('time')}, got {tuple(xs.shape)}.")
        output = xs.detach().unsqueeze(1) if alone else xs.detach()
        cast = torch.is_autocast_enabled(self._device.type)
        with torch.autocast(self._device.type, enabled=False) if cast else contextlib.nullcontext():
            for step in self._steps:
                output = step.over(output) if len(xs) else output.new_empty((0, self.batch, step.state[0].shape[1]))
        return output.squeeze(1) if alone else output

    def reset(self, *, weights: bool = False) -> None:
        """Return to the layer's start; with ``weights``, take the layer's weights as they are now."""
        if weights:
            self._bind()
        else:
            self._write(self._start)

    @property
    def state(self) -> Tensor | State:
        """The state as the layer's ``h_n``: (layers, batch, hidden), or a tuple if the cell's state has several."""
        entries = zip(*(step.state for step in self._steps), strict=True)
        state = tuple(torch.stack(rows) for rows in entries)
        return state[0] if len(state) == 1 else state

    @state.setter
    def state(self, state: Tensor | State) -> None:
        given = (state,) if isinstance(state, Tensor) else state
        if not isinstance(given, (tuple, list)) or not all(isinstance(entry, Tensor) for entry in given):
            raise DTypeError(
                f"{self._who} expects a state of {len(self._start)} tensors, got {type(state).__name__}; assign what "
                "its state gave, or the layer's h_n."
            )
        if self.batch == 1:  # as a layer returns it for one sequence without a batch
            given = tuple(entry.unsqueeze(1) if entry.dim() == 2 else entry for entry in given)
        if [entry.shape for entry in given] != [entry.shape for entry in self._start]:
            wanted, came = (", ".join(str(tuple(e.shape)) for e in entries) for entries in (self._start, given))
            raise ShapeError(f"{self._who} expects a state of shape {wanted}, got {came}.")
        for entry in given:
            if entry.dtype is not self._kind or entry.device != self._device:
                raise self._wrong_kind(entry, "a state")
        self._write(tuple(given))

    def _write(self, state: State) -> None:
        for row, step in enumerate(self._steps):
            for place, entry in zip(step.state, state, strict=True):
                place.copy_(entry[row].detach())

    def _shapes(self, *before: str) -> str:
        shapes = [self._shape] if self._row_shape is None else [self._shape, self._row_shape]
        return " or ".join(str((*before, *shape)).replace("'", "") for shape in shapes)

    def _wrong_kind(self, x: Any, name: str = "x") -> Exception:
        if not isinstance(x, Tensor):
            return DTypeError(
                f"{self._who} expects {name} to be a tensor, got {type(x).__name__}; use torch.as_tensor({name})."
            )
        if x.dtype is not self._kind:
            return DTypeError(
                f"{self._who} has weights of {self._kind}, but {name} of {x.dtype}; convert it with .to({self._kind})."
            )
        return DeviceError(
            f"{self._who} has weights on {self._device}, but {name} on {x.device}; move it with .to(device)."
        )
