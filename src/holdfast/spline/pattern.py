"""The pattern: on which side of each knot every unit is, at every step. S5 (5), for a whole pass.

    bit = [z_t > k],   z_t = W x_t + U h_{t-1} + b                 (1)
    bit = [h_t > φ(k)]                                             (2) if h_t = φ(z_t) determines it

(1) takes one product over all steps. (2) takes none and is enough for a ReLU RNN.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from holdfast.cells import Cell, StepForm, step_form
from holdfast.cells.nonlinearity import regions_of
from holdfast.errors import SettingError
from holdfast.spline.network import Walked

__all__ = ["pattern_of", "preactivations", "spline_form"]


def spline_form(cell: Cell) -> StepForm:
    """The form of a cell that is piecewise affine and convex, with U dense; an error for any other cell.

    Example:
        >>> from holdfast import RNNCell
        >>> spline_form(RNNCell(3, 5, nonlinearity="relu")).weight_hh.shape
        torch.Size([5, 5])
    """
    form = step_form(cell)
    if form is None:
        raise SettingError(
            "holdfast.spline expected a cell of the form αφ(Wx + Uh + b) + βh (RNN, LinearRNN, FastRNN, SGORNN, VPRNN "
            f"or ExpRNN), got {type(cell).__name__}; register a cell of your own with "
            "holdfast.cells.step_form.register, or use holdfast.spline.linearise."
        )
    if form.weight_ho is not None:
        raise SettingError(
            f"holdfast.spline expected a {type(cell).__name__} whose output is its state, got one with output_size; "
            "leave output_size out."
        )
    regions_of(form.phi)  # raises if φ is not piecewise affine and convex
    return dataclasses.replace(form, recurrent=form.weight_hh)


@torch.no_grad()
def pattern_of(walked: Walked, form: StepForm, lengths: Tensor | None = None) -> Tensor:
    """(time, batch, units · knots), bool; False after a sequence's end.

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.spline.network import spline_network, walk
        >>> network, xs = spline_network(RNN(3, 5, nonlinearity="relu")), torch.randn(7, 2, 3)
        >>> (row,) = walk(network, xs, network.start(2, None, ""))
        >>> torch.equal(pattern_of(row, spline_form(row.cell)), row.hs > 0)
        True
    """
    regions = regions_of(form.phi)
    if form.gates is None and regions.readable_from_output:
        bits = regions.bits_of_output(walked.hs)  # (2)
    else:
        bits = regions.bits(preactivations(walked, form, lengths))  # (1)
    if lengths is None:
        return bits
    alive = torch.arange(len(bits), device=bits.device)[:, None] < lengths
    return bits & alive.unsqueeze(-1)


def preactivations(walked: Walked, form: StepForm, lengths: Tensor | None = None) -> Tensor:
    """The z of (1) at every step, (time, batch, hidden), from the outputs that the scan gave."""
    start, hs = walked.start[0].unsqueeze(0), walked.hs
    before = torch.cat([hs[1:], start] if walked.reverse else [start, hs[:-1]])
    if walked.reverse and lengths is not None:  # a shorter sequence starts at its own end
        ends = torch.arange(1, len(hs) + 1, device=hs.device)[:, None] >= lengths
        before = torch.where(ends.unsqueeze(-1), start, before)
    drive = torch.nn.functional.linear(walked.xs, form.weight_ih, form.bias)
    return drive + before @ form.weight_hh.mT
