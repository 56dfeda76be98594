"""One step as the spline sees it: an affine map, a nonlinearity of pieces, an affine map.

    z_t = W x_t + U h_{t-1} + b            (1) what the nonlinearity bends
    h_t = α φ(z_t) + β h_{t-1}             (2) RNN and VPRNN: α = 1, β = 0; FastRNN and SGORNN: their gates

On one region of φ both are affine: S5, Proposition 1, with the gates added. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
import functools

from torch import Tensor

from holdfast.cells import Cell, ExpRNNCell, FastRNNCell, LinearCell, RNNCell, SGORNNCell, VPRNNCell
from holdfast.cells._base import identity
from holdfast.errors import SettingError
from holdfast.spline.activation import Regions, regions_of

__all__ = ["StepForm", "step_form"]


@dataclasses.dataclass(frozen=True, eq=False)
class StepForm:
    """The tensors of (1) and (2), as the cell has them now, with their gradients.

    Args:
        weight_ih, weight_hh: W, (hidden, input), and U, (hidden, hidden), dense.
        bias: b, or None.
        regions: of φ.
        alpha, beta: the gates; None for α = 1 and β = 0.

    Example:
        >>> form = step_form(RNNCell(3, 5, nonlinearity="relu"))
        >>> form.weight_hh.shape, form.alpha is None
        (torch.Size([5, 5]), True)
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias: Tensor | None
    regions: Regions
    alpha: Tensor | None = None
    beta: Tensor | None = None

    def fixed(self) -> StepForm:
        """The same numbers, cut off from the cell: training it further does not change them."""
        tensors = {
            field.name: value.detach().clone()
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return dataclasses.replace(self, **tensors)


@functools.singledispatch
def step_form(cell: Cell) -> StepForm:
    """(1) and (2) of a cell. A cell of your own joins by ``step_form.register``.

    Example:
        >>> from holdfast import SGORNNCell
        >>> step_form(SGORNNCell(3, 4)).beta.shape
        torch.Size([])
    """
    raise SettingError(
        f"{type(cell).__name__} is not known to be piecewise affine. holdfast.spline takes RNN, LinearRNN, FastRNN, "
        "SGORNN, VPRNN and ExpRNN with relu, leaky_relu, abs or MaxAffine; a cell of your own joins by "
        "holdfast.spline.step_form.register; for a smooth cell use holdfast.spline.linearise."
    )


@step_form.register
def _(cell: RNNCell) -> StepForm:
    return StepForm(cell.weight_ih, cell.weight_hh, cell.bias, regions_of(cell.phi))


@step_form.register
def _(cell: LinearCell) -> StepForm:
    if cell.output_size is not None:
        raise SettingError("step_form expects a LinearCell whose output is its state; leave output_size out.")
    return StepForm(cell.weight_ih, cell.weight_hh, cell.bias, regions_of(identity))


@step_form.register
def _(cell: FastRNNCell) -> StepForm:
    return StepForm(cell.weight_ih, cell.weight_hh, cell.bias, regions_of(cell.phi), *cell.gates())


@step_form.register
def _(cell: SGORNNCell) -> StepForm:
    return StepForm(cell.weight_ih, cell.recurrent.matrix(), cell.bias, regions_of(cell.phi), *cell.gates())


@step_form.register
def _(cell: VPRNNCell) -> StepForm:
    return StepForm(cell.weight_ih, cell.recurrent.matrix(), cell.bias, regions_of(cell.phi))


@step_form.register
def _(cell: ExpRNNCell) -> StepForm:
    if cell.modrelu:
        raise SettingError(
            "step_form expects a convex nonlinearity, got ExpRNNCell with modrelu, which is not; "
            'ExpRNN(..., nonlinearity="relu") has one.'
        )
    return StepForm(cell.weight_ih, cell.recurrent.matrix(), cell.bias, regions_of(cell.phi))
