"""Optimisers by their names in settings; each takes the model, so that ours can read its structure.

Any of them can be projected: ``options = { project = { rate = 1.0 } }`` ends each step in the stable set (S4).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from holdfast.errors import SettingError
from holdfast.optim import PathAdam, PathSGD
from holdfast.rrnn import PhasedAdam
from holdfast.stability import Projected, Region, Truncated, project_

__all__ = ["OPTIMISERS", "build_optimiser"]

Factory = Callable[..., torch.optim.Optimizer]


def _factory(optimiser: Callable[..., torch.optim.Optimizer], *, reads_model: bool = False) -> Factory:
    def make(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
        more = (model,) if reads_model else ()
        return optimiser([weight for weight in model.parameters() if weight.requires_grad], *more, **options)

    make.__signature__ = inspect.signature(optimiser)  # type: ignore[attr-defined]
    make.__wrapped__ = optimiser  # type: ignore[attr-defined]
    return make


OPTIMISERS: dict[str, Factory] = {
    "sgd": _factory(torch.optim.SGD),
    "adam": _factory(torch.optim.Adam),
    "phased-adam": _factory(PhasedAdam),
    "adamw": _factory(torch.optim.AdamW),
    "rmsprop": _factory(torch.optim.RMSprop),
    "adagrad": _factory(torch.optim.Adagrad),
    "path-sgd": _factory(PathSGD, reads_model=True),
    "path-adam": _factory(PathAdam, reads_model=True),
}
"""By name, a factory ``(model, lr=..., **options) -> Optimizer``. A new one is one more entry."""


def build_optimiser(name: str, model: nn.Module, lr: float, options: dict[str, Any]) -> torch.optim.Optimizer:
    """The optimiser of these settings over a model's free weights.

    Args:
        name: one of ``OPTIMISERS``.
        model: whose weights; its recurrent layer, ``model.rnn``, is what ``project`` acts on.
        lr: the learning rate.
        options: the optimiser's own, and for any of them ``project``: a table of ``rate`` or ``region``, ``every``,
            ``method``, ``input_bound``, ``forget``, as ``holdfast.stability.Projected`` takes them.

    Example:
        >>> build_optimiser("rmsprop", nn.Linear(2, 1), 1e-2, {"alpha": 0.9}).defaults["alpha"]
        0.9
    """
    if name not in OPTIMISERS:
        raise SettingError(f"unknown optimiser {name!r}; known: {', '.join(sorted(OPTIMISERS))}.")
    options = dict(options)
    onto = options.pop("project", None)
    signature = inspect.signature(OPTIMISERS[name]).parameters
    known = sorted({*signature, "project"} - {"params", "model", "lr", "settings"})
    for option in options:
        if option not in known and "settings" not in signature:  # an optimiser with **settings checks them itself
            raise SettingError(f"{name} has no option {option!r}; known: {', '.join(known)}.")
    tuples = {
        key: tuple(value) if isinstance(value, list) else value for key, value in options.items()
    }  # TOML has lists
    try:
        made = OPTIMISERS[name](model, lr=lr, **tuples)
    except (TypeError, ValueError) as error:
        raise SettingError(f"{name} cannot be made with these options: {error}.") from error
    return made if onto is None else _projected(made, model, onto)


def _projected(optimiser: torch.optim.Optimizer, model: nn.Module, onto: Any) -> Projected:
    """The optimiser, its steps ended by a projection of the model's recurrent layer."""
    known = sorted(({*inspect.signature(project_).parameters} - {"model"}) | {"every"})
    if not isinstance(onto, dict) or not onto.keys() <= set(known):
        raise SettingError(f"project must be a table with some of {', '.join(known)}; got {onto!r}.")
    layer = getattr(model, "rnn", None)
    if layer is None:
        raise SettingError(f"project needs a model with a recurrent layer, rnn; {type(model).__name__} has none.")
    settings = dict(onto)
    if isinstance(region := settings.get("region"), dict):
        try:
            settings["region"] = Region(**region)
        except TypeError as error:
            raise SettingError(f"region must be a table with recurrent, input and bias: {error}.") from None
    return Projected(optimiser, layer.layer if isinstance(layer, Truncated) else layer, **settings)
