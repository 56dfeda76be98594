"""Scoring candidates: α of every vector that was made, once.

A candidate's score does not change after it is made. For ``TwoLayerScorer`` on the CPU there is a compiled loop
(holdfast.engine.kernels.scores), which scores a base and its flip in one pass.

Source: S1, Algorithm 1. Symbols: docs/notation.md.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from holdfast.rrnn.making import Affine, Layout
from holdfast.rrnn.scorer import TwoLayerScorer

__all__ = ["Scoring"]


class Scoring:
    """α for one search.

    Args:
        scorer: α, from (..., p) to (...).
        layout: which bases and flips the activations are.
        like: any tensor of the search.
    """

    def __init__(self, scorer: nn.Module, layout: Layout, like: Tensor):
        self.scorer, self.layout, self.compiled = scorer, layout, None
        try:
            from holdfast.engine.kernels.scores import CompiledScores
        except ImportError:  # the compiler is not installed
            return
        if isinstance(scorer, TwoLayerScorer) and CompiledScores.takes(scorer.weight, like):
            self.compiled = CompiledScores(*(weight.detach() for weight in scorer.parts))

    def __call__(self, made: Tensor, affine: Affine | None, out: np.ndarray) -> None:
        """Score ``made``, (operators, bases, pairs, tuples, batch, p), normalised by ``affine``.

        Args:
            out: (batch, pairs, tuples, operators, activations), filled.
        """
        if self.compiled is not None:
            scorer = self.compiled if affine is None else self.compiled.folded(*affine)
            bases = len(self.layout.bases)
            scores = scorer(made.flatten(0, 1).flatten(1, 3)).reshape(2, -1, bases, *made.shape[2:5])
            base, flipped = map(list, zip(*self.layout.scored, strict=True))
            chosen = scores[list(map(int, flipped)), :, base]  # (activations, operators, pairs, tuples, batch)
            out[:] = chosen.transpose(4, 2, 3, 1, 0)
            return
        for o in range(len(made)):
            for u, (base, flipped) in enumerate(self.layout.scored):
                v = made[o, base]
                v = 1 - v if flipped else v
                v = v if affine is None else v * affine[0] + affine[1]
                out[:, :, :, o, u] = self.scorer(v).reshape(v.shape[:-1]).cpu().numpy().transpose(2, 0, 1)
