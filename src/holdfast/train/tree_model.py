"""The network for trees: embedding, Tree-LSTM, readout of the root.

    x_j = E[word] at a leaf, 0 at a node above        (1)
    h_1 .. h_n = TreeLSTM(x, children)                (2)
    z = W h_root + b                                  (3)

A batch holds its trees as tokens in post-order, so it looks like a batch of sentences: a token is a word, or ``node``,
which joins the two subtrees before it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.cells import CheckedLoad
from holdfast.errors import ShapeError
from holdfast.layers import TreeLSTM
from holdfast.types import State

__all__ = ["TreeModel", "binary_children"]


def binary_children(tokens: Tensor, lengths: Tensor, node: int) -> tuple[Tensor, Tensor]:
    """The forest of a batch: the children of every token of every tree, tree after tree, and the rows of the roots.

    Args:
        tokens: (time, batch), each column a binary tree in post-order and whatever follows its length.
        lengths: (batch,).
        node: the token that joins the two subtrees before it; every other one is a leaf.

    Returns:
        children (tokens of all trees, 2), -1 at leaves, and roots (batch,).

    Example:
        >>> binary_children(torch.tensor([[5], [7], [9]]), torch.tensor([3]), node=9)
        (tensor([[-1, -1],
                [-1, -1],
                [ 0, 1]]), tensor([2]))
    """
    children: list[tuple[int, int]] = []
    roots: list[int] = []
    for tree, (column, length) in enumerate(zip(tokens.T.tolist(), lengths.tolist(), strict=True)):
        waiting: list[int] = []
        for token in column[:length]:
            pair = (-1, -1)
            if token == node:
                if len(waiting) < 2:
                    waiting = []
                    break
                right, left = waiting.pop(), waiting.pop()
                pair = (left, right)
            waiting.append(len(children))
            children.append(pair)
        if len(waiting) != 1:
            raise ShapeError(
                f"A Tree-LSTM expects binary trees in post-order, but the tokens of sequence {tree} are none; load the "
                "data with trees = true."
            )
        roots += waiting
    return torch.tensor(children).reshape(-1, 2), torch.tensor(roots)


class TreeModel(CheckedLoad):
    """(1) to (3), called as ``SequenceModel`` is.

    Args:
        rnn: the layer.
        readout: from a root's state to the answer.
        embedding: of the tokens. The row of ``node`` is not read.
        node: the token that joins two subtrees.
        input_dropout, output_dropout: in training, on the words and on the root.

    Shape:
        tokens (time, batch), lengths (batch,) or None. Returns (batch, outputs) and ().

    Example:
        >>> model = TreeModel(TreeLSTM(3, 4), nn.Linear(4, 2), nn.Embedding(10, 3), node=9)
        >>> model(torch.tensor([[5, 1], [7, 2], [9, 9]]))[0].shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        rnn: TreeLSTM,
        readout: nn.Linear,
        embedding: nn.Embedding,
        node: int,
        *,
        input_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ):
        super().__init__()
        self.rnn, self.linear, self.embedding, self.node = rnn, readout, embedding, node
        self.input_dropout, self.output_dropout = nn.Dropout(input_dropout), nn.Dropout(output_dropout)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None, state: Any = None) -> tuple[Tensor, State]:
        steps, batch = inputs.shape
        lengths = torch.full((batch,), steps) if lengths is None else lengths.cpu()
        children, roots = binary_children(inputs.cpu(), lengths, self.node)
        tokens = inputs.T[(torch.arange(steps) < lengths[:, None]).to(inputs.device)]  # tree after tree
        words = self.embedding(tokens).masked_fill((tokens == self.node)[:, None], 0.0)  # (1)
        h, _ = self.rnn(self.input_dropout(words), children.to(inputs.device))  # (2)
        return self.linear(self.output_dropout(h[roots.to(inputs.device)])), ()  # (3)
