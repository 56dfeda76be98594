"""The feed-forward pieces of a network, as carriers of paths.

    y = W̃ x + b̃ · 1,  W̃ = W ⊙ W                  (1) what flows out of a piece of the squared network
    ∂γ²/∂x = W̃ᵀ ∂γ²/∂y                            (2) and back into it
    κ⁽¹⁾(W) = (∂γ²/∂y) xᵀ,  κ⁽¹⁾(b) = ∂γ²/∂y · 1   (3) S2, (14), (17): paths to the edge times paths from it

The 1 is the node of the biases (S2, footnote 1). Where many steps share a piece, the flows are summed over them first:
all is linear, and the node of the biases then counts the steps. Embeddings are (1) on one-hot inputs. An edge without a
parameter, as in pooling, has a fixed weight. Source: S2, §4.1, Theorem 3. Symbols: docs/notation.md.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import SettingError

__all__ = ["Convolution", "Dense", "Fixed", "Lookup", "Piece", "Squares", "compact", "outer"]


class Squares(dict[Tensor, Tensor]):
    """p ↦ p ⊙ p in ``dtype``, float64 unless float32 is asked for, each computed once.

    Example:
        >>> square = Squares()[torch.tensor([3.0], dtype=torch.float32)]
        >>> square.tolist(), square.dtype
        ([9.0], torch.float64)
    """

    def __init__(self, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.dtype = dtype

    def __missing__(self, weight: Tensor) -> Tensor:
        value = weight.to(self.dtype)
        ours = value is not weight and not value.requires_grad
        value = self[weight] = value.square_() if ours else value.square()
        return value


def compact(tensor: Tensor) -> Tensor:
    """The tensor with every expanded dimension cut to size 1.

    Example:
        >>> compact(torch.ones(1, 3).expand(1000, 3)).shape
        torch.Size([1, 3])
    """
    strides = tensor.stride()
    if 0 in strides:
        for dim, stride in enumerate(strides):
            if stride == 0:
                tensor = tensor.narrow(dim, 0, 1)
    return tensor


def outer(left: Tensor, right: Tensor) -> Tensor:
    """The product left rightᵀ, expanded where an argument is expanded, so that a vocabulary's rows take no memory.

    Example:
        >>> compact(outer(torch.ones(1).expand(1000), torch.arange(3.0))).shape
        torch.Size([1, 3])
    """
    return (compact(left)[:, None] * compact(right)[None, :]).expand(len(left), len(right))


class Piece(abc.ABC):
    """One feed-forward piece: (1), (2) and (3), for flows of one sample, (features) or (channels, ...).

    Example:
        >>> issubclass(Dense, Piece), Dense(torch.ones(4, 3)).units
        (True, 4)
    """

    @property
    @abc.abstractmethod
    def tensors(self) -> tuple[Tensor | None, Tensor | None]:
        """Its weight and its bias."""

    @property
    @abc.abstractmethod
    def units(self) -> int | None:
        """How many output units can be rescaled independently; None if it only passes units on."""

    @abc.abstractmethod
    def forward(self, x: Tensor, one: float, squares: Squares) -> Tensor:
        """(1), with ``one`` in the node of the biases."""

    @abc.abstractmethod
    def output_shape(self, x: Tensor) -> tuple[int, ...]:
        """The shape of y."""

    @abc.abstractmethod
    def backward(self, x: Tensor, g: Tensor, squares: Squares) -> Tensor:
        """(2), for ∂γ²/∂y = ``g``."""

    @abc.abstractmethod
    def kappa(self, x: Tensor, g: Tensor, squares: Squares) -> tuple[Tensor | None, Tensor | None]:
        """(3), of the weight and, for 1 in the node of the biases, of the bias."""

    def factors(self, before: Tensor, after: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The factors of weight and bias if the units before and after are rescaled: S2 Theorem 1."""
        return None, None

    def input_shape(self) -> tuple[int, ...]:
        """The shape of its input, if its weights determine it."""
        raise SettingError(
            f"{type(self).__name__} does not say how large its input is; give it: "
            "path_network(model, input_shape=(channels, height, width))."
        )


