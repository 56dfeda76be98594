"""A trained run from its folder alone: the model, what its inputs go through, and predictions.

prediction = argmax_k z_k,  p_k = softmax(z)_k            (1) classes
prediction = z · std + mean                               (2) numbers, in the units of the training data

A run on your own data keeps in ``preparation.json`` what was worked out from them: columns, classes, scale, and the
digest of the file. Predictions read nothing else, so the training file may move or change.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.errors import CheckpointError, ConfigError, DataError
from holdfast.files import write_atomically
from holdfast.runs.choice import read_choice
from holdfast.runs.prepare import built, prepare
from holdfast.runs.schema import read_file
from holdfast.runs.settings import RunSettings, run_settings
from holdfast.runs.stream import RunStream
from holdfast.tasks import Batch, OwnData, OwnTask, Preparation, Prepared, Sequences, Task
from holdfast.train import sums
from holdfast.train.checkpoint import check_data, load_model_
from holdfast.train.loop import predict
from holdfast.train.model import AUTOMATIC, SequenceModel
from holdfast.train.stream import ModelStream

__all__ = ["FORECAST", "Run", "Stored", "load_run", "read_settings", "store"]

FORECAST = "forecast.json"  # a folder with this file holds a forecast: see ``estimators.forecast_run``
_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Stored:
    """What ``preparation.json`` holds: the preparation, the digest of the training data, and what was chosen."""

    preparation: Preparation
    sha256: str
    choices: tuple[str, ...]


class Run:
    """A trained run, as ``load_run`` gives it.

    Args:
        folder, settings: of the run; after an automatic choice, ``settings.network`` is what was chosen.
        model: with its trained weights, in evaluation mode.
        which: the weights it has, "best" or "last".
        stored: what the run keeps of your own data; None for the tasks that come with Holdfast.
        task: the task, if it has been loaded before.

    Example:
        >>> import tempfile
        >>> from holdfast.runs import train_run
        >>> folder = Path(tempfile.mkdtemp())
        >>> table = {"task": {"name": "addition", "steps": 4, "validation": 8}, "train": {"updates": 1, "batch": 4}}
        >>> _ = train_run(run_settings(table), folder, progress=False)
        >>> load_run(folder).settings.task_name
        'addition'
    """

    def __init__(
        self,
        folder: Path,
        settings: RunSettings,
        model: nn.Module,
        which: Literal["best", "last"] = "best",
        stored: Stored | None = None,
        task: Task | None = None,
    ):
        self.folder, self.settings, self.model, self.which = folder, settings, model, which
        self.stored, self._task = stored, task

    @property
    def preparation(self) -> Preparation:
        """From your data to what the model takes in."""
        if self.stored is None:
            name = self.settings.task_name
            raise ConfigError(
                f"{self.folder} was trained on the task {name}, not with --data; only a run with --data can be applied "
                "to other data."
            )
        return self.stored.preparation

    @property
    def task(self) -> Task:
        """The task it was trained on; its data are read here."""
        if self._task is None:
            self._task = self.task_in(None)
        return self._task

    def task_in(self, path: str | Path | None) -> Task:
        """The task it was trained on, its file moved to ``path``."""
        options = self.settings.task
        if isinstance(options, OwnData):
            options = options if path is None else dataclasses.replace(options, path=str(path))
            if not Path(options.path).exists():
                raise DataError(
                    f"{options.path} is not there, and the splits of {self.folder} are in it. If it was moved, name "
                    f"its place: holdfast evaluate {self.folder} --data FILE --split test. Predictions do not need it."
                )
        task = cast(Task, options.load())
        if self.stored is not None:
            check_data(self.folder / sums.PREPARATION, {"data": self.stored.sha256}, task)
        return task

    def outputs(self, x: Any) -> tuple[Prepared, Tensor]:
        """Sequences as the model takes them in, and its outputs, (sequences, outputs): z of (1) and (2).

        For a class at every step: (all steps, outputs), sequence after sequence.
        """
        preparation = self.preparation
        prepared, answers = preparation.apply(x), []
        for batch, rows in zip(_batches(prepared), predict(self.model, _batches(prepared)), strict=True):
            if preparation.kind == "tagging":
                rows = rows.transpose(0, 1)
                inside = torch.ones(rows.shape[:2], dtype=torch.bool)
                if batch.lengths is not None:
                    inside = torch.arange(rows.shape[1]) < batch.lengths[:, None]
                rows = rows[inside]
            answers.append(_last_steps(rows, batch.lengths) if preparation.kind == "next-step" else rows)
        return prepared, torch.cat(answers)

    def predict(self, x: Any) -> np.ndarray:
        """One prediction per sequence: its class (1), or numbers in the units of the training data (2).

        Args:
            x: a file like the training file; a pandas or polars DataFrame like it; an array (cases, time, channels) or
                (cases, time); or a list of arrays (time, channels). It needs no target.

        Returns:
            (cases,) names of classes; (cases,) numbers, or (cases, targets) if there are several; or, without a
            target, the next step, (cases, channels). For a class at every step: (all steps,), sequence after sequence.
        """
        answers = np.asarray(self.preparation.answers(self.outputs(x)[1]))
        return answers[:, 0] if self.preparation.kind == "regression" and answers.shape[1] == 1 else answers

    def predict_proba(self, x: Any) -> np.ndarray:
        """(cases, classes): the probabilities of ``preparation.classes`` (1), for ``x`` as in ``predict``."""
        if not self.preparation.classes:
            raise ConfigError(f"{self.folder} was trained for {self.preparation.kind}; probabilities are of classes.")
        return torch.softmax(self.outputs(x)[1].double(), dim=1).numpy()

    def stream(self, batch: int = 1) -> RunStream | ModelStream:
        """The run one step at a time: raw numbers in, predictions out. See ``RunStream``.

        A run on a task that comes with Holdfast has no preparation: its stream takes the task's inputs.

        Args:
            batch: how many sequences run in parallel.
        """
        return self.stepwise("A stream").stream(batch) if self.stored is None else RunStream(self, batch)

    def stepwise(self, who: str) -> SequenceModel:
        """Its model, if it answers from the last state; an automatic choice and a reservoir read whole sequences."""
        if isinstance(self.model, SequenceModel):
            return self.model
        raise ConfigError(
            f"{who} expects a run of one cell, but {self.folder} holds a {type(self.model).__name__}, which answers "
            "from a whole sequence; train one with --cell gru, for example."
        )


def load_run(folder: str | Path, which: Literal["best", "last"] | None = None, task: Task | None = None) -> Run:
    """The run in ``folder``: its model with the trained weights, its settings, and predictions for new data.

    Args:
        folder: of a run.
        which: the weights of the best evaluation so far, or the last ones saved; None: what the run's settings say
            (``train.weights``).
        task: that of the run, if it has been loaded before.

    Example:
        >>> import tempfile
        >>> from holdfast.runs import Request, choose, train_run
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "mine.csv").write_text("id,x,label" + "".join(
        ...     f"{chr(10)}{case},{step * (case % 2)},{'up' if case % 2 else 'flat'}"
        ...     for case in range(40) for step in range(5)
        ... ))
        >>> options = {"train.epochs": 30, "cell.hidden_size": 8}
        >>> chosen = choose(Request(data=folder / "mine.csv", target=("label",), options=options))
        >>> _ = train_run(chosen.settings[0], folder / "run", task=chosen.tasks[0], progress=False)
        >>> run = load_run(folder / "run")
        >>> run.predict(np.array([[0.0, 1, 2, 3, 4], [0.0, 0, 0, 0, 0]]))
        array(['up', 'flat'], dtype='<U4')
        >>> run.predict_proba(folder / "mine.csv").shape, run.preparation.classes
        ((40, 2), ('flat', 'up'))
    """
    folder = Path(folder)
    settings = read_settings(folder)
    if settings.network.name == AUTOMATIC:
        settings = dataclasses.replace(settings, network=read_choice(folder).cell)
        if which == "best":
            raise CheckpointError(f"{folder} is an automatic choice, which has one set of weights; leave out --which.")
    which = which or settings.training.weights
    path = folder / f"{which}.safetensors"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {path.name} yet; train first: holdfast resume {folder}")
    if isinstance(settings.task, OwnData):
        stored = read_stored(folder)
        model = built(settings, stored.preparation.spec())
        load_model_(model, path)
    else:
        stored = None
        model, task = prepare(settings, task)
        check_data(path, load_model_(model, path), task)
    return Run(folder, settings, model.eval(), which, stored, task)


def read_settings(folder: str | Path) -> RunSettings:
    """The settings of the run in ``folder``.

    Example:
        >>> read_settings("no-such-run")
        Traceback (most recent call last):
        holdfast.errors.ConfigError: no-such-run is not a run folder: it has no settings.json.
    """
    path = Path(folder) / "settings.json"
    if (path.parent / FORECAST).is_file():
        raise ConfigError(f"{folder} holds a forecast, which is only asked for predictions: holdfast predict {folder}")
    if not path.is_file():
        raise ConfigError(f"{folder} is not a run folder: it has no settings.json.")
    table = read_file(path, "This run cannot be resumed.")
    sums.check(path.parent, sums.SETTINGS)
    return run_settings(table, str(path))


def store(folder: Path, task: Task) -> None:
    """Keep what was worked out from a person's own data in the run folder, or see that it is still the same."""
    if not isinstance(task, OwnTask):
        return
    path = folder / sums.PREPARATION
    if not path.is_file() and not (folder / sums.LAST).is_file():
        table = {"sha256": task.sha256, "choices": task.choices, "preparation": dataclasses.asdict(task.preparation)}
        write_atomically(path, json.dumps(table, indent=2, ensure_ascii=False) + "\n")
        return
    stored = read_stored(folder)
    check_data(path, {"data": stored.sha256}, task)
    if stored.preparation != task.preparation:
        raise CheckpointError(
            f"{path} was worked out by another version of Holdfast, which reads the same file differently. Start a new "
            "run in another folder."
        )


