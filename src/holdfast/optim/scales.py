"""The unit of length of every weight in the geometry of paths, and Adam in these units: ``PathAdam(invariant=True)``.

    s_i = a γ / √(n κ_i),  n: entries of the tensor of p_i                            (1)
    u_i = s_i ∂L/∂p_i,  u ← u · min(1, r / ‖u‖),  r the running mean of ‖u‖            (2)
    Δp_i = -lr s_i m̂_i / (√v̂_i + ε),  m̂ and v̂ Adam's moments of u                     (3)

If (3) without lr s_i is ±1 for every entry, a step has Σ κ_i Δp_i² = lr² a² γ² over a tensor: each tensor moves by lr a
of the path norm. A rescaling multiplies s_i and p_i by β_v/β_u and ∂L/∂p_i by β_u/β_v, so u, its moments and γ stay and
(3) moves with p_i. Adam on (1/κ) ∂L/∂p, as printed, keeps none of this: it divides by κ before the moments alone.

Input weights and their biases count as one tensor. The bias of an output is a path of one edge and has n = 1. a is 1,
but for recurrent weights, whose κ grows slower with T than their effect: a = min(1, 3/√T). Derivation:
docs/theory/s2-path-norm.md, "Why recurrent weights get shorter steps".
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, ClassVar

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
    """The a of (1) for the recurrent weights of a network read after ``steps`` steps.

    Law: a² E[J²/κ] of U and E[J²/κ] of W grow alike with T, J = ∂y/∂p, at an identity start and inputs of one sign.

    Example:
        >>> recurrent_share(4), recurrent_share(400)
        (1.0, 0.15)
    """
    return min(1.0, 3 / math.sqrt(steps))


class PathScales(PathPreconditioner):
    """(1) and (2): what ``PathAdam(invariant=True)`` puts around its Adam.

    Args:
        recurrent: a of recurrent weights; None for ``recurrent_share``.
        settings: those of ``PathPreconditioner``, without ``match_sgd`` and ``relative``.
    """

    SETTINGS: ClassVar[tuple[str, ...]] = (*PathPreconditioner.SETTINGS, "recurrent", "mean")

    def __init__(self, model: Any, *, recurrent: float | None = None, **settings: Any):
        for name in ("match_sgd", "relative"):
            if settings.get(name):
                raise SettingError(f"PathAdam(invariant=True) sets the length of steps itself; drop {name}.")
        if recurrent is not None and not 0 < recurrent < math.inf:
            raise SettingError(f"PathAdam expects recurrent to be a positive number or None, got {recurrent!r}.")
        self.recurrent, self.mean = recurrent, None  # of (2), None before the first update
        super().__init__(model, **settings)
        self._count = _counts(self.network)
        self._weights = {layer.weight_hh for layer in self.network.layers}

    def refresh(self) -> None:
        """Recompute s from the current weights. Where no path runs it is 0: moments of old move nothing there."""
        found = self._kappa()
        norm = self._path_norm(found)
        share = recurrent_share(self.steps) if self.recurrent is None else self.recurrent
        self._inverse = {}
        for parameter, value in found.items():
            value, a = compact(value), share if parameter in self._weights else 1.0
            scale = value.clamp(min=self.floor).rsqrt_().mul_(a * norm / math.sqrt(self._count[parameter]))
            self._inverse[parameter] = scale.mul_(value.sign()).to(at_least_float32(parameter.dtype))

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
                factor = self._shortened(u) if u else 1.0
                for p, one in zip(weights, u, strict=True):
                    p.grad = one if factor == 1.0 else one.mul_(factor)
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

    def _shortened(self, u: list[Tensor]) -> float:
        """The factor of (2)."""
        size = float(torch.stack([one.norm() for one in u]).norm())
        if not math.isfinite(size):
            raise DivergedError(
                f"PathAdam(invariant=True) expects finite gradients, got one with ‖s ⊙ ∂L/∂p‖ = {size}. No weight and "
                "no moment was changed: leave this batch out, or lower lr."
            )
        self.mean = size if not self.mean else self.mean + (min(size, LARGEST * self.mean) - self.mean) / MEMORY
        return 1.0 if size <= self.mean else self.mean / size


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
