"""Search over settings with Optuna, by any number of processes and machines, any of which may be killed.

    proposal of trial n = f(seed, n, scores of the trials that ended before)        (1) random search: f(seed, n)

The ranges and the objective are a table of the study: see ``search.py``.

A trial is a training run in a folder of its own. While it runs, its worker sends heartbeats to the storage. When they
stop, the trial returns to the queue with the same values and the same folder, and the next worker resumes it from its
last checkpoint. The total number of trials belongs to the sweep, not to a call: the same command again continues the
sweep, or joins it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import ConfigError, DivergedError, HoldfastError, MissingExtraError, SettingError, ShapeError
from holdfast.files import write_atomically
from holdfast.runs.schema import listed
from holdfast.runs.settings import overridden, run_settings
from holdfast.runs.train import train_run
from holdfast.studies.search import Search, read_search
from holdfast.studies.study import Study
from holdfast.train.log import read_log

if TYPE_CHECKING:
    import optuna

__all__ = ["SweepResult", "Trial", "sweep"]

HEARTBEAT = 15  # seconds between two
GRACE = 60  # seconds without one until a trial returns to the queue


@dataclasses.dataclass(frozen=True)
class Trial:
    """One trial that has ended.

    Args:
        number: in the storage.
        values: what was drawn, by dotted key.
        score: the objective, or None.
        status: "finished", "diverged", or "failed" by an error.
        reason: why it diverged or failed.
        folder: of its run, in the sweep's folder.
    """

    number: int
    values: dict[str, Any]
    score: float | None
    status: Literal["finished", "diverged", "failed"]
    reason: str
    folder: str


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """The state of a sweep.

    Args:
        metric, direction: of the objective.
        trials: those that have ended, best first, those without a score last.
        elsewhere: how many are still running in other workers.
        folder: of all its runs.
        storage: where Optuna keeps it, without a password.
    """

    metric: str
    direction: str
    trials: tuple[Trial, ...]
    elsewhere: int
    folder: str
    storage: str

    @property
    def best(self) -> Trial | None:
        """The best trial with a score."""
        return self.trials[0] if self.trials and self.trials[0].score is not None else None


def sweep(
    study: Study,
    trials: int,
    folder: str | Path,
    *,
    storage: str | None = None,
    sampler: Literal["tpe", "random", "grid"] = "tpe",
    name: str | None = None,
    scale: str | None = None,
    seed: int = 0,
    progress: bool = True,
    told: Callable[[Trial, Trial | None], None] | None = None,
    waiting_for: Callable[[int], None] | None = None,
    grace: int = GRACE,
) -> SweepResult:
    """Search until ``trials`` trials have ended, here or in other processes; interrupted ones are resumed.

    Args:
        study: with a table ``sweep``.
        trials: how many in total, including earlier calls. Workers that start the last trials at the same moment may
            run a few more.
        folder: where the runs go, one folder each.
        storage: any Optuna URL, for several machines; ``sweep.db`` in ``folder``, an SQLite file, if None.
        sampler: "tpe" learns from the trials that ended; "random" does not; "grid" takes every combination once, in an
            order that ``seed`` decides, and needs choices or whole numbers.
        name: of the sweep in its storage; the study's if None.
        scale: one of the study's, whose settings come on top.
        seed: of the proposals (1). The runs' own seed is a setting of theirs.
        progress: of each run.
        told: called after each trial with it and the best so far.
        waiting_for: called when only trials of other workers are left, with their number.
        grace: seconds without a heartbeat until a trial returns to the queue.

    Raises:
        Interrupted: SIGINT or SIGTERM was received. The trial is saved and waits for the next worker.

    Example:
        >>> import tempfile
        >>> tiny = Study(
        ...     "Tiny",
        ...     defaults={
        ...         "task": {"name": "addition", "steps": 4, "validation": 8},
        ...         "train": {"updates": 1, "batch": 4},
        ...     },
        ...     sweep={"objective": {"metric": "validation.mse"}, "cell.hidden_size": {"low": 2, "high": 4, "step": 2}},
        ... )
        >>> result = sweep(tiny, 2, tempfile.mkdtemp(), progress=False)
        >>> len(result.trials), result.best.score <= result.trials[1].score
        (2, True)
    """
    if trials < 1:
        raise SettingError(f"trials must be at least 1, got {trials}.")
    if sampler not in ("tpe", "random", "grid"):
        raise SettingError(f'sampler must be "tpe", "random" or "grid", got {sampler!r}.')
    search, base = read_search(study), _base(study, scale)
    if sampler == "grid":
        trials = min(trials, math.prod(len(values) for values in _grid(study.name, search).values()))
    _check(study.name, search, base)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    url = storage or f"sqlite:///{folder.resolve() / 'sweep.db'}"
    with _quiet_optuna() as optuna, _clear_errors(url):
        searched = _Searched(optuna, study.name, search, base, folder, progress)
        theirs = searched.open(url, name or study.name, sampler, seed, grace)
        while True:
            optuna.storages.fail_stale_trials(theirs)
            known = theirs.get_trials(deepcopy=False)
            done = sum(_counts(one) for one in known)
            running, waiting = _in_state(known, "RUNNING"), _in_state(known, "WAITING")
            if done >= trials:
                break
            if not waiting and done + running >= trials:  # the rest runs elsewhere, or its worker is dead
                if waiting_for is not None:
                    waiting_for(running)
                if _unchanged(theirs, known, grace + 2 * _interval(grace), optuna):
                    break
                continue
            searched.work(theirs)
            result = searched.result(theirs, url)
            _write_result(folder, result)
            if told is not None and (last := searched.last(theirs)) is not None:
                told(last, result.best)
        result = searched.result(theirs, url)
    _write_result(folder, result)
    return result


class _Searched:
    """One worker's view of a sweep."""

    def __init__(self, optuna: Any, source: str, search: Search, base: Mapping[str, Any], folder: Path, progress: bool):
        self.optuna, self.source, self.search, self.base = optuna, source, search, base
        self.folder, self.progress = folder, progress
        self.number: int | None = None  # of the trial that this worker ran last

    def open(self, url: str, name: str, sampler: str, seed: int, grace: int) -> optuna.Study:
        """The sweep in its storage, created if needed; one with other settings is refused."""
        optuna = self.optuna
        theirs = optuna.create_study(
            storage=_storage(optuna, url, grace),
            study_name=name,
            direction="maximize" if self.search.objective.maximise else "minimize",
            sampler=self._sampler(sampler, seed),
            load_if_exists=True,
        )
        now = self._fingerprint()
        held = theirs.user_attrs.get("fingerprint")
        if held is None:
            theirs.set_user_attr("fingerprint", now)
        elif held != now:
            raise ConfigError(
                f"The sweep {name!r} in {_shown(url)} has other ranges or settings; "
                "choose another folder with --run, or another --study-name."
            )
        return theirs

    def _sampler(self, kind: str, seed: int) -> Any:
        """(1): a new state for every trial, seeded by its number, so that workers never propose the same by accident.

        A grid needs none: the storage says which combinations are taken.
        """
        samplers = self.optuna.samplers
        if kind == "grid":
            return samplers.GridSampler(_grid(self.source, self.search), seed=seed)
        base = samplers.RandomSampler if kind == "random" else samplers.TPESampler

        class ByNumber(base):
            def before_trial(self, study: Any, trial: Any) -> None:
                mixed = hashlib.sha256(f"{seed} {trial.number}".encode()).digest()
                base.__init__(self, seed=int.from_bytes(mixed[:4], "big"))
                super().before_trial(study, trial)

        return ByNumber()

    def _fingerprint(self) -> str:
        held = {"search": dataclasses.asdict(self.search), "base": self.base}
        return hashlib.sha256(json.dumps(held, sort_keys=True, default=str).encode()).hexdigest()

    def work(self, theirs: optuna.Study) -> None:
        """Run one trial: a waiting one, or a new one."""
        try:
            theirs.optimize(self.run, n_trials=1)
        except BaseException as error:
            if self._given_away(error):
                return
            self.put_back(theirs)  # a signal or a full disk, not an error of the trial
            raise

    def run(self, trial: optuna.Trial) -> float:
        """Train with the values of a trial, in its folder or in that of the trial it resumes."""
        self.number = trial.number
        values = {name: one.draw(trial, name) for name, one in self.search.ranges.items()}
        place = trial.user_attrs.get("folder") or f"trial-{trial.number:04d}"
        trial.set_user_attr("folder", place)
        try:
            settings = run_settings(overridden(self.base, values), self.source)
            with _alone(self.folder / f".{place}.lock"):
                train_run(settings, self.folder / place, progress=self.progress, label=place)
            score = self.search.objective.value(read_log(self.folder / place / "log.jsonl"))
            if score is None:
                raise SettingError(f"No evaluation gave a finite {self.search.objective.metric}.")
        except DivergedError as error:  # worse than every number, which a sampler can learn from
            trial.set_user_attr("diverged", str(error))
            raise self.optuna.TrialPruned(str(error)) from None
        except (ConfigError, SettingError, ShapeError) as error:  # an invalid value; others may be valid
            trial.set_user_attr("error", str(error))
            if self._hopeless(trial.study):
                raise
            raise self.optuna.TrialPruned(str(error)) from None
        return score

    def _given_away(self, error: BaseException) -> bool:
        """Whether this worker was silent for so long that its trial was given to another, with the same result."""
        chain: list[BaseException] = []
        while error is not None and error not in chain:
            chain.append(error)
            error = error.__cause__ or error.__context__  # type: ignore[assignment]
        finished = self.optuna.exceptions.UpdateFinishedTrialError
        return any(isinstance(one, finished) or str(one).startswith("Cannot tell a ") for one in chain)

    def _hopeless(self, theirs: optuna.Study) -> bool:
        """Whether three trials, and all so far, failed: the mistake is in the study, not in a value."""
        ended = [one for one in theirs.get_trials(deepcopy=False) if _counts(one)]
        return len(ended) >= 2 and all("error" in one.user_attrs for one in ended)

    def put_back(self, theirs: optuna.Study) -> None:
        """Queue the interrupted trial of this worker again, unless it ended by itself."""
        for one in theirs.get_trials(deepcopy=False):
            if one.number == self.number and one.state.name == "FAIL" and not _counts(one):
                _put_back(theirs, one)

    def last(self, theirs: optuna.Study) -> Trial | None:
        """The trial that this worker ran last."""
        ended = [one for one in theirs.get_trials(deepcopy=False) if one.number == self.number and _counts(one)]
        return self._told(ended[0]) if ended else None

    def result(self, theirs: optuna.Study, url: str) -> SweepResult:
        known, objective = theirs.get_trials(deepcopy=False), self.search.objective
        ended = [self._told(one) for one in known if _counts(one)]
        sign = -1 if objective.maximise else 1
        ended.sort(key=lambda one: (one.score is None, sign * (one.score or 0.0), one.number))
        direction = "maximise" if objective.maximise else "minimise"
        running = _in_state(known, "RUNNING")
        return SweepResult(objective.metric, direction, tuple(ended), running, str(self.folder), _shown(url))

    def _told(self, one: optuna.trial.FrozenTrial) -> Trial:
        ranges = self.search.ranges
        values = {name: ranges[name].meant(value) if name in ranges else value for name, value in one.params.items()}
        place = one.user_attrs.get("folder", "")
        for status in ("diverged", "failed"):
            attribute = "error" if status == "failed" else status
            if attribute in one.user_attrs:
                return Trial(one.number, values, None, status, one.user_attrs[attribute], place)
        return Trial(one.number, values, one.value, "finished", "", place)


