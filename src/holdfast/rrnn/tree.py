"""A cell as data: a binary tree over the vectors at the start of a step.

    node = u(o(L_r left, R_r right) + b_r)        (1) operator o, activation u, tuple r, two children; a leaf is a name

The pool of Algorithm 1 keeps one copy of a vector that several nodes use. The tree has it once for every use, so it can
have more nodes than there were rounds.

Source: S1, Figure 1, §3.2 and §3.3. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from holdfast.errors import SettingError
from holdfast.rrnn.sets import ACTIVATIONS, OPERATORS, Sets

__all__ = ["Matrices", "Tree", "evaluate_tree", "isomorphic", "tree_of"]


@dataclasses.dataclass(frozen=True)
class Tree:
    """One inner node (1) and what is below it.

    Args:
        operator, activation: names in ``holdfast.rrnn.OPERATORS`` and ``ACTIVATIONS``.
        index: which tuple (L, R, b), from 0; None if it does not matter.
        left, right: each a ``Tree`` or the name of a leaf.

    Example:
        >>> gate = Tree("add", "sigmoid", 0, "x", "h")
        >>> Tree("mul", "identity", 3, "h", gate).formula()
        'h ⊙₄ σ₁(x + h)'
    """

    operator: str
    activation: str
    index: int | None
    left: Tree | str
    right: Tree | str

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS or self.activation not in ACTIVATIONS:
            raise SettingError(
                f"Tree knows the operators {', '.join(OPERATORS)} and the activations {', '.join(ACTIVATIONS)}; "
                f"got {self.operator!r} and {self.activation!r}."
            )

    @property
    def children(self) -> tuple[Tree | str, Tree | str]:
        return self.left, self.right

    def nodes(self) -> Iterator[Tree]:
        """Every inner node, this one first; a node that is used twice appears twice."""
        yield self
        for child in self.children:
            if isinstance(child, Tree):
                yield from child.nodes()

    @property
    def size(self) -> int:
        """N, the inner nodes of the unrolled tree."""
        return 1 + sum(child.size for child in self.children if isinstance(child, Tree))

    @property
    def depth(self) -> int:
        """Edges of the longest path from here to a leaf."""
        return 1 + max(child.depth if isinstance(child, Tree) else 0 for child in self.children)

    def without_tuples(self) -> Tree:
        """The same tree without its tuples, as in Figures 3 and 4."""
        return Tree(self.operator, self.activation, None, *(_mapped(child) for child in self.children))

    def canonical(self) -> Tree:
        """The canonical form: trees are isomorphic if their canonical forms are equal."""
        below = sorted((child.canonical() if isinstance(child, Tree) else child for child in self.children), key=repr)
        return Tree(self.operator, self.activation, self.index, *below)

    def formula(self) -> str:
        """The tree on one line; the subscript is the tuple, from 1."""
        index = "" if self.index is None else str(self.index + 1).translate(_SUBSCRIPTS)
        left, right = (_text(child) for child in self.children)
        symbol = OPERATORS[self.operator].symbol
        if self.activation == "identity":
            return f"{left} {symbol}{index} {right}"
        return f"{ACTIVATIONS[self.activation].symbol}{index}({left} {symbol} {right})"


_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def _mapped(child: Tree | str) -> Tree | str:
    return child.without_tuples() if isinstance(child, Tree) else child


def _text(child: Tree | str) -> str:
    if isinstance(child, str):
        return child
    return f"({child.formula()})" if child.activation == "identity" else child.formula()


def isomorphic(tree: Tree) -> tuple[Tree, ...]:
    """Iso(T): every tree obtained by swapping the children of some nodes, each once, ``tree`` first.

    Both operators of the paper commute, so without the tuples these are the ways to write one expression.

    Example:
        >>> gate = Tree("add", "sigmoid", None, "x", "h")
        >>> [form.formula() for form in isomorphic(Tree("mul", "identity", None, "h", gate))]
        ['h ⊙ σ(x + h)', 'h ⊙ σ(h + x)', 'σ(x + h) ⊙ h', 'σ(h + x) ⊙ h']
    """
    ways = [isomorphic(child) if isinstance(child, Tree) else (child,) for child in tree.children]
    pairs = list(itertools.product(*ways))
    pairs += [(right, left) for left, right in pairs]
    made = (dataclasses.replace(tree, left=left, right=right) for left, right in pairs)
    return tuple(dict.fromkeys(made))


def tree_of(choices: Sequence[Sequence[int]], leaves: Sequence[Tree | str], sets: Sets) -> Tree:
    """The tree rooted at the last choice.

    Args:
        choices: (left, right, tuple, operator, activation) of every round, as ``search`` gives them for one sample.
        leaves: the pool before the first round.
        sets: what the numbers mean.

    Example:
        >>> tree_of([(0, 1, 0, 0, 0), (1, 3, 3, 1, 3)], ("x", "h", "0"), Sets()).formula()
        'h ⊙₄ σ₁(x + h)'
    """
    return nodes_of(choices, leaves, sets)[-1]


def nodes_of(choices: Sequence[Sequence[int]], leaves: Sequence[Tree | str], sets: Sets) -> list[Tree]:
    """The trees rooted at every choice."""
    pool, made = list(leaves), []
    for left, right, index, operator, activation in choices:
        tree = Tree(sets.operators[operator], sets.activations[activation], index, pool[left], pool[right])
        pool.append(tree)
        made.append(tree)
    return made


@dataclasses.dataclass(frozen=True)
class Matrices:
    """The tuples: ``left`` and ``right`` (n, p, p), ``bias`` (n, p).

    Example:
        >>> Matrices.identity(3, torch.empty(0)).left.shape
        torch.Size([1, 3, 3])
    """

    left: Tensor
    right: Tensor
    bias: Tensor

    @classmethod
    def identity(cls, size: int, like: Tensor) -> Matrices:
        """The one tuple (I, I, 0)."""
        eye = torch.eye(size, dtype=like.dtype, device=like.device)[None]
        return cls(eye, eye, like.new_zeros(1, size))

    @functools.cached_property
    def flat_left(self) -> Tensor:
        """(p, n · p): x ↦ (L_1 x .. L_n x) as one product of rows."""
        return self.left.permute(2, 0, 1).flatten(1)

    @functools.cached_property
    def flat_right(self) -> Tensor:
        """(p, n · p): x ↦ (R_1 x .. R_n x) as one product of rows."""
        return self.right.permute(2, 0, 1).flatten(1)

    def detached(self) -> Matrices:
        return Matrices(self.left.detach(), self.right.detach(), self.bias.detach())


def evaluate_tree(tree: Tree, leaves: Mapping[str, Tensor], matrices: Matrices) -> dict[Tree, Tensor]:
    """The vector of every node of ``tree`` by (1); a node without an index uses the tuple (I, I, 0).

    Args:
        leaves: vectors (..., p) by name.
        matrices: the tuples.

    Example:
        >>> tree = Tree("add", "one_minus", None, "0", "z")
        >>> evaluate_tree(tree, {"0": torch.zeros(2), "z": torch.ones(2)}, Matrices.identity(2, torch.empty(0)))[tree]
        tensor([0., 0.])
    """
    known: dict[Tree, Tensor] = {}

    def vector(node: Tree | str) -> Tensor:
        if isinstance(node, str):
            if node not in leaves:
                raise SettingError(f"evaluate_tree expects leaves out of {', '.join(leaves)}, got {node!r}.")
            return leaves[node]
        if node not in known:
            left, right = vector(node.left), vector(node.right)
            if node.index is not None:
                left, right = left @ matrices.left[node.index].mT, right @ matrices.right[node.index].mT
            z = OPERATORS[node.operator].apply(left, right)
            z = z if node.index is None else z + matrices.bias[node.index]
            known[node] = ACTIVATIONS[node.activation].apply(z)  # (1)
        return known[node]

    vector(tree)
    return known
