"""Making the candidates of Algorithm 1: their vectors, for a whole batch.

    V_k = {u(o(L_r c_i, R_r c_j) + b_r) : i < j, r, o, u}        (1) candidates of round k

A candidate's vector does not change after it is made. So a round makes only the pairs of the newest node, which is the
right child of all of them, and L_r c and R_r c are computed once per node. All pairs of leaves are made together.

Candidates have an order: by right child, left child, tuple, operator, activation. ``Layout`` says where each is kept.

Source: S1, Algorithm 1. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading

import numpy as np
import torch
from torch import Tensor

from holdfast.rrnn.normalise import BirthNorm
from holdfast.rrnn.sets import ACTIVATIONS, OPERATORS, Sets
from holdfast.rrnn.tree import Matrices

__all__ = ["Layout", "Made", "layout_of"]

Affine = tuple[Tensor, Tensor]  # scale and shift of a normalisation


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where candidates are kept: what a flat index stands for.

    Activations are made from ``bases``: one minus is the identity, flipped, and needs no memory of its own.
    """

    table: Tensor  # (candidates, 5)
    right: np.ndarray  # (candidates,): right child
    row: np.ndarray  # (candidates,): of the buffer of vectors, (operators, bases, pairs, tuples)
    flipped: np.ndarray  # (candidates,)
    bases: tuple[str, ...]
    scored: tuple[tuple[int, bool], ...]  # base and flip of every activation


@functools.lru_cache(maxsize=64)
def layout_of(sets: Sets, leaves: int, device: torch.device) -> Layout:
    bases = tuple(dict.fromkeys("identity" if name == "one_minus" else name for name in sets.activations))
    scored = tuple(
        (bases.index("identity"), True) if name == "one_minus" else (bases.index(name), False)
        for name in sets.activations
    )
    last = leaves + sets.rounds - 1  # nodes that the last round can use
    right, left = torch.tril_indices(last, last, offset=-1)  # by right child, then by left child
    inner = torch.cartesian_prod(
        torch.arange(sets.tuples), torch.arange(len(sets.operators)), torch.arange(len(sets.activations))
    )
    pairs = torch.stack((left, right), dim=1).repeat_interleave(len(inner), dim=0)
    table = torch.cat((pairs, inner.repeat(len(left), 1)), dim=1)
    base = torch.tensor([base for base, _ in scored])[table[:, 4]]
    flipped = torch.tensor([flip for _, flip in scored])[table[:, 4]]
    pair = torch.arange(len(left)).repeat_interleave(len(inner))
    row = ((table[:, 3] * len(bases) + base) * len(left) + pair) * sets.tuples + table[:, 2]
    return Layout(table.to(device), table[:, 1].numpy(), row.numpy(), flipped.numpy(), bases, scored)


_HELD = threading.local()


def _memory(name: str, like: Tensor, *shape: int) -> Tensor:
    """An empty tensor in memory that this thread's last search used too: new pages cost more than the work in them.

    Nothing that a search returns lies in it.
    """
    held: dict[tuple, Tensor] = _HELD.__dict__.setdefault("tensors", {})
    key, count = (name, like.dtype, like.device), math.prod(shape)
    if key not in held or held[key].numel() < count:
        held[key] = torch.empty(count, dtype=like.dtype, device=like.device)
    return held[key][:count].view(shape)


