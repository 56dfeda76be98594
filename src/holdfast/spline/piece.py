"""The affine map that a network computes for one input.

    z = A x + B                                                    (1) S5 Theorem 2, (9)
    A = 𝒲 A_RNN,   B = 𝒲 B_RNN + b                                 (2) with the readout

x is the whole sequence. A and B are the same for every input whose units all lie on the same side of their knots
(``pattern``).
A comes from one transposed pass over time with one row per output; nothing is differentiated.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, overload

import torch
from torch import Tensor, nn

from holdfast.errors import ShapeError, one_of
from holdfast.spline.frozen import FrozenNetwork, freeze
from holdfast.spline.network import Read, spline_network, walk

__all__ = ["AffineOperator", "AffinePiece", "affine_piece"]

_ROWS = 256  # rows of A per sweep, if z is read at every step


@dataclasses.dataclass(frozen=True, eq=False)
class AffinePiece:
    """The map (1), with A formed.

    Args:
        slope: A, (outputs, time, features); read at every step: (time, outputs, time, features).
        offset: B, (outputs) or (time, outputs).
        pattern: (time, layers · directions, units · knots), True where a unit lies above its knot.

    Example:
        >>> from holdfast import RNN
        >>> model, x = RNN(3, 5, nonlinearity="relu"), torch.randn(7, 3)
        >>> piece = affine_piece(model, x)
        >>> torch.testing.assert_close(piece(x), model(x)[1][-1])
    """

    slope: Tensor
    offset: Tensor
    pattern: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """A x + B for one input, (time, features)."""
        return torch.einsum("...tf,tf->...", self.slope, x) + self.offset


@dataclasses.dataclass(frozen=True, eq=False)
class AffineOperator:
    """The map (1) for long sequences: A is not formed, and a product with a vector costs one pass over time.

    Args:
        offset: B, (outputs) or (time, outputs).
        pattern: (time, layers · directions, units · knots).
        frozen: the network with this pattern.

    Example:
        >>> from holdfast import RNN
        >>> model, x = RNN(3, 5, nonlinearity="relu"), torch.randn(7, 3)
        >>> A = affine_piece(model, x, form="operator")
        >>> torch.testing.assert_close(A.matvec(x) + A.offset, model(x)[1][-1])
        >>> A.rmatvec(torch.ones(5)).shape
        torch.Size([7, 3])
    """

    offset: Tensor
    pattern: Tensor
    frozen: FrozenNetwork

    @property
    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What A maps to, and from."""
        return tuple(self.offset.shape), (self.frozen.steps, self.frozen.rows[0].weight_ih.shape[1])

    @torch.no_grad()
    def matvec(self, x: Tensor) -> Tensor:
        """A x, for (time, features) or a batch (time, batch, features); the batch comes before the outputs."""
        steps, features = self.shape[1]
        if x.dim() not in (2, 3) or (len(x), x.shape[-1]) != (steps, features):
            raise ShapeError(f"matvec expects x of shape ({steps}, [batch,] {features}), got {tuple(x.shape)}.")
        z = self.frozen.forward(x if x.dim() == 3 else x.unsqueeze(1), affine=False)
        return z if x.dim() == 3 else z.squeeze(-2)

    @torch.no_grad()
    def rmatvec(self, z: Tensor) -> Tensor:
        """Aᵀ z, for z as ``offset``, or a batch of them before the outputs; the batch comes after the time."""
        single = z.dim() == self.offset.dim()
        rows = z.unsqueeze(-2) if single else z
        time = [self.frozen.steps] if self.frozen.every else []
        if list(rows.shape) != [*time, rows.shape[-2], self.offset.shape[-1]]:
            raise ShapeError(f"rmatvec expects z of shape {tuple(self.offset.shape)}, got {tuple(z.shape)}.")
        inputs, _ = self.frozen.backward(rows)
        assert inputs is not None
        return inputs.squeeze(1) if single else inputs

    def dense(self) -> Tensor:
        """A, as ``AffinePiece.slope``: in one sweep, or in sweeps of a few hundred rows if z is read at every step."""
        outputs = self.offset.shape[-1]
        eye = torch.eye(self.offset.numel(), dtype=self.offset.dtype, device=self.offset.device)
        if not self.frozen.every:
            return self.rmatvec(eye).transpose(0, 1)
        steps = self.frozen.steps
        parts = [
            self.rmatvec(some.view(-1, steps, outputs).transpose(0, 1)).transpose(0, 1) for some in eye.split(_ROWS)
        ]
        return torch.cat(parts).unflatten(0, (steps, outputs))

    def whole(self) -> AffinePiece:
        """The same map, with A formed."""
        return AffinePiece(self.dense(), self.offset, self.pattern)


@overload
def affine_piece(
    model: nn.Module,
    x: Tensor,
    *,
    h_0: Tensor | None = None,
    read: Read | None = None,
    form: Literal["whole"] = "whole",
) -> AffinePiece: ...
@overload
def affine_piece(
    model: nn.Module, x: Tensor, *, h_0: Tensor | None = None, read: Read | None = None, form: Literal["operator"]
) -> AffineOperator: ...
@torch.no_grad()
def affine_piece(
    model: nn.Module,
    x: Tensor,
    *,
    h_0: Tensor | None = None,
    read: Read | None = None,
    form: Literal["whole", "operator"] = "whole",
) -> AffinePiece | AffineOperator:
    """The exact affine map (1) of ``model`` at ``x``.

    Law: A x + B = z; A is the Jacobian of z wherever there is one; A and B do not change inside a region.

    Args:
        model: a layer, or a module with ``rnn`` and ``readout`` such as ``SequenceModel``, in one direction or both, of
            cells that are piecewise affine and convex: see ``regions_of``.
        x: one input, (time, features), or tokens (time); then A acts on their vectors.
        h_0: where to start, (layers · directions, hidden); default: as the model does in evaluation.
        read: z at the "last" step or at "every" one; default: as the model does, and a layer alone at the last.
        form: "whole", or "operator" for an ``AffineOperator``, which needs only the memory of one pass.

    Example:
        >>> from holdfast import RNN
        >>> piece = affine_piece(RNN(3, 5, num_layers=2, nonlinearity="relu"), torch.randn(7, 3))
        >>> piece.slope.shape, piece.offset.shape, piece.pattern.shape
        (torch.Size([5, 7, 3]), torch.Size([5]), torch.Size([7, 2, 5]))

    References:
        Wang, Balestriero & Baraniuk (2019), A max-affine spline perspective of recurrent neural networks.
    """
    one_of("affine_piece", "form", form, ("whole", "operator"))
    network = spline_network(model, read, "affine_piece")
    xs = network.features(x, sample=True, who="affine_piece")
    walked = list(walk(network, xs, network.start(1, h_0, "affine_piece")))
    frozen = freeze(network, walked, fixed=True)
    offset = frozen.forward(torch.zeros_like(xs), affine=True).squeeze(-2)  # z of x = 0, had it this pattern
    pattern = torch.stack([row.bits[:, 0] for row in frozen.rows], dim=1)
    operator = AffineOperator(offset, pattern, frozen)
    return operator if form == "operator" else operator.whole()
