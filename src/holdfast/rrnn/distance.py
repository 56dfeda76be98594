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
        vector: (subtrees,) which of them each subtree has at its root.
        children: (subtrees + 1, 2) subtrees below; the number of subtrees stands for a leaf.
        members: (forms, most): the subtrees of each form, the last repeated where there are fewer.

    Example:
        >>> tree = Tree("mul", "identity", None, "h", Tree("add", "sigmoid", None, "x", "h"))
        >>> len(forms_of(tree).members)
        2
    """

    nodes: tuple[Tree, ...]
    vector: Tensor
    children: Tensor
    members: Tensor


def forms_of(tree: Tree, *, isomorphic: bool = True) -> Forms:
    """Iso(T), as far as (1) can tell its members apart: swapping two leaves moves no inner node.

    Args:
        isomorphic: False for the tree as it is, alone.

    Example:
        >>> gate = Tree("add", "sigmoid", None, "x", "h")
        >>> len(forms_of(gate).members), len(forms_of(gate, isomorphic=False).members)
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
        return [] if not form else [form, *below(form[1]), *below(form[2])]

    roots = forms(tree)
    inside = [list(dict.fromkeys(below(root))) for root in roots]
    subtrees = list(dict.fromkeys(form for forms in inside for form in forms))
    number = {form: i for i, form in enumerate(subtrees)} | {(): len(subtrees)}
    children = [[number[form[1]], number[form[2]]] for form in subtrees] + [[len(subtrees)] * 2]
    most = max(map(len, inside))
    members = [[number[form] for form in forms] + [number[forms[-1]]] * (most - len(forms)) for forms in inside]
    return Forms(
        tuple(nodes), torch.tensor([form[0] for form in subtrees]), torch.tensor(children), torch.tensor(members)
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
    count, batch, _ = vectors.shape
    row = torch.arange(batch, device=vectors.device)
    apart = (vectors[:, None] - targets[None]).square().sum(dim=-1)  # (nodes, targets, batch)
    alone, targets_alone = vectors.square().sum(dim=-1), targets.square().sum(dim=-1)
    here = torch.cat((apart[:, forms.vector], alone[:, None]), dim=1)  # (nodes, subtrees + 1, batch); last: no node
    left, right = forms.children.unbind(dim=1)
    table = [_whole(targets_alone, forms)]  # row 0: a leaf against every subtree
    multiplicity = torch.zeros(count, batch, dtype=vectors.dtype, device=vectors.device)
    multiplicity[-1] = 1
    for a in range(count):
        rows = torch.stack(table)  # (nodes so far + 1, subtrees + 1, batch)
        below = [rows[children[a, :, side] + 1, :, row].mT for side in (0, 1)]  # (subtrees + 1, batch)
        table.append(here[a] + below[0][left] + below[1][right])  # (3)
    for a in reversed(range(count)):
        for side in (0, 1):
            child = children[a, :, side]
            multiplicity.index_put_((child.clamp_min(0), row), multiplicity[a] * (child >= 0), accumulate=True)
    distance = torch.stack(table[1:])[:, forms.members].min(dim=2).values  # (nodes, forms, batch)
    total = (multiplicity[:, None] * distance).sum(dim=0)  # (2)
    return total.min(dim=0).values if reduce == "min" else total.mean(dim=0)


def _whole(alone: Tensor, forms: Forms) -> Tensor:
    """Σ ‖v‖² over every subtree: (subtrees + 1, batch), 0 for a leaf."""
    count = len(forms.vector)
    whole: list[Tensor | None] = [None] * count + [torch.zeros_like(alone[0])]

    def of(subtree: int) -> Tensor:
        held = whole[subtree]
        if held is None:
            left, right = forms.children[subtree].tolist()
            whole[subtree] = held = alone[forms.vector[subtree]] + of(left) + of(right)
        return held

    return torch.stack([of(subtree) for subtree in range(count + 1)])
