"""The recurrent part of a module, as one of our layers: the measures need single steps, and only ours have them.

our layer        itself
a cell           the layer of this cell
torch.nn         ``from_torch``: the same function, weight for weight
any module       the recurrent layer inside it; of several, the one with most weights, or the one that is named
"""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from holdfast.cells import Cell
from holdfast.errors import DTypeError, SettingError
from holdfast.layers import Recurrent, from_torch

__all__ = ["Found", "find"]


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """The recurrent layer of a model.

    Args:
        model: what to call: the model as given, or a layer around it if it was a cell.
        name: where the layer is in the model, such as "encoder.rnn"; "" for the model itself.
        module: the layer as it is in the model.
        layer: ours, with the same weights; the module itself if it is one of ours.
        others: names of other recurrent layers in the model.

    Example:
        >>> model = nn.ModuleDict({"rnn": nn.LSTM(3, 5), "readout": nn.Linear(5, 2)})
        >>> found = find(model)
        >>> found.name, type(found.layer).__name__, found.here
        ('rnn', 'LSTM', 'model.rnn')
    """

    model: nn.Module
    name: str
    module: nn.Module
    layer: Recurrent
    others: tuple[str, ...] = ()

    @property
    def here(self) -> str:
        """The layer in code, for a model that is called ``model``."""
        return f"model.{self.name}" if self.name else "model"

    @property
    def ours(self) -> str:
        """The layer in code, as one of ours."""
        return self.here if self.module is self.layer else f"holdfast.from_torch({self.here})"


def find(model: nn.Module, name: str | None = None) -> Found:
    """The recurrent layer of ``model``, or the one called ``name``.

    Example:
        >>> find(nn.Linear(3, 2))
        Traceback (most recent call last):
        holdfast.errors.SettingError: diagnose expects a recurrent layer in the model (torch.nn.RNN, LSTM, GRU or a
        holdfast layer), got Linear, which has none.
    """
    if not isinstance(model, nn.Module):
        raise DTypeError(
            f"diagnose expects a torch.nn.Module, got {type(model).__name__}; for a run folder use diagnose_run."
        )
    if isinstance(model, Cell):
        model = Recurrent(model)
    inside = _recurrent(model)
    if not inside:
        loose = next((type(it).__name__ for it in model.modules() if isinstance(it, nn.RNNCellBase)), None)
        hint = (
            f"; torch.nn.{loose} is a single step: use the layer that runs it over time, or write it as a holdfast.Cell"
            if loose
            else ""
        )
        raise SettingError(
            "diagnose expects a recurrent layer in the model (torch.nn.RNN, LSTM, GRU or a holdfast layer), got "
            f"{type(model).__name__}, which has none{hint}."
        )
    if name is not None and name not in inside:
        raise SettingError(
            f"diagnose expects name to be that of a recurrent layer of the model, got {name!r}; known: "
            f"{', '.join(repr(known) for known in inside)}."
        )
    if name is None:
        name = max(inside, key=lambda it: sum(weight.numel() for weight in inside[it].parameters()))
    module = inside[name]
    with torch.random.fork_rng(devices=[]):  # a new layer draws weights before it gets those of the old one
        layer = module if isinstance(module, Recurrent) else from_torch(module)  # type: ignore[arg-type]
    return Found(model, name, module, layer, tuple(other for other in inside if other != name))


def _recurrent(model: nn.Module) -> dict[str, nn.Module]:
    """Recurrent layers by name; what is inside one is part of it."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, Recurrent | nn.RNNBase) and not any(
            name.startswith(f"{it}.") or it == "" for it in found
        ):
            found[name] = module
    return found
