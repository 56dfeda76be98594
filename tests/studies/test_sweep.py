"""Sweeps: every trial counts once, whoever runs it and whatever is killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CheckpointError, ConfigError, Interrupted, SettingError
from holdfast.studies.search import Objective, Range, read_search
from holdfast.studies.study import Study, load_study
from holdfast.studies.sweep import _storage, sweep
from holdfast.train import checkpoint

optuna = pytest.importorskip("optuna")

BASE = {
    "task": {"name": "addition", "steps": 4, "validation": 8},
    "cell": {"name": "rnn", "hidden_size": 2, "options": {"backend": "reference"}},  # no time for compiling
    "train": {"updates": 2, "batch": 4, "evaluate_every": 1},
}
RANGES = {
    "objective": {"metric": "validation.mse"},
    "train.lr": {"low": 1e-4, "high": 1e-1, "log": True},
    "cell.hidden_size": {"low": 2, "high": 6, "step": 2},
    "train.schedule": {"choices": [{"kind": "linear"}, {"kind": "constant"}]},
}


def tiny(base=BASE, **ranges):
    return Study("Tiny", defaults=base, sweep={**RANGES, **ranges}, name="tiny")


def run(study, trials, folder, **options):
    return sweep(study, trials, folder, progress=False, **options)


def values(result):
    return {trial.number: trial.values for trial in result.trials}


def states(folder, name="tiny"):
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/sweep.db")
    return optuna.load_study(study_name=name, storage=storage).get_trials()


def test_a_sweep_goes_on_to_the_total(tmp_path):
    """One trial and then two more are three; a total that has been reached runs nothing."""
    first = run(tiny(), 1, tmp_path)
    assert [len(first.trials), len(run(tiny(), 3, tmp_path).trials)] == [1, 3]
    again = run(tiny(), 3, tmp_path)
    assert sorted(trial.number for trial in again.trials) == [0, 1, 2]
    assert values(again)[0] == values(first)[0]
    assert len(list(tmp_path.glob("trial-*"))) == 3


def test_the_best_comes_first_and_the_file_says_the_same(tmp_path):
    result = run(tiny(), 4, tmp_path)
    scores = [trial.score for trial in result.trials]
    assert scores == sorted(scores)
    assert result.best == result.trials[0]
    held = json.loads((tmp_path / "sweep.json").read_text())
    assert [trial["score"] for trial in held["trials"]] == scores
    log = [json.loads(line) for line in (tmp_path / result.best.folder / "log.jsonl").read_text().splitlines()]
    assert result.best.score == min(entry["validation"]["mse"] for entry in log)


def test_a_run_has_the_values_of_its_trial(tmp_path):
    for trial in run(tiny(), 3, tmp_path).trials:
        table = json.loads((tmp_path / trial.folder / "settings.json").read_text())
        assert table["train"]["lr"] == trial.values["train.lr"]
        assert table["cell"]["hidden_size"] == trial.values["cell.hidden_size"] in (2, 4, 6)
        assert table["train"]["schedule"]["kind"] == trial.values["train.schedule"]["kind"]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_proposals_are_a_function_of_the_seed(tmp_path, sampler):
    """Equal in two sweeps of one seed, however they are cut into calls; different with another seed."""
    whole = run(tiny(), 3, tmp_path / "a", sampler=sampler)
    run(tiny(), 1, tmp_path / "b", sampler=sampler)
    parts = run(tiny(), 3, tmp_path / "b", sampler=sampler)
    other = run(tiny(), 1, tmp_path / "c", sampler=sampler, seed=1)
    assert values(whole) == values(parts)
    assert values(other)[0] != values(whole)[0]


def test_a_grid_takes_every_combination_once(tmp_path):
    """Two rates, three sizes and two schedules are twelve trials, whatever total is asked for and however it is cut."""
    grid = tiny(**{"train.lr": {"choices": [1e-3, 1e-2]}})
    run(grid, 5, tmp_path, sampler="grid")
    result = run(grid, 100, tmp_path, sampler="grid")
    taken = {
        (one["train.lr"], one["cell.hidden_size"], one["train.schedule"]["kind"]) for one in values(result).values()
    }
    assert len(result.trials) == len(taken) == 12


def test_a_grid_of_real_numbers_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"grid needs choices .* sweep\.train\.lr"):
        run(tiny(), 3, tmp_path, sampler="grid")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_trial_of_a_killed_worker_is_taken_up_in_its_folder(tmp_path):
    """SIGKILL in the middle of the first trial. The next worker ends it from its checkpoint, and the total is kept."""
    torch.set_default_dtype(torch.float32)  # as in the other process
    (tmp_path / "tiny.toml").write_text(
        """
        title = "Tiny"
        [defaults]
        task = { name = "addition", steps = 4, validation = 8 }
        cell = { name = "rnn", hidden_size = 2, options = { backend = "reference" } }
        train = { updates = 300, batch = 4, evaluate_every = 100, checkpoint_seconds = 0.05 }
        [sweep]
        objective = { metric = "validation.mse" }
        "train.lr" = { low = 1e-4, high = 1e-2, log = true }
        """
    )
    words = ["sweep", str(tmp_path / "tiny.toml"), "--trials", "2", "--run", str(tmp_path / "runs"), "-q"]
    program = [sys.executable, "-m", "holdfast", *words]
    worker = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    saved, end = tmp_path / "runs" / "trial-0000" / "last.safetensors", time.monotonic() + 120
    while not saved.exists() and worker.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    worker.kill()
    _, said = worker.communicate()
    assert saved.exists(), said.decode()
    at = checkpoint.load(saved)["position"]["update"]
    assert 0 < at < 300
    (killed,) = states(tmp_path / "runs")
    assert killed.state.name == "RUNNING"

    result = run(load_study(tmp_path / "tiny.toml"), 2, tmp_path / "runs", grace=1)
    assert len(result.trials) == 2
    (taken,) = (trial for trial in result.trials if trial.folder == "trial-0000")
    assert taken.number > 0
    assert taken.values == killed.params
    assert sorted(trial.state.name for trial in states(tmp_path / "runs")) == ["COMPLETE", "COMPLETE", "FAIL"]
    assert json.loads((tmp_path / "runs" / "trial-0000" / "outcome.json").read_text())["updates"] == 300


def test_a_trial_without_a_sign_of_life_is_taken_up_and_one_with_is_left(tmp_path):
    """Both are RUNNING in the storage. Of one the worker was last heard of an hour ago; of the other, in the future."""
    run(tiny(), 1, tmp_path)
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/sweep.db")
    theirs = optuna.load_study(study_name="tiny", storage=storage)
    for when in ("datetime('now', '-1 hour')", "datetime('now', '+1 hour')"):
        trial = theirs.ask()
        trial.suggest_float("train.lr", 1e-4, 1e-1, log=True)
        trial.set_user_attr("folder", f"trial-{trial.number:04d}")
        with storage.engine.begin() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO trial_heartbeats (trial_id, heartbeat) VALUES ({trial._trial_id}, {when})"
            )
    dead, alive = theirs.get_trials()[1:]
    waited = []
    result = run(tiny(), 3, tmp_path, grace=1, waiting_for=waited.append)
    assert result.elsewhere == 1
    assert waited == [1]
    assert len(result.trials) == 2
    (taken,) = (trial for trial in result.trials if trial.folder == "trial-0001")
    assert taken.values["train.lr"] == dead.params["train.lr"]
    assert [trial.state.name for trial in states(tmp_path)] == ["COMPLETE", "FAIL", "RUNNING", "COMPLETE"]
    assert alive.number == 2


def test_a_worker_whose_trial_was_given_away_goes_on_with_the_next(tmp_path):
    """As when a machine sleeps: another worker has declared the trial dead while this one is still at it."""
    slow, over = tiny({**BASE, "train": {**BASE["train"], "updates": 300, "evaluate_every": 100}}), threading.Event()
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/sweep.db")

    def declare_dead():
        while not over.is_set() and not (tmp_path / "trial-0000" / "settings.json").exists():
            time.sleep(0.01)
        storage.set_trial_state_values(1, optuna.trial.TrialState.FAIL)  # 1: the first there is

    thread = threading.Thread(target=declare_dead)
    thread.start()
    result = run(slow, 1, tmp_path)
    over.set()
    thread.join()
    assert [trial.number for trial in result.trials] == [1]
    assert [trial.state.name for trial in states(tmp_path)] == ["FAIL", "COMPLETE"]


def test_a_trial_that_is_stopped_waits_for_the_next_worker(tmp_path):
    """Ctrl-C, as a signal to this process: saved, and put back with its values and its folder."""
    log, over = tmp_path / "trial-0000" / "log.jsonl", threading.Event()

    def send():
        while not over.is_set() and not (log.exists() and log.stat().st_size):
            time.sleep(0.01)
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    study = tiny({**BASE, "train": {**BASE["train"], "updates": 1_000_000, "evaluate_every": 5}})
    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(Interrupted):
        run(study, 1, tmp_path)
    over.set()
    thread.join()
    failed, waiting = states(tmp_path)
    assert (failed.state.name, waiting.state.name) == ("FAIL", "WAITING")
    assert waiting.user_attrs["folder"] == "trial-0000"
    assert waiting.system_attrs["fixed_params"] == failed.params


def test_a_trial_that_diverges_counts_and_comes_last(tmp_path):
    train = {**BASE["train"], "optimiser": "sgd", "updates": 20}
    wild = tiny({**BASE, "train": train, "cell": {**BASE["cell"], "name": "linear"}},
                **{"train.lr": {"choices": [1e30, 1e-3]}})  # fmt: skip
    result = run(wild, 5, tmp_path, sampler="random")
    assert {trial.status for trial in result.trials} == {"finished", "diverged"}
    assert [trial.status for trial in result.trials] == sorted((trial.status for trial in result.trials), reverse=True)
    assert all((trial.status == "diverged") == (trial.values["train.lr"] == 1e30) for trial in result.trials)
    assert all("not finite" in trial.reason for trial in result.trials if trial.status == "diverged")


def test_a_value_that_cannot_be_is_told_and_the_others_go_on(tmp_path):
    """Rotations need an even number of units: the ends of the range are, half of what is between is not."""
    odd = tiny({**BASE, "cell": {**BASE["cell"], "name": "sgornn"}}, **{"cell.hidden_size": {"low": 4, "high": 8}})
    result = run(odd, 6, tmp_path, sampler="random")
    assert len(result.trials) == 6
    for trial in result.trials:
        assert (trial.status == "failed") == (trial.values["cell.hidden_size"] % 2 == 1)
        assert ("even size" in trial.reason) == (trial.status == "failed")
    assert {trial.status for trial in result.trials} == {"finished", "failed"}


def test_a_disk_that_fails_is_no_fault_of_the_trial(tmp_path):
    """The trial's folder cannot be made, since a file is in its place: the sweep stops, and the trial waits."""
    (tmp_path / "trial-0000").write_text("in the way")
    with pytest.raises(CheckpointError):
        run(tiny(), 2, tmp_path)
    assert [trial.state.name for trial in states(tmp_path)] == ["FAIL", "WAITING"]
    (tmp_path / "trial-0000").unlink()
    assert sorted(trial.folder for trial in run(tiny(), 2, tmp_path).trials) == ["trial-0000", "trial-0002"]


