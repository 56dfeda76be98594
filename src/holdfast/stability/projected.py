"""Projected gradient descent, with any optimiser: step, then back into the set.

    w ← Π_Ω(w - α_t ∇p(w))                                                       (1) S4 Proposition 2

Π may come after every step or after every n-th; (1), and what is proved of it, is n = 1. The wrapper is an
``Optimizer``: schedulers, gradient scalers and checkpoints take it as they take the one inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from holdfast.errors import DTypeError, SettingError, StateDictError
from holdfast.stability.project import project_

__all__ = ["Projected"]


class Projected(Optimizer):
    """An optimiser whose steps end in a stable set. The model is projected at once, so that training starts there.

    Law: after each ``every``-th step the projection has been applied, whatever the optimiser did.

    Args:
        optimizer: any ``torch.optim.Optimizer``.
        onto: a model for ``project_``, or any function without arguments that projects in place.
        every: n.
        settings: for ``project_``: ``rate`` or ``region``, ``method``, ``input_bound``, ``forget``.

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.stability import contraction_rate
        >>> layer = RNN(3, 4)
        >>> optimiser = Projected(torch.optim.SGD(layer.parameters(), lr=10.0), layer, rate=0.9)
        >>> layer(torch.randn(7, 2, 3))[0].square().sum().backward()
        >>> optimiser.step()
        >>> contraction_rate(layer) <= 0.9
        True
    """

    def __init__(self, optimizer: Optimizer, onto: Any, *, every: int = 1, **settings: Any):
        if not isinstance(optimizer, Optimizer):
            raise DTypeError(f"Projected expects a torch.optim.Optimizer, got {type(optimizer).__name__}.")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise SettingError(f"Projected expects every to be a whole number of at least 1, got {every!r}.")
        if not isinstance(onto, torch.nn.Module) and (not callable(onto) or settings):
            raise SettingError(
                "Projected expects a model and settings of project_, or a function without arguments and no settings; "
                f"got {type(onto).__name__} and {sorted(settings)}."
            )
        # Optimizer.__init__ is not called: all that it would set up is the inner optimiser's, see __getattr__.
        self.optimizer, self.onto, self.settings, self.every, self.steps = optimizer, onto, settings, every, 0
        self.project()

    # The inner optimiser may put new lists in place of these (load_state_dict does), so they are looked up each time.
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
        return f"Projected(every={self.every}, {self.optimizer!r})"

    def project(self) -> None:
        """Into the set, now."""
        if isinstance(self.onto, torch.nn.Module):
            project_(self.onto, **self.settings)
        else:
            self.onto()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the optimiser inside, then, if it is due, the projection."""
        loss = self.optimizer.step(closure) if closure is not None else self.optimizer.step()
        self.steps += 1
        if self.steps % self.every == 0:
            self.project()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """That of the optimiser inside, and the steps done."""
        return self.optimizer.state_dict() | {"projected_steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also of an optimiser that was not wrapped; its steps count from here."""
        if "param_groups" not in state_dict:
            raise StateDictError("Projected cannot load this state_dict: it has no param_groups. Nothing was changed.")
        inner = {key: value for key, value in state_dict.items() if key != "projected_steps"}
        self.optimizer.load_state_dict(inner)
        self.steps = state_dict.get("projected_steps", 0)
