"""``train``, ``resume`` and ``evaluate`` on a task."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.cli._verb import verb
from holdfast.errors import ConfigError, LostProcessError, SettingError
from holdfast.runs.request import Request, choose, parse_setting
from holdfast.runs.schema import read_file


def test_a_run_has_the_settings_that_were_typed(trained):
    table = json.loads((trained / "settings.json").read_text())
    assert table["task"]["steps"] == 4
    assert table["cell"]["hidden_size"] == 4
    assert (table["train"]["updates"], table["train"]["batch"]) == (4, 4)


def test_a_run_without_a_folder_takes_the_next_free_one(command, here, tiny):
    for count in (1, 2):
        ran = command("train", "addition", *tiny, "--updates", 1)
        assert ran.code == 0
        assert f"runs/addition-sgornn-{count}" in ran.err
        assert (here / "runs" / f"addition-sgornn-{count}" / "outcome.json").is_file()


def test_what_was_not_asked_for_is_chosen_and_said():
    chosen = choose(Request("addition", options={"task.steps": 4}))
    assert chosen.settings[0].training.updates == 1000
    assert chosen.choices == ("1000 updates (change with --updates).",)


def test_options_come_after_the_file_and_set_comes_last(command, here, tiny):
    (here / "run.toml").write_text(
        '[task]\nname = "addition"\nsteps = 9\n[cell]\nname = "gru"\n[train]\nupdates = 2\nlr = 0.5\nbatch = 7\n'
    )
    assert (
        command("train", "--config", "run.toml", *tiny, "--lr", 0.25, "--set", "train.lr=0.125", "--run", "r").code == 0
    )
    table = json.loads((here / "r" / "settings.json").read_text())
    assert (table["cell"]["name"], table["task"]["steps"], table["train"]["lr"]) == ("gru", 4, 0.125)
    assert (table["train"]["batch"], table["train"]["updates"]) == (4, 2)


def test_a_runs_settings_are_a_settings_file(command, here, trained):
    ran = command("train", "--config", trained / "settings.json", "--seed", 5, "--run", "again", "-q", "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["updates"] == 4


def test_several_cells_give_a_table_and_a_plot(command, here, tiny):
    words = ["train", "addition", *tiny, "--updates", 2, "--cell", "sgornn", "--cell", "lstm", "--run", "both"]
    ran = command(*words, "--set", "lstm:train.lr=0.5", "--figure", "plots/addition.png")
    assert ran.code == 0, ran.text
    for word in ("sgornn", "lstm", "test error", "best constant answer", "0.16667", "0.5", "plots/addition.png"):
        assert word in ran.out
    assert (here / "plots" / "addition.png").stat().st_size > 5_000
    assert json.loads((here / "both" / "lstm" / "settings.json").read_text())["train"]["lr"] == 0.5
    assert json.loads((here / "both" / "sgornn" / "settings.json").read_text())["train"]["lr"] == 1e-3


def test_a_folder_with_another_run_is_refused(command, trained, tiny):
    ran = command("train", "addition", *tiny, "--updates", 5, "--run", trained)
    assert ran.code == 1
    assert "train.updates = 4, but 5 was asked for" in ran.err


def test_a_finished_run_is_not_run_again(command, trained):
    log = (trained / "log.jsonl").read_bytes()
    ran = command("resume", trained)
    assert ran.code == 0
    assert "Finished after 4 updates" in ran.out
    assert (trained / "log.jsonl").read_bytes() == log


def test_scores_of_a_run(command, trained):
    ran = command("evaluate", trained)
    assert ran.code == 0
    assert "best constant answer: 0.16667" in ran.out
    scored = json.loads(command("evaluate", trained, "--split", "validation", "--which", "last", "--json").out)
    log = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert scored["scores"]["mse"] == pytest.approx(
        log[-1]["validation"]["mse"], rel=1e-9
    )  # another batch size adds otherwise


def test_a_run_that_diverges_is_exit_code_three(command, here, tiny):
    words = ["train", "addition", *tiny, "--updates", 50, "--optimiser", "sgd", "--lr", "1e30", "--cell", "linear"]
    ran = command(*words, "--run", "wild")
    assert ran.code == 3
    assert "not finite" in ran.err
    assert "Traceback" not in ran.text
    assert command("resume", "wild").code == 3
    assert json.loads((here / "wild" / "outcome.json").read_text())["status"] == "diverged"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(command, here, tiny, number):
    """The real signal, sent to this process once the run has written its first line."""
    log, over = here / "long" / "log.jsonl", threading.Event()

    def send():
        while not over.is_set() and not (log.exists() and log.stat().st_size):
            time.sleep(0.01)
        if not over.is_set():
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    words = ["train", "addition", *tiny, "--updates", 1_000_000, "--set", "train.evaluate_every=5", "--run", "long"]
    ran = command(*words)
    over.set()
    thread.join()
    assert ran.code == 128 + number
    assert "saved: holdfast resume long" in ran.err
    assert (here / "long" / "last.safetensors").is_file()
    assert not (here / "long" / "outcome.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train"], "Nothing to train on: give a task"),
        (["train", "adition"], "Unknown task 'adition'; known: addition"),
        (["train", "addition", "--data", "x.csv"], "Give a task or --data, not both"),
        (["train", "addition", "--target", "y"], "--target y names a column of a file; add --data FILE"),
        (["train", "--data", "none.csv"], "none.csv"),
        (["train", "--config", "none.toml"], "none.toml cannot be read: No such file or directory."),
        (["train", "addition", "--set", "steps"], "--set must be KEY=VALUE"),
        (["train", "addition", "--set", "task.step=4", "--updates", "1"], "unknown key 'step' in task; known: form"),
        (["train", "addition", "--set", "lstm:train.lr=1", "--updates", "1"], "add --cell lstm"),
        (["train", "addition", "--cell", "lsmt", "--updates", "1"], "unknown cell 'lsmt'; known: antisymmetric"),
        (
            ["train", "addition", "--cell", "gru", "--cell", "gru", "--updates", "1"],
            "A comparison needs different cells, got gru, gru",
        ),
        (
            ["train", "addition", "--cell", "gru", "--cell", "rnn", "--devices", "2", "--updates", "1"],
            "--devices works with one cell",
        ),
        (["train", "addition", "--optimiser", "adm", "--updates", "1", "-q"], "adm"),
        (["train", "addition", "--epochs", "2", "-q"], "no epochs"),
        (["train", "addition", "--updates", "1", "--run", "file"], "file"),
        (["resume", "none"], "none is not a run folder"),
        (["resume", "file"], "file is not a run folder"),
        (["evaluate", "none"], "none is not a run folder"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(command, here, words, said):
    (here / "file").write_text("not a folder")
    ran = command(*words)
    assert ran.code == 1, ran.text
    assert said in ran.err
    assert "Traceback" not in ran.text
    assert "unexpected" not in ran.text


@pytest.mark.parametrize("name", ["best.safetensors", "last.safetensors", "settings.json"])
def test_a_damaged_file_of_a_run_is_one_sentence_that_names_it(command, trained, tmp_path, name):
    """One bit of a weight, or a digit of a setting that leaves it a setting."""
    folder = shutil.copytree(trained, tmp_path / "run")
    data = bytearray((folder / name).read_bytes())
    place = -3 if name.endswith(".safetensors") else data.index(b'"lr": 0.001') + 10
    data[place] ^= 1
    (folder / name).write_bytes(bytes(data))
    ran = command("evaluate", folder, "--which", "last" if name == "last.safetensors" else "best")
    assert ran.code == 1
    assert ran.err.startswith("holdfast evaluate: ")
    assert str(folder / name) in ran.err
    assert len(ran.err.splitlines()) == 1
    if name != "settings.json":
        assert "The other checkpoint, " in ran.err
        assert "is intact" in ran.err


def test_scores_that_cannot_be_had(command, trained):
    for words, said in {
        ("--split", "holdout"): "has the splits",
        ("--data", "x.csv"): "was trained on the task addition, not with --data",
        ("--split", "test", "--data", "x.csv"): "was trained on the task addition, not with --data",
    }.items():
        ran = command("evaluate", trained, *words)
        assert ran.code == 1
        assert said in ran.err
    assert command("evaluate", trained, "--which", "worst").code == 2


def test_under_torchrun_the_folder_must_be_given(command, here, tiny, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    ran = command("train", "addition", *tiny, "--updates", 1)
    assert ran.code == 1
    assert "add --run FOLDER" in ran.err


@pytest.mark.slow
def test_two_processes_share_a_folder_and_one_of_them_speaks(here, tiny):
    words = [str(word) for word in (*tiny, "--updates", 2, "--devices", 2)]
    program = [sys.executable, "-m", "holdfast", "train", "addition", *words]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (here / "runs").iterdir()] == ["addition-sgornn-1"]
    assert done.stdout.count("Finished after 2 updates") == 1


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_is_named_by_the_other_one(here, tiny, victim):
    """Two processes as torchrun starts them; one is killed after the first evaluation."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(word) for word in (*tiny, "--updates", 10**6, "--run", "run", "--set", "train.checkpoint_seconds=0")]
    words += ["--set", "train.evaluate_every=5"]
    both = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "test"}
    both |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "holdfast", "train", "addition", *words],
            env={**os.environ, **both, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        log, patience = here / "run" / "log.jsonl", time.monotonic() + 120
        while not (log.exists() and log.stat().st_size) and time.monotonic() < patience:
            time.sleep(0.05)
        processes[victim].kill()
        said = processes[1 - victim].communicate(timeout=120)[1]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert processes[1 - victim].returncode == 1, said
    assert f"Another process of this job has died or cannot be reached: process {1 - victim} of 2 lost the" in said
    assert "fault of Holdfast" not in said
    assert "Traceback" not in said
    assert "last.safetensors: start the job again with 2 processes to resume" in said


def test_an_error_of_one_process_alone_is_told_by_it(monkeypatch, capsys):
    """The first process speaks for all of an error that all have; one that only this one has would be lost."""
    monkeypatch.setenv("RANK", "1")
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    app = typer.Typer()
    errors = [
        LostProcessError("Another has died."),
        ZeroDivisionError("0"),
        SettingError("All see this."),
        OSError("x"),
    ]
    for number, error in enumerate(errors):

        @verb(app, str(number))
        def fail() -> None:
            raise error  # noqa: B023 - called in this round

        with pytest.raises(typer.Exit):
            app.registered_commands[-1].callback()
    said = capsys.readouterr().err
    assert "[process 1] holdfast 0: Another has died." in said
    assert "[process 1] holdfast 1: unexpected ZeroDivisionError" in said
    assert said.count("[process 1]") == said.count("holdfast ") == 2
    assert left == [1], "threads of the broken connection abort the interpreter's teardown, now and then"


@given(st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_setting_is_a_key_and_a_value_or_an_error(text):
    try:
        cell, key, _ = parse_setting(text)
    except ConfigError:
        return
    assert all(key.split("."))
    assert cell != ""


@given(st.binary(max_size=60), st.sampled_from([".toml", ".json"]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_settings_file_of_any_bytes_is_tables_or_an_error(tmp_path, data, suffix):
    path = tmp_path / f"any{suffix}"
    path.write_bytes(data)
    try:
        assert isinstance(read_file(path), dict)
    except ConfigError as error:
        assert path.name in str(error)  # noqa: PT017 - either of the two is right


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(width=16)
    | st.sampled_from(["addition", "gru", "updates"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "task", "cell", "train", "updates", "options", "steps"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["task", "cell", "train", "name"]), JSON, max_size=4))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_settings_file_of_any_tables_is_settings_or_an_error(tmp_path, table):
    path = tmp_path / "any.json"
    path.write_text(json.dumps(table))
    try:
        chosen = choose(Request(config=path, set=("task.steps=4",)))
    except ValueError as error:  # ConfigError, SettingError
        assert type(error).__module__ == "holdfast.errors"  # noqa: PT017 - either of the two is right
        return
    assert chosen.settings[0].task_name == "addition"