def test_other_ranges_in_the_same_storage_are_refused(tmp_path):
    run(tiny(), 1, tmp_path)
    with pytest.raises(ConfigError, match="has other ranges or settings"):
        run(tiny(**{"train.lr": {"low": 1e-4, "high": 1.0, "log": True}}), 2, tmp_path)
    other = tiny(**{"train.lr": {"low": 1e-4, "high": 1.0, "log": True}})
    assert len(run(other, 1, tmp_path, name="other").trials) == 1


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ({}, "no \\[sweep\\] table"),
        ({"train.lr": {"low": 0, "high": 1}}, "sweep.objective is missing"),
        ({"objective": {"metric": "validation.mse"}}, "has no range"),
        ({"objective": {"metric": "mse"}, "train.lr": {"low": 0.1, "high": 1}}, "a split and a score"),
        ({**RANGES, "run": "a"}, "unknown sweep.run 'a'; known: none"),
        ({**RANGES, "train.lr": {"low": 2, "high": 1}}, "at most high, got 2 and 1"),
        ({**RANGES, "train.lr": {"low": 0, "high": 1, "log": True}}, "low greater than 0"),
        ({**RANGES, "train.lr": {"low": 0}}, "low and high, or choices"),
        ({**RANGES, "train.lr": {"low": 0, "high": 1, "choices": [1]}}, "not both"),
        ({**RANGES, "train.lr": 0.1}, "sweep.train.lr must be a table"),
        ({**RANGES, "train.rate": {"low": 0.1, "high": 1}}, "unknown key 'rate' in train"),
        ({**RANGES, "train.lr": {"low": -1, "high": 1}}, "lr must be greater than 0"),
        ({**RANGES, "cell.name": {"choices": ["rnn", "rnm"]}}, "unknown cell 'rnm'"),
        ({**RANGES, "objective": {"metric": "test.mse"}}, "needs 'test' in train.evaluate_on, got validation"),
        (
            {**RANGES, "objective": {"metric": "validation.accuracy"}},
            r"a score of addition \(loss, mse\), got 'accuracy'",
        ),
    ],
)
def test_a_mistake_in_the_ranges_shows_before_the_first_trial(tmp_path, ranges, said):
    with pytest.raises(ConfigError, match=said):
        run(Study("Tiny", defaults=BASE, sweep=ranges, name="tiny"), 1, tmp_path)
    assert not list(tmp_path.glob("trial-*"))


