"""Dynamic trivialisation of the exponential: a base point that follows the weights. dtriv.

    U = B exp(A)                                   (1) A skew and trained, B a fixed rotation
    B ← B exp(A),  A ← 0  after every K updates    (2) U stays the same

For a small A the gradient in A is the Riemannian gradient at B: dtriv with K = 1 is Riemannian gradient descent, and
K = ∞ is the exponential of one skew matrix. The optimiser's moments are kept as they are at (2), as in the author's
program: an entry of A means the same turn before and after it, seen from B.

Note [Counting updates]. (2) needs to know when an optimiser has stepped. PyTorch has one hook for the steps of all
optimisers. It is registered with the first map of this kind, and it counts a step for each map whose A the optimiser
holds. So (2) happens in any loop and under any ``torch.optim.Optimizer``, without a call, and B and the counter are
buffers: a run that is resumed from a ``state_dict`` moves B at the same updates. A wrapper that steps another optimiser
may count twice, which moves B more often and changes no U.

Source: Lezcano-Casado (2019), §5 and Algorithm 1. Symbols: docs/notation.md.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from holdfast.constraints.orthogonal import SkewMap, Square, Start
from holdfast.errors import positive_size
from holdfast.linalg.norms import nearest_rotation
from holdfast.linalg.skew import exp_map, skew_from_vector

__all__ = ["DynamicExponential"]

_LIVE: weakref.WeakSet[DynamicExponential] = weakref.WeakSet()
_hook: Any = None


class DynamicExponential(SkewMap):
    """A rotation near a base point (1), which moves to it after every K steps of the optimiser (2).

    Law: U is a rotation for all parameters, every rotation is reached, and (2) leaves U as it is.

    Args:
        every: K, in steps of the optimiser that holds ``skew``.
        init: where U starts, as in ``SkewExponential``: B is that matrix and A is zero.

    Example:
        >>> U = DynamicExponential(5, every=2)
        >>> optimizer = torch.optim.SGD(U.parameters(), lr=0.1)
        >>> for _ in range(2):
        ...     U.matrix().sum().backward()
        ...     optimizer.step()
        >>> U.skew.abs().max().item(), U.contains(U.matrix())
        (0.0, True)

    References:
        Lezcano-Casado (2019), Trivializations for gradient-based optimization on manifolds.
    """

    base: Tensor
    updates: Tensor

    def __init__(self, size: int, every: int, init: Start = "cayley"):
        self.every = positive_size("DynamicExponential", "every", every)
        super().__init__(size, init)
        _follow(self)

    def reset_parameters(self) -> None:
        """Draw U, put B there and A to zero."""
        if "base" not in self._buffers:
            self.register_buffer("base", torch.eye(self.size))
            self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        with torch.no_grad():
            self.base.copy_(torch.eye(self.size))
            self.updates.zero_()
        super().reset_parameters()
        self.rebase()

    def matrix(self) -> Square:
        return self.base @ exp_map(skew_from_vector(self.skew, self.size))  # (1)

    @torch.no_grad()
    def rebase(self) -> None:
        """(2), now. Products of many rotations drift by rounding, so B is the rotation nearest to U."""
        self.base.copy_(nearest_rotation(self.matrix().double()))
        self.skew.zero_()

    def _reaches(self, Q: Square) -> bool:
        return torch.linalg.slogdet(Q.detach()).sign.item() > 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _follow(self)  # a copy, or one that was pickled

    def extra_repr(self) -> str:
        return f"size={self.size}, every={self.every}, init={self.init!r}"


def _follow(map: DynamicExponential) -> None:
    """See Note [Counting updates]."""
    global _hook
    _LIVE.add(map)
    if _hook is None:
        _hook = register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    if not (live := list(_LIVE)):
        return
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    for map in live:
        if id(map.skew) in held:
            map.updates += 1
            if map.updates.item() % map.every == 0:
                map.rebase()
