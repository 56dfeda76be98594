"""Optimisers by the name that settings call them; each takes the model, so that ours can read its structure."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from holdfast.errors import SettingError
from holdfast.optim import PathAdam, PathSGD

__all__ = ["OPTIMISERS", "build_optimiser"]

Factory = Callable[..., torch.optim.Optimizer]


def _of_parameters(optimiser: type[torch.optim.Optimizer]) -> Factory:
    def make(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
        return optimiser([weight for weight in model.parameters() if weight.requires_grad], **options)

    make.__signature__ = inspect.signature(optimiser)  # type: ignore[attr-defined]
    return make


def _of_model(optimiser: type[PathSGD] | type[PathAdam]) -> Factory:
    def make(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
        return optimiser([weight for weight in model.parameters() if weight.requires_grad], model, **options)

    make.__signature__ = inspect.signature(optimiser)  # type: ignore[attr-defined]
    return make


OPTIMISERS: dict[str, Factory] = {
    "sgd": _of_parameters(torch.optim.SGD),
    "adam": _of_parameters(torch.optim.Adam),
    "adamw": _of_parameters(torch.optim.AdamW),
    "rmsprop": _of_parameters(torch.optim.RMSprop),
    "adagrad": _of_parameters(torch.optim.Adagrad),
    "path-sgd": _of_model(PathSGD),
    "path-adam": _of_model(PathAdam),
}
"""A factory ``(model, lr=..., **options) -> Optimizer`` a name. A new one is one more entry."""


def build_optimiser(name: str, model: nn.Module, lr: float, options: dict[str, Any]) -> torch.optim.Optimizer:
    """The optimiser of these settings over a model's free weights.

    Example:
        >>> build_optimiser("rmsprop", nn.Linear(2, 1), 1e-2, {"alpha": 0.9}).defaults["alpha"]
        0.9
    """
    if name not in OPTIMISERS:
        raise SettingError(f"Training knows the optimisers {', '.join(sorted(OPTIMISERS))}; got {name!r}.")
    signature = inspect.signature(OPTIMISERS[name]).parameters
    known = sorted(set(signature) - {"params", "model", "lr", "settings"})
    for option in options:
        if option not in known and "settings" not in signature:  # an optimiser with **settings checks them itself
            raise SettingError(f"{name} has no option {option!r}; known: {', '.join(known)}.")
    tuples = {
        key: tuple(value) if isinstance(value, list) else value for key, value in options.items()
    }  # TOML has lists
    try:
        return OPTIMISERS[name](model, lr=lr, **tuples)
    except (TypeError, ValueError) as error:
        raise SettingError(f"{name} refuses these options: {error}.") from error
