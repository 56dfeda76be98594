"""The chosen nodes, and any other candidates, with their gradient.

    v = u(o(L_r a, R_r b) + b_r)                                                            (1)
    ∂v/∂a = diag(u') diag(∂o/∂(L a)) L_r,  and the same on the right                        (2)

A search finds the choices and the vectors without gradients. Here the vectors become a function of leaves and tuples
again: their values are known, and the backward pass applies (2) from the last round to the first.

Source: S1, Algorithm 1, and (17) of Appendix D.1. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from holdfast.rrnn.normalise import BirthNorm
from holdfast.rrnn.sets import ACTIVATIONS, OPERATORS, Sets
from holdfast.rrnn.tree import Matrices

__all__ = ["Found", "born_in", "candidates", "grow"]


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of a search, for every round and sample.

    Args:
        choices: (rounds, batch, 5): left child, right child, tuple, operator, activation. Children count the leaves
            first, then the nodes.
        runners: the same of the runner-up; -1 where there is none.
        vectors: (rounds, batch, p): of the chosen.
        statistics: (births, 2, p): mean and variance that ``BirthNorm`` used in each birth; None without it.

    Example:
        >>> from holdfast.rrnn import TwoLayerScorer, search
        >>> leaves = torch.randn(3, 4, 5)  # x, h and 0 of four samples
        >>> found = search(leaves, Matrices.identity(5, leaves), Sets(tuples=1, rounds=2), TwoLayerScorer(5, 8))
        >>> found.choices.shape, found.vectors.shape
        (torch.Size([2, 4, 5]), torch.Size([2, 4, 5]))
    """

    choices: Tensor
    runners: Tensor
    vectors: Tensor
    statistics: Tensor | None = None


def born_in(right: Tensor, leaves: int) -> Tensor:
    """The birth of a candidate, by its right child: 0 for pairs of leaves, then one birth per node."""
    return (right - leaves + 1).clamp_min(0)


def grow(leaves: Tensor, found: Found, matrices: Matrices, sets: Sets, norm: BirthNorm | None = None) -> Tensor:
    """The vectors of the chosen nodes, (rounds, batch, p), with the gradient through every chosen path.

    Example:
        >>> from holdfast.rrnn import TwoLayerScorer, search
        >>> leaves, weights = torch.randn(2, 4, 5), Matrices.identity(5, torch.empty(0))
        >>> found = search(leaves, weights, Sets(tuples=1, rounds=3), TwoLayerScorer(5, 8))
        >>> torch.allclose(grow(leaves, found, weights, Sets(tuples=1, rounds=3)), found.vectors)
        True
    """
    affine: tuple[Tensor | None, Tensor | None] = (None, None)
    if norm is not None and found.statistics is not None:
        birth = born_in(found.choices[..., 1], len(leaves))
        affine = norm.affine(*found.statistics[birth].unbind(dim=-2))  # (rounds, batch, p) each
    parts = (matrices.flat_left, matrices.flat_right, matrices.bias)
    return _Grow.apply(leaves, *parts, *affine, found.vectors, found.choices, sets)  # type: ignore[return-value]


class _Grow(torch.autograd.Function):
    """The chosen nodes as a function of leaves and tuples. Their values are known from the search.

    The backward pass evaluates all nodes again together, then goes from the last round to the first: a node passes its
    gradient to its two children. All of it is differentiable, so it can be differentiated again.
    """

    @staticmethod
    def forward(ctx, leaves, flat_left, flat_right, bias, scale, shift, vectors, choices, sets):
        ctx.sets = sets
        ctx.save_for_backward(leaves, flat_left, flat_right, bias, scale, shift, vectors, choices)
        return vectors.clone()

    @staticmethod
    def backward(ctx, *gradients):
        (gradient,) = gradients
        leaves, flat_left, flat_right, bias, scale, _, vectors, choices = ctx.saved_tensors
        sets, count, batch = ctx.sets, len(leaves), torch.arange(leaves.shape[1], device=leaves.device)
        left, right, index, operator, activation = choices.unbind(dim=-1)  # (rounds, batch)
        nodes = torch.cat((leaves, vectors))
        a, b = nodes[left, batch], nodes[right, batch]
        l, r = _times(a, flat_left, index), _times(b, flat_right, index)
        slope_l, slope_r = _operator_slopes(sets, operator, l, r)
        z = _selected([OPERATORS[name].apply for name in sets.operators], operator, l, r) + bias[index]
        v, slope = _activation_slope(sets, activation, z)
        slope = slope if scale is None else slope * scale
        which = torch.nn.functional.one_hot(index, len(bias)).to(z.dtype)[..., None]  # (rounds, batch, tuples, 1)
        # Both children in one product: left first, then right.
        to_children = torch.stack((slope_l, slope_r), dim=1) * slope[:, None]  # (rounds, 2, batch, p)
        chosen = to_children[:, :, :, None] * which[:, None]  # (rounds, 2, batch, tuples, p)
        flat, places, twice = torch.stack((flat_left.mT, flat_right.mT)), torch.stack((left, right), 1), batch.repeat(2)
        given = torch.cat((torch.zeros_like(leaves), gradient))
        wide: list[Tensor] = [gradient] * len(choices)
        for k in reversed(range(len(choices))):
            wide[k] = (chosen[k] * given[count + k][:, None]).flatten(2)  # (2, batch, tuples · p)
            handed = torch.bmm(wide[k], flat).flatten(0, 1)
            given = given.index_put((places[k].flatten(), twice), handed, accumulate=True)
        down = given[count:] * slope  # (rounds, batch, p)
        every = torch.stack(wide, dim=1).flatten(1, 2)  # (2, rounds · batch, tuples · p)
        by_left, by_right = torch.bmm(torch.stack((a, b)).flatten(1, 2).mT, every)
        by_bias = (down[:, :, None] * which).sum(dim=(0, 1))
        own = given[count:]
        by_scale = None if scale is None else own * v
        by_shift = None if scale is None else own
        return given[:count], by_left, by_right, by_bias, by_scale, by_shift, None, None, None


