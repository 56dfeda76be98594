"""One description of a cell, for all that read a cell instead of running it: stability, spline and optim.

    h_t = α φ(W x_t + U h_{t-1} + b) + β h_{t-1}                  (1)
    y_t = C h_t + D x_t                                           (2) LinearCell with output_size; else y_t = h_t

    cell       U             φ          α, β
    RNN        free          any        1, 0
    Linear     free          identity   1, 0
    VPRNN      orthogonal    any        1, 0
    ExpRNN     orthogonal    any        1, 0      with modrelu: h_t = modrelu(W x_t + U h_{t-1}; b)
    ScoRNN     orthogonal    any        1, 0      as ExpRNN
    FastRNN    free          any        gates
    SGORNN     orthogonal    any        gates
    IndRNN     diagonal      any        1, 0

LSTM, GRU and the cells that are not listed are not of this form. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from holdfast.cells._base import Cell
from holdfast.cells.elman import RNNCell
from holdfast.cells.exprnn import ExpRNNCell, modrelu
from holdfast.cells.fastrnn import FastRNNCell
from holdfast.cells.indrnn import IndRNNCell
from holdfast.cells.linear import LinearCell
from holdfast.cells.nonlinearity import identity, slopes
from holdfast.cells.scornn import ScoRNNCell
from holdfast.cells.sgornn import SGORNNCell
from holdfast.cells.vprnn import VPRNNCell
from holdfast.constraints.gates import ScalarGates
from holdfast.constraints.orthogonal import OrthogonalMap
from holdfast.linalg.norms import spectral_norm

__all__ = ["StepForm", "cells_with_form", "step_form"]


@dataclasses.dataclass(frozen=True, eq=False)
class StepForm:
    """The form (1), (2) of a cell, with its own parameters: gradients flow back to them.

    Args:
        weight_ih: W, (hidden, input).
        recurrent: U: a free matrix, (hidden, hidden), the diagonal of one, (hidden,), or the map that keeps it
            orthogonal.
        bias: b, or None.
        phi: φ. With ``modrelu`` b is its second argument and is not added inside.
        gates: α and β: a ``ScalarGates``, or two tensors that are not trained; None for α = 1 and β = 0.
        weight_ho, weight_io: C and D; None if the output is the state, and for D = 0.

    Example:
        >>> import torch
        >>> form = StepForm(torch.ones(5, 3), torch.eye(5), None, torch.relu)
        >>> form.weight_hh.shape, form.spectral_norm, form.gates is None
        (torch.Size([5, 5]), 1.0, True)
    """

    weight_ih: Tensor
    recurrent: Tensor | OrthogonalMap
    bias: Tensor | None
    phi: Callable[..., Tensor]
    gates: ScalarGates | tuple[Tensor, Tensor] | None = None
    weight_ho: Tensor | None = None
    weight_io: Tensor | None = None

    @property
    def free(self) -> bool:
        """Whether U is a free matrix and there are no gates: RNN and Linear."""
        return self.gates is None and isinstance(self.recurrent, Tensor) and self.recurrent.dim() == 2

    @property
    def weight_hh(self) -> Tensor:
        """U as a dense matrix."""
        if not isinstance(self.recurrent, Tensor):
            return self.recurrent.matrix()
        return self.recurrent.diag() if self.recurrent.dim() == 1 else self.recurrent

    @property
    def alpha_beta(self) -> tuple[Tensor, Tensor] | None:
        """α and β; None without gates."""
        return self.gates() if isinstance(self.gates, ScalarGates) else self.gates

    @functools.cached_property
    def gate_values(self) -> tuple[float, float]:
        """α and β as numbers; 1 and 0 without gates."""
        gates = self.alpha_beta
        return (1.0, 0.0) if gates is None else (gates[0].item(), gates[1].item())

    @functools.cached_property
    def spectral_norm(self) -> float:
        """‖U‖₂, computed in float64; 1 for an orthogonal U."""
        if isinstance(self.recurrent, OrthogonalMap):
            return 1.0
        if self.recurrent.dim() == 1:
            return self.recurrent.detach().double().abs().max().item()
        return spectral_norm(self.recurrent.detach().double()).item()

    @property
    def lipschitz(self) -> float:
        """L of φ. Infinite for modrelu with a positive bias, which jumps from -b to b at zero."""
        if self.phi is modrelu and self.bias is not None and (self.bias > 0).any():
            return math.inf
        return slopes(self.phi).lipschitz


@functools.singledispatch
def step_form(cell: Any) -> StepForm | None:
    """The form (1) of a cell; None for a cell of another form. Register a cell of your own with ``step_form.register``.

    Example:
        >>> from holdfast import LSTMCell
        >>> step_form(SGORNNCell(3, 4)).gate_values[0] < 0.03, step_form(LSTMCell(3, 4)) is None
        (True, True)
    """
    return None


@step_form.register
def _(cell: RNNCell) -> StepForm:
    return StepForm(cell.weight_ih, cell.weight_hh, cell.bias, cell.phi)


@step_form.register
def _(cell: LinearCell) -> StepForm:
    return StepForm(cell.weight_ih, cell.weight_hh, cell.bias, identity, None, cell.weight_ho, cell.weight_io)


@step_form.register
def _(cell: VPRNNCell) -> StepForm:
    return StepForm(cell.weight_ih, cell.recurrent, cell.bias, cell.phi)


@step_form.register
def _(cell: ExpRNNCell | ScoRNNCell) -> StepForm:
    return StepForm(cell.weight_ih, cell.recurrent, cell.bias, modrelu if cell.modrelu else cell.phi)


@step_form.register
def _(cell: FastRNNCell) -> StepForm:
    return StepForm(cell.weight_ih, cell.weight_hh, cell.bias, cell.phi, cell.gates)


@step_form.register
def _(cell: SGORNNCell) -> StepForm:
    return StepForm(cell.weight_ih, cell.recurrent, cell.bias, cell.phi, cell.gates)


@step_form.register
def _(cell: IndRNNCell) -> StepForm:
    return StepForm(cell.weight_ih, cell.recurrent, cell.bias, cell.phi)


def cells_with_form() -> set[type[Cell]]:
    """The cell types that are of the form (1)."""
    return {kind for kind in step_form.registry if issubclass(kind, Cell)}
