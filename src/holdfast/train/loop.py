"""The training loop, whole.

    g = ∇ Σ ℓ / n,   w ← optimiser(w, clip(g)),   n over the whole batch of all processes        (1)

A run is a function of its settings: batch u is drawn from (seed, u), so what a checkpoint must hold is the weights, the
optimiser, the generators, a carried state and a few counters. Killed at any moment, a run goes on from its last
checkpoint, makes the same updates again and ends with the same bits. What it reads back from its folder is checked
against digests first: a changed file is an error that names it (see ``checkpoint``, ``sums`` and ``log``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from holdfast.errors import (
    CheckpointError,
    DivergedError,
    HoldfastError,
    Interrupted,
    LostProcessError,
    MissingExtraError,
    SettingError,
)
from holdfast.files import alone_in, remove_leftovers, sha256_of, write_atomically
from holdfast.train import checkpoint, sums
from holdfast.train.log import Board, Clock, Log
from holdfast.train.metrics import Answerable, Scores, better, loss_sum, target_count
from holdfast.train.optimisers import build_optimiser
from holdfast.train.progress import Progress, make_progress
from holdfast.train.settings import Training
from holdfast.train.spikes import Rewind
from holdfast.types import State

__all__ = ["Outcome", "ended", "evaluate", "fit", "predict", "read_outcome", "run_lengths"]


class Task(Protocol):
    """What the loop asks of a task: ``holdfast.tasks.Task`` is one."""

    @property
    def spec(self) -> Any: ...
    def epoch(self, batch_size: int) -> int | None: ...
    def train_batch(self, index: int, batch_size: int, seed: int) -> Any: ...
    def evaluation(self, split: str, batch_size: int) -> Iterator[Any]: ...


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Args:
        status: "finished" all its updates; "stopped" early, by ``patience`` or ``stop_at``; or "diverged".
        reason: a sentence for the last two.
        updates, skipped: updates made, and left out because of ``nonfinite="skip"``.
        rewinds: how often ``spikes="rewind"`` put earlier weights back.
        best, best_update: the best monitored score and when it was.
        last: the scores of the last evaluation, by split.
        parameters: free numbers of the model.
        seconds: of training by the clock, in all sittings.
        cpu_seconds: of the processor, all threads of the first process; None in a run that an older Holdfast began.

    Example:
        >>> Outcome("finished", "", 100, 0, 0.02, 90, {"test": {"mse": 0.03}}, 1411, 2.5).last["test"]["mse"]
        0.03
    """

    status: Literal["finished", "stopped", "diverged"]
    reason: str
    updates: int
    skipped: int
    best: float | None
    best_update: int | None
    last: dict[str, dict[str, float]]
    parameters: int
    seconds: float
    rewinds: int = 0
    cpu_seconds: float | None = None


@dataclasses.dataclass
class _Position:
    """Where a run is: everything that changes besides weights, optimiser, generators and carried state."""

    update: int = 0
    evaluated: int = 0
    skipped: int = 0
    loss_total: float = 0.0  # since the last evaluation, and of how many updates
    loss_count: int = 0
    norm_total: float = 0.0
    best: float | None = None
    best_update: int | None = None
    waited: int = 0  # evaluations since the best, and since the last cut of a plateau schedule
    waited_lr: int = 0
    plateaus: int = 0
    best_loss: float | None = None  # of the monitored split; what a plateau of the loss is measured from
    last: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    log_position: int = 0
    log_sha256: str = ""  # of the log up to there, and of best.safetensors; empty before there are any
    best_sha256: str = ""


