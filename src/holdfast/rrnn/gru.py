"""RRNN-GRU: the tree is the GRU's, and only the tuple at each node is chosen.

    r  = σ[x, h],  z = σ[x, h],  r̃ = id[h ⊙ r],  z̄ = (1 - ·)[0, z],                                    (1)
    h̃  = tanh[x, r̃],  a = id[h ⊙ z],  b = id[z̄ ⊙ h̃],  h' = id[a, b]
    u[c, d] = Σ_r p_r v_r,   v_r = u(o(L_r c, R_r d) + b_r),   p = softmax(α(v_1) .. α(v_n))            (2)

The operator is + where none is written. (2) is the soft choice, which trains the scorer through the task's loss. With a
hard choice u[c, d] is the v_r with the highest score.

Note [r and z]. Both have the same children, operator and activation, so the same candidates and the same scores. In
Algorithm 1 they differ because nodes in the pool are excluded. Here too: the tuple of r, the one with the highest
score, is excluded for z.

Weights and scorer are trained in turn for ``alternate`` epochs each, weights first; the layers after it are always
trained. ``at_epoch`` switches, and a training loop calls it.

Source: S1, §5 and Appendix E.1. Symbols: docs/notation.md.
"""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from holdfast.errors import SettingError, one_of, positive_size
from holdfast.layers.named import LayerSettings
from holdfast.rrnn.cell import TreeCell, Tuples
from holdfast.rrnn.layer import TreeLayer
from holdfast.rrnn.loss import TreeLoss
from holdfast.rrnn.record import Grown
from holdfast.rrnn.scorer import TwoLayerScorer
from holdfast.rrnn.sets import ACTIVATIONS, OPERATORS, Sets
from holdfast.rrnn.tree import Matrices
from holdfast.types import Hidden, State, Weights

__all__ = ["RRNNGRU", "RRNNGRUCell"]

# (left, right, operator, activation) in the pool x, h, 0, r, z, r̃, z̄, h̃, a, b, h': (1)
_NODES = (
    (0, 1, "add", "sigmoid"),
    (0, 1, "add", "sigmoid"),
    (1, 3, "mul", "identity"),
    (2, 4, "add", "one_minus"),
    (0, 5, "add", "tanh"),
    (1, 4, "mul", "identity"),
    (6, 7, "mul", "identity"),
    (8, 9, "add", "identity"),
)


