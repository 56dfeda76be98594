"""Templates: the sequences that a network compares its input with, one per class.

    z_c = ⟨A_c, x⟩ + B_c                                           (1) S5 §5: row c of A is the template of class c

Templates belong to an input: an input in another region has other templates.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from holdfast.spline.network import read_at_last
from holdfast.spline.piece import affine_piece

__all__ = ["Templates", "templates"]


@dataclasses.dataclass(frozen=True, eq=False)
class Templates:
    """The templates (1) of one input.

    Args:
        rows: A, (classes, time, features).
        products: ⟨A_c, x⟩, (classes).
        offset: B, (classes).
        input: x, (time, features); for tokens, their vectors.

    Example:
        >>> import torch
        >>> it = Templates(torch.zeros(2, 3, 1), torch.tensor([1.0, 2.0]), torch.tensor([5.0, 0.0]), torch.zeros(3, 1))
        >>> it.winner, it.predicted
        (1, 0)
    """

    rows: Tensor
    products: Tensor
    offset: Tensor
    input: Tensor

    @property
    def outputs(self) -> Tensor:
        """z, (classes)."""
        return self.products + self.offset

    @property
    def winner(self) -> int:
        """The class whose template fits best: the largest inner product."""
        return int(self.products.argmax())

    @property
    def predicted(self) -> int:
        """The class that the network predicts; the offsets may change it."""
        return int(self.outputs.argmax())

    def per_step(self) -> Tensor:
        """What each step adds to the inner products, (classes, time)."""
        return (self.rows * self.input).sum(-1)


def templates(model: nn.Module, x: Tensor) -> Templates:
    """The templates of one input and how well they fit it.

    Args:
        model: as in ``affine_piece``, read at the last step.
        x: (time, features), or tokens (time).

    Example:
        >>> import torch
        >>> from holdfast import RNN
        >>> model, x = RNN(3, 5, nonlinearity="relu"), torch.randn(7, 3)
        >>> it = templates(model, x)
        >>> torch.testing.assert_close(it.outputs, model(x)[1][-1])
        >>> it.rows.shape, it.per_step().shape
        (torch.Size([5, 7, 3]), torch.Size([5, 7]))
    """
    network = read_at_last(model, "templates")
    piece = affine_piece(model, x)
    features = network.features(x, sample=True, who="templates").squeeze(1).detach()
    return Templates(piece.slope, piece(features) - piece.offset, piece.offset, features)