@dataclass(frozen=True, eq=False)
class Dense(Piece):
    """y = W x + b, as ``nn.Linear``: weight (out, in), bias (out) or None.

    Example:
        >>> Dense(torch.tensor([[1.0, 2.0]])).forward(torch.ones(2, dtype=torch.float64), 1.0, Squares()).tolist()
        [5.0]
    """

    weight: Tensor
    bias: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, self.bias

    @property
    def units(self) -> int:
        return len(self.weight)

    def forward(self, x: Tensor, one: float, squares: Squares) -> Tensor:
        y = squares[self.weight] @ x  # (1)
        return y if self.bias is None else y + one * squares[self.bias]

    def output_shape(self, x: Tensor) -> tuple[int, ...]:
        return (len(self.weight),)

    def backward(self, x: Tensor, g: Tensor, squares: Squares) -> Tensor:
        return g @ squares[self.weight]  # (2)

    def kappa(self, x: Tensor, g: Tensor, squares: Squares) -> tuple[Tensor, Tensor | None]:
        return outer(g, x), None if self.bias is None else g  # (3)

    def factors(self, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        before = before.repeat_interleave(self.weight.shape[1] // len(before))  # a flattened channel is many inputs
        return after[:, None] / before[None, :], after

    def input_shape(self) -> tuple[int, ...]:
        return (self.weight.shape[1],)


@dataclass(frozen=True, eq=False)
class Lookup(Piece):
    """y = Eᵀ x for one-hot x, as ``nn.Embedding``: weight (words, features).

    Example:
        >>> Lookup(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).forward(torch.ones(2), 1.0, Squares()).tolist()
        [10.0, 20.0]
    """

    weight: Tensor

    @property
    def tensors(self) -> tuple[Tensor, None]:
        return self.weight, None

    @property
    def units(self) -> int:
        return self.weight.shape[1]

    def forward(self, x: Tensor, one: float, squares: Squares) -> Tensor:
        return squares[self.weight].sum(0)  # (1) with x = 1

    def output_shape(self, x: Tensor) -> tuple[int, ...]:
        return (self.weight.shape[1],)

    def backward(self, x: Tensor, g: Tensor, squares: Squares) -> Tensor:
        return squares[self.weight] @ g

    def kappa(self, x: Tensor, g: Tensor, squares: Squares) -> tuple[Tensor, None]:
        return outer(x, g), None

    def factors(self, before: Tensor, after: Tensor) -> tuple[Tensor, None]:
        return after[None, :], None

    def input_shape(self) -> tuple[int, ...]:
        return (self.weight.shape[0],)


@dataclass(frozen=True, eq=False)
class Convolution(Piece):
    """A convolution of ``nn.Conv1d``, ``Conv2d`` or ``Conv3d``; its weights are shared, but no path uses one twice.

    Example:
        >>> piece = Convolution(torch.full((1, 1, 3), 2.0), None, torch.nn.functional.conv1d, {"stride": 1})
        >>> piece.forward(torch.ones(1, 5, dtype=torch.float64), 1.0, Squares()).tolist()
        [[12.0, 12.0, 12.0]]
    """

    weight: Tensor
    bias: Tensor | None
    convolve: Callable[..., Tensor]
    settings: dict[str, Any]

    @property
    def tensors(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, self.bias

    @property
    def units(self) -> int:
        return len(self.weight)

    def forward(self, x: Tensor, one: float, squares: Squares) -> Tensor:
        bias = None if self.bias is None else one * squares[self.bias]
        return self._apply(x, squares[self.weight], bias)

    def output_shape(self, x: Tensor) -> tuple[int, ...]:
        return self._apply(x, torch.zeros_like(self.weight, dtype=x.dtype), None).shape

    def backward(self, x: Tensor, g: Tensor, squares: Squares) -> Tensor:
        return _pull_back(lambda x: self._apply(x, squares[self.weight], None), x, g)

    def kappa(self, x: Tensor, g: Tensor, squares: Squares) -> tuple[Tensor, Tensor | None]:
        weight = _pull_back(lambda w: self._apply(x, w, None), squares[self.weight], g)
        return weight, None if self.bias is None else g.flatten(1).sum(1)

    def _apply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.convolve(x[None], weight, bias, **self.settings)[0]

    def factors(self, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        groups = self.settings.get("groups", 1)
        space = (1,) * (self.weight.dim() - 2)
        before = before.repeat_interleave(groups * self.weight.shape[1] // len(before))
        inputs = before.reshape(groups, 1, -1).expand(groups, len(after) // groups, -1)
        return (after[:, None] / inputs.reshape(len(after), -1)).reshape(len(after), -1, *space), after


@dataclass(frozen=True, eq=False)
class Fixed(Piece):
    """Edges without parameters: pooling and flattening, a linear map of flows.

    Example:
        >>> Fixed(torch.flatten).forward(torch.ones(2, 3), 1.0, Squares()).shape
        torch.Size([6])
    """

    function: Callable[[Tensor], Tensor]

    @property
    def tensors(self) -> tuple[None, None]:
        return None, None

    @property
    def units(self) -> None:
        return None

    def forward(self, x: Tensor, one: float, squares: Squares) -> Tensor:
        return self.function(x)

    def output_shape(self, x: Tensor) -> tuple[int, ...]:
        return self.function(x).shape

    def backward(self, x: Tensor, g: Tensor, squares: Squares) -> Tensor:
        return _pull_back(self.function, x, g)

    def kappa(self, x: Tensor, g: Tensor, squares: Squares) -> tuple[None, None]:
        return None, None


def _pull_back(function: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> Tensor:
    """The gradient of ⟨function(x), g⟩."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x, g)[0]