class Made:
    """The vectors of all candidates so far, on the leaves' device.

    Args:
        leaves: (leaves, batch, p).
        matrices, sets, norm: as in ``search``.
    """

    def __init__(self, leaves: Tensor, matrices: Matrices, sets: Sets, norm: BirthNorm | None):
        count, batch, size = leaves.shape
        self.sets, self.matrices, self.norm, self.leaves = sets, matrices, norm, leaves
        self.layout = layout_of(sets, count, leaves.device)
        nodes, tuples = count + sets.rounds - 1, sets.tuples
        pairs = nodes * (nodes - 1) // 2
        shape = (len(sets.operators), len(self.layout.bases), pairs, tuples, batch, size)
        self.vectors = _memory("vectors", leaves, *shape)
        self.rows = self.vectors.view(-1, batch, size)
        self.rows_here = self.rows.numpy() if self.rows.device.type == "cpu" else None
        self.left = _memory("left", leaves, nodes, tuples, batch, size)  # L_r c of every node
        self.statistics: list[Affine] = []
        dtype = leaves.detach()[:0].cpu().numpy().dtype
        self.scales, self.shifts = np.empty((2, sets.rounds, size), dtype=dtype)  # of a normalisation
        self.pairs, self.samples = 0, np.arange(batch)
        # x ↦ (L_1 x .. L_n x, R_1 x .. R_n x) as one product
        self.project = torch.cat((matrices.flat_left, matrices.flat_right), dim=1)
        self.wide_bias: Tensor | None = None  # b_r for every sample, where vectors are made by the compiled loop
        self.compiled_values = None
        try:
            from holdfast.engine.kernels.values import compiled_values, takes
        except ImportError:  # the compiler is not installed
            return
        bias = matrices.bias[:, None].expand(-1, batch, -1)
        if bias.dtype == leaves.dtype and takes(bias, sets.operators, self.layout.bases, tuples * batch * size):
            self.wide_bias, self.compiled_values = bias.flatten(), compiled_values

    def add_leaves(self) -> tuple[Tensor, Affine | None]:
        """Make the pairs of leaves; return what was made, (operators, bases, pairs, tuples, batch, p)."""
        rights = [self._project(leaf, at) for at, leaf in enumerate(self.leaves)]
        return self._birth([(at, rights[at]) for at in range(1, len(self.leaves))])

    def add_node(self, k: int, node: np.ndarray) -> tuple[Tensor, Affine | None]:
        """Make the pairs of the node of round ``k``, (batch, p), with all that are older."""
        at = len(self.leaves) + k
        return self._birth([(at, self._project(torch.from_numpy(node).to(self.vectors.device), at))])

    def _birth(self, births: list[tuple[int, Tensor]]) -> tuple[Tensor, Affine | None]:
        begin = self.pairs
        for at, right in births:
            self._values(at, right, self.pairs)
            self.pairs += at
        return self.vectors[:, :, begin : self.pairs], self._normalisation(begin)

    def _project(self, node: Tensor, at: int) -> Tensor:
        """Note L_r c of the node that is ``at`` in the pool and return R_r c: (tuples, batch, p)."""
        both = (node @ self.project).view(len(node), 2, self.sets.tuples, -1).permute(1, 2, 0, 3)
        self.left[at] = both[0]
        return both[1].contiguous()

    def _values(self, at: int, right: Tensor, begin: int) -> None:
        """u(o(L_r c_i, R_r c_j) + b_r) for all older i, every o and every base u, where they are kept."""
        bases, bias, left = self.layout.bases, self.matrices.bias[:, None], self.left[:at]
        out = self.vectors[:, :, begin : begin + at]
        if self.compiled_values is not None and self.wide_bias is not None:
            flat = (left.flatten(1), right.flatten(), self.wide_bias, out.flatten(3))
            self.compiled_values(*flat, self.sets.operators, bases)
            return
        z = out[:, bases.index("identity")] if "identity" in bases else torch.empty_like(out[:, 0])
        for o, operator in enumerate(self.sets.operators):
            if operator == "add":
                torch.add(left, right + bias, out=z[o])
            elif operator == "mul":
                torch.addcmul(bias, left, right, out=z[o])
            else:
                torch.add(OPERATORS[operator].apply(left, right), bias, out=z[o])
        for a, base in enumerate(bases):
            match base:
                case "sigmoid":
                    torch.sigmoid(z, out=out[:, a])
                case "tanh":
                    torch.tanh(z, out=out[:, a])
                case "identity":
                    pass
                case _:
                    out[:, a] = ACTIVATIONS[base].apply(z)

    def _normalisation(self, begin: int) -> Affine | None:
        """Scale and shift of this birth, from sums over the bases: E(1 - z) = 1 - E z, E(1 - z)² = 1 - 2 E z + E z²."""
        if self.norm is None:
            return None
        size = self.vectors.shape[-1]
        mean, square = self.vectors.new_zeros(2, size)
        if self.norm.training:
            born = self.vectors[:, :, begin : self.pairs].flatten(2, 4)  # (operators, bases, rows, p)
            # sums, not torch.var_mean, which takes twelve times as long over rows
            means, squares = born.mean(dim=2).mean(dim=0), born.square().mean(dim=2).mean(dim=0)  # (bases, p)
            for base, flipped in self.layout.scored:
                mean = mean + (1 - means[base] if flipped else means[base])
                square = square + (1 - 2 * means[base] + squares[base] if flipped else squares[base])
        mean, square = mean / len(self.layout.scored), square / len(self.layout.scored)
        variance = (square - mean.square()).clamp_min(0)
        birth = len(self.statistics)
        self.statistics.append(self.norm.statistics(birth, mean, variance))
        affine = self.norm.affine(*self.statistics[-1])
        self.scales[birth], self.shifts[birth] = (part.cpu().numpy() for part in affine)
        return affine

    def picked(self, places: np.ndarray, samples: np.ndarray | None = None) -> np.ndarray:
        """The vectors (any, p) of some candidates; without ``samples``, one of each sample."""
        layout, samples = self.layout, self.samples if samples is None else samples
        if self.rows_here is not None:
            v = self.rows_here[layout.row[places], samples]
        else:
            where = torch.from_numpy(layout.row[places]).to(self.rows.device)
            v = self.rows[where, torch.from_numpy(samples).to(self.rows.device)].cpu().numpy()
        if (flipped := layout.flipped[places]).any():
            v[flipped] = 1 - v[flipped]
        if self.norm is not None:
            birth = np.maximum(layout.right[places] - len(self.leaves) + 1, 0)
            v = v * self.scales[birth] + self.shifts[birth]
        return v
