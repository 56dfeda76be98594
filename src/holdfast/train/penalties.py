"""Penalties on the outputs of a layer, for any loss.

    (1/(T-1)) Σ_{t=2}^T (‖h_t‖ - ‖h_{t-1}‖)²          (1) norm stabiliser
    mean h²                                           (2) activation regularisation
    mean (h_t - h_{t-1})²                             (3) temporal activation regularisation

(1) is a mean over the samples; (2) and (3) are means over samples, steps and units. A step counts if it and the one
before lie within its sequence. Sources: Krueger & Memisevic (2016), equation (1); Merity, McCann & Socher (2017), §4.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.errors import ShapeError

__all__ = ["activation_regularisation", "norm_stabiliser", "temporal_activation_regularisation"]

Outputs = Float[Tensor, "steps batch hidden"]


def norm_stabiliser(output: Outputs, lengths: Tensor | None = None) -> Tensor:
    """(1): how much the lengths of successive states differ. Add β times this to a loss; the paper's β is 50 to 500.

    Law: zero if and only if every state of a sequence has the same length, as under an orthogonal map.

    Args:
        output: a layer's, time first.
        lengths: (batch,) steps that count; default all. Sequences of fewer than 2 steps add nothing.

    Example:
        >>> output = torch.tensor([[[3.0, 4.0]], [[0.0, 7.0]]])  # lengths 5 and 7
        >>> norm_stabiliser(output)
        tensor(4.)

    References:
        Krueger & Memisevic (2016), Regularizing RNNs by stabilizing activations.
    """
    _check("norm_stabiliser", output)
    change = output.norm(dim=2).diff(dim=0).square()  # (time - 1, batch)
    return _mean(change, lengths, first=1)


def activation_regularisation(output: Outputs, lengths: Tensor | None = None) -> Tensor:
    """(2): the mean square of an output.

    Example:
        >>> activation_regularisation(torch.full((3, 2, 4), 2.0))
        tensor(4.)

    References:
        Merity, McCann & Socher (2017), Revisiting activation regularization for language RNNs.
    """
    _check("activation_regularisation", output)
    return _mean(output.square().mean(dim=2), lengths, first=0)


def temporal_activation_regularisation(output: Outputs, lengths: Tensor | None = None) -> Tensor:
    """(3): the mean square of the change from step to step.

    Example:
        >>> temporal_activation_regularisation(torch.tensor([[[1.0, 1.0]], [[1.0, 3.0]]]))
        tensor(2.)

    References:
        Merity, McCann & Socher (2017), Revisiting activation regularization for language RNNs.
    """
    _check("temporal_activation_regularisation", output)
    return _mean(output.diff(dim=0).square().mean(dim=2), lengths, first=1)


PENALTIES = {it.__name__: it for it in (norm_stabiliser, activation_regularisation, temporal_activation_regularisation)}


def _check(who: str, output: Tensor) -> None:
    if not isinstance(output, Tensor) or output.dim() != 3:
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ShapeError(
            f"{who} expects an output of shape (time, batch, hidden), got {found}; transpose a layer's with "
            "batch_first=True, and unpack a packed one."
        )


def _mean(values: Tensor, lengths: Tensor | None, first: int) -> Tensor:
    """The mean over a sample's steps, then over samples; ``values`` (steps, batch) begin at step ``first``."""
    if not len(values):
        return values.sum()  # a sequence of one step has no change
    if lengths is None:
        return values.mean()
    steps = torch.arange(first, first + len(values), device=values.device).unsqueeze(1)
    counted = (steps < lengths.to(values.device)).to(values.dtype)
    return ((values * counted).sum(dim=0) / counted.sum(dim=0).clamp_min(1)).mean()
