"""What every cell is: an equation in three parts, and nothing about time or speed."""

from __future__ import annotations

import abc
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import DeviceError, DTypeError, SettingError, ShapeError, StateDictError
from holdfast.types import Nonlinearity, State, Weights

__all__ = ["Cell", "check_state_dict", "identity", "nonlinearity_named", "positive_size"]


def identity(z: Tensor) -> Tensor:
    """Return z itself; a function with a name, so that a cell that holds it can be pickled."""
    return z


NONLINEARITIES: dict[str, Nonlinearity] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "leaky_relu": nn.functional.leaky_relu,
    "abs": torch.abs,
    "softplus": nn.functional.softplus,
    "gelu": nn.functional.gelu,
    "identity": identity,
}


class Cell(nn.Module, abc.ABC):
    """One step of a recurrence. A new cell sets its two sizes and fills in ``drive``, ``weights`` and ``step``.

    ``scan`` runs a cell over time, ``Recurrent`` makes a layer of it; neither needs more than these three. The state
    is a tuple of tensors of shape (batch, size), its first entry the output. ``step`` is a pure function: whatever
    it reads comes through its arguments, so that a scan may be compiled.

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
        self.register_load_state_dict_pre_hook(check_state_dict)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Features of each entry of the state; the first is the output's."""
        return (self.hidden_size,)

    @abc.abstractmethod
    def drive(self, x: Tensor) -> Tensor:
        """What a step needs of the input alone, (..., input) to (..., drive), for all steps in one product."""

    @abc.abstractmethod
    def weights(self) -> Weights:
        """What a step reads besides its input and state: constrained weights, built once a sequence."""

    @abc.abstractmethod
    def step(self, drive: Tensor, state: State, weights: Weights) -> State:
        """The paper's lines: a pure function of its arguments."""

    def initial_state(self, batch: int) -> State:
        """Zeros, one tensor (batch, size) an entry of the state."""
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
        for tensor in (*self.parameters(), *self.buffers()):
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


def positive_size(who: str, name: str, value: Any) -> int:
    """``value`` as an int, or an error: a size is a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(f"{who} expects {name} to be a whole number of at least 1, got {value!r}.")
    return value


def nonlinearity_named(who: str, phi: str | Nonlinearity) -> Nonlinearity:
    """The elementwise function of this name, or ``phi`` itself if it is callable."""
    if callable(phi):
        return phi
    if phi not in NONLINEARITIES:
        known = ", ".join(NONLINEARITIES)
        raise SettingError(f"{who} knows the nonlinearities {known}, or any callable; got {phi!r}.")
    return NONLINEARITIES[phi]


def check_state_dict(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before anything is loaded: refuse the ``state_dict`` of another layer, so that nothing is half-changed."""
    own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    came = {
        key[len(prefix) :]: tuple(value.shape) if isinstance(value, Tensor) else None
        for key, value in state_dict.items()
        if key.startswith(prefix)
    }
    missing, extra = own.keys() - came.keys(), came.keys() - own.keys()
    other_shape = [name for name in own.keys() & came.keys() if own[name] != came[name]]
    if not _strict_was_asked():
        missing = extra = set()
    if missing or extra or other_shape:
        parts = [
            f"{word} {', '.join(sorted(names))}"
            for word, names in (("missing:", missing), ("not known:", extra))
            if names
        ]
        parts += [f"{name} is {came[name]} instead of {own[name]}" for name in sorted(other_shape)]
        raise StateDictError(
            f"{type(module).__name__} cannot load this state_dict: {'; '.join(parts)}. Nothing in it was changed. "
            "Build the same layer with the same sizes first, or use holdfast.from_torch for a torch.nn layer."
        )


def _strict_was_asked() -> bool:
    """``strict`` of the ``load_state_dict`` call that is under way."""
    # Note [Strict]: torch hands every hook strict=True, whatever the caller asked, and looks at the real one only after
    # all is loaded, which is too late to change nothing. The caller's is a local variable of its load_state_dict.
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not nn.Module.load_state_dict.__code__:
        frame = frame.f_back
    return frame is None or bool(frame.f_locals["strict"])
