"""LSTM: gates that write, keep and show a second state.

    i, f, o = σ(W_{i,f,o} x_t + U_{i,f,o} h_{t-1} + b_{i,f,o})   (1) gates
    g       = φ(W_g x_t + U_g h_{t-1} + b_g)                     (2) candidate
    c_t     = f ⊙ c_{t-1} + i ⊙ g                                (3) memory
    h_t     = o ⊙ φ(c_t)                                         (4) output

Rows of the weights are stacked i, f, g, o, as in ``torch.nn.LSTM``; each gate has one bias, where PyTorch adds two.
Source: Hochreiter & Schmidhuber (1997), with the forget gate of Gers et al. (2000). Symbols: docs/notation.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.cells.nonlinearity import nonlinearity_named
from holdfast.errors import SettingError
from holdfast.types import Hidden, Nonlinearity, State, Weights

__all__ = ["LSTMCell"]


class LSTMCell(Cell):
    """One step of an LSTM; the state is (h, c).

    Args:
        input_size, hidden_size: features of ``x``, and of ``h`` and ``c``.
        nonlinearity: φ in (2) and (4), by name or any elementwise callable.
        bias: whether to add b.
        forget_bias: where b_f starts, with the other biases at 0; Keras takes 1. None draws all as PyTorch does.

    Example:
        >>> h, c = LSTMCell(3, 5)(torch.zeros(2, 3))
        >>> h.shape, c.shape
        (torch.Size([2, 5]), torch.Size([2, 5]))

    References:
        Hochreiter & Schmidhuber (1997), Long short-term memory.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: str | Nonlinearity = "tanh",
        bias: bool = True,
        forget_bias: float | None = None,
    ):
        super().__init__(input_size, hidden_size)
        self.phi = nonlinearity_named("LSTMCell", nonlinearity)
        self.forget_bias = forget_bias
        if forget_bias is not None and not (bias and math.isfinite(forget_bias)):
            raise SettingError(
                f"LSTMCell expects forget_bias to be finite, with bias=True; got {forget_bias} and bias={bias}."
            )
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(4 * hidden_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            nn.init.uniform_(weight, -bound, bound)
        if self.bias is not None and self.forget_bias is not None:
            nn.init.zeros_(self.bias)
            nn.init.constant_(self.bias[self.hidden_size : 2 * self.hidden_size], self.forget_bias)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return self.hidden_size, self.hidden_size

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., 4 hidden)
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def weights(self) -> Weights:
        return (self.weight_hh,)

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h, c), (weight_hh,) = state, weights
        i, f, g, o = (drive + h @ weight_hh.mT).chunk(4, dim=1)
        i, f, o = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)  # (1)
        c = f * c + i * self.phi(g)  # (2), (3)
        return o * self.phi(c), c  # (4)