def fit(
    model: nn.Module,
    task: Task,
    training: Training,
    folder: Path | str,
    *,
    progress: bool = True,
    label: str = "training",
    watch: Callable[[int], None] | None = None,
    evaluated: Callable[[int], None] | None = None,
    devices: int = 1,
    accelerator: str = "cpu",
) -> Outcome:
    """Train ``model`` on ``task``, or resume the run in ``folder``.

    Args:
        model: ``(inputs, lengths, state) -> (answers, state)``, such as ``SequenceModel``; trained in place. What its
            ``penalty()`` returns after a call, if it has one, is added to the loss; ``at_epoch(number)`` is called
            before every update.
        task: where batches come from.
        training: the settings.
        folder: the run's: log, checkpoints and outcome are written here. If it holds a checkpoint the run resumes; if
            it holds an outcome, that is returned.
        progress: show a bar, or lines without a terminal.
        label: what the bar says.
        watch: called after every update with the number of updates made.
        evaluated: called after every evaluation, when the log has it, in the first process only.
        devices, accelerator: as in Lightning Fabric; batches, states and random states move to the device. Under
            ``torchrun`` its processes are used.

    Returns:
        The ``Outcome``, also in ``outcome.json``. The model ends with its last weights; ``best.safetensors`` has the
        best.

    Raises:
        DivergedError: a loss or a gradient was not finite, and ``nonfinite`` is "stop".
        Interrupted: SIGINT or SIGTERM came; the run was saved.
        LostProcessError: another process of the same job has died.
        CheckpointError: the folder cannot be written to, another process trains in it, or a file in it is damaged.

    Example:
        >>> import tempfile
        >>> from holdfast.tasks import Addition
        >>> from holdfast.train import ModelSettings, build
        >>> task = Addition(steps=10, validation=64).load()
        >>> training = Training(updates=20, batch=16, evaluate_every=10)
        >>> model = build(ModelSettings("sgornn", 8), task.spec)
        >>> outcome = fit(model, task, training, tempfile.mkdtemp(), progress=False)
        >>> outcome.status, outcome.updates
        ('finished', 20)
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"Could not make the run folder {folder}: {error.strerror}.") from error
    fabric = _fabric(devices, accelerator)
    with _others_alive(fabric, folder), only_run_in(folder) if fabric.is_global_zero else contextlib.nullcontext():
        sums.check(folder, sums.SETTINGS)
        run = _Run(fabric, model, task, training, folder, watch, evaluated)
        if (outcome := ended(folder)) is not None:
            return outcome
        shown = make_progress(label, progress and fabric.is_global_zero)
        with _signals() as caught:
            return run.through(shown, caught)


def ended(folder: Path | str) -> Outcome | None:
    """The outcome of the run in ``folder``, or None if it has not ended; ``DivergedError`` if it diverged."""
    outcome = read_outcome(folder)
    if outcome is not None and outcome.status == "diverged":
        raise DivergedError(outcome.reason)
    return outcome


def read_outcome(folder: Path | str) -> Outcome | None:
    """The outcome of the run in ``folder``, also of one that diverged, or None if it has not ended."""
    path = Path(folder) / sums.OUTCOME
    if not path.exists():
        return None
    try:
        outcome = Outcome(**json.loads(path.read_bytes()))
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); delete it to resume from the last checkpoint.") from None
    sums.check(Path(folder), sums.OUTCOME)
    return outcome


class _Records:
    """What the first process writes of a run: the log, the clock beside it, and TensorBoard's copy."""

    def __init__(self, folder: Path, at: _Position, clock: Clock):
        self.log, self.clock = Log(folder / sums.LOG, at.log_position, at.log_sha256), clock
        clock.trim()
        self.board = Board(folder, at.update)

    def write(self, entry: dict[str, Any], at: _Position) -> None:
        self.log.write(entry)
        self.clock.write(entry["update"])
        self.board.write(entry["update"], entry)
        at.log_position, at.log_sha256 = self.log.position, self.log.sha256

    def close(self) -> None:
        self.board.close()


