"""How far apart two trees with vectors on their nodes are.

    VD(T₁, T₂) = Σ_{both} ‖v_{i,T₁} - v_{i,T₂}‖² + Σ_{only T₁} ‖v_{i,T₁}‖² + Σ_{only T₂} ‖v_{i,T₂}‖²       (1)
    TD(T, T') = Σ_{n in T} min_{n' in T'} VD(Subtree(T, n), Subtree(T', n'))                               (2)

i runs over inner nodes, numbered so that the children of i are 2i and 2i + 1. (1) falls apart at the root,

    VD(a, b) = ‖v_a - v_b‖² + VD(left a, left b) + VD(right a, right b)                                    (3)

where a leaf against a leaf is 0 and has v = 0 against an inner node. So each pair of nodes of two pools is compared
once, however large the unrolled trees are: ``tree_distances`` does that for a batch and for all isomorphic forms of a
target at once, which share most of their subtrees.

The sum and the minimum of (2) are over inner nodes; the paper writes V(T) and defines subtrees of inner nodes.

Source: S1, §3.3. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import SettingError
from holdfast.rrnn.tree import Tree

__all__ = ["Forms", "forms_of", "tree_distance", "tree_distances", "vector_difference"]

_MOST_FORMS = 20_000

Vectors = Mapping[Tree, Tensor]


def vector_difference(one: Tree | str, ones: Vectors, other: Tree | str, others: Vectors) -> Tensor:
    """VD (1), by (3).

    Args:
        one, other: the trees.
        ones, others: the vectors of their inner nodes, as ``evaluate_tree`` gives them.

    Example:
        >>> a, b = Tree("add", "identity", None, "x", "h"), Tree("mul", "identity", None, "x", "h")
        >>> vector_difference(a, {a: torch.tensor([3.0, 0.0])}, b, {b: torch.tensor([0.0, 4.0])})
        tensor(25.)
    """
    v = ones[one] if isinstance(one, Tree) else None
    w = others[other] if isinstance(other, Tree) else None
    if v is None and w is None:
        return torch.zeros(())
    difference = w if v is None else v if w is None else v - w
    assert difference is not None
    left, right = one.children if isinstance(one, Tree) else (one, one)
    left_other, right_other = other.children if isinstance(other, Tree) else (other, other)
    below = vector_difference(left, ones, left_other, others) + vector_difference(right, ones, right_other, others)
    return difference.square().sum(dim=-1) + below  # (3)


def tree_distance(predicted: Tree, vectors: Vectors, target: Tree, target_vectors: Vectors) -> Tensor:
    """TD (2) of one tree to another.

    Example:
        >>> a = Tree("add", "identity", None, "x", "h")
        >>> tree_distance(a, {a: torch.ones(2)}, a, {a: torch.ones(2)})
        tensor(0.)
    """
    every = [
        torch.stack([vector_difference(n, vectors, m, target_vectors) for m in target.nodes()]).min(dim=0).values
        for n in predicted.nodes()
    ]
    return torch.stack(every).sum(dim=0)


@dataclasses.dataclass(frozen=True)
class Forms:
    """The isomorphic forms of a tree, by the subtrees that they share.

    Args:
        nodes: the different inner nodes of the tree, each of which has one vector.
        vector: (subtrees,) which of them each subtree has at its root; children come before their parents.
        children: (subtrees + 1, 2) subtrees below; the number of subtrees means a leaf.
        roots: (forms,): the subtree that each form is.

    Example:
        >>> tree = Tree("mul", "identity", None, "h", Tree("add", "sigmoid", None, "x", "h"))
        >>> len(forms_of(tree).roots)
        2
    """

    nodes: tuple[Tree, ...]
    vector: Tensor
    children: Tensor
    roots: Tensor


def forms_of(tree: Tree, *, isomorphic: bool = True) -> Forms:
    """Iso(T), as far as (1) can tell its members apart: swapping two leaves moves no inner node.

    Args:
        isomorphic: False for the tree as it is, alone.

    Example:
        >>> gate = Tree("add", "sigmoid", None, "x", "h")
        >>> len(forms_of(gate).roots), len(forms_of(gate, isomorphic=False).roots)
        (1, 1)
    """
    nodes: dict[Tree, int] = {}
    for node in tree.nodes():
        nodes.setdefault(node, len(nodes))

    # a form is (number of the node, form on the left, form on the right), and () for a leaf
    def forms(node: Tree | str) -> list[tuple]:
        if isinstance(node, str):
            return [()]
        pairs = [(left, right) for left in forms(node.left) for right in forms(node.right)]
        if isomorphic:
            pairs += [(right, left) for left, right in pairs]
        if len(pairs) > _MOST_FORMS:
            raise SettingError(
                f"The target has more than {_MOST_FORMS:,} isomorphic forms; compare with the given one: forms='given'."
            )
        return list(dict.fromkeys((nodes[node], left, right) for left, right in pairs))

    def below(form: tuple) -> list[tuple]:
        return [] if not form else [*below(form[1]), *below(form[2]), form]

    roots = forms(tree)
    subtrees = list(dict.fromkeys(form for root in roots for form in below(root)))
    number = {form: i for i, form in enumerate(subtrees)} | {(): len(subtrees)}
    children = [[number[form[1]], number[form[2]]] for form in subtrees] + [[len(subtrees)] * 2]
    return Forms(
        tuple(nodes),
        torch.tensor([form[0] for form in subtrees]),
        torch.tensor(children),
        torch.tensor([number[root] for root in roots]),
    )


def tree_distances(
    vectors: Tensor,
    children: Tensor,
    forms: Forms,
    targets: Tensor,
    reduce: Literal["min", "mean"] = "min",
) -> Tensor:
    """min, or mean, of TD (2) over the forms of a target, for every sample.

    Args:
        vectors: (nodes, batch, p): a pool's nodes, children before parents, the root last.
        children: (nodes, batch, 2): the pool's own numbering, -1 for a leaf.
        forms: of the target.
        targets: (target nodes, batch, p): the vectors of ``forms.nodes``.
        reduce: over the forms.

    Returns:
        (batch,), with gradient.

    Example:
        >>> tree = Tree("add", "identity", None, "x", "h")
        >>> v = torch.randn(1, 4, 3)
        >>> tree_distances(v, torch.full((1, 4, 2), -1), forms_of(tree), v)
        tensor([0., 0., 0., 0.])
    """
    with torch.no_grad():
        rows = vectors.transpose(0, 1), targets.transpose(0, 1)  # (batch, nodes or targets, p)
        # entry by entry: by products, the distance of a vector to itself would not be zero
        apart = torch.cdist(*rows, compute_mode="donot_use_mm_for_euclid_dist").square().transpose(0, 1)
        alone, targets_alone = vectors.square().sum(dim=-1), targets.square().sum(dim=-1)
        uses = _uses(apart, alone, targets_alone, children, forms, reduce)  # (nodes + 1, batch, targets + 1)
        # (2) is a sum of squared distances, each as often as the nearest subtrees of the nearest form use it
        total = (uses[1:, :, :-1] * apart).sum(dim=(0, 2)) + (uses[1:, :, -1] * alone).sum(dim=0)
        total = total + (uses[0, :, :-1] * targets_alone.mT).sum(dim=1)
        toward = (uses[1:, :, :-1].transpose(0, 1) @ rows[1]).transpose(0, 1)  # Σ_q of the w_q, as often as used
    # Σ_q n_q ‖v - w_q‖² = (Σ n_q) ‖v‖² - 2 v · Σ n_q w_q + a constant: the gradient of (2), whose value is known
    moving = (uses[1:].sum(dim=2, keepdim=True) * vectors.square() - 2 * vectors * toward).sum(dim=(0, 2))
    return total + (moving - moving.detach())


def _uses(apart: Tensor, alone: Tensor, targets_alone: Tensor, children: Tensor, forms: Forms, reduce: str) -> Tensor:
    """How often the sum (2) has ‖v_a - w_q‖², by a and q; the first row and the last column mean "no node".

    First (3) for all nodes a and all subtrees s of all forms; then, per form, the nearest subtree to each node; then
    the same paths backwards, with what each step adds counted instead of summed.
    """
    (count, batch), subtrees = alone.shape, len(forms.vector)
    row = torch.arange(batch, device=alone.device)
    left, right = forms.children.to(alone.device).unbind(dim=1)
    table = alone.new_empty(count + 1, batch, subtrees + 1)  # VD of a against s; row 0 is a leaf, so is the last column
    table[0] = _whole(targets_alone, forms).mT
    here = torch.cat((apart.index_select(2, forms.vector.to(alone.device)), alone[..., None]), dim=2)
    for a in range(count):
        below = [table[children[a, :, side] + 1, row] for side in (0, 1)]
        table[a + 1] = here[a] + below[0].index_select(1, left) + below[1].index_select(1, right)  # (3)
    multiplicity = alone.new_zeros(count + 1, batch)  # how often the unrolled tree has each node
    multiplicity[-1] = 1
    for a in reversed(range(count)):
        for side in (0, 1):
            child = children[a, :, side] + 1
            multiplicity.index_put_((child, row), multiplicity[a + 1].clone(), accumulate=True)
    multiplicity[0] = 0
    least, roots = _least(table[1:], forms), forms.roots.to(alone.device)  # (subtrees, nodes, batch)
    total = (multiplicity[1:] * least.index_select(0, roots)).sum(dim=1)  # (2), (forms, batch)
    flow = torch.zeros_like(table)
    roots = roots[total.min(dim=0).indices][:, None] if reduce == "min" else roots[None].expand(batch, -1)
    which = _which(table[1:], least.permute(1, 2, 0), roots.expand(count, *roots.shape).contiguous(), forms)
    share = (multiplicity[1:, :, None] / roots.shape[1]).expand_as(which)
    flow[1:].scatter_add_(2, which, share)
    for a in reversed(range(count)):
        for side, down in ((0, left), (1, right)):
            given = torch.zeros_like(flow[0]).index_add_(1, down, flow[a + 1])
            flow.index_put_((children[a, :, side] + 1, row), given, accumulate=True)
    # a leaf against a subtree has all of the subtree's nodes, which no row of a node passes on
    for subtree, (one, other) in reversed(list(enumerate(forms.children[:-1].tolist()))):
        for child in (one, other):
            if child < subtrees:
                assert child < subtree, "children come before their parents"
                flow[0, :, child] += flow[0, :, subtree]
    uses = alone.new_zeros(count + 1, batch, apart.shape[2] + 1)
    uses.index_add_(2, forms.vector.to(alone.device), flow[..., :-1].contiguous())
    uses[..., -1] = flow[..., -1]
    return uses


def _least(table: Tensor, forms: Forms) -> Tensor:
    """The least of all columns of ``table`` that are below each subtree: (subtrees + 1, nodes, batch)."""
    # the least below a subtree is its own or the least below its children: forms share most of them
    least = table.permute(2, 0, 1).contiguous()  # columns are read one by one
    least[-1] = torch.inf  # a leaf is not a subtree
    for subtree, (one, other) in enumerate(forms.children[:-1].tolist()):
        for child in (one, other):  # not torch.minimum, which would pass NaN on
            least[subtree] = torch.where(least[child] < least[subtree], least[child], least[subtree])
    return least


def _which(table: Tensor, least: Tensor, roots: Tensor, forms: Forms) -> Tensor:
    """The subtree of each root, (nodes, batch, any), that has the least of its column: down from the root."""
    one, other = forms.children.to(table.device).unbind(dim=1)
    at = roots
    while True:
        here = least.gather(2, at)
        deeper = here < table.gather(2, at)
        if not bool(deeper.any()):
            return at
        left = one[at]
        at = torch.where(deeper, torch.where(least.gather(2, left) == here, left, other[at]), at)


def _whole(alone: Tensor, forms: Forms) -> Tensor:
    """Σ ‖v‖² over every subtree: (subtrees + 1, batch), 0 for a leaf."""
    whole: list[Tensor] = []
    zero = torch.zeros_like(alone[0])
    for vector, (left, right) in zip(forms.vector.tolist(), forms.children[:-1].tolist(), strict=True):
        below = [whole[child] if child < len(forms.vector) else zero for child in (left, right)]
        whole.append(alone[vector] + below[0] + below[1])
    return torch.stack([*whole, zero])
