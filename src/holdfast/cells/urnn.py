"""uRNN: an RNN on complex numbers with a unitary recurrent matrix.

    z_t = V x_t + W h_{t-1},  W = D_3 R_2 F⁻¹ D_2 Π R_1 F D_1   (1) V and W complex
    h_t = modrelu(z_t; b) = z_t max(|z_t| + b, 0) / |z_t|       (2) entry by entry; 0 where z_t = 0

D are diagonals of phases, R reflections, F the Fourier transform and Π a fixed permutation: O(n) parameters. Here h_t
is a row of 2n reals, (Re h_t, Im h_t), and W the real matrix [[Re W, -Im W], [Im W, Re W]]. A step multiplies by its
factors in O(n log n), or by the matrix, built once per sequence, where that is faster: constraints/unitary.py.
Source: Arjovsky, Shah & Bengio (2016), §4. Symbols: docs/notation.md.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.cells._base import Cell
from holdfast.constraints.unitary import FourierProduct, PlaneRotations, complex_pairs
from holdfast.types import Hidden, State, Weights

__all__ = ["URNNCell", "UnitaryCell", "complex_modrelu"]

_FLOOR = 1e-24  # of |z|², so that the gradient at zero is finite


def complex_modrelu(z: Tensor, bias: Tensor) -> Tensor:
    """(2) of z = (Re, Im). It shrinks |z| where b ≤ 0. Where b > 0 it throws numbers near zero to a distance b.

    At zero itself the gradient is that of the identity: steps without input, from a state of zero, would multiply it by
    b/|z| each.
    """
    real, imaginary = z.chunk(2, dim=-1)
    square = real * real + imaginary * imaginary
    size = torch.sqrt(square + _FLOOR)
    scale = torch.where(square > 0, torch.relu(size + bias) / size, square + 1)
    return torch.cat((scale * real, scale * imaginary), dim=-1)


class UnitaryCell(Cell):
    """(1) and (2) over any unitary map of pairs: what uRNN and EUNN share. A cell sets ``recurrent`` and resets."""

    recurrent: FourierProduct | PlaneRotations

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        units = complex_pairs(type(self).__name__, hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))  # real parts, then imaginary ones
        self.bias = nn.Parameter(torch.empty(units))

    def reset_parameters(self) -> None:
        for part in self.weight_ih.data.chunk(2):
            nn.init.xavier_uniform_(part)
        nn.init.zeros_(self.bias)

    def drive(self, x: Tensor) -> Tensor:  # (..., input) to (..., hidden)
        return x @ self.weight_ih.mT

    def weights(self) -> Weights:
        return *self.recurrent.weights(), self.bias

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        (h,), (*recurrent, bias) = state, weights
        z = drive + self.recurrent.transform(h, tuple(recurrent))  # (1)
        return (complex_modrelu(z, bias),)  # (2)


class URNNCell(UnitaryCell):
    """One step of a uRNN.

    Args:
        input_size: features of ``x``.
        hidden_size: real numbers in ``h``, an even number: 2n for the paper's n complex units.

    The paper trains h_0 as well: ``URNN(..., initial_state="learned")``.

    Example:
        >>> cell = URNNCell(3, 8)
        >>> h = torch.randn(2, 8)
        >>> with torch.no_grad():  # no input, b = 0: the state turns and keeps its length
        ...     torch.testing.assert_close(cell(torch.zeros(2, 3), h).norm(dim=1), h.norm(dim=1))

    References:
        Arjovsky, Shah & Bengio (2016), Unitary evolution recurrent neural networks.
    """

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.recurrent = FourierProduct(hidden_size)
        self.reset_parameters()