class _Run:
    """One run in one process: built from the settings or from its checkpoint, then taken through its updates."""

    def __init__(
        self, fabric: Any, model: nn.Module, task: Task, training: Training, folder: Path,
        watch: Callable[[int], None] | None, evaluated: Callable[[int], None] | None,
    ):  # fmt: skip
        self.fabric, self.task, self.training, self.folder = fabric, task, training, folder
        self.watch, self.evaluated = watch, evaluated
        self.spec = task.spec
        weights = getattr(task.spec, "class_weights", ())
        self.class_weights = torch.tensor(weights, device=fabric.device) if weights else None
        self.raw = model
        self._check_settings()
        self.updates, self.every = run_lengths(task, training)
        self.monitor = training.monitored
        plain = build_optimiser(training.optimiser, model, training.lr, training.options)
        wrapped, self.optimiser = fabric.setup(model, plain)
        # alone there is nothing to gather, and Fabric's wrapper costs a percent of a small model's update
        self.model = model if fabric.world_size == 1 else wrapped
        self.way = _way(self.model, task)
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.penalty, self.at_epoch = (getattr(model, name, None) for name in ("penalty", "at_epoch"))
        self.state: Tensor | State | None = None
        self.rewind = Rewind(model, plain, training.spike_at) if training.spikes == "rewind" else None
        self.position = _Position()
        # what every checkpoint says of the run it belongs to
        settings = folder / sums.SETTINGS
        self.identity = {
            "settings": sha256_of(settings) if settings.is_file() else "",
            "data": getattr(task, "sha256", ""),
        }
        if (folder / sums.LAST).exists():
            self._restore()
        else:
            checkpoint.seed_all(training.seed + 7919 * (1 + fabric.global_rank))  # noise of its own for every process

    def _check_settings(self) -> None:
        training, spec = self.training, self.spec
        for split in training.evaluate_on:
            if split not in spec.splits:
                raise SettingError(
                    f"evaluate_on must name splits of the task ({', '.join(spec.splits)}), got {split!r}."
                )
        if training.batch % self.fabric.world_size:
            raise SettingError(
                f"batch must be a multiple of the {self.fabric.world_size} processes, got {training.batch}."
            )
        if training.carry_state and not spec.contiguous:
            raise SettingError(
                'carry_state needs a task whose batches continue each other, such as a text with protocol = "stream".'
            )
        both = getattr(getattr(self.raw, "rnn", None), "bidirectional", False)
        if both and (training.carry_state or training.truncation):
            raise SettingError(
                "A bidirectional layer reads whole sequences; set truncation = None and carry_state = False."
            )

    # -- the loop ----------------------------------------------------------------------------------------------------

    def through(self, progress: Progress, caught: list[int]) -> Outcome:
        """All updates that are left, and the end, good or bad."""
        clock = Clock(self.folder / "times.jsonl")
        try:
            reason = self._loop(progress, caught, clock)
            return self._end("stopped" if reason else "finished", reason, clock)
        except DivergedError as error:
            self._end("diverged", str(error), clock)
            raise
        except OSError as error:
            kept = self.folder / sums.LAST
            tail = f"the last good checkpoint is {kept}" if kept.exists() else "no checkpoint was written yet"
            raise CheckpointError(f"Could not write to {self.folder}: {error.strerror or error}; {tail}.") from error
        finally:
            progress.stop()

    def _loop(self, progress: Progress, caught: list[int], clock: Clock) -> str:
        """Update, evaluate, save; return why it stopped early, or nothing."""
        at, training, main, saved = self.position, self.training, self.fabric.is_global_zero, time.monotonic()
        if main:
            self._open_folder()
        records = _Records(self.folder, at, clock) if main else None
        progress.start(self.updates, at.update)
        self.raw.train()
        while True:
            limit = training.seconds if at.update else None
            late = limit is not None and self._agreed([1] if clock.seconds >= limit else [])
            if at.update > at.evaluated and (late or at.update % self.every == 0 or at.update >= self.updates):
                self._evaluate(records)
                progress.evaluated(at.update, self._score())
                if self.evaluated is not None and main:
                    self.evaluated(at.update)
            reason = f"The {training.seconds:g} seconds of training are over." if late else self._reason_to_stop()
            if at.update >= self.updates or reason:
                break
            if stop := self._agreed(caught):
                self._save(clock)
                raise Interrupted(
                    f"Stopped by {signal.Signals(stop).name} after update {at.update} of {self.updates} and saved: "
                    f"holdfast resume {self.folder}",
                    stop,
                )
            if self._agreed([1] if time.monotonic() - saved >= training.checkpoint_seconds else []):
                self._save(clock)
                saved = time.monotonic()
            progress.update(at.update + 1, *self._update())
            if self.watch is not None:
                self.watch(at.update)
        self._save(clock)
        if records is not None:
            records.close()
        return reason

    def _update(self) -> tuple[float, float]:
        """One step of (1)."""
        at, training = self.position, self.training
        whole = self.task.train_batch(at.update, training.batch, training.seed)
        count = target_count(self.spec.loss, whole)
        world = self.fabric.world_size
        share = slice(self.fabric.global_rank, None, world)
        batch = moved(whole if world == 1 else whole.rows(share, every_step=self.spec.every_step), self.fabric.device)
        epoch = self.task.epoch(training.batch)
        if not training.carry_state or at.update % (epoch or 1) == 0:
            self.state = None
        if self.at_epoch is not None and epoch:
            self.at_epoch(at.update // epoch)
        factor = training.schedule.multiplier(at.update, self.updates, at.plateaus)
        if self.rewind is not None:
            factor *= self.rewind.factor
        for group in self.optimiser.param_groups:
            group["lr"] = training.lr * factor
        self.optimiser.zero_grad()
        loss, per = 0.0, count / whole.inputs.shape[1] if training.loss_per == "sequence" else 1.0
        for piece, scored in _pieces(batch, training.truncation, self.spec.every_step):
            with contextlib.nullcontext() if scored else torch.no_grad():
                answers, state = self.model(piece.inputs, piece.lengths, self.state, **self.way)
            if scored:
                part = loss_sum(self.spec.loss, answers, piece, self.class_weights) * (world / max(count, 1))
                if self.penalty is not None and (more := self.penalty()) is not None:
                    part = part + more
                part = part * per
                self.fabric.backward(part)
                loss += float(part.detach()) / world
            self.state = _detached(state) if training.carry_state or training.truncation else None
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        size = float(norm)
        if self.rewind is not None and not self.rewind.accepts(self._summed(loss) if math.isfinite(size) else size):
            if self.rewind.diverged:
                raise DivergedError(self._diverged_rewinding())
            self.state = None
        elif math.isfinite(size) and math.isfinite(loss):
            if training.clip is not None:
                nn.utils.clip_grads_with_norm_(self.weights, training.clip, norm)
            self.optimiser.step()
            at.loss_total, at.loss_count, at.norm_total = at.loss_total + loss, at.loss_count + 1, at.norm_total + size
        else:
            if training.nonfinite == "stop":
                raise DivergedError(self._diverged(loss))
            at.skipped += 1
            self.state = None
        at.update += 1
        return loss, size

    def _evaluate(self, records: _Records | None) -> None:
        at, training, spec = self.position, self.training, self.spec
        options = {"carry_state": training.carry_state, "fabric": self.fabric}
        at.last = {
            split: evaluate(self.raw, self.task, split, training.batch, **options) for split in training.evaluate_on
        }
        at.evaluated = at.update
        epoch, made = self.task.epoch(training.batch), max(at.loss_count, 1)
        entry = {
            "update": at.update,
            "epoch": None if epoch is None else at.update / epoch,
            "lr": self.optimiser.param_groups[0]["lr"],
            "train_loss": at.loss_total / made if at.loss_count else None,
            "gradient_norm": at.norm_total / made if at.loss_count else None,
            "skipped": at.skipped,
            **({} if self.rewind is None else {"rewinds": self.rewind.count}),
            **at.last,
        }
        at.loss_total, at.loss_count, at.norm_total = 0.0, 0, 0.0
        if records is not None:
            records.write(entry, at)
        value = at.last[self.monitor][spec.metric]
        if not math.isfinite(at.last[self.monitor]["loss"]) and self.rewind is not None:
            self.rewind.restore()
            self.state = None  # of the weights that are gone
        elif not math.isfinite(at.last[self.monitor]["loss"]) and training.nonfinite == "stop":
            raise DivergedError(f"The {self.monitor} loss after update {at.update} is not finite.{self._last_good()}")
        loss = at.last[self.monitor]["loss"]
        improved, lower = better(spec.metric, value, at.best), better("loss", loss, at.best_loss)
        at.best_loss = loss if lower else at.best_loss
        at.waited = 0 if improved else at.waited + 1
        at.waited_lr = 0 if (lower if training.schedule.on == "loss" else improved) else at.waited_lr + 1
        if improved:
            at.best, at.best_update = value, at.update
            if self.fabric.is_global_zero:
                tree = {"model": self.raw.state_dict(), "update": at.update, "score": value, "metric": spec.metric}
                at.best_sha256 = checkpoint.save(self.folder / sums.BEST, {"role": "best", **self.identity, **tree})
        if training.schedule.kind == "plateau" and at.waited_lr >= training.schedule.patience:
            at.plateaus, at.waited_lr = at.plateaus + 1, 0

    def _reason_to_stop(self) -> str:
        at, training = self.position, self.training
        if training.patience is not None and at.waited >= training.patience:
            best = f"the best is {at.best:.6g}, at update {at.best_update}"
            return f"No better {self.spec.metric} in {at.waited} evaluations; {best}."
        goal = training.stop_at
        if goal is not None and at.best is not None and not better(self.spec.metric, goal, at.best):
            return f"The {self.spec.metric} reached {at.best:.6g}, and stop_at is {goal:g}."
        return ""

    def _score(self) -> str:
        scores = self.position.last[self.monitor]
        return f"{self.monitor} {self.spec.metric} {scores[self.spec.metric]:.5g}"

    def _diverged(self, loss: float) -> str:
        names = {id(weight): name for name, weight in self.raw.named_parameters()}
        for weight in self.weights:
            if weight.grad is not None and not weight.grad.isfinite().all():
                where = f"the gradient of {names[id(weight)]}"
                break
        else:
            where = f"the loss ({loss})" if not math.isfinite(loss) else "the norm of the gradient"
        return f"In update {self.position.update + 1}, {where} is not finite.{self._last_good()}"

    def _diverged_rewinding(self) -> str:
        assert self.rewind is not None
        return (
            f"Spikes of the loss put earlier weights back {self.rewind.count} times up to update "
            f"{self.position.update + 1} and cut the learning rate to {self.rewind.factor:.1g} of its value."
            f"{self._last_good()}"
        )

    def _last_good(self) -> str:
        kept = self.folder / sums.LAST
        found = f" The last good checkpoint is {kept}" if kept.exists() else " There is no checkpoint yet"
        return f'{found}; lower lr, set clip, or skip such updates with nonfinite = "skip".'

    # -- saving and going on -----------------------------------------------------------------------------------------

    def _save(self, clock: Clock) -> None:
        fabric = self.fabric
        own = {"random": checkpoint.random_states(), "state": self.state}
        every = [own]
        if fabric.world_size > 1:
            every = [None] * fabric.world_size
            torch.distributed.all_gather_object(every, own)
        if not fabric.is_global_zero:
            return
        checkpoint.save(
            self.folder / sums.LAST,
            {
                "role": "last",
                **self.identity,
                "model": self.raw.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "position": dataclasses.asdict(self.position),
                "processes": every,
                **({} if self.rewind is None else {"rewind": self.rewind.state_dict()}),
            },
        )
        clock.write(self.position.update)  # so that a run that is killed here has its time

    def _restore(self) -> None:
        path = self.folder / sums.LAST
        tree = checkpoint.load(path)
        checkpoint.check_place(path, tree)
        try:
            position, processes, optimiser = _Position(**tree["position"]), tree["processes"], tree["optimiser"]
            if len(processes) != self.fabric.world_size:
                raise SettingError(
                    f"The run in {self.folder} was saved by {len(processes)} processes, not {self.fabric.world_size}; "
                    f"resume it with --devices {len(processes)}."
                )
            self._check_others(tree, position)
            checkpoint.put_weights_(self.raw, tree, path)
            self.optimiser.load_state_dict(optimiser)
            if self.rewind is not None:
                self.rewind.load_state_dict(tree["rewind"])
            own = processes[self.fabric.global_rank]
            self.position, self.state = position, _state_on(own["state"], self.fabric.device)
            checkpoint.set_random_states(own["random"])
        except (CheckpointError, SettingError):
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
            raise CheckpointError(f"{path} does not fit this run: {error}.") from None

    def _check_others(self, tree: dict[str, Any], position: _Position) -> None:
        """See that the log, the best checkpoint and the data are those that the last checkpoint was made with."""
        sums.check_log(self.folder / sums.LOG, position.log_position, position.log_sha256)
        if tree.get("settings") and not self.identity["settings"]:
            raise CheckpointError(
                f"{self.folder / sums.SETTINGS} is missing, and the run of {sums.LAST} began with it. Put the file "
                "back, or start a new run in another folder."
            )
        checkpoint.check_data(self.folder / sums.LAST, tree, self.task)
        if not position.best_sha256:
            return
        best, last = self.folder / sums.BEST, self.folder / sums.LAST
        if not best.is_file():
            raise CheckpointError(
                f"{best} is missing: {last}, which is intact, was made when it was there (update "
                f"{position.best_update}). Put the file back, or remove {last.name} to train again from the start."
            )
        checkpoint.check_best(best, checkpoint.load(best))

    def _open_folder(self) -> None:
        """Make the folder that of a run that goes on: no leftovers of killed writers, and (1) of ``sums``."""
        for name in (sums.NAME, sums.LAST, sums.BEST, sums.OUTCOME):
            remove_leftovers(self.folder / name)
        paths = [self.folder / name for name in (sums.SETTINGS, sums.PREPARATION)]
        digests = {path.name: sha256_of(path) for path in paths if path.is_file()}
        if (sums.read(self.folder) or {}) != digests:
            sums.write(self.folder, digests)

    def _end(self, status: Literal["finished", "stopped", "diverged"], reason: str, clock: Clock) -> Outcome:
        at = self.position
        parameters, seconds = sum(weight.numel() for weight in self.weights), round(clock.seconds, 3)
        spent = clock.cpu_seconds
        outcome = Outcome(
            status,
            reason,
            at.update,
            at.skipped,
            at.best,
            at.best_update,
            at.last,
            parameters,
            seconds,
            0 if self.rewind is None else self.rewind.count,
            None if spent is None else round(spent, 3),
        )
        if self.fabric.is_global_zero:
            self._close_folder(json.dumps(dataclasses.asdict(outcome), indent=2) + "\n")
        return outcome

    def _close_folder(self, outcome: str) -> None:
        """Write (2) of ``sums``, then the outcome, whose presence says that the run has ended."""
        paths = [
            self.folder / name for name in (sums.SETTINGS, sums.PREPARATION, sums.MODEL, sums.LOG, sums.LAST, sums.BEST)
        ]
        digests = {path.name: sha256_of(path) for path in paths if path.is_file()}
        if (known := self.position.best_sha256) and digests.get(sums.BEST) != known:
            raise CheckpointError(
                f"{self.folder / sums.BEST} was changed or removed during the run: expected the weights of update "
                f"{self.position.best_update}. The other checkpoint, {self.folder / sums.LAST}, is intact."
            )
        sums.write(self.folder, {**digests, sums.OUTCOME: hashlib.sha256(outcome.encode()).hexdigest()})
        write_atomically(self.folder / sums.OUTCOME, outcome)

    def _summed(self, number: float) -> float:
        """The sum over all processes."""
        if self.fabric.world_size == 1:
            return number
        return float(self.fabric.all_reduce(torch.tensor(number), reduce_op="sum"))

    def _agreed(self, flags: list[int]) -> int:
        """A signal, or the time to save, that any process saw, so that all act on it at the same update."""
        flag = max(flags, default=0)
        if self.fabric.world_size == 1:
            return flag
        return int(self.fabric.all_reduce(torch.tensor(flag), reduce_op="max"))


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    split: str,
    batch_size: int = 256,
    *,
    carry_state: bool = False,
    fabric: Any = None,
) -> dict[str, float]:
    """The loss and the task's metric of ``model`` over a split.

    Args:
        carry_state: begin a batch with the last state of the one before, on tasks that are contiguous.
        fabric: share the batches among its processes.

    Example:
        >>> from holdfast.tasks import Addition
        >>> from holdfast.train import ModelSettings, build
        >>> task = Addition(steps=10, test=100).load()
        >>> sorted(evaluate(build(ModelSettings("sgornn", 8), task.spec), task, "test"))
        ['loss', 'mse']
    """
    carry_state, way, device = carry_state and task.spec.contiguous, _way(model, task), _device_of(model)
    scores, state, training = Scores(task.spec.loss, task.spec.metric), None, model.training
    sharing = fabric if fabric is not None and fabric.world_size > 1 and not carry_state else None
    batches: Iterable[Answerable] = task.evaluation(split, batch_size)
    if sharing is not None:
        batches = itertools.islice(batches, sharing.global_rank, None, sharing.world_size)
    model.eval()
    try:
        for batch in batches:
            here = moved(batch, device)
            answers, state = model(here.inputs, here.lengths, state if carry_state else None, **way)
            scores.add(answers, here)
    finally:
        model.train(training)
    if sharing is not None:
        scores.sums = sharing.all_reduce(scores.sums.to(device), reduce_op="sum").cpu()
    return scores.result()