def _base(study: Study, scale: str | None) -> dict[str, Any]:
    """The settings that every trial starts from."""
    search = read_search(study)
    table: dict[str, Any] = overridden(study.defaults, {})
    chosen = next((one for one in study.run if one.name == search.run), None)
    if chosen is not None and scale is not None:
        return study.table(chosen, scale, study.seeds(chosen, scale)[0])
    if chosen is not None:
        table = overridden(table, chosen.set)
    return overridden(table, study.at(scale).set) if scale is not None else table


def _check(source: str, search: Search, base: Mapping[str, Any]) -> None:
    """Check the settings at the ends of every range, so that a mistake shows before the first trial."""
    first = {name: one.ends[0] for name, one in search.ranges.items()}
    for name, one in search.ranges.items():
        for end in one.ends:
            run_settings(overridden(base, {**first, name: end}), f"{source}: sweep.{name} = {end!r}")
    settings = run_settings(overridden(base, first), source)
    split = search.objective.metric.partition(".")[0]
    if split not in settings.training.evaluate_on:
        on = ", ".join(settings.training.evaluate_on)
        raise ConfigError(f"{source}: sweep.objective needs {split!r} in train.evaluate_on, got {on}.")
    spec = settings.task.load().spec
    known = {"loss", spec.metric} | ({"accuracy"} if spec.loss != "mse" else set())
    if (score := search.objective.metric.partition(".")[2]) not in known:
        scores = listed(sorted(known))
        raise ConfigError(
            f"{source}: sweep.objective must be a score of {settings.task_name} ({scores}), got {score!r}."
        )