def test_a_storage_that_cannot_be_used_is_named_without_its_password(tmp_path):
    for url in ("nosuch://me:secret@host/db", "sqlite:////no/such/folder/sweep.db", "not a url"):
        with pytest.raises(ConfigError) as caught:
            run(tiny(), 1, tmp_path, storage=url)
        assert "secret" not in str(caught.value)
    (tmp_path / "sweep.db").write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match="cannot be used"):
        run(tiny(), 1, tmp_path)
    for options in ({"sampler": "bayes"}, {"trials": 0}):
        with pytest.raises(SettingError):
            run(tiny(), options.pop("trials", 1), tmp_path, **options)


def test_workers_that_start_together_all_come_in(tmp_path):
    """Six find an empty file at the same moment; one makes its tables, and the others wait for them."""
    together, opened = threading.Barrier(6), []

    def start():
        together.wait()
        opened.append(_storage(optuna, f"sqlite:///{tmp_path}/sweep.db", 60))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        threads = [threading.Thread(target=start) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(opened) == 6


def test_ranges_can_be_tables_in_tables():
    inner = {"lr": {"low": 0.1, "high": 1}, "options": {"eps": {"choices": [1, 2]}}}
    nested = {"objective": RANGES["objective"], "train": inner}
    assert list(read_search(Study("Tiny", sweep=nested)).ranges) == ["train.lr", "train.options.eps"]


def test_the_shipped_search_has_the_printed_ranges():
    """S1, Table 3, Wiki-5k."""
    from pathlib import Path

    study = load_study(Path(__file__).parents[2] / "studies" / "s1" / "gru-search.toml")
    search = read_search(study)
    ends = {name: (one.low, one.high, one.log) for name, one in search.ranges.items()}
    assert ends == {
        "train.batch": (8, 256, True),
        "train.lr": (1e-5, 1e-1, True),
        "train.options.weight_decay": (1e-16, 1.0, True),
    }
    assert search.objective == Objective("validation.bits", "minimise")


def test_a_range_of_whole_numbers_draws_whole_numbers():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(20):
        trial = study.ask()
        assert Range(low=3, high=9, step=3).draw(trial, "a") in (3, 6, 9)
        assert isinstance(Range(low=1, high=2).draw(trial, "b"), int)
        assert isinstance(Range(low=1, high=2.0).draw(trial, "c"), float)
        assert Range(choices=(None, [1, 2], {"x": 1})).draw(trial, "d") in (None, [1, 2], {"x": 1})


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["low", "high", "step", "log", "choices", "metric", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["objective", "run", "train.lr", "train", "cell.hidden_size"]), ANY, max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_table_is_a_search_or_an_error(table):
    try:
        search = read_search(Study("Any", sweep=table))
    except ConfigError:
        return
    assert search.ranges
