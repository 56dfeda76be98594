"""A forecast of a file's columns in a folder of its own: made, drawn, loaded, and asked for what comes next.

    forecast.safetensors   readout, reservoir, calibration errors and the series themselves
    forecast.json          columns, settings, choices, and the digests of that file and of the data
    environment.json       versions and hardware
    forecast.png           the end of the series, the forecast and its interval

The folder is all that a prediction reads. ``forecast.json`` is written last: a folder that has it is complete.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import CheckpointError, ConfigError, DataError, MissingExtraError, SettingError
from holdfast.estimators.forecaster import Forecaster
from holdfast.estimators.forecasting.season import season_of_times
from holdfast.estimators.forecasting.store import from_parts, to_parts
from holdfast.estimators.forecasting.table import Roles, SeriesTable, read_roles, read_series
from holdfast.estimators.forecasting.times import next_times
from holdfast.files import sha256_of, whole_file, write_atomically
from holdfast.runs.apply import WRITERS, Predicted
from holdfast.runs.curves import pyplot
from holdfast.runs.environment import environment
from holdfast.runs.load import FORECAST
from holdfast.runs.schema import read_file, table_of
from holdfast.tasks.formats import data_digest

__all__ = ["ForecastRequest", "ForecastRun", "is_forecast", "load_forecast", "predict_forecast", "train_forecast"]

TENSORS, PICTURE = "forecast.safetensors", "forecast.png"
_MOST_PANELS = 6


@dataclasses.dataclass(frozen=True)
class ForecastRequest:
    """What a person asked for; see ``Forecaster`` and ``Roles``."""

    data: Path
    forecast: tuple[str, ...]
    horizon: int = 12
    known: tuple[str, ...] = ()
    time: str | None = None
    sequence: str | None = None
    season: int | None = None
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class ForecastRun:
    """A forecast with its columns, and the names and times of its series."""

    forecaster: Forecaster
    roles: Roles
    names: tuple[str, ...]
    times: tuple[np.ndarray | None, ...]
    choices: tuple[str, ...]


def is_forecast(folder: str | Path) -> bool:
    """Whether a folder holds a forecast.

    Example:
        >>> is_forecast("no-such-run")
        False
    """
    return (Path(folder) / FORECAST).is_file()


def train_forecast(request: ForecastRequest, folder: str | Path) -> ForecastRun:
    """Choose and fit a forecast of columns of a file, and keep it in ``folder``.

    Other columns of numbers are known for the past. They are used if the error at past origins is less with them.
    """
    folder = Path(folder)
    if is_forecast(folder) or (folder / "settings.json").is_file():
        raise ConfigError(f"{folder} holds a run already; choose another folder with --run.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        roles, choices = read_roles(request.data, request.forecast, request.known, request.time, request.sequence)
        table = read_series(request.data, roles)
        forecaster, roles, more = _fitted(request, roles, table)
    forecaster.history_ = [  # with what is known of the future
        dataclasses.replace(one, known=known) for one, known in zip(forecaster.history_, table.known, strict=True)
    ]
    warned = (str(one.message) for one in caught if issubclass(one.category, UserWarning))
    noted = dict.fromkeys(_in_words(message, table.names) for message in warned)
    choices = [*choices, *more, *noted, *forecaster.summary().splitlines()]
    run = ForecastRun(forecaster, roles, table.names, tuple(table.times), tuple(choices))
    _save(run, folder, data_digest(request.data))
    future = _future(run, table.known)
    if not roles.known or future is not None:
        draw(run, folder / PICTURE, _answers(run, None, run.times, future))
    return run


def predict_forecast(folder: str | Path, data: str | Path | None, out: str | Path) -> Predicted:
    """Write the forecast of the run in ``folder``: one row per series and step, with the ends of its interval.

    Args:
        folder: of a run made with --forecast.
        data: a file in the form of the training file, with newer steps; or, where columns are known ahead, with their
            values for the steps to come. None: what comes after the training file.
        out: a .csv, .parquet or .npz file, which appears whole or not at all.
    """
    out = Path(out)
    if out.suffix not in WRITERS:
        raise SettingError(f"--out must end in .csv, .parquet or .npz; got {out}.")
    run = load_forecast(folder)
    newer, names, times, future = None, run.names, run.times, None
    if data is None:
        future = _future(run, [one.known for one in run.forecaster.history_])
    else:
        table = read_series(Path(data), run.roles)
        if all(len(y) == 0 for y in table.values):  # the steps to come, for the series of the run
            missing = sorted(set(names) - set(table.names)) if run.roles.sequence else []
            if missing:
                raise DataError(
                    f"{data} has no rows for the series {missing[0]!r}; expected all of {', '.join(names)}."
                )
            future = [table.known[table.names.index(name) if run.roles.sequence else 0] for name in names]
        else:
            newer, names, times = table, table.names, tuple(table.times)
            future = _future(run, table.known, table)
    answers = _answers(dataclasses.replace(run, names=names), newer, times, future)
    write_atomically(out, WRITERS[out.suffix](answers))
    return Predicted(len(next(iter(answers.values()))), tuple(answers), str(out))


def load_forecast(folder: str | Path) -> ForecastRun:
    """The forecast in ``folder``.

    Example:
        >>> load_forecast("no-such-run")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: no-such-run holds no forecast: it has no forecast.json.
    """
    folder = Path(folder)
    if not is_forecast(folder):
        raise ConfigError(f"{folder} holds no forecast: it has no {FORECAST}.")
    table = read_file(folder / FORECAST, "Put the file back, or train again.")
    path = folder / TENSORS
    if not path.is_file():
        raise CheckpointError(f"{path} is missing. Put the file back, or train again.")
    if (found := sha256_of(path)) != table.get("sha256"):
        raise CheckpointError(
            f"{path} is damaged or of another run: expected the SHA-256 digest {str(table.get('sha256'))[:12]}…, got "
            f"{found[:12]}…. Put the file back, or train again."
        )
    try:
        arrays = _safetensors().load_file(path)
        held = table["roles"]
        columns = (tuple(held[name]) for name in ("forecast", "known", "past"))
        roles = Roles(*columns, time=held["time"], sequence=held["sequence"])
        times = tuple(_times_from(one, arrays.pop(f"times.{index}", None)) for index, one in enumerate(table["times"]))
        forecaster = from_parts(table["forecaster"], arrays)
        return ForecastRun(forecaster, roles, tuple(table["names"]), times, tuple(table["choices"]))
    except CheckpointError as error:
        raise CheckpointError(f"{folder / FORECAST}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{folder / FORECAST} is damaged ({error!r}). Put the file back, or train again."
        ) from None


def _fitted(request: ForecastRequest, roles: Roles, table: SeriesTable) -> tuple[Forecaster, Roles, list[str]]:
    """The forecast with or without the columns of the past, whichever had less error."""
    if any(len(y) == 0 for y in table.values):
        empty = table.names[[len(y) for y in table.values].index(0)]
        raise DataError(f"{request.data}: series {empty!r} has no values of {', '.join(map(repr, roles.forecast))}.")
    season: int | str = request.season or "auto"
    dated = [it for when in table.times if when is not None and (it := season_of_times(when))]
    shortest = min(map(len, table.values))
    if season == "auto" and dated and shortest >= 2 * dated[0] + max(request.horizon, 1):
        season = dated[0]
    known = [columns[: len(y)] for columns, y in zip(table.known, table.values, strict=True)] if roles.known else None
    forecaster = Forecaster(request.horizon, season=season, random_state=request.seed)
    try:
        forecaster.fit(table.values, known=known)
        if not roles.past:
            return forecaster, roles, []
        other = Forecaster(**forecaster.get_params()).fit(table.values, known=known, past=table.past)
    except DataError as error:
        raise DataError(f"{request.data}: {_in_words(str(error), table.names)}") from None
    without, with_them = (one.scores_[one.model_] for one in (forecaster, other))
    used = with_them < without
    names = ", ".join(map(repr, roles.past))
    verdict = f"error {with_them:.3g} with them, {without:.3g} without"
    said = f"Columns of the past, {names}: {'used' if used else 'not used'}; {verdict}."
    return (other, roles, [said]) if used else (forecaster, dataclasses.replace(roles, past=()), [said])


def _in_words(message: str, names: tuple[str, ...]) -> str:
    """An error of ``Forecaster`` with the names of the series, and options as they are typed."""
    for index, name in enumerate(names):
        message = message.replace(f"series[{index}]", f"series {name!r}")
    return message.replace("season=1", "--season 1").replace("a shorter horizon", "a smaller --horizon")


def _future(run: ForecastRun, known: list[np.ndarray], table: SeriesTable | None = None) -> list[np.ndarray] | None:
    """Columns known ahead, behind the end of each series; None if they do not reach to the horizon."""
    if not run.roles.known:
        return None
    lengths = [one.steps for one in run.forecaster.history_] if table is None else [len(y) for y in table.values]
    parts = [columns[length:] for columns, length in zip(known, lengths, strict=True)]
    return parts if min(map(len, parts)) >= int(run.forecaster.horizon) else None


def _answers(
    run: ForecastRun, newer: SeriesTable | None, times: tuple[np.ndarray | None, ...], future: list[np.ndarray] | None
) -> dict[str, Any]:
    """Columns of the answer: series, time, and forecast with both ends of its interval for each column."""
    horizon, given = int(run.forecaster.horizon), dict[str, Any]()
    if run.roles.known:
        if future is None or min(map(len, future)) < horizon:
            raise DataError(
                f"The forecast needs {', '.join(map(repr, run.roles.known))} for the next {horizon} steps. Add rows "
                f"for them, with {', '.join(map(repr, run.roles.forecast))} left empty, and name the file with --data."
            )
        given["known_future"] = [one[:horizon] for one in future]
    if newer is not None:
        given |= {"series": newer.values, "past": newer.past if run.roles.past else None}
        cut = zip(newer.known, newer.values, strict=True)
        given["known"] = [columns[: len(y)] for columns, y in cut] if run.roles.known else None
    points = run.forecaster.predict(**given)
    lows, highs = run.forecaster.predict_interval(**given)
    several = run.roles.sequence is not None
    columns: dict[str, Any] = (
        {run.roles.sequence or "series": np.repeat(np.array(run.names), horizon)} if several else {}
    )
    ahead = [
        np.arange(1, horizon + 1) if when is None or len(when) < 2 else next_times(when, horizon) for when in times
    ]
    shown = [[str(it) for it in one] if one.dtype.kind == "M" else one.tolist() for one in ahead]
    columns[run.roles.time or "step"] = [it for one in shown for it in one]
    for index, name in enumerate(run.roles.forecast):
        for label, parts in ((name, points), (f"{name} low", lows), (f"{name} high", highs)):
            columns[label] = np.concatenate([one[:, index] for one in parts])
    return columns


def draw(run: ForecastRun, path: Path, answers: dict[str, Any]) -> None:
    """The end of every series, up to six, with its forecast and interval."""
    plt, horizon = pyplot(), int(run.forecaster.horizon)
    shown = [(index, column) for index in range(len(run.names)) for column in run.roles.forecast][:_MOST_PANELS]
    picture, axes = plt.subplots(
        len(shown), 1, figsize=(7, 1.2 + 2.6 * len(shown)), layout="constrained", squeeze=False
    )
    for panel, (index, column) in zip(axes[:, 0], shown, strict=True):
        y = run.forecaster.history_[index].values[:, run.roles.forecast.index(column)]
        kept = min(len(y), max(5 * horizon, 4 * run.forecaster.season_, 40))
        when = run.times[index]
        if when is None:
            when = np.arange(len(y))
        ahead = next_times(when, horizon)
        part = slice(index * horizon, (index + 1) * horizon)
        point, low, high = (answers[name][part] for name in (column, f"{column} low", f"{column} high"))
        panel.plot(when[-kept:], y[-kept:], color="#4d4d4d", linewidth=1.4, label=column)
        panel.plot(
            np.concatenate([when[-1:], ahead]), np.concatenate([y[-1:], point]), color="#1b6ca8", label="forecast"
        )
        label = f"{run.forecaster.coverage_:.0%} interval"
        panel.fill_between(ahead, low, high, color="#1b6ca8", alpha=0.2, linewidth=0, label=label)
        panel.set_title(f"{run.names[index]}: {column}" if len(run.names) > 1 else column)
        panel.set_xlabel(run.roles.time or "step")
        panel.grid(True, alpha=0.25)
        panel.legend(fontsize=9, framealpha=0.85)
    with whole_file(path) as file:
        picture.savefig(file, format="png", dpi=130, metadata={"Software": None})
    plt.close(picture)


def _save(run: ForecastRun, folder: Path, data_sha256: str) -> None:
    table, arrays = to_parts(run.forecaster)
    for index, when in enumerate(run.times):
        if when is not None:
            arrays[f"times.{index}"] = when.astype(np.int64) if when.dtype.kind == "M" else when
    raw = _safetensors().save(arrays)
    meta = {
        "sha256": hashlib.sha256(raw).hexdigest(),
        "data_sha256": data_sha256,
        "roles": dataclasses.asdict(run.roles),
        "names": run.names,
        "times": [None if when is None else when.dtype.str for when in run.times],
        "choices": run.choices,
        "forecaster": table,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "environment.json", json.dumps(table_of(environment()), indent=2) + "\n")
        write_atomically(folder / TENSORS, raw)
        write_atomically(folder / FORECAST, json.dumps(meta, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise CheckpointError(f"Could not write to {folder}: {error.strerror}; choose another folder.") from None


def _times_from(kind: str | None, array: np.ndarray | None) -> np.ndarray | None:
    return None if kind is None or array is None else array.astype(np.dtype(kind))


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ModuleNotFoundError:
        raise MissingExtraError("A run folder needs safetensors: pip install 'holdfast[train]'.") from None
    return safetensors.numpy
