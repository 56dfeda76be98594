"""The pattern: on which side of each knot every unit is, at every step. S5 (5), for a whole pass.

    bit = [z_t > k],   z_t = W x_t + U h_{t-1} + b                 (1)
    bit = [h_t > φ(k)]                                             (2) where h_t = φ(z_t) tells as much

(1) takes one product over all steps; (2) takes none, and is what a ReLU RNN needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.spline.form import StepForm, step_form
from holdfast.spline.network import Walked

__all__ = ["pattern_of", "preactivations"]


@torch.no_grad()
def pattern_of(walked: Walked, form: StepForm | None = None, lengths: Tensor | None = None) -> Tensor:
    """(time, batch, units · knots), bool; False behind a sequence's end.

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.spline.network import network_of, walk
        >>> network, xs = network_of(RNN(3, 5, nonlinearity="relu")), torch.randn(7, 2, 3)
        >>> (row,) = walk(network, xs, network.start(2, None, ""))
        >>> torch.equal(pattern_of(row), row.hs > 0)
        True
    """
    form = form or step_form(walked.cell)
    if form.alpha is None and form.beta is None and form.regions.readable_from_output:
        bits = form.regions.bits_of_output(walked.hs)  # (2)
    else:
        bits = form.regions.bits(preactivations(walked, form, lengths))  # (1)
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