def _storage(optuna: Any, url: str, grace: int) -> Any:
    """Optuna's storage at a URL. Of workers that start together, one creates its tables."""
    import sqlalchemy.exc

    options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    for left in range(10, -1, -1):
        try:
            return optuna.storages.RDBStorage(
                url,
                engine_kwargs=options,
                heartbeat_interval=_interval(grace),
                grace_period=grace,
                heartbeat_stale_trial_callback=_put_back,
            )
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.OperationalError) as error:
            too_late = isinstance(error, sqlalchemy.exc.IntegrityError) or "already exists" in str(error)
            if not (too_late and left):
                raise
            time.sleep(0.2)
    raise AssertionError("unreachable")


def _grid(source: str, search: Search) -> dict[str, list[Any]]:
    """Every value of every setting, by its name."""
    values = {name: part.every for name, part in search.ranges.items()}
    for name, found in values.items():
        if found is None:
            raise ConfigError(
                f"{source}: a grid needs choices or whole numbers, but sweep.{name} is a range of real numbers; "
                f'write "{name}" = {{ choices = [...] }}, or use the sampler tpe or random.'
            )
    return {name: list(found) for name, found in values.items() if found is not None}


def _put_back(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    """Queue an interrupted trial again, with the same values and folder, so that its run is resumed."""
    study.enqueue_trial(trial.params, user_attrs=trial.user_attrs)


def _counts(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether a trial counts in the total: it ended by itself. An interrupted one is resumed under a new number."""
    return trial.state.name in ("COMPLETE", "PRUNED") or (trial.state.name == "FAIL" and "error" in trial.user_attrs)


def _in_state(trials: list[optuna.trial.FrozenTrial], state: str) -> int:
    return sum(one.state.name == state for one in trials)


def _unchanged(theirs: optuna.Study, known: list[optuna.trial.FrozenTrial], seconds: float, optuna: Any) -> bool:
    """Wait for a trial elsewhere to end or to miss its heartbeats; True if neither happened."""
    before, end = [one.state for one in known], time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(1.0, seconds / 20))
        optuna.storages.fail_stale_trials(theirs)
        if [one.state for one in theirs.get_trials(deepcopy=False)] != before:
            return False
    return True


def _interval(grace: int) -> int:
    return max(1, min(HEARTBEAT, grace // 4))


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock, where the disk has locks: a worker that was taken for dead, but is not, ends its run first."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[Any]:
    """Optuna, without its own log and its warning that heartbeats are experimental."""
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("A sweep needs Optuna: pip install 'holdfast[sweep]'.") from None
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)


@contextlib.contextmanager
def _clear_errors(url: str) -> Iterator[None]:
    """Errors of a storage as a ConfigError that names it."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except ImportError as error:
        if isinstance(error, HoldfastError):
            raise
        raise ConfigError(
            f"The storage {_shown(url)} needs a database driver that is not installed: {error}."
        ) from None
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        inner = error.__cause__ or getattr(error, "orig", None) or error
        raise ConfigError(f"The storage {_shown(url)} cannot be used: {str(inner).splitlines()[0]}") from None
    except RuntimeError as error:
        if isinstance(error, HoldfastError) or "optuna" not in str(error).lower():
            raise
        raise ConfigError(f"The storage {_shown(url)} belongs to another version of Optuna: {error}") from None


def _shown(url: str) -> str:
    """A URL without its password."""
    import sqlalchemy.engine
    import sqlalchemy.exc

    try:
        return sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return url if "@" not in url else "(an invalid URL)"


def _write_result(folder: Path, result: SweepResult) -> None:
    write_atomically(folder / "sweep.json", json.dumps(dataclasses.asdict(result), indent=2, default=str) + "\n")