@torch.no_grad()
def predict(model: nn.Module, batches: Iterable[Answerable]) -> Iterator[Tensor]:
    """The answers of ``model``, batch by batch: numbers, or one score per class.

    Example:
        >>> from holdfast.tasks import Addition
        >>> from holdfast.train import ModelSettings, build
        >>> task = Addition(steps=10, test=100).load()
        >>> next(predict(build(ModelSettings("sgornn", 8), task.spec), task.evaluation("test", 50))).shape
        torch.Size([50, 1])
    """
    training, device = model.training, _device_of(model)
    model.eval()
    try:
        for batch in batches:
            here = moved(batch, device)
            yield model(here.inputs, here.lengths, None)[0].cpu()
    finally:
        model.train(training)


def run_lengths(task: Task, training: Training) -> tuple[int, int]:
    """Updates of the whole run, and between evaluations.

    Example:
        >>> from holdfast.tasks import Addition
        >>> run_lengths(Addition(steps=10).load(), Training(updates=100))
        (100, 2)
    """
    epoch = task.epoch(training.batch)
    if training.updates is not None:
        updates = training.updates
    elif epoch is None:
        raise SettingError(
            "This task generates new sequences without end, so it has no epochs; set updates instead of epochs."
        )
    else:
        updates = max(1, round((training.epochs or 0) * epoch))
    every = training.evaluate_every or epoch or max(1, updates // 50)
    return updates, min(every, updates)


def _way(model: nn.Module, task: Task) -> dict[str, bool]:
    """How to call ``model`` for a loss: with its answers unread if they would be thousands of logits each."""
    wide = getattr(model, "wide", False) and task.spec.loss == "cross_entropy"
    return {"unread": True} if wide else {}


def _pieces(batch: Any, truncation: int | None, every_step: bool) -> Iterator[tuple[Any, bool]]:
    """The batch in pieces of ``truncation`` steps, and whether a piece has a loss."""
    steps = len(batch.inputs)
    if truncation is None or steps <= truncation:
        yield batch, True
        return
    if batch.lengths is not None and not every_step:
        raise SettingError("truncation needs sequences of equal length when a sequence has a single target.")
    for begin in range(0, steps, truncation):
        end = min(begin + truncation, steps)
        targets = batch.targets[begin:end] if every_step else batch.targets
        yield dataclasses.replace(batch, inputs=batch.inputs[begin:end], targets=targets), every_step or end == steps


def moved(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on ``device``; as it is if they are there already.

    Example:
        >>> from holdfast.tasks import Batch
        >>> moved(Batch(torch.zeros(7, 4, 2), torch.zeros(4, 1)), torch.device("meta")).targets.device
        device(type='meta')
    """
    if batch.inputs.device == device:
        return batch
    tensors = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return dataclasses.replace(batch, **{k: v.to(device) for k, v in tensors.items() if isinstance(v, Tensor)})


def _device_of(model: nn.Module) -> torch.device:
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))


def _state_on(state: Tensor | State | None, device: torch.device) -> Tensor | State | None:
    if state is None or isinstance(state, Tensor):
        return None if state is None else state.to(device)
    return tuple(entry.to(device) for entry in state)


def _detached(state: Tensor | State) -> Tensor | State:
    return state.detach() if isinstance(state, Tensor) else tuple(entry.detach() for entry in state)


def check_accelerator(accelerator: str) -> None:
    """Refuse a kind of device that is unknown to Lightning Fabric or not in this machine.

    Example:
        >>> check_accelerator("abacus")
        Traceback (most recent call last):
        holdfast.errors.SettingError: accelerator must be a device of this machine (cpu, ...), got 'abacus'...
    """
    if accelerator in ("cpu", "auto"):
        return
    from lightning_fabric.accelerators import ACCELERATOR_REGISTRY as KNOWN

    here = [name for name in sorted(KNOWN.available_accelerators()) if KNOWN[name]["accelerator"].is_available()]
    if accelerator not in here:
        raise SettingError(
            f"accelerator must be a device of this machine ({', '.join(here)}, auto), got {accelerator!r}. A GPU needs "
            "a PyTorch that was built for it."
        )


def _fabric(devices: int, accelerator: str) -> Any:
    try:
        from lightning_fabric import Fabric
    except ImportError:
        raise MissingExtraError("Training needs Lightning Fabric: pip install 'holdfast[train]'.") from None
    nodes = 1
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices, nodes = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    several = devices * nodes > 1
    check_accelerator(accelerator)
    fabric = Fabric(accelerator=accelerator, devices=devices, num_nodes=nodes, strategy="ddp" if several else "auto")
    try:
        fabric.launch()
    except RuntimeError as error:
        if not (several and _is_loss(error)):
            raise
        raise LostProcessError(
            f"Another process of this job has died or cannot be reached: {devices * nodes} processes were expected to "
            f"connect. Look for the first error of the others, and start all of them again. ({_in_a_line(error)})"
        ) from error
    return fabric


# what gloo and NCCL say when the other end of a connection is gone
_GONE = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|gloo.*(timed out|timeout|read error|write error)"
    r"|remote process (exited|has)|ncclRemoteError|store.*(timed out|timeout)|socket (closed|timeout|timed out)",
    re.IGNORECASE | re.DOTALL,
)


def _is_loss(error: RuntimeError) -> bool:
    return isinstance(error, torch.distributed.DistError) or _GONE.search(str(error)) is not None


def _in_a_line(error: RuntimeError) -> str:
    return " ".join(str(error).split())[:200]


@contextlib.contextmanager
def _others_alive(fabric: Any, folder: Path) -> Iterator[None]:
    """Say of a lost connection that another process has died, which is all that the survivors see of it."""
    try:
        yield
    except RuntimeError as error:
        if fabric.world_size == 1 or isinstance(error, HoldfastError) or not _is_loss(error):
            raise
        kept = folder / sums.LAST
        state = f"The last checkpoint is {kept}" if kept.exists() else "No checkpoint was written yet"
        raise LostProcessError(
            f"Another process of this job has died or cannot be reached: process {fabric.global_rank} of "
            f"{fabric.world_size} lost the connection to it. Look for the first error of the other processes; if there "
            f"is none, the system may have killed one, for example for lack of memory. {state}: start the job again "
            f"with {fabric.world_size} processes to resume. ({_in_a_line(error)})"
        ) from error


@contextlib.contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Hold a run folder against other processes that would train in it."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(alone_in(folder))
        except BlockingIOError:
            raise CheckpointError(
                f"Another process is training in {folder}; wait for it, or choose another folder."
            ) from None
        yield


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM for the loop to see between updates; a second one has its usual effect."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def catch(number: int, _: Any) -> None:
        caught.append(number)
        signal.signal(number, before[number])

    before: dict[int, Any] = {number: signal.signal(number, catch) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
