"""EUNN: an RNN on complex numbers whose unitary matrix is a product of plane rotations.

    z_t = V x_t + W h_{t-1}                                  (1) V and W complex
    W = D F_A F_B F_A F_B ...                                (2) L factors, tunable; or D F_1 ... F_log₂(n), "fft"
    [[e^{iφ} cos θ, -sin θ], [e^{iφ} sin θ, cos θ]]          (3) each plane of a factor
    h_t = modrelu(z_t; b) = z_t max(|z_t| + b, 0) / |z_t|    (4) entry by entry; 0 where z_t = 0

A factor turns n/2 planes, so a step costs O(n L), and L = n reaches every unitary matrix. h_t is a row of 2n reals,
(Re h_t, Im h_t). Which planes each factor turns: holdfast/constraints/unitary.py. Angles and phases start uniform in
±0.01, as in the authors' program, and b at 0.
Source: Jing et al. (2017), §3 and §4; modrelu: Arjovsky et al. (2016). Symbols: docs/notation.md.
"""

from __future__ import annotations

from typing import Literal

from holdfast.cells.urnn import UnitaryCell
from holdfast.constraints.unitary import PlaneRotations

__all__ = ["EUNNCell"]


class EUNNCell(UnitaryCell):
    """One step of an EUNN.

    Args:
        input_size: features of ``x``.
        hidden_size: real numbers in ``h``, an even number: 2n for the paper's n complex units.
        order: "tunable", or "fft", for which n is a power of 2.
        capacity: L of the tunable order, at most n; default 2.

    Example:
        >>> cell = EUNNCell(3, 8, capacity=4)
        >>> sum(weight.numel() for weight in cell.recurrent.parameters())  # 4 units, full capacity: 4²
        16

    References:
        Jing et al. (2017), Tunable efficient unitary neural networks (EUNN) and their application to RNNs.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        order: Literal["tunable", "fft"] = "tunable",
        capacity: int | None = None,
    ):
        super().__init__(input_size, hidden_size)
        self.recurrent = PlaneRotations(hidden_size, order, capacity, spread=0.01)
        self.reset_parameters()