class RRNNGRUCell(TreeCell):
    """One step of an RRNN-GRU.

    Args:
        input_size, hidden_size: features of ``x`` and of ``h``.
        tuples, identity: as in ``Sets``.
        scorer: hidden units of α, or a module from (..., p) to (...).
        choice: "soft", as in the paper, or "hard".
        alternate: epochs per phase; None trains weights and scorer together.
        loss: the parts of loss (6) that ``RRNNGRU.penalty`` adds up.

    Example:
        >>> cell = RRNNGRUCell(4, 4)
        >>> cell(torch.randn(2, 4), cell.initial_state(2)).shape
        torch.Size([2, 4])

    References:
        Qian, Kennedy, Klabjan: Dynamic cell structure via recursive-recurrent neural networks.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        tuples: int = 4,
        identity: bool = True,
        scorer: int | nn.Module = 64,
        choice: Literal["soft", "hard"] = "soft",
        alternate: int | None = None,
        loss: TreeLoss | None = None,
    ):
        super().__init__(input_size, hidden_size, loss)
        one_of("RRNNGRUCell", "choice", choice, ("soft", "hard"))
        if tuples < 2:
            raise SettingError(f"RRNNGRUCell expects at least 2 tuples, one for r and another for z, got {tuples}.")
        self.choice = choice
        self.alternate = None if alternate is None else positive_size("RRNNGRUCell", "alternate", alternate)
        self.sets = (Sets(tuples, identity),)
        self.tuples = Tuples(hidden_size, tuples, identity=identity)
        self.scorer = scorer if isinstance(scorer, nn.Module) else TwoLayerScorer(hidden_size, scorer)

    @property
    def leaf_names(self) -> tuple[tuple[str | int, ...], ...]:
        return (("x", "h", "0"),)

    def phase(self, epoch: int) -> Literal["both", "weights", "scorer"]:
        """What is trained in this epoch, counted from 0.

        Example:
            >>> [RRNNGRUCell(4, 4, alternate=2).phase(epoch) for epoch in range(5)]
            ['weights', 'weights', 'scorer', 'scorer', 'weights']
        """
        if self.alternate is None:
            return "both"
        return "scorer" if epoch // self.alternate % 2 else "weights"

    def at_epoch(self, epoch: int) -> None:
        """Enable gradients for what this epoch's phase trains, and disable the others."""
        phase = self.phase(epoch)
        self.scorer.requires_grad_(phase != "weights")
        self.tuples.requires_grad_(phase != "scorer")
        self.input_map.requires_grad_(phase != "scorer")

    def weights(self) -> Weights:
        matrices = self.tuples()
        return matrices.flat_left, matrices.flat_right, matrices.bias

    def step(self, drive: Hidden, state: State, weights: Weights) -> State:
        return (self._nodes(drive, state, weights)[0][-1],)

    def grown_step(
        self, drive: Hidden, state: State, weights: Weights, *, scores: bool = False
    ) -> tuple[State, tuple[Grown, ...]]:
        pool, chosen, found = self._nodes(drive, state, weights)
        best, second = torch.stack([it.topk(2, dim=1).values for it in found]).unbind(dim=2) if scores else (None, None)
        nodes, sets = torch.stack(pool), self.sets[0]
        fixed = torch.tensor(
            [
                (left, right, 0, sets.operators.index(operator), sets.activations.index(activation))
                for left, right, operator, activation in _NODES
            ],
            device=nodes.device,
        )
        choices = fixed[:, None].repeat(1, nodes.shape[1], 1)
        choices[..., 2] = torch.stack(chosen)
        return (pool[-1],), (Grown(nodes[:3], choices, nodes[3:], best, second),)

    def _nodes(self, drive: Hidden, state: State, weights: Weights) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """(1): leaves and nodes; and for every node the tuple with the highest score, and all scores."""
        (h,), (flat_left, flat_right, bias) = state, weights
        size, pool, lefts, rights = self.hidden_size, [drive, h, torch.zeros_like(h)], {}, {}
        chosen, found = [], []
        for k, (left, right, operator, activation) in enumerate(_NODES):
            if left not in lefts:
                lefts[left] = (pool[left] @ flat_left).unflatten(1, (-1, size))  # (batch, tuples, p)
            if right not in rights:
                rights[right] = (pool[right] @ flat_right).unflatten(1, (-1, size))
            v = ACTIVATIONS[activation].apply(OPERATORS[operator].apply(lefts[left], rights[right]) + bias)
            scores = self.scorer(v).reshape(v.shape[:-1])  # (batch, tuples)
            if k == 1:  # see Note [r and z]
                scores = scores.scatter(1, chosen[0][:, None], -torch.inf)
            index = scores.argmax(dim=1)
            if self.choice == "soft":
                node = (torch.softmax(scores, dim=1).unsqueeze(1) @ v).squeeze(1)  # (2)
            else:
                node = v[torch.arange(len(v), device=v.device), index]
            pool.append(node)
            chosen.append(index)
            found.append(scores)
        return pool, chosen, found

    def matrices(self) -> Matrices:
        """The tuples, the identity among them."""
        return self.tuples()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, choice={self.choice!r}, alternate={self.alternate}"


class _RRNNGRUSettings(LayerSettings, total=False):
    tuples: int
    identity: bool
    scorer: int | nn.Module
    choice: Literal["soft", "hard"]
    alternate: int | None
    loss: TreeLoss | None


class RRNNGRU(TreeLayer):
    """Layers of an RRNN-GRU. Arguments: those of ``Recurrent``, then those of ``RRNNGRUCell``.

    Example:
        >>> layer = RRNNGRU(4, 4, tuples=4, scorer=10, alternate=5)
        >>> output, h_n = layer(torch.zeros(7, 2, 4))
        >>> output.shape, h_n.shape
        (torch.Size([7, 2, 4]), torch.Size([1, 2, 4]))
    """

    cell_type = RRNNGRUCell

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **settings: Unpack[_RRNNGRUSettings]):
        super().__init__(input_size, hidden_size, num_layers, **settings)

    def at_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0: see ``RRNNGRUCell.phase``.

        Example:
            >>> layer = RRNNGRU(4, 4, alternate=1)
            >>> layer.at_epoch(1)
            >>> [name for name, weight in layer.named_parameters() if weight.requires_grad][0]
            'l0.scorer.weight'
        """
        for cell in self.cells:
            cell.at_epoch(epoch)  # type: ignore[attr-defined]
