"""Loss (6), part by part.

    L = E Σ_t {λ₁ l(y_t, q_t) + λ₂ min_{T in Iso(target)} TD(T_t, T) + λ₃ Σ_k m_k} + λ₄ Σ_φ ‖φ‖²        (6)
    m_k = -min{M, α(c_k*) - α(c_k**)} / M                                                               (7) margin

c_k* is the choice of round k and c_k** the runner-up. Several state vectors add up (Appendix B). A round without a
runner-up counts as one with margin M.

Appendix E.2 lists its λ₁ to λ₄ in the order task, margin, ridge, tree, which is not that of (6): docs/differences.md.

What S1's authors ran has, instead of TD, the distance node by node between trees of one shape, Σ_n ‖v_n - v'_n‖²: these
are the forms "nodes".

With a hard choice the argmax passes no gradient to the scorer, which learns by (7) alone.

Source: S1, §3.1 and §3.3. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import SettingError, one_of
from holdfast.rrnn.distance import tree_distances
from holdfast.rrnn.record import Grown
from holdfast.rrnn.target import Target, named_targets

__all__ = ["LossParts", "TreeLoss", "pool_children", "ridge", "score_margin", "target_distance"]


@dataclasses.dataclass(frozen=True)
class TreeLoss:
    """The weights of (6) and what they act on. λ₁ is 1, as in every experiment of the paper.

    ============ ====== ======= =======
    S1, E.2      tree   margin  ridge
    ============ ====== ======= =======
    Wiki-5k      1e-5   1e-3    1e-3
    Wiki-10k     0.003  0.1     1e-8
    SST          5.5e-5 1.8e-6  2.7e-12
    PTB          1.4e-3 4.2e-3  1.2e-13
    ============ ====== ======= =======

    Args:
        tree: the weight of the tree distance, λ₂ in (6) and the last one in Appendix E.2.
        margin: of the margins, λ₃ in (6) and λ₂ in E.2.
        ridge: of ‖φ‖², λ₄ in (6) and λ₃ in E.2.
        threshold: M of (7).
        target: "gru" or "lstm", with identity weights, or one ``Target`` per state vector.
        forms: "min" or "mean" over the isomorphic forms of the target, "given": its own form alone, or "nodes": no TD
            but the distance node by node, for trees of the target's shape. None: "min", and for RRNN-GRU as its
            setting has it.
        over_batch: whether tree distances and margins have their "mean" over the samples of a batch, as the task's loss
            has, or their "sum", as in the authors' code of RRNN: λ₂ and λ₃ then weigh as many times more as a batch
            has samples (in each process, of a run with several).

    Example:
        >>> TreeLoss(tree=0.003, margin=0.1, ridge=1e-8).threshold  # S1's for RRNN-GRU on Wiki-10k
        1.0
    """

    tree: float = 0.0
    margin: float = 0.0
    ridge: float = 0.0
    threshold: float = 1.0
    target: str | tuple[Target, ...] = "gru"
    forms: Literal["min", "mean", "given", "nodes"] | None = None
    over_batch: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        for name in ("tree", "margin", "ridge"):
            if not getattr(self, name) >= 0:
                raise SettingError(f"TreeLoss expects {name} of at least 0, got {getattr(self, name)!r}.")
        if not self.threshold > 0:
            raise SettingError(f"TreeLoss expects a threshold above 0, got {self.threshold!r}.")
        one_of("TreeLoss", "forms", self.forms, ("min", "mean", "given", "nodes", None))
        one_of("TreeLoss", "over_batch", self.over_batch, ("mean", "sum"))

    def targets(self, states: int) -> tuple[Target, ...]:
        """One target per state vector."""
        if isinstance(self.target, str):
            return named_targets(self.target, states)  # type: ignore[arg-type]
        if len(self.target) != states:
            raise SettingError(f"TreeLoss expects {states} targets, one per state vector, got {len(self.target)}.")
        return self.target


@dataclasses.dataclass(frozen=True)
class LossParts:
    """The parts of (6) other than the task's loss, each a number with its gradient, not yet weighted.

    Args:
        tree: Σ_t of the tree distance, its mean or its sum over the batch: ``TreeLoss.over_batch``.
        margin: Σ_t Σ_k of m_k, likewise.
        ridge: Σ ‖φ‖².

    Example:
        >>> parts = LossParts(torch.tensor(2.0), torch.tensor(-1.0), torch.tensor(3.0))
        >>> parts.weighted(TreeLoss(tree=0.5, margin=0.1, ridge=0.1))
        tensor(1.2000)
    """

    tree: Tensor
    margin: Tensor
    ridge: Tensor

    def weighted(self, loss: TreeLoss) -> Tensor:
        """λ₂ · tree + λ₃ · margin + λ₄ · ridge."""
        return loss.tree * self.tree + loss.margin * self.margin + loss.ridge * self.ridge


def score_margin(best: Tensor, second: Tensor, threshold: float = 1.0) -> Tensor:
    """m_k (7), between -1 and 0.

    Example:
        >>> score_margin(torch.tensor([3.0, 3.0, 3.0]), torch.tensor([2.5, 0.0, -torch.inf]), threshold=2.0)
        tensor([-0.2500, -1.0000, -1.0000])
    """
    alone = second == -torch.inf  # an infinite difference would have a NaN gradient
    gap = torch.where(alone, threshold, best - second.masked_fill(alone, 0.0))
    return -gap.clamp_max(threshold) / threshold


def pool_children(every: Sequence[Grown], names: Sequence[Sequence[str | int]], state: int) -> tuple[Tensor, Tensor]:
    """The nodes of one state vector's pool over all steps, as ``tree_distances`` wants them.

    Nodes carried over from the run before come first: they are inner nodes and have children.

    Returns:
        vectors (nodes, time · batch, p) and children (nodes, time · batch, 2).
    """
    own = every[state]
    vectors, choices = own.vectors.flatten(1, 2), own.choices[..., :2].flatten(1, 2)
    leaves = names[state]
    carried = [place for place, name in enumerate(leaves) if not isinstance(name, str)]
    if not carried:
        return vectors, torch.where(choices < len(leaves), -1, choices - len(leaves))
    before, before_children = pool_children(every, names, state - 1)
    count, first = len(before) - 1, carried[0]
    inner = torch.where(choices < first, -1, choices - first)  # carried nodes and then our own, without a gap
    return torch.cat((before[:count], vectors)), torch.cat((before_children[:count], inner))


def target_distance(
    every: Sequence[Grown],
    names: Sequence[Sequence[str | int]],
    targets: Sequence[Target],
    forms: Literal["min", "mean", "given", "nodes"] | None = None,
) -> Tensor:
    """Tree distance to the target of every step and sample, (time, batch), added up over the state vectors.

    Args:
        every: what a cell grew over time, as in ``Trace``.
        names: the names of its leaves.
        targets: one per state vector.
        forms: as in ``TreeLoss``.

    Example:
        >>> from holdfast.rrnn import RRNN, gru_target
        >>> layer = RRNN(4, 4, rounds=8)
        >>> (grown,) = layer.trace(torch.randn(5, 3, 4)).grown
        >>> target_distance(grown, layer.cells[0].leaf_names, [gru_target()]).shape
        torch.Size([5, 3])
    """
    total = torch.zeros(())
    for state, target in enumerate(targets):
        leaves = every[state].leaves.detach()  # (leaves, time, batch, p)
        named = {name: leaf for name, leaf in zip(names[state], leaves, strict=True) if isinstance(name, str)}
        wanted = target.vectors(named)  # (nodes, time, batch, p)
        if forms == "nodes":
            apart = (every[state].vectors - wanted[target.gru_places()]).square().sum(dim=-1)  # (nodes, time, batch)
            total = total + apart.sum(dim=0) + apart[1]  # z is in the tree twice
            continue
        vectors, children = pool_children(every, names, state)
        distance = tree_distances(
            vectors,
            children,
            target.forms(isomorphic=forms != "given"),
            wanted.flatten(1, 2),
            "mean" if forms == "mean" else "min",
        )
        total = total + distance.view(leaves.shape[1:3])
    return total


def ridge(parameters: Iterable[Tensor]) -> Tensor:
    """Σ ‖φ‖².

    Example:
        >>> ridge([torch.ones(3), torch.ones(2, 2)])
        tensor(7.)
    """
    return torch.stack([weight.square().sum() for weight in parameters] or [torch.zeros(())]).sum()


def parts_of(
    every: Sequence[Grown],
    names: Sequence[Sequence[str | int]],
    loss: TreeLoss,
    parameters: Iterable[Tensor],
    lengths: Tensor | None = None,
) -> LossParts:
    """The parts of (6) over what a cell grew; those of weight 0 are not computed.

    Args:
        every: for every state vector what it grew over time.
        lengths: (batch,) steps that count, of padded sequences.
    """
    like = every[0].vectors
    zero = like.new_zeros(())
    alive = None if lengths is None else torch.arange(like.shape[1], device=like.device)[:, None] < lengths

    def over_time(terms: Tensor) -> Tensor:  # (time, batch): Σ_t of the mean or the sum over samples
        counted = terms if alive is None else terms * alive
        return counted.sum() if loss.over_batch == "sum" else counted.mean(dim=1).sum()

    tree = over_time(target_distance(every, names, loss.targets(len(every)), loss.forms)) if loss.tree else zero
    margin = zero
    if loss.margin:
        for grown in every:  # (rounds, time, batch)
            margin = margin + over_time(score_margin(grown.best, grown.second, loss.threshold).sum(dim=0))  # type: ignore[arg-type]
    return LossParts(tree, margin, ridge(parameters) if loss.ridge else zero)
