"""The base of all cells: an equation in three parts, without anything about time or speed."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import DeviceError, DTypeError, ShapeError, StateDictError, positive_size
from holdfast.types import State, Weights

__all__ = ["Cell", "CheckedLoad"]


class CheckedLoad(nn.Module):
    """A module that checks a ``state_dict`` before it loads any of it, so that a wrong one changes nothing.

    ``load_state_dict`` checks names (if ``strict``) and shapes. Inside a module of another library the shapes are still
    checked first. Wrong names alone are then reported by PyTorch, which loads what fits and raises if ``strict``: it
    does not pass ``strict`` on to the parts of a module.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_check_as_part)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        _check_state_dict(self, state_dict, "", strict)
        return super().load_state_dict(state_dict, strict, assign)


def _check_as_part(module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
    _check_state_dict(module, state_dict, prefix, strict=False)


def _check_state_dict(module: nn.Module, state_dict: Mapping[str, Any], prefix: str, strict: bool) -> None:
    own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {
        key[len(prefix) :]: tuple(value.shape) if isinstance(value, Tensor) else None
        for key, value in state_dict.items()
        if key.startswith(prefix)
    }
    named = {"missing:": own.keys() - found.keys(), "not known:": found.keys() - own.keys()}
    names = [f"{word} {', '.join(sorted(keys))}" for word, keys in named.items() if keys]
    shapes = [
        f"{name} is {found[name]} instead of {own[name]}" for name in own if found.get(name, own[name]) != own[name]
    ]
    if shapes or (names and strict):
        raise StateDictError(
            f"{type(module).__name__} cannot load this state_dict: {'; '.join(names + shapes)}. Nothing in it was "
            "changed. Build the same layer with the same sizes first, or use holdfast.from_torch for a torch.nn layer."
        )


class Cell(CheckedLoad, abc.ABC):
    """One step of a recurrence. A new cell sets its two sizes and fills in ``drive``, ``weights`` and ``step``.

    ``scan`` runs a cell over time and ``Recurrent`` makes a layer of it; both need only these three. The state
    is a tuple of tensors of shape (batch, size), its first entry the output. ``step`` is a pure function: all that it
    reads comes through its arguments, so that a scan can be compiled.

    Example:
        >>> class LeakyCell(Cell):
        ...     def __init__(self, input_size, hidden_size):
        ...         super().__init__(input_size, hidden_size)
        ...         self.weight_ih = nn.Parameter(torch.randn(hidden_size, input_size))
        ...         self.leak = nn.Parameter(torch.tensor(0.9))
        ...     def drive(self, x):
        ...         return x @ self.weight_ih.mT
        ...     def weights(self):
        ...         return (self.leak,)
        ...     def step(self, drive, state, weights):
        ...         (h,), (leak,) = state, weights
        ...         return (leak * h + torch.tanh(drive),)
        >>> cell = LeakyCell(3, 5)
        >>> cell(torch.zeros(2, 3), cell.initial_state(2)).shape
        torch.Size([2, 5])
    """

    input_size: int
    hidden_size: int

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__()
        self.input_size = positive_size(type(self).__name__, "input_size", input_size)
        self.hidden_size = positive_size(type(self).__name__, "hidden_size", hidden_size)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Features of each entry of the state; the first is the output's."""
        return (self.hidden_size,)

    @abc.abstractmethod
    def drive(self, x: Tensor) -> Tensor:
        """The part of a step that needs the input alone, (..., input) to (..., drive), for all steps in one product."""

    @abc.abstractmethod
    def weights(self) -> Weights:
        """What a step reads besides its input and state: constrained weights, built once per sequence."""

    @abc.abstractmethod
    def step(self, drive: Tensor, state: State, weights: Weights) -> State:
        """The paper's lines: a pure function of its arguments."""

    def initial_state(self, batch: int) -> State:
        """Zeros: one tensor (batch, size) per entry of the state."""
        like = self.example_weight()
        return tuple(torch.zeros(batch, size, dtype=like.dtype, device=like.device) for size in self.state_sizes)

    def forward(self, x: Tensor, state: Tensor | State | None = None) -> Tensor | State:
        """One step, as in ``torch.nn.RNNCell``: a tensor for a state of one entry, else a tuple."""
        self.check_input(x, ("batch", "input_size"))
        state = self.initial_state(x.shape[0]) if state is None else (state,) if isinstance(state, Tensor) else state
        self.check_state(state, x.shape[0])
        new_state = self.step(self.drive(x), tuple(state), self.weights())
        return new_state[0] if len(new_state) == 1 else new_state

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"

    # -- checks, shared by forward, scan and the layers ------------------------------------------------------------

    def example_weight(self) -> Tensor:
        """Any weight: the cell computes in its number type and on its device."""
        for own in self._parameters.values():  # the first that parameters() yields, without its walk
            if own is not None and own.is_floating_point():
                return own
        for tensor in itertools.chain(self.parameters(), self.buffers()):
            if tensor.is_floating_point():
                return tensor
        return torch.empty(0)

    def check_input(self, x: Tensor, dims: tuple[str, ...], who: str | None = None) -> None:
        """Raise unless ``x`` has these dimensions, the last of ``input_size``, and the weights' type and device."""
        who = who or type(self).__name__
        if not isinstance(x, Tensor):
            raise DTypeError(f"{who} expects x to be a tensor, got {type(x).__name__}.")
        if x.dim() != len(dims) or x.shape[-1] != self.input_size:
            expected = ", ".join((*dims[:-1], str(self.input_size)))
            raise ShapeError(f"{who} expects x of shape ({expected}), got {tuple(x.shape)}.")
        self._check_kind(x, "x", who)

    def check_state(self, state: State, batch: int, who: str | None = None) -> None:
        """Raise unless ``state`` has one (batch, size) tensor for each entry of ``state_sizes``."""
        who = who or type(self).__name__
        expected = tuple((batch, size) for size in self.state_sizes)
        if not isinstance(state, (tuple, list)) or not all(isinstance(entry, Tensor) for entry in state):
            raise DTypeError(f"{who} expects a state of {len(expected)} tensors, got {type(state).__name__}.")
        if tuple(tuple(entry.shape) for entry in state) != expected:
            shapes = ", ".join(str(tuple(entry.shape)) for entry in state)
            raise ShapeError(f"{who} expects a state of shapes {', '.join(map(str, expected))}, got {shapes}.")
        for entry in state:
            self._check_kind(entry, "the state", who)

    def _check_kind(self, tensor: Tensor, name: str, who: str) -> None:
        weight = self.example_weight()
        if tensor.dtype != weight.dtype:
            raise DTypeError(
                f"{who} has weights of {weight.dtype}, but {name} is {tensor.dtype}; "
                f"convert one: {name.split()[-1]}.to({weight.dtype}) or module.to({tensor.dtype})."
            )
        if tensor.device != weight.device:
            raise DeviceError(
                f"{who} has weights on {weight.device}, but {name} is on {tensor.device}; move one with .to(device)."
            )
