"""Projected gradient descent, with any optimiser: step, then project.

    w ← Π_Ω(w - α_t ∇p(w))                                                       (1) S4 Proposition 2

Π may come after every step or after every n-th; (1), and what is proved about it, is n = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from holdfast.constraints.optimiser import WrappedOptimizer
from holdfast.errors import DTypeError, SettingError, StateDictError, positive_size
from holdfast.stability.project import project_

__all__ = ["Projected"]


class Projected(WrappedOptimizer):
    """An optimiser whose steps end in a stable set. Building it projects the model, so that training starts there.

    Law: after each ``every``-th step the projection has been applied, for any optimiser.

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

    References:
        Miller & Hardt (2019), Stable recurrent models.
    """

    def __init__(self, optimizer: Optimizer, onto: Any, *, every: int = 1, **settings: Any):
        if not isinstance(optimizer, Optimizer):
            raise DTypeError(f"Projected expects a torch.optim.Optimizer, got {type(optimizer).__name__}.")
        if not isinstance(onto, torch.nn.Module) and (not callable(onto) or settings):
            raise SettingError(
                "Projected expects a model with settings of project_, or a function without arguments and no settings; "
                f"got {type(onto).__name__} and {sorted(settings)}."
            )
        super().__init__(optimizer)
        self.onto, self.settings, self.every, self.steps = onto, settings, positive_size("Projected", "every", every), 0
        self.project()

    def __repr__(self) -> str:
        return f"Projected(every={self.every}, {self.optimizer!r})"

    def project(self) -> None:
        """Project now."""
        if isinstance(self.onto, torch.nn.Module):
            project_(self.onto, **self.settings)
        else:
            self.onto()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of the optimiser inside and then, if it is due, the projection."""
        loss = super().step(closure)
        self.steps += 1
        if self.steps % self.every == 0:
            self.project()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The ``state_dict`` of the optimiser inside, and the number of steps done."""
        return super().state_dict() | {"projected_steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load; the ``state_dict`` of an optimiser that was not wrapped is accepted too, with steps counted from 0."""
        if "param_groups" not in state_dict:
            raise StateDictError("Projected cannot load this state_dict: it has no param_groups. Nothing was changed.")
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "projected_steps"})
        self.steps = state_dict.get("projected_steps", 0)