def _operator_slopes(sets: Sets, operator: Tensor, l: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """∂o/∂l and ∂o/∂r, entry by entry."""
    left, right = OPERATORS[sets.operators[0]].derivatives(l, r)
    for number, name in enumerate(sets.operators[1:], 1):
        chosen = (operator == number)[..., None]
        to_left, to_right = OPERATORS[name].derivatives(l, r)
        left, right = torch.where(chosen, to_left, left), torch.where(chosen, to_right, right)
    return left, right


def _activation_slope(sets: Sets, activation: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """u(z) and u'(z)."""
    value = ACTIVATIONS[sets.activations[0]].apply(z)
    slope = ACTIVATIONS[sets.activations[0]].derivative(z, value)
    for number, name in enumerate(sets.activations[1:], 1):
        chosen, v = (activation == number)[..., None], ACTIVATIONS[name].apply(z)
        value = torch.where(chosen, v, value)
        slope = torch.where(chosen, ACTIVATIONS[name].derivative(z, v), slope)
    return value, slope


def candidates(
    nodes: Tensor,
    choices: Tensor,
    matrices: Matrices,
    sets: Sets,
    *,
    norm: BirthNorm | None = None,
    found: Found | None = None,
    leaves: int = 0,
) -> Tensor:
    """The vectors of some candidates, with their gradient.

    Args:
        nodes: (nodes, batch, p): leaves, then what was made.
        choices: (any, batch, 5), as in ``Found``.
        norm, found, leaves: of a search with a normalisation, which has the statistics of every birth.

    Returns:
        (any, batch, p).

    Example:
        >>> nodes = torch.ones(2, 1, 3)
        >>> candidates(nodes, torch.tensor([[[0, 1, 0, 0, 3]]]), Matrices.identity(3, nodes), Sets(tuples=1))
        tensor([[[2., 2., 2.]]])
    """
    left, right, index, operator, activation = choices.unbind(dim=-1)  # (any, batch) each
    batch = torch.arange(nodes.shape[1], device=nodes.device)
    l = _times(nodes[left, batch], matrices.flat_left, index)
    r = _times(nodes[right, batch], matrices.flat_right, index)
    z = _selected([OPERATORS[name].apply for name in sets.operators], operator, l, r) + matrices.bias[index]
    v = _selected([ACTIVATIONS[name].apply for name in sets.activations], activation, z)
    if norm is None or found is None or found.statistics is None:
        return v
    scale, shift = norm.affine(*found.statistics[born_in(right, leaves)].unbind(dim=-2))
    return v * scale + shift


def _times(vectors: Tensor, flat: Tensor, index: Tensor) -> Tensor:
    """Every vector times the matrix of its own tuple: all tuples in one product, then the right one."""
    size = vectors.shape[-1]
    every = (vectors @ flat).unflatten(-1, (-1, size))
    which = index[..., None, None].expand(*index.shape, 1, size)
    return every.gather(-2, which).squeeze(-2)


def _selected(functions: list, which: Tensor, *arguments: Tensor) -> Tensor:
    value = functions[0](*arguments)
    for number, function in enumerate(functions[1:], 1):
        chosen = which == number
        if bool(chosen.any()):
            value = torch.where(chosen[..., None], function(*arguments), value)
    return value
