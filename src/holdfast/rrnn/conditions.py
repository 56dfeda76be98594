"""When gradients of an RRNN provably vanish, and what must hold if they explode.

    C₁ = max ‖L‖, ‖R‖      C₂ = max sup |u'|      C₃ = max ‖∂o(L v, R w)/∂(L v)‖, the other side too     (12)-(14)
    C₄ = max ‖∂E_t/∂h_t‖   C₅ = max ‖v‖_∞                                                              (15), D.2
    C₁ C₂ C₃ < 1/2  ⟹  ‖∂h_t/∂h_{t-1}‖ ≤ η = 1/2 + C₁ C₂ C₃ < 1                                        Theorem 7
    exploding  ⟹  sup |u'|, ‖P‖, ‖∂o/∂(L v)‖ or ‖∂o/∂(R w)‖ is at least a threshold somewhere           Theorem 8

With the identity among the tuples, + among the operators and id, tanh or 1 - · among the activations, C₁, C₂ and C₃ are
each at least 1: the condition of Theorem 7 cannot hold for any weights, and no bound is given.

The threshold of Theorem 8 is printed as (N+1)^{-1/(3 l_min)} with l_min = ⌊log₂(N+1)⌋ + 1. That would do if every path
were at least l_min long, but short paths exist in unbalanced trees, where the sum of (N+1)^{-l_k/l_min} exceeds 1. What
follows from (17) and Lemma 3 is 2^{-1/3}: all four below it give C₁ C₂ C₃ < 1/2. See docs/theory/s1-rrnn.md.

Source: S1, §4.2 and Appendix D. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import SettingError, one_of
from holdfast.rrnn.gru import RRNNGRUCell
from holdfast.rrnn.layer import TreeLayer
from holdfast.rrnn.record import Grown
from holdfast.rrnn.sets import ACTIVATIONS, OPERATORS, Sets
from holdfast.rrnn.tree import Matrices

__all__ = ["Condition", "GradientConditions", "gradient_conditions"]


@dataclasses.dataclass(frozen=True)
class Condition:
    """One of the four conditions of Theorem 8.

    Args:
        what: in words.
        value: the largest value found.
        threshold: what it is compared with.

    Example:
        >>> Condition("some weight matrix", 1.0, 0.8).holds
        True
    """

    what: str
    value: float
    threshold: float

    @property
    def holds(self) -> bool:
        return self.value >= self.threshold


@dataclasses.dataclass(frozen=True)
class GradientConditions:
    """C₁ to C₅ of a layer on some data, and what follows.

    Args:
        weights, activations, operators: C₁, C₂, C₃.
        losses: C₄; None if no loss was given.
        entries: C₅.
        attainable: whether any weights could meet Theorem 7 with these sets.
        nodes: N, the largest unrolled tree.
        exploding: the four conditions of Theorem 8.
        form: of their threshold.

    Example:
        >>> from holdfast.rrnn import RRNN
        >>> conditions = gradient_conditions(RRNN(4, 4, rounds=2), torch.randn(3, 2, 4))
        >>> conditions.attainable, conditions.vanishing, conditions.rate
        (False, False, None)
    """

    weights: float
    activations: float
    operators: float
    losses: float | None
    entries: float
    attainable: bool
    nodes: int
    exploding: tuple[Condition, Condition, Condition, Condition]
    form: Literal["exact", "published"]

    @property
    def product(self) -> float:
        """C₁ C₂ C₃."""
        return self.weights * self.activations * self.operators

    @property
    def vanishing(self) -> bool:
        """Whether (16) holds, so that gradients vanish on such data."""
        return self.product < 0.5

    @property
    def rate(self) -> float | None:
        """η of Theorem 7: gradients shrink at least by this factor per step; None without a guarantee."""
        return 0.5 + self.product if self.vanishing else None

    @property
    def follows(self) -> str:
        """What follows, in words."""
        if self.rate is not None:
            return (
                f"C₁C₂C₃ = {self.product:.3g} < 1/2: by Theorem 7 gradients vanish, by a factor of at most "
                f"{self.rate:.3g} a step, on these data."
            )
        why = "" if self.attainable else " These sets cannot meet it: the identity, + and a slope of 1 give at least 1."
        text = f"C₁C₂C₃ = {self.product:.3g} is not below 1/2: Theorem 7 promises nothing.{why}"
        held = [condition.what for condition in self.exploding if condition.holds]
        if held:
            return f"{text} Of Theorem 8's conditions hold: {'; '.join(held)}: exploding gradients are not excluded."
        return f"{text} None of Theorem 8's conditions holds as printed, which proves nothing here: use form='exact'."


def gradient_conditions(
    model: TreeLayer,
    data: Tensor,
    *,
    loss: Callable[[Tensor], Tensor] | None = None,
    form: Literal["exact", "published"] = "exact",
) -> GradientConditions:
    """Measure C₁ to C₅ and the conditions of Theorem 8 on a layer and data.

    Args:
        model: an ``RRNN`` or ``RRNNGRU`` of one layer and one direction, with one state vector.
        data: (time, batch, input).
        loss: from the output (time, batch, hidden) to Σ_t E_t, for C₄.
        form: the threshold of Theorem 8: "exact", 2^{-1/3}, or "published".

    Example:
        >>> from holdfast.rrnn import RRNN
        >>> layer = RRNN(4, 4, rounds=2, identity=False, operators=["add"], activations=["tanh"])
        >>> with torch.no_grad():
        ...     for weight in layer.l0.tuples.parameters():
        ...         _ = weight.mul_(0.1)
        >>> gradient_conditions(layer, torch.randn(3, 2, 4)).vanishing
        True
    """
    one_of("gradient_conditions", "form", form, ("exact", "published"))
    cells = model.tree_cells
    if len(cells) != 1 or len(cells[0].sets) != 1:
        raise SettingError(
            "gradient_conditions expects one layer, one direction and one state vector, as Theorem 7 does."
        )
    (cell,), (sets,) = cells, cells[0].sets
    matrices: Matrices = cell.tuples() if isinstance(cell, RRNNGRUCell) else cell.tuples[0]()  # type: ignore[operator, index]
    matrices = matrices.detached()
    if not all(part.isfinite().all() for part in (matrices.left, matrices.right, matrices.bias)):
        raise SettingError("gradient_conditions expects finite weights, got non-finite ones: the model has diverged.")
    with torch.no_grad():
        trace = model.trace(data)
        ((grown,),), (record,) = trace.grown, trace.records
        left, right, entries = _slopes(grown, matrices, sets)
        norms = torch.linalg.matrix_norm(torch.cat((matrices.left, matrices.right)), ord=2)
    weights, activations = float(norms.max()), max(ACTIVATIONS[name].slope for name in sets.activations)
    nodes = max(tree.size for tree in record.count())
    threshold = 2 ** (-1 / 3) if form == "exact" else (nodes + 1) ** (-1 / (3 * (math.floor(math.log2(nodes + 1)) + 1)))
    exploding = (
        Condition("an activation's slope", activations, threshold),
        Condition("the norm of a weight matrix", weights, threshold),
        Condition("an operator's slope in its left child", left, threshold),
        Condition("an operator's slope in its right child", right, threshold),
    )
    steep = any(ACTIVATIONS[name].slope >= 1 for name in sets.activations)
    flat = any((OPERATORS[name].slope or 0.0) >= 1 for name in sets.operators)
    return GradientConditions(
        weights=weights,
        activations=activations,
        operators=max(left, right),
        losses=None if loss is None else _direct_slope(trace.output, loss),
        entries=entries,
        attainable=not (sets.identity is True and steep and flat),
        nodes=nodes,
        exploding=exploding,
        form=form,
    )


def _slopes(grown: Grown, matrices: Matrices, sets: Sets) -> tuple[float, float, float]:
    """Largest ‖∂o/∂(L v)‖ and ‖∂o/∂(R w)‖, over all tuples and all vectors on the trees; and C₅."""
    # every node of the pool counts as on the tree: an upper bound if some are not used
    pool = torch.cat((grown.leaves, grown.vectors))
    entries = float(pool.abs().max())
    slopes = [OPERATORS[name].slope for name in sets.operators]
    fixed = max((slope for slope in slopes if slope is not None), default=0.0)
    if None not in slopes:
        return fixed, fixed, entries
    # of ⊙ the slope in one side is the largest entry of the other
    left, right = (float((pool @ flat).abs().max()) for flat in (matrices.flat_right, matrices.flat_left))
    return max(fixed, left), max(fixed, right), entries


def _direct_slope(output: Tensor, loss: Callable[[Tensor], Tensor]) -> float:
    """max_t ‖∂E_t/∂h_t‖, directly, not through later steps."""
    with torch.enable_grad():
        h = output.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(h), h)
    return float(gradient.norm(dim=-1).max())
