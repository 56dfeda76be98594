"""Tree-LSTM: an LSTM whose states come from the children of a node instead of from the step before.

    child-sum: any number of children, in no order
    h̃_j = Σ_k h_k                                              (1) over the children k of node j
    i_j, o_j = σ(W x_j + U h̃_j + b);  u_j = tanh(W x_j + U h̃_j + b)   (2) each with its own W, U, b
    f_jk = σ(W x_j + U h_k + b)                                (3) a forget gate for each child
    c_j = i_j ⊙ u_j + Σ_k f_jk ⊙ c_k                           (4)
    h_j = o_j ⊙ tanh(c_j)                                      (5)

    N-ary: at most N children, each with its place
    i_j, o_j = σ(W x_j + Σ_l U_l h_l + b);  u_j = tanh(...)    (6) instead of (2)
    f_jk = σ(W x_j + Σ_l U_kl h_l + b)                         (7) instead of (3)

A child that is missing has h = c = 0. On a chain, both forms are an LSTM. The sizes are those of the equations; the
authors' program has others (docs/differences.md).

All nodes of one height are computed together, for all trees of a batch: one product W x for all nodes, then one product
per height, or two with (3). This is not fused. A scan compiles a loop over time, in which every step has the same shape
and reads the step before. Here there are as many steps as heights, each of another size, and their products are large.

Source: Tai, Socher & Manning (2015), §3. Symbols: docs/notation.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from holdfast.cells import CheckedLoad
from holdfast.errors import DTypeError, SettingError, ShapeError, positive_size

__all__ = ["TreeLSTM"]


class TreeLSTM(CheckedLoad):
    """A Tree-LSTM over the nodes of one or many trees.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        arity: None for child-sum, (1) to (5), or N for (6), (7), (4), (5); binary trees have N = 2.

    Shape:
        xs (nodes, input_size), one row per node, zeros for a node without an input. children (nodes, any), the rows of
        its children, -1 where there are fewer; every child comes before its parent. Returns h and c, each (nodes,
        hidden_size).

    Example:
        >>> layer = TreeLSTM(3, 4, arity=2)
        >>> children = torch.tensor([[-1, -1], [-1, -1], [0, 1]])  # two words and the phrase of both
        >>> h, c = layer(torch.randn(3, 3), children)
        >>> h.shape
        torch.Size([3, 4])

    References:
        Tai, Socher & Manning (2015), Improved semantic representations from tree-structured long short-term memory.
    """

    def __init__(self, input_size: int, hidden_size: int, *, arity: int | None = None):
        super().__init__()
        self.input_size = positive_size("TreeLSTM", "input_size", input_size)
        self.hidden_size = positive_size("TreeLSTM", "hidden_size", hidden_size)
        self.arity = None if arity is None else positive_size("TreeLSTM", "arity", arity)
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))  # i, f, u, o, as an LSTM's
        self.bias = nn.Parameter(torch.empty(4 * hidden_size))
        if arity is None:
            self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        else:  # by child l: i, f_1, ..., f_N, u, o
            self.weight_hh = nn.Parameter(torch.empty((3 + arity) * hidden_size, arity * hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        width = 1 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            nn.init.uniform_(weight, -width, width)

    def forward(self, xs: Tensor, children: Tensor) -> tuple[Tensor, Tensor]:
        levels = self._levels(xs, children)
        drives = nn.functional.linear(xs, self.weight_ih, self.bias)  # W x + b of all nodes in one product
        # the last row stays zero: it is where the index -1 of a missing child leads
        h = c = xs.new_zeros(len(xs) + 1, self.hidden_size)
        for nodes in levels:
            new_h, new_c = self._node(drives[nodes], h[children[nodes]], c[children[nodes]])
            h, c = h.index_copy(0, nodes, new_h), c.index_copy(0, nodes, new_c)
        return h[:-1], c[:-1]

    def _node(self, drive: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes of one height: drive (nodes, 4 hidden), h and c of their children (nodes, children, hidden)."""
        drive_i, drive_f, drive_u, drive_o = drive.chunk(4, dim=1)
        if self.arity is None:
            weight_i, weight_f, weight_u, weight_o = self.weight_hh.chunk(4)
            total = h.sum(dim=1)  # (1)
            from_i, from_u, from_o = (total @ torch.cat((weight_i, weight_u, weight_o)).mT).chunk(3, dim=1)
            from_f = h @ weight_f.mT  # (nodes, children, hidden)
        else:
            parts = (h.flatten(1) @ self.weight_hh.mT).chunk(3 + self.arity, dim=1)
            from_i, *forget, from_u, from_o = parts
            from_f = torch.stack(forget, dim=1)
        i, o = torch.sigmoid(drive_i + from_i), torch.sigmoid(drive_o + from_o)  # (2), (6)
        u = torch.tanh(drive_u + from_u)
        f = torch.sigmoid(drive_f.unsqueeze(1) + from_f)  # (3), (7)
        new_c = i * u + (f * c).sum(dim=1)  # (4)
        return o * torch.tanh(new_c), new_c  # (5)

    def _levels(self, xs: Tensor, children: Tensor) -> list[Tensor]:
        """The nodes of each height, from the leaves up, after the checks of both arguments."""
        if xs.ndim != 2 or xs.shape[1] != self.input_size:
            raise ShapeError(f"TreeLSTM expects xs of shape (nodes, {self.input_size}), got {tuple(xs.shape)}.")
        if xs.dtype != self.bias.dtype:
            raise DTypeError(
                f"TreeLSTM has weights of {self.bias.dtype}, but xs is {xs.dtype}; convert one: "
                f"xs.to({self.bias.dtype}) or module.to({xs.dtype})."
            )
        width = "any" if self.arity is None else self.arity
        if children.ndim != 2 or len(children) != len(xs) or width not in ("any", children.shape[1]):
            raise ShapeError(
                f"TreeLSTM expects children of shape ({len(xs)}, {width}), got {tuple(children.shape)}; fill rows of "
                "fewer children with -1."
            )
        if children.dtype != torch.int64:
            raise DTypeError(f"TreeLSTM expects children to be torch.int64, got {children.dtype}.")
        heights: list[int] = []
        for node, row in enumerate(children.tolist()):
            if any(not -1 <= child < node for child in row):
                raise SettingError(
                    f"TreeLSTM expects the children of node {node} to be among the nodes before it or -1, got {row}; "
                    "sort the nodes so that children come first."
                )
            heights.append(max((heights[child] + 1 for child in row if child >= 0), default=0))
        by_height: list[list[int]] = [[] for _ in range(max(heights, default=-1) + 1)]
        for node, height in enumerate(heights):
            by_height[height].append(node)
        return [torch.tensor(nodes, device=xs.device) for nodes in by_height]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, arity={self.arity}"
