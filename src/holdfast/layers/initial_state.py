"""The start of a layer if no ``h_0`` is given: zero, a learned state, or random.

    h_0 ~ N(0, σ² I), drawn for every sequence in training; zero in evaluation   (random)

Random starts regularise the slope of the output in h_0. Source: S5, §4, Theorem 3. Symbols: docs/notation.md.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn

from holdfast.errors import SettingError
from holdfast.types import State

__all__ = ["InitialState", "RandomStart"]


@dataclasses.dataclass(frozen=True)
class RandomStart:
    """Start from Gaussian noise of standard deviation ``std`` in training, from zero in evaluation.

    Example:
        >>> from holdfast import RNN
        >>> layer = RNN(3, 5, initial_state=RandomStart(std=0.1))
        >>> xs = torch.zeros(7, 2, 3)
        >>> torch.equal(layer(xs)[0], layer(xs)[0]), torch.equal(layer.eval()(xs)[0], layer(xs)[0])
        (False, True)

    References:
        Wang, Balestriero & Baraniuk (2019), A max-affine spline perspective of recurrent neural networks.
    """

    std: float

    def __post_init__(self) -> None:
        if not (isinstance(self.std, int | float) and 0 <= self.std < math.inf):
            raise SettingError(f"RandomStart expects a finite std of at least 0, got {self.std!r}.")


class InitialState(nn.Module):
    """The first state of every cell of a layer: one (rows, size) block for each entry of the state.

    Args:
        rows: layers times directions.
        sizes: features of each entry of the state.
        kind: "zeros", "learned" or ``RandomStart(std)``.

    Example:
        >>> (h,) = InitialState(2, (5,), "learned")(batch=3, like=torch.empty(0))
        >>> h.shape
        torch.Size([2, 3, 5])
    """

    def __init__(self, rows: int, sizes: tuple[int, ...], kind: str | RandomStart):
        super().__init__()
        if kind not in ("zeros", "learned") and not isinstance(kind, RandomStart):
            raise SettingError(
                f'initial_state is expected to be "zeros", "learned" or holdfast.RandomStart(std), got {kind!r}.'
            )
        self.rows, self.sizes, self.kind = rows, sizes, kind
        learned = [nn.Parameter(torch.zeros(rows, size)) for size in sizes] if kind == "learned" else []
        self.values = nn.ParameterList(learned)

    def reset_parameters(self) -> None:
        for value in self.values:
            nn.init.zeros_(value)

    def forward(self, batch: int, like: Tensor, *, noise: bool = True) -> State:  # entries (rows, batch, size)
        """The first states; ``noise=False`` is a random start in evaluation."""
        if self.kind == "learned":
            return tuple(value.unsqueeze(1).expand(-1, batch, -1) for value in self.values)
        shapes = [(self.rows, batch, size) for size in self.sizes]
        if isinstance(self.kind, RandomStart) and self.training and noise:
            return tuple(self.kind.std * torch.randn(s, dtype=like.dtype, device=like.device) for s in shapes)
        return tuple(torch.zeros(s, dtype=like.dtype, device=like.device) for s in shapes)

    def extra_repr(self) -> str:
        return repr(self.kind)
