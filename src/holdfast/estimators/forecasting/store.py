"""A fitted Forecaster as a table of plain values and named arrays, and back: no code in a file, nothing left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from holdfast.errors import CheckpointError, HoldfastError
from holdfast.estimators.forecaster import MODELS, MOST_COLUMNS, Forecaster, Member
from holdfast.estimators.forecasting.design import Design, History
from holdfast.estimators.forecasting.direct import Direct
from holdfast.estimators.forecasting.ridge import Line
from holdfast.estimators.forecasting.states import step_reservoir
from holdfast.estimators.forecasting.views import View

__all__ = ["from_parts", "to_parts"]

_LINE = ("mean", "coefficients", "level")
_PLAIN = (
    "season_",
    "model_",
    "scores_",
    "coverage_",
    "origins_",
    "wins_",
    "honest_",
    "known_columns_",
    "past_columns_",
)
_HISTORY = ("values", "past", "known")


def to_parts(forecaster: Forecaster) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the chosen forecast needs: values for JSON, and arrays.

    Example:
        >>> forecaster = Forecaster(2, season=1).fit(np.sin(np.arange(40.0)))
        >>> again = from_parts(*to_parts(forecaster))
        >>> bool((again.predict() == forecaster.predict()).all())
        True
    """
    arrays = {"calibration": forecaster.calibration_}
    for index, history in enumerate(forecaster.history_):
        arrays |= {f"history.{index}.{name}": getattr(history, name) for name in _HISTORY}
    members = []
    directs = forecaster._direct[forecaster.model_]
    for index, member in enumerate(forecaster.members_):
        members.append({"penalty": member.penalty, "view": member.view and vars(member.view)})
        if not directs:
            continue
        direct, design = directs[index], directs[index].design
        members[-1] |= {"lags": design.lags, "groups": direct.groups}
        arrays |= {f"{index}.factors": direct.factors, f"{index}.side_mean": design.side_mean}
        arrays[f"{index}.side_std"] = design.side_std
        for group, line in enumerate(direct.lines):
            arrays |= {f"{index}.line.{group}.{name}": getattr(line, name) for name in _LINE}
        if design.reservoir is not None:
            arrays |= {f"{index}.reservoir.{name}": it.numpy() for name, it in design.reservoir.state_dict().items()}
    table = {
        "parameters": forecaster.get_params(),
        "names": forecaster.names_,
        "form": forecaster._form,
        "log": forecaster._log,
        "series": len(forecaster.history_),
        "members": members,
        **{name: getattr(forecaster, name) for name in _PLAIN},
    }
    return table, {name: np.array(array, order="C") for name, array in arrays.items()}


def from_parts(table: dict[str, Any], arrays: dict[str, np.ndarray]) -> Forecaster:
    """The Forecaster that ``to_parts`` took apart; anything else is a CheckpointError."""
    try:
        forecaster = Forecaster(**table["parameters"])
        forecaster._check_settings()
        for name in _PLAIN:
            setattr(forecaster, name, table[name])
        if forecaster.model_ not in MODELS:
            raise ValueError(f"model {forecaster.model_!r}")
        forecaster.names_, forecaster._form, forecaster._log = tuple(table["names"]), tuple(table["form"]), table["log"]
        forecaster.calibration_ = arrays["calibration"]
        shape = int(forecaster.horizon), len(forecaster.names_)
        lags = [one.get("lags", 1) for one in table["members"]]
        if forecaster.calibration_.shape[1:] != shape or not all(1 <= it <= MOST_COLUMNS for it in (1, *lags)):
            raise ValueError(f"horizon and channels {shape}, lags {lags}")
        forecaster.history_ = [
            History(*(arrays[f"history.{index}.{name}"] for name in _HISTORY)) for index in range(table["series"])
        ]
        forecaster.members_ = [
            Member(forecaster.model_, View(**one["view"]) if one["view"] else None, one["penalty"])
            for one in table["members"]
        ]
        directs = [_direct(forecaster, index, one, arrays) for index, one in enumerate(table["members"]) if one["view"]]
        forecaster._direct = {forecaster.model_: directs}
        if not forecaster.known_columns_:
            forecaster.predict_interval()  # shapes fit
    except HoldfastError as error:
        raise CheckpointError(f"This is not a forecast that Holdfast wrote: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise CheckpointError(
            f"This is not a forecast that Holdfast wrote ({type(error).__name__}: {error})."
        ) from None
    return forecaster


def _direct(forecaster: Forecaster, index: int, one: dict[str, Any], arrays: dict[str, np.ndarray]) -> Direct:
    prefix, reservoir = f"{index}.reservoir.", None
    side_mean, side_std = arrays[f"{index}.side_mean"], arrays[f"{index}.side_std"]
    if forecaster.model_ == "reservoir":
        reservoir = step_reservoir(len(forecaster.names_) + len(side_mean), seed=0)
        held = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        reservoir.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in held.items()})
    design = Design(View(**one["view"]), one["lags"], side_mean, side_std, reservoir)
    groups = [(int(low), int(high)) for low, high in one["groups"]]
    lines = [Line(*(arrays[f"{index}.line.{group}.{name}"] for name in _LINE)) for group in range(len(groups))]
    return Direct(design, arrays[f"{index}.factors"], groups, lines)
