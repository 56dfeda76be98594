"""One run in a folder: begun, refused, gone on with, loaded."""

import json
import os
import signal

import pytest
import torch

from holdfast.errors import CheckpointError, ConfigError, DivergedError, Interrupted
from holdfast.runs.environment import environment
from holdfast.runs.load import load_run, read_settings
from holdfast.runs.measured import measure
from holdfast.runs.prepare import prepare
from holdfast.runs.settings import overridden, run_settings, to_table
from holdfast.runs.train import resume_run, train_run
from holdfast.train.checkpoint import load
from holdfast.train.loop import evaluate, read_outcome

TABLE = {
    "task": {"name": "addition", "steps": 6, "validation": 16},
    "cell": {"name": "sgornn", "hidden_size": 4},
    "train": {"updates": 4, "batch": 4, "evaluate_every": 2, "lr": 1e-2},
}


@pytest.fixture
def settings():
    return run_settings(TABLE)


def test_a_run_leaves_its_settings_its_surroundings_its_model_and_its_outcome(settings, tmp_path):
    outcome = train_run(settings, tmp_path / "deep" / "run", progress=False)
    folder = tmp_path / "deep" / "run"
    assert read_settings(folder) == settings
    assert json.loads((folder / "settings.json").read_text()) == to_table(settings)
    assert json.loads((folder / "model.json").read_text())["parameters"] == outcome.parameters == 27
    assert "torch" in json.loads((folder / "environment.json").read_text())["versions"]
    assert read_outcome(folder) == outcome
    assert (outcome.status, outcome.updates) == ("finished", 4)


def test_a_finished_run_is_not_run_again(settings, tmp_path):
    first = train_run(settings, tmp_path, progress=False)
    before = (tmp_path / "last.safetensors").stat().st_mtime_ns
    assert train_run(settings, tmp_path, progress=False) == first
    assert resume_run(tmp_path, progress=False) == first
    assert (tmp_path / "last.safetensors").stat().st_mtime_ns == before


def test_a_folder_with_other_settings_is_refused_and_the_difference_named(settings, tmp_path):
    train_run(settings, tmp_path, progress=False)
    other = run_settings(overridden(TABLE, {"train.lr": 0.5}))
    with pytest.raises(ConfigError, match=r"holds a run with train.lr = 0.01, but 0.5 was asked for; choose another"):
        train_run(other, tmp_path, progress=False)


def test_weights_at_the_start_are_a_function_of_the_seed(settings):
    first, _ = prepare(settings)
    torch.rand(7)
    again, _ = prepare(settings)
    other, _ = prepare(run_settings(overridden(TABLE, {"train.seed": 1})))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_a_loaded_run_scores_what_its_log_says(settings, tmp_path):
    outcome = train_run(settings, tmp_path, progress=False)
    for which, wanted in (("best", outcome.best), ("last", outcome.last["validation"]["mse"])):
        run = load_run(tmp_path, which)
        assert run.settings == settings
        scores = evaluate(run.model, run.task, "validation", settings.training.batch)
        assert scores["mse"] == pytest.approx(wanted, rel=1e-12)


def test_a_run_that_diverged_says_so_again(tmp_path):
    settings = run_settings(overridden(TABLE, {"cell.name": "linear", "train.lr": 1e300, "train.optimiser": "sgd"}))
    for _ in range(2):
        with pytest.raises(DivergedError, match="not finite"):
            train_run(settings, tmp_path, progress=False)
    outcome = read_outcome(tmp_path)
    assert outcome is not None
    assert outcome.status == "diverged"


@pytest.mark.parametrize(
    ("name", "said"),
    [("settings.json", r"settings.json is not valid JSON"), ("outcome.json", r"outcome.json is damaged")],
)
def test_a_damaged_file_of_a_run_is_named(settings, tmp_path, name, said):
    train_run(settings, tmp_path, progress=False)
    (tmp_path / name).write_text((tmp_path / name).read_text()[:-20])
    with pytest.raises((ConfigError, CheckpointError), match=said):
        resume_run(tmp_path, progress=False)


def test_a_folder_without_a_run_or_without_weights_is_refused(tmp_path, settings):
    with pytest.raises(ConfigError, match=r"is not a run folder: it has no settings.json"):
        resume_run(tmp_path)
    train_run(settings, tmp_path, progress=False)
    (tmp_path / "best.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no best.safetensors yet"):
        load_run(tmp_path)


def test_a_folder_that_cannot_be_made_is_a_clear_error(settings, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"Could not write .*file.*; choose another folder"):
        train_run(settings, tmp_path / "file" / "run", progress=False)


@pytest.mark.parametrize("cell", [{}, {"name": "exprnn", "options": {"rebase_every": 2}}], ids=["sgornn", "dtriv"])
def test_a_terminated_run_goes_on_to_the_same_bits(cell, tmp_path):
    """One run left alone, one told to stop after its third update and resumed: equal weights, equal logs.

    The base point of dtriv moves after updates 2 and 4: before the stop and after it.
    """
    settings = run_settings({**TABLE, "cell": TABLE["cell"] | cell})
    with pytest.raises(Interrupted, match=r"SIGTERM after update 3 of 4 and saved: holdfast resume "):
        train_run(
            settings, tmp_path / "stopped", progress=False, look=lambda *_: signal.raise_signal(signal.SIGTERM), at={3}
        )
    assert read_outcome(tmp_path / "stopped") is None
    resume_run(tmp_path / "stopped", progress=False)
    train_run(settings, tmp_path / "alone", progress=False)
    for name in ("log.jsonl", "best.safetensors"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    stopped, alone = (load(tmp_path / folder / "last.safetensors")["model"] for folder in ("stopped", "alone"))
    assert all(torch.equal(stopped[name], alone[name]) for name in alone)
    assert not cell or (alone["rnn.l0.recurrent.updates"].item(), alone["rnn.l0.recurrent.skew"].any()) == (4, False)


def test_the_environment_names_no_machine_and_no_person():
    text = str(environment())
    for private in (os.uname().nodename, os.path.expanduser("~"), os.environ.get("USER", "")):
        assert len(private) < 3 or private not in text


def test_the_parameters_of_the_model_and_of_its_cell_are_counted(settings, tmp_path):
    found = measure(settings, tmp_path, progress=False)
    assert (found.parameters, found.cell_parameters) == (27, 22)
