"""Plane rotations: an orthogonal map as a product of sparse rotations and fixed permutations.

    U(Θ) = R_1 Q_1 R_2 Q_2 ... R_k Q_k                       (1) k sublayers; the last one is applied first
    (Q_j x)_p = x_{π_j(p)}                                   (2) a fixed permutation
    R_j (a, b) = (cos θ_j a - sin θ_j b, sin θ_j a + cos θ_j b)  (3) top half a against bottom half b
    ∂L/∂θ_j = Σ (g_b y_a - g_a y_b)                          (4) y is the output of sublayer j, g the gradient there

(4) needs outputs only, and undoing (3) and (2) on y and g gives them for the sublayer before: nothing is stored.

Source: S3 (2), after Taylor-Melanson et al. (2021), VPRNN. Symbols: docs/notation.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from holdfast.errors import ShapeError, positive_size

__all__ = [
    "default_sublayers",
    "is_primitive",
    "random_permutations",
    "rotate",
    "rotation_matrix",
    "rotations_as_primitive",
]

Rows = Float[Tensor, "*batch size"]
Angles = Float[Tensor, "sublayers half"]
Permutations = Int[Tensor, "sublayers size"]
Square = Float[Tensor, "size size"]

_as_primitive: ContextVar[bool] = ContextVar("rotations_as_primitive", default=False)


@contextmanager
def rotations_as_primitive() -> Iterator[None]:
    """Let ``rotate`` be one operator, ``holdfast::rotate``, so that a tracer sees one node instead of 6 k.

    Law: values and first gradients are those of the plain form. It is not twice differentiable.

    Example:
        >>> x, angles, permutations = torch.ones(1, 4), torch.zeros(2, 2), random_permutations(2, 4)
        >>> with rotations_as_primitive():
        ...     rotate(x, angles, permutations)
        tensor([[1., 1., 1., 1.]])
    """
    token = _as_primitive.set(True)
    try:
        yield
    finally:
        _as_primitive.reset(token)


def is_primitive() -> bool:
    """Whether ``rotate`` is one operator here: inside ``rotations_as_primitive``.

    Example:
        >>> is_primitive()
        False
    """
    return not torch.compiler.is_dynamo_compiling() and _as_primitive.get()  # it cannot read a ContextVar


def rotate(x: Rows, angles: Angles, permutations: Permutations, *, inverse: bool = False) -> Rows:
    """U(Θ) x for every row x, by (1); its transpose with ``inverse=True``.

    Law: ‖U(Θ) x‖ = ‖x‖, and the inverse undoes the map, for all angles and permutations.

    Args:
        x: vectors along the last dimension, of an even size.
        angles: Θ, one row per sublayer, one angle per pair (p, p + size/2).
        permutations: π, one row per sublayer; ``new[p] = old[permutation[p]]``.
        inverse: apply U(Θ)ᵀ.

    Example:
        >>> quarter_turn, keep = torch.tensor([[torch.pi / 2]]), torch.tensor([[0, 1]])
        >>> y = rotate(torch.tensor([[1.0, 0.0]]), quarter_turn, keep)
        >>> torch.testing.assert_close(y, torch.tensor([[0.0, 1.0]]))
    """
    _check(x, angles, permutations)
    if inverse:
        return _undo(x, angles, permutations)
    if is_primitive():
        return _Rotate.apply(x, angles, permutations)
    return _apply(x, angles, permutations)


def rotation_matrix(angles: Angles, permutations: Permutations) -> Square:
    """The dense U = U(Θ), with ``rotate(x, ...) == x @ U.mT``.

    Law: UᵀU = I, and det U is the product of the permutations' signs, for all angles.

    Example:
        >>> rotation_matrix(torch.zeros(1, 1), torch.tensor([[1, 0]]))
        tensor([[0., 1.],
                [1., 0.]])
    """
    identity = torch.eye(permutations.shape[-1], dtype=angles.dtype, device=angles.device)
    return _apply(identity, angles, permutations).mT


def default_sublayers(size: int) -> int:
    """2 ⌈log₂ size⌉, the k of S3 §3.1: 14 for 128, 16 for 256.

    Example:
        >>> default_sublayers(128), default_sublayers(256)
        (14, 16)
    """
    return 2 * (positive_size("default_sublayers", "size", size) - 1).bit_length()


def random_permutations(sublayers: int, size: int, generator: torch.Generator | None = None) -> Permutations:
    """π_1, ..., π_k, each uniform over all permutations; from torch's own generator by default.

    Example:
        >>> random_permutations(3, 4).sort().values[0]
        tensor([0, 1, 2, 3])
    """
    rows = [torch.randperm(size, generator=generator) for _ in range(sublayers)]
    return torch.stack(rows) if rows else torch.empty(0, size, dtype=torch.int64)


def _check(x: Tensor, angles: Tensor, permutations: Tensor) -> None:
    sublayers, size = permutations.shape
    if size % 2 or angles.shape != (sublayers, size // 2):
        raise ShapeError(
            f"rotate expects angles of shape (sublayers, size/2) and permutations (sublayers, size) with an even size, "
            f"got {tuple(angles.shape)} and {tuple(permutations.shape)}."
        )
    if x.shape[-1:] != (size,):
        raise ShapeError(f"rotate expects x of shape (..., {size}), got {tuple(x.shape)}.")


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(3)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((cos * a - sin * b, sin * a + cos * b), dim=-1)


def _apply(x: Tensor, angles: Tensor, permutations: Tensor) -> Tensor:
    cos, sin = angles.cos(), angles.sin()
    for j in reversed(range(len(angles))):
        x = _turn(x.index_select(-1, permutations[j]), cos[j], sin[j])
    return x


def _undo(x: Tensor, angles: Tensor, permutations: Tensor) -> Tensor:
    cos, sin, back = angles.cos(), angles.sin(), permutations.argsort(dim=-1)
    for j in range(len(angles)):
        x = _turn(x, cos[j], -sin[j]).index_select(-1, back[j])
    return x


def _inverse(angles: Tensor, permutations: Tensor) -> tuple[Tensor, Tensor]:
    """The angles and permutations of U(Θ)ᵀ = Q_kᵀ (R_kᵀ Q_{k-1}ᵀ) ... (R_2ᵀ Q_1ᵀ) R_1ᵀ, in the form (1)."""
    still, keep = angles.new_zeros(1, angles.shape[-1]), torch.arange(permutations.shape[-1]).to(permutations)
    back = permutations.argsort(dim=-1).flip(0)
    return torch.cat((still, -angles.flip(0))), torch.cat((back, keep.unsqueeze(0)))


# Note [Rotations as one operator]
# A compiler that reads a traced step wants (1) as one node with its own lowering. Hence two operators that tracers
# know: the map, and its gradient by (4). The second has no gradient; use the plain form for that. They are
# registered by hand because torch.library.custom_op imports torch._dynamo, more than a second, when first called.


def _rotate_op(x: Tensor, angles: Tensor, permutations: Tensor) -> Tensor:
    # an operator's output must not alias its input
    return _apply(x, angles, permutations) if len(angles) else x.clone()


def _rotate_backward_op(grad: Tensor, output: Tensor, angles: Tensor, permutations: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin, back = angles.cos(), angles.sin(), permutations.argsort(dim=-1)
    grad_angles = torch.empty_like(angles)
    rows = output.expand_as(grad), grad
    y, g = (row.reshape(-1, row.shape[-1]) for row in rows)
    for j in range(len(angles)):
        (y_a, y_b), (g_a, g_b) = y.chunk(2, dim=-1), g.chunk(2, dim=-1)
        grad_angles[j] = (g_b * y_a - g_a * y_b).sum(dim=0)  # (4)
        y, g = (_turn(row, cos[j], -sin[j]).index_select(-1, back[j]) for row in (y, g))
    return g.reshape(grad.shape).clone() if not len(angles) else g.reshape(grad.shape), grad_angles


def _rotate_fake(x: Tensor, angles: Tensor, permutations: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _rotate_backward_fake(grad: Tensor, output: Tensor, angles: Tensor, permutations: Tensor) -> tuple[Tensor, Tensor]:
    return grad.new_empty(grad.shape), torch.empty_like(angles)


_LIBRARY = torch.library.Library("holdfast", "DEF")
_LIBRARY.define("rotate(Tensor x, Tensor angles, Tensor permutations) -> Tensor")
_LIBRARY.define("rotate_backward(Tensor grad, Tensor output, Tensor angles, Tensor permutations) -> (Tensor, Tensor)")
_LIBRARY.impl("rotate", _rotate_op, "CompositeExplicitAutograd")
_LIBRARY.impl("rotate_backward", _rotate_backward_op, "CompositeExplicitAutograd")
_LIBRARY.impl("rotate", _rotate_fake, "Meta")
_LIBRARY.impl("rotate_backward", _rotate_backward_fake, "Meta")


class _Rotate(torch.autograd.Function):
    """The operator with its gradient."""

    @staticmethod
    def forward(x: Tensor, angles: Tensor, permutations: Tensor) -> Tensor:
        return torch.ops.holdfast.rotate(x, angles, permutations)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, angles, permutations = inputs
        ctx.save_for_backward(output, angles, permutations)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:  # type: ignore[override]
        (grad,) = grads
        if not ctx.needs_input_grad[1]:  # constant angles: the inverse map, and no output is needed
            _, angles, permutations = ctx.saved_tensors
            return torch.ops.holdfast.rotate(grad, *_inverse(angles, permutations)), None, None
        grad_x, grad_angles = torch.ops.holdfast.rotate_backward(grad, *ctx.saved_tensors)
        return grad_x, grad_angles, None
