"""A stable recurrence as a feed-forward network: every output is computed from the last k inputs alone.

    h_t^k = f(h_{t-1}^k, x_t),  h_{t-k}^k = 0                                      (1) S4 (3): k inputs per output
    ‖y_t - y_t^k‖ ≤ L_f (M^k r)_m                                                  (2) Proposition 1: stack.py

All positions are independent, so they are computed side by side, as samples of a batch: windows (k, positions · batch,
features) that are views of the drive, which is computed once. Positions come in chunks that fit the cache; in training,
where windows overlap a lot, a chunk keeps only its inputs and is recomputed in the backward pass.

``stride=s`` starts a window every s steps instead of every step, and reads its last s outputs: an output then depends
on the last k to k + s - 1 inputs, never on fewer, so that (2) holds as it is, and costs (k + s - 1)/s steps, not k.

Source: S4, §2. When it is faster than the recurrence: benchmarks/truncate.py.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.cells import Cell, CheckedLoad
from holdfast.engine import scan
from holdfast.errors import DTypeError, NoBoundError, SettingError, positive_number, positive_size
from holdfast.layers import Recurrent
from holdfast.stability.assumptions import readout_lipschitz
from holdfast.stability.certificate import no_horizon
from holdfast.stability.observed import time_first
from holdfast.stability.stack import as_layer, stack_bounds
from holdfast.stability.stream import TruncatedStream
from holdfast.stability.windows import Driven, Recomputed, Windows
from holdfast.types import State

__all__ = ["Truncated", "truncate"]

_CHUNK = 1 << 22  # bytes of drive in the windows of one chunk


def truncate(
    model: Cell | Recurrent,
    k: int | None = None,
    *,
    eps: float | None = None,
    input_bound: float | None = None,
    input_norm: str = "l2",
    readout: nn.Linear | Tensor | float | None = None,
    stride: int = 1,
) -> Truncated:
    """The model with a memory of k inputs, sharing its weights. Give k, or the largest output error ε allowed.

    Law: the output at t does not depend on inputs before t - k + 1 (t - k - stride + 2), and is at most ``error_bound``
    from the model's. With k at least as long as the sequence the two are the same.

    Args:
        model: a cell or a layer in one direction. For ``eps``, a certified and stable one.
        k: the window, at least 1.
        eps: instead of k: the error allowed in what is read, in the Euclidean norm.
        input_bound, input_norm: the largest ‖x_t‖, and its norm; for ``eps`` and ``error_bound``.
        readout: what is read from the outputs, as in ``certificate``; for ``eps`` and ``error_bound``.
        stride: s; 1 is (1) exactly, k or more is faster than the recurrence.

    Example:
        >>> from holdfast import SGORNN
        >>> layer, xs = SGORNN(3, 8), torch.rand(500, 2, 3) / 2
        >>> short = truncate(layer, eps=1e-2, input_bound=1.0, stride=100)
        >>> gap = (short(xs)[0] - layer(xs)[0]).norm(dim=2).max().item()
        >>> gap <= short.error_bound <= 1e-2
        True
    """
    layer = as_layer(model, "truncate")
    if (k is None) == (eps is None):
        raise SettingError(f"truncate expects either k or eps, got k={k}, eps={eps}; give exactly one.")
    if eps is not None:
        positive_number("truncate", "eps", eps)
        stack = stack_bounds(layer, input_bound, input_norm=input_norm)
        gain = readout_lipschitz(readout, stack.layers[-1].norm, layer.cells[-1].state_sizes[0])
        k = stack.horizon(eps, gain)
        if k is None:
            raise NoBoundError(f"truncate: {no_horizon(type(model).__name__, stack)}")
    return Truncated(layer, k, stride=stride, input_bound=input_bound, input_norm=input_norm, readout=readout)


class Truncated(CheckedLoad):
    """What ``truncate`` returns. Call it as the layer, ``(input) → (output, h_n)``; it starts where the layer starts.

    Args:
        layer: the layer, whose weights it shares: training one trains the other.
        k, stride, input_bound, input_norm, readout: as in ``truncate``.

    Example:
        >>> from holdfast import RNN
        >>> layer, xs = RNN(3, 4), torch.randn(10, 2, 3)
        >>> short = truncate(layer, k=4)
        >>> torch.testing.assert_close(short(xs)[0][-1], layer(xs[-4:])[0][-1])
    """

    def __init__(
        self,
        layer: Recurrent,
        k: Any,
        *,
        stride: int = 1,
        input_bound: float | None = None,
        input_norm: str = "l2",
        readout: nn.Linear | Tensor | float | None = None,
    ):
        super().__init__()
        self.k, self.stride = positive_size("truncate", "k", k), positive_size("truncate", "stride", stride)
        self.layer = layer
        self.input_bound, self.input_norm = input_bound, input_norm
        # Modules in a tuple or list are not submodules: their weights are counted where they belong.
        self._read, self._driven = (readout,), [Driven(layer.cells[0])]

    @property
    def error_bound(self) -> float:
        """(2) at the weights as they are now; infinity if nothing is proved, as for a model that is not stable."""
        try:
            stack = stack_bounds(self.layer, self.input_bound, input_norm=self.input_norm)
        except (NoBoundError, SettingError):  # a cell without a bound, or one that needs bounded inputs
            return math.inf
        gain = readout_lipschitz(self._read[0], stack.layers[-1].norm, self.layer.cells[-1].state_sizes[0])
        return gain * stack.output_gap(self.k)

    def forward(self, input: Tensor, h_0: None = None, *, need_output: bool = True) -> tuple[Any, Any]:
        """Outputs at every step, and the state after the last, of its window."""
        if h_0 is not None:
            raise SettingError(
                "Truncated expects no h_0, since every window starts at the layer's own start; leave it out."
            )
        if not isinstance(input, Tensor):
            raise DTypeError(f"Truncated expects a tensor, got {type(input).__name__}; pad a PackedSequence first.")
        xs = time_first(self.layer, input, "Truncated")
        last = self._last_state(xs)
        output = self._outputs(xs) if need_output else None
        if input.dim() == 2:
            output, last = None if output is None else output.squeeze(1), tuple(entry.squeeze(1) for entry in last)
        elif self.layer.batch_first and output is not None:
            output = output.transpose(0, 1)
        return output, last[0] if len(last) == 1 else last

    def stream(self, batch: int = 1) -> TruncatedStream:
        """The same, one input at a time: see ``TruncatedStream``."""
        return TruncatedStream(self, batch)

    def _last_state(self, xs: Tensor) -> State:
        """The state, entries (layers, batch, size), after the window that ends the sequence."""
        steps, length = len(xs), self.k + self.stride - 1
        begin = 0 if steps <= length else -(-(steps - length) // self.stride) * self.stride
        start = self.layer.initial_state(xs.shape[1], xs)
        return self.layer.through_layers(xs[begin:], start, need_output=False)[1]

    def _outputs(self, xs: Tensor) -> Tensor:
        steps, batch = xs.shape[:2]
        length, s = self.k + self.stride - 1, self.stride
        start = self.layer.initial_state(batch, xs)
        head, _ = self.layer.through_layers(xs[:length], start)  # the first window: all its outputs
        assert head is not None
        if steps <= length:
            return head
        windows = -(-(steps - length) // s)  # those that start at s, 2 s, ...
        features = self._driven[0].input_size
        fitting = max(1, _CHUNK // (length * batch * features * xs.element_size()))
        parts = [head]
        for first in range(1, windows + 1, fitting):
            count = min(fitting, windows + 1 - first)
            size = (count - 1) * s + length
            chunk = xs[first * s : first * s + size]
            if len(chunk) < size:  # the last window may extend beyond the end; its surplus outputs are cut off
                chunk = nn.functional.pad(chunk, (0, 0, 0, 0, 0, size - len(chunk)))
            parts.append(self._chunk(chunk, count))
        return torch.cat(parts)[:steps]

    def _chunk(self, xs: Tensor, count: int) -> Tensor:
        """The outputs, (count · s, batch, hidden), of ``count`` windows over ``xs``."""

        def run(xs: Tensor) -> Tensor:
            length, s, batch = self.k + self.stride - 1, self.stride, xs.shape[1]
            source = Windows.apply(self.layer.cells[0].drive(xs), length, s, count)  # (length, count · batch, drive)
            start = self.layer.initial_state(count * batch, xs)
            outputs, _ = self.layer.through_layers(source, start, run=self._run_row)
            assert outputs is not None
            return outputs.unflatten(1, (count, batch)).transpose(0, 1).flatten(0, 1)

        weights = [weight for weight in self.layer.parameters() if weight.requires_grad]
        dropped = self.layer.dropout and self.layer.training and self.layer.num_layers > 1
        small = self.k <= 3 * self.stride  # memory is at most four times that of the recurrence
        if not torch.is_grad_enabled() or small or dropped or not (weights or xs.requires_grad):
            return run(xs)  # with dropout a second run would drop other units
        return Recomputed.apply(run, xs, *weights)

    def _run_row(self, row: int, xs: Tensor, state: State, **settings: Any) -> tuple[Tensor | None, State]:
        """One layer over windows. The first reads a ready drive; the last gives no output for the first k - 1 steps."""
        backend = self.layer.backend
        cell = self._driven[0] if row == 0 else self.layer.cells[row]
        if row + 1 == self.layer.num_layers and self.k > 1:
            _, state = scan(cell, xs[: self.k - 1], state, need_output=False, backend=backend)
            xs = xs[self.k - 1 :]
        return scan(cell, xs, state, backend=backend, **settings)

    def extra_repr(self) -> str:
        return f"k={self.k}" + (f", stride={self.stride}" if self.stride > 1 else "")
