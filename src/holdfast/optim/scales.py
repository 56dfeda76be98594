"""The unit of length of every weight in the geometry of paths, and Adam in these units: ``PathAdam(invariant=True)``.

    s_i = a γ / √(n κ_i),  n: entries of the tensor of p_i                            (1)
    u_i = s_i ∂L/∂p_i,  u ← u · min(1, r / ‖u‖),  r the running mean of ‖u‖            (2)
    Δp_i = -lr s_i m̂_i / (√v̂_i + ε),  m̂ and v̂ Adam's moments of u                     (3)
    a = min(1, ‖u of W and b‖ / ‖u of U with a = 1‖), W, U, b of a layer, first update  (4)

If (3) without lr s_i is ±1 for every entry, a step has Σ κ_i Δp_i² = lr² a² γ² over a tensor: each tensor moves by lr a
of the path norm. A rescaling multiplies s_i and p_i by β_v/β_u and ∂L/∂p_i by β_u/β_v, so u, its moments and γ stay and
(3) moves with p_i. Adam on (1/κ) ∂L/∂p, as printed, keeps none of this: it divides by κ before the moments alone.

Input weights and their biases count as one tensor. The bias of an output is a path of one edge and has n = 1. a is 1,
but for recurrent weights. From an identity start, their κ grows slower with T than their effect: a = min(1, 3/√T).
Elsewhere it may not: (4) measures a, so that steps of U and of W and b change the loss alike to first order.
Derivation: docs/theory/s2-path-norm.md, "Why recurrent weights get shorter steps".
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from holdfast.errors import DivergedError, SettingError
from holdfast.optim.network import PathNetwork
from holdfast.optim.pieces import compact
from holdfast.optim.preconditioner import PathPreconditioner, at_least_float32, dense

__all__ = ["PathScales", "recurrent_share"]

MEMORY = 100  # updates of the running mean in (2)
LARGEST = 10.0  # times that mean: more than this of one ‖u‖ does not enter it


def recurrent_share(steps: int) -> float:
    """The a of (1) for the recurrent weights of a network that starts at U = I and is read after ``steps`` steps.

    Law: a² E[J²/κ] of U and E[J²/κ] of W grow alike with T, J = ∂y/∂p, at an identity start and inputs of one sign.
    Where ρ(U) < 1, the share of equal effects does not fall with T: use (4).

    Example:
        >>> recurrent_share(4), recurrent_share(400)
        (1.0, 0.15)
    """
    return min(1.0, 3 / math.sqrt(steps))


class PathScales(PathPreconditioner):
    """(1) and (2): what ``PathAdam(invariant=True)`` puts around its Adam.

    Args:
        recurrent: a of recurrent weights; "measured" for (4), at the first update; None for ``recurrent_share``.
        settings: those of ``PathPreconditioner``, without ``match_sgd`` and ``relative``.
    """

    SETTINGS: ClassVar[tuple[str, ...]] = (*PathPreconditioner.SETTINGS, "recurrent", "mean", "shares")

    def __init__(self, model: Any, *, recurrent: float | Literal["measured"] | None = None, **settings: Any):
        for name in ("match_sgd", "relative"):
            if settings.get(name):
                raise SettingError(f"PathAdam(invariant=True) sets the length of steps itself; drop {name}.")
        number = isinstance(recurrent, int | float) and 0 < recurrent < math.inf
        if not (number or recurrent is None or recurrent == "measured"):
            raise SettingError(
                f'PathAdam expects recurrent to be a positive number, "measured" or None, got {recurrent!r}.'
            )
        self.recurrent: float | Literal["measured"] | None = recurrent
        self.mean: float | None = None  # of (2), None before the first update
        super().__init__(model, **settings)
        self.shares: list[float | None] = [None] * len(self.network.layers)  # (4) of each layer, once it is measured
        self._count = _counts(self.network)
        self._layer = {layer.weight_hh: number for number, layer in enumerate(self.network.layers)}

    def refresh(self) -> None:
        """Recompute s from the current weights. Where no path runs it is 0: moments of old move nothing there."""
        found = self._kappa()
        norm = self._path_norm(found)
        self._inverse = {}
        for parameter, value in found.items():
            value = compact(value)
            scale = value.clamp(min=self.floor).rsqrt_()
            scale.mul_(self._share(parameter) * norm / math.sqrt(self._count[parameter])).mul_(value.sign())
            self._inverse[parameter] = scale.to(at_least_float32(parameter.dtype))

    def _share(self, parameter: Tensor) -> float:
        """The a of (1), 1 while (4) waits for gradients."""
        layer = self._layer.get(parameter)
        if layer is None:
            return 1.0
        if self.recurrent == "measured":
            return self.shares[layer] or 1.0
        return recurrent_share(self.steps) if self.recurrent is None else self.recurrent

    @contextlib.contextmanager
    def around(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        """A step of Adam in the block is (3): it sees u in place of gradients, and weights that are 0.

        Weight decay multiplies p_i by 1 - lr λ, which a rescaling leaves alone; what Adam itself adds is λ · 0.
        """
        given = [(p, group) for group in groups for p in group["params"] if p.grad is not None]
        weights, grads = [p for p, _ in given], [dense(p) for p, _ in given]
        scales, before = self.inverse_kappas(weights), [p.detach().clone() for p in weights]
        moved = False
        try:
            with torch.no_grad():
                u = [(g * s).to(g.dtype) for g, s in zip(grads, scales, strict=True)]
                self._shorten_(weights, u)
                for p, one in zip(weights, u, strict=True):
                    p.grad = one
                    p.zero_()
            yield
            moved = True
        finally:
            with torch.no_grad():
                for (p, group), grad, start, scale in zip(given, grads, before, scales, strict=True):
                    p.grad = grad
                    if moved:
                        if group["weight_decay"]:
                            start.mul_(1 - group["lr"] * group["weight_decay"])
                        start.addcmul_(p, scale.to(p.dtype))
                    p.copy_(start)

    def _shorten_(self, weights: list[Tensor], u: list[Tensor]) -> None:
        """(2), and (4) before it where that is due."""
        if not u:
            return
        sizes = torch.stack([torch.linalg.vector_norm(one) for one in u])
        size = float(torch.linalg.vector_norm(sizes))
        if not math.isfinite(size):
            raise DivergedError(
                f"PathAdam(invariant=True) expects finite gradients, got one with ‖s ⊙ ∂L/∂p‖ = {size}. No weight and "
                "no moment was changed: leave this batch out, or lower lr."
            )
        if self.recurrent == "measured" and None in self.shares:
            size = self._measure_(weights, u, dict(zip(weights, sizes.tolist(), strict=True)))
        self.mean = size if not self.mean else self.mean + (min(size, LARGEST * self.mean) - self.mean) / MEMORY
        if size > self.mean:
            for one in u:
                one.mul_(self.mean / size)

    def _measure_(self, weights: list[Tensor], u: list[Tensor], sizes: dict[Tensor, float]) -> float:
        """(4) of the layers that wait for it and have both gradients, put into s and u; the ‖u‖ after that."""
        for number, layer in enumerate(self.network.layers):
            U, inputs = layer.weight_hh, math.hypot(*(sizes.get(one, 0.0) for one in (layer.weight_ih, *layer.biases)))
            due = self.shares[number] is None and self._layer[U] == number  # a U in two layers has one share
            if due and inputs and sizes.get(U):
                share = self.shares[number] = min(1.0, inputs / sizes[U])
                self._inverse[U].mul_(share)
                u[next(index for index, weight in enumerate(weights) if weight is U)].mul_(share)
                sizes[U] *= share
        return math.hypot(*sizes.values())


def _counts(network: PathNetwork) -> dict[Tensor, int]:
    """The n of (1); a tensor in two places has that of the first."""
    together: list[tuple[Tensor | None, ...]] = [piece.tensors for piece in (*network.encoder, *network.decoder[:-1])]
    for layer in network.layers:
        together += [(layer.weight_ih, *layer.biases), (layer.weight_hh,), (layer.initial,)]
    if network.decoder:
        weight, bias = network.decoder[-1].tensors
        together.append((weight,))
        counts = {} if bias is None else {bias: 1}
    else:
        counts = {}
    for tensors in together:
        there = [tensor for tensor in tensors if tensor is not None]
        for tensor in there:
            counts.setdefault(tensor, sum(one.numel() for one in there))
    return counts
