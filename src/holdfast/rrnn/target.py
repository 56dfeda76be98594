"""Target trees of the loss, and the vectors of their nodes.

    r = σ(x + h),  z = σ(x + h),  h̃ = tanh(x + r ⊙ h),  h' = z ⊙ h + (1 - z) ⊙ h̃          GRU (1)-(4)
    c' = c ⊙ σ(x + h) + σ(x + h) ⊙ tanh(x + h),  h' = σ(x + h) ⊙ tanh(c')                  LSTM (7)-(11)

A target is "without trainable matrices" in the paper. Its node vectors can come from identity weights, as above, or
from a teacher: a cell with its own weights. Both get the x and h of the model at that step. In the published code the
teacher is a trained GRU and gets its own h, that of a run over the same x.

Source: S1, §3.1 and Figure 1; Appendix C. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.cells import GRUCell, LSTMCell
from holdfast.errors import SettingError, one_of
from holdfast.rrnn.distance import Forms, forms_of
from holdfast.rrnn.tree import Matrices, Tree, evaluate_tree

__all__ = ["Target", "gru_target", "gru_tree", "lstm_targets", "lstm_trees", "named_targets"]


def gru_tree(*, tuples: bool = True) -> Tree:
    """The GRU of equations (1)-(4); its tuples are those of Theorem 5: r, z, h̃ and the identity.

    Example:
        >>> gru_tree().formula()
        '(h ⊙₄ σ₂(x + h)) +₄ (1-₄(0 + σ₂(x + h)) ⊙₄ tanh₃(x + (h ⊙₄ σ₁(x + h))))'
        >>> gru_tree().size
        9
    """
    r, z = (Tree("add", "sigmoid", index, "x", "h") for index in (0, 1))
    reset = Tree("mul", "identity", 3, "h", r)
    rest = Tree("add", "one_minus", 3, "0", z)
    candidate = Tree("add", "tanh", 2, "x", reset)
    root = Tree("add", "identity", 3, Tree("mul", "identity", 3, "h", z), Tree("mul", "identity", 3, rest, candidate))
    return root if tuples else root.without_tuples()


def lstm_trees(*, tuples: bool = True) -> tuple[Tree, Tree]:
    """The LSTM of equations (7)-(11): the trees of c' and of h'; tuples as in Theorem 6: f, i, o, c̃, identity.

    The tree of h' has o with its tuple of the first run, and the nodes of the second run with that run's own.

    Example:
        >>> [tree.formula() for tree in lstm_trees(tuples=False)]
        ['(c ⊙ σ(x + h)) + (σ(x + h) ⊙ tanh(x + h))', "σ(x + h) ⊙ tanh(0 + c')"]
    """
    f, i, o = (Tree("add", "sigmoid", index, "x", "h") for index in (0, 1, 2))
    candidate = Tree("add", "tanh", 3, "x", "h")
    kept, added = Tree("mul", "identity", 4, "c", f), Tree("mul", "identity", 4, i, candidate)
    c = Tree("add", "identity", 4, kept, added)
    h = Tree("mul", "identity", 0, o, Tree("add", "tanh", 0, "0", "c'"))
    return (c, h) if tuples else (c.without_tuples(), h.without_tuples())


@dataclasses.dataclass(frozen=True)
class Target:
    """A target tree over the step's leaves, with the weights that determine the vectors of its nodes.

    Args:
        tree: over the names of the step's leaves: "x", "h", "0", ... Nodes without an index use the tuple (I, I, 0).
        matrices: the tuples of the others; None if there are none.
        along: whose h the vectors belong to: "model", or "teacher": the target's own, from h = 0 at the first step.

    Example:
        >>> target = Target(Tree("add", "tanh", None, "x", "h"))  # an Elman step
        >>> target.vectors({"x": torch.zeros(2, 3), "h": torch.zeros(2, 3)}).shape
        torch.Size([1, 2, 3])
    """

    tree: Tree
    matrices: Matrices | None = None
    along: Literal["model", "teacher"] = "model"

    def __post_init__(self) -> None:
        one_of("Target", "along", self.along, ("model", "teacher"))
        if self.matrices is None and any(node.index is not None for node in self.tree.nodes()):
            raise SettingError(
                "A target whose nodes name tuples needs matrices; or leave them out: tree.without_tuples()."
            )

    def forms(self, *, isomorphic: bool = True) -> Forms:
        return _forms(self.tree, isomorphic)

    @torch.no_grad()
    def vectors(self, leaves: Mapping[str, Tensor]) -> Tensor:
        """The vectors of ``forms().nodes``, (nodes, ..., p): constants, without gradients.

        Args:
            leaves: (..., p) by name; (time, ..., p) if the target goes along its own states.
        """
        like = next(iter(leaves.values()))
        matrices = self.matrices or Matrices.identity(like.shape[-1], like)
        if self.along == "teacher":
            h, before = torch.zeros_like(leaves["h"][0]), []
            for t in range(len(like)):
                before.append(h)
                h = evaluate_tree(self.tree, {**{name: leaf[t] for name, leaf in leaves.items()}, "h": h}, matrices)[
                    self.tree
                ]
            leaves = {**leaves, "h": torch.stack(before)}
        known = evaluate_tree(self.tree, leaves, matrices)
        return torch.stack([known[node] for node in self.forms().nodes])

    def gru_places(self) -> list[int]:
        """Where r, z, r ⊙ h, 1 - z, h̃, h ⊙ z, (1 - z) ⊙ h̃ and h' of the GRU's tree are in ``forms().nodes``.

        Example:
            >>> gru_target(GRUCell(4, 4, reset="before")).gru_places()
            [7, 2, 6, 4, 5, 1, 3, 0]
        """
        if self.tree.without_tuples() != gru_tree(tuples=False):
            raise SettingError(f'forms="nodes" expects the tree of gru_tree(), got {self.tree.formula()}.')
        kept, added = (it for it in self.tree.children if isinstance(it, Tree))
        rest, candidate = (it for it in added.children if isinstance(it, Tree))
        reset: Any = candidate.right
        nodes = self.forms().nodes
        return [nodes.index(it) for it in (reset.right, kept.right, reset, rest, candidate, kept, added, self.tree)]


@functools.lru_cache(maxsize=64)
def _forms(tree: Tree, isomorphic: bool) -> Forms:
    return forms_of(tree, isomorphic=isomorphic)


def gru_target(teacher: GRUCell | None = None, along: Literal["model", "teacher"] = "model") -> Target:
    """The GRU's tree, with identity weights or those of a teacher.

    Args:
        teacher: a ``GRUCell(p, p, reset="before")``; its weights are copied.
        along: as in ``Target``.

    Example:
        >>> gru_target().tree == gru_tree(tuples=False), gru_target(GRUCell(4, 4, reset="before")).tree == gru_tree()
        (True, True)
    """
    if teacher is None:
        return Target(gru_tree(tuples=False), along=along)
    if teacher.reset != "before":
        raise SettingError('gru_target expects a teacher with reset="before"; the tree of PyTorch\'s GRU is different.')
    return Target(gru_tree(), _matrices(teacher, 3), along)


def lstm_targets(teacher: LSTMCell | None = None) -> tuple[Target, Target]:
    """The LSTM's two trees, of c' and of h', with identity weights or those of a teacher.

    Example:
        >>> [len(target.forms().nodes) for target in lstm_targets()]
        [5, 3]
        >>> [len(target.forms().nodes) for target in lstm_targets(LSTMCell(4, 4))]
        [6, 3]
    """
    if teacher is None:
        first, second = lstm_trees(tuples=False)
        return Target(first), Target(second)
    size = teacher.hidden_size
    c, h = lstm_trees()
    torch_order = _matrices(teacher, 4)  # rows i, f, g, o, and the identity
    order = torch.tensor([1, 0, 3, 2, 4])
    matrices = Matrices(*(part[order] for part in (torch_order.left, torch_order.right, torch_order.bias)))
    eye = Matrices.identity(size, matrices.bias)
    # the second run has one tuple, the identity: its nodes have index 0 there, and 5 here
    outer = dataclasses.replace(h, index=5, right=dataclasses.replace(h.right, index=5))  # type: ignore[type-var]
    both = Matrices(*(torch.cat(pair) for pair in zip(_parts(matrices), _parts(eye), strict=True)))
    return Target(c, matrices), Target(outer, both)


def _parts(matrices: Matrices) -> tuple[Tensor, Tensor, Tensor]:
    return matrices.left, matrices.right, matrices.bias


def _matrices(teacher: GRUCell | LSTMCell, gates: int) -> Matrices:
    """The teacher's gates as tuples, and (I, I, 0)."""
    if teacher.input_size != teacher.hidden_size:
        raise SettingError(
            f"A teacher is expected to have equal sizes of x and h, got {teacher.input_size} and {teacher.hidden_size}."
        )
    size, like = teacher.hidden_size, teacher.weight_hh.detach()
    eye = Matrices.identity(size, like)
    bias = like.new_zeros(gates, size) if teacher.bias is None else teacher.bias.detach().view(gates, size)
    return Matrices(
        torch.cat((teacher.weight_ih.detach().view(gates, size, size), eye.left)),
        torch.cat((like.view(gates, size, size), eye.right)),
        torch.cat((bias, eye.bias)),
    )


def named_targets(name: Literal["gru", "lstm"], states: int) -> tuple[Target, ...]:
    """The targets of this name, with identity weights, for a cell with this many state vectors.

    Example:
        >>> len(named_targets("lstm", 2))
        2
    """
    known = {"gru": (gru_target(),), "lstm": lstm_targets()}
    if name not in known:
        raise SettingError(f"TreeLoss expects target to be gru, lstm, or Target objects, got {name!r}.")
    if len(known[name]) != states:
        raise SettingError(f"The target {name} expects {len(known[name])} state vectors, got a cell with {states}.")
    return known[name]
