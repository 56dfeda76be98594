"""An optimiser inside another: something is done before or after its steps, and all else is its own.

``Projected`` moves the weights back into a set after a step; ``PathSGD`` and ``PathAdam`` divide gradients before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

__all__ = ["WrappedOptimizer"]


class WrappedOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` around another one; schedulers, gradient scalers, hooks and checkpoints accept it.

    A subclass overrides ``step``, and ``state_dict`` and ``load_state_dict`` if it has state of its own.

    Args:
        optimizer: the one inside. It owns parameter groups, state, defaults and hooks.

    Example:
        >>> import torch
        >>> inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
        >>> WrappedOptimizer(inner).param_groups is inner.param_groups
        True
    """

    def __init__(self, optimizer: Optimizer):
        # Optimizer.__init__ is not called: all that it would set up belongs to the one inside, see __getattr__.
        self.optimizer = optimizer

    # load_state_dict of the one inside puts new lists in place of these, so they are looked up each time.
    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not there yet, while unpickling
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One update. ``closure`` reevaluates the model and returns the loss, as everywhere in ``torch.optim``."""
        return self.optimizer.step() if closure is None else self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)