def read_stored(folder: Path) -> Stored:
    """``preparation.json`` of the run in ``folder``."""
    path = folder / sums.PREPARATION
    sums.check(folder, sums.PREPARATION)
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no {path.name}: it was made by an older version of Holdfast, whose runs depended on the "
            f"training file. Train it again: holdfast train --config {folder / sums.SETTINGS} --run NEW"
        )
    table = read_file(path, "Put the file back.")
    try:
        preparation = Preparation.from_json(json.dumps(table["preparation"]))
        return Stored(preparation, str(table["sha256"]), tuple(map(str, table["choices"])))
    except (KeyError, TypeError, DataError) as error:
        raise CheckpointError(f"{path} is damaged ({error}). Put the file back.") from None


def _batches(prepared: Prepared) -> Iterator[Batch]:
    sequences = Sequences(prepared.inputs, torch.zeros(len(prepared)), prepared.lengths)
    for which in torch.arange(len(prepared)).split(_BATCH):
        yield sequences.batch(which, every_step=False)


def _last_steps(answers: Tensor, lengths: Tensor | None) -> Tensor:
    """(time, batch, outputs) to (batch, outputs): each sequence's last."""
    if lengths is None:
        return answers[-1]
    return answers[lengths - 1, torch.arange(answers.shape[1])]
