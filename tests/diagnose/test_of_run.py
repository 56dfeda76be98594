"""Runs: from their folder, on another file, two at a time, and while they train."""

import json
import math

import pytest
import torch

from holdfast.cli import main
from holdfast.diagnose import Watch, diagnose_run
from holdfast.diagnose.of_run import _trouble
from holdfast.diagnose.rules import findings
from holdfast.errors import ConfigError, DivergedError
from holdfast.runs import run_settings, train_run


def settings(**train):
    return run_settings(
        {
            "task": {"name": "addition", "steps": 30, "validation": 12},
            "cell": {"name": "rnn", "hidden_size": 6, "options": {"backend": "reference"}},
            "train": {"updates": 6, "batch": 4, "evaluate_every": 2, **train},
        }
    )


@pytest.fixture(autouse=True)
def _float32():
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("runs") / "a"
    train_run(settings(optimiser="sgd", lr=1e-3), folder, progress=False)
    return folder


def test_a_run_is_diagnosed_with_its_task_its_rate_and_its_log(run):
    """The addition problem always needs an input of the first half: 14 steps back, which this network has forgotten."""
    diagnosis = diagnose_run(run)
    assert [entry["update"] for entry in diagnosis.curves] == [2, 4, 6]
    assert "short_memory" in [finding.rule for finding in diagnosis.findings]
    assert diagnosis.findings[0].sentence.startswith("The task needs inputs 14 steps back")
    assert diagnosis.title == "a: rnn, 6 units on addition"


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(ConfigError, match="is not a run folder"):
        diagnose_run(tmp_path)


def test_the_command_line_writes_the_page_and_compares(run, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["diagnose", str(run), "--out", str(out), "-q"]) == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "Memory shorter than the task's lag" in capsys.readouterr().out
    assert main(["diagnose", str(run), str(run), "--out", str(out), "--json", "-q"]) == 0
    assert len(json.loads(capsys.readouterr().out)["diagnoses"]) == 2
    assert 'class="columns-2"' in out.read_text(encoding="utf-8")
    assert main(["diagnose", str(run), "--out", str(tmp_path / "no" / "page.html"), "-q"]) == 1
    assert "could not be written" in capsys.readouterr().err
    assert main(["diagnose", str(run), "--data", "other.csv", "-q"]) == 1  # this run was not trained on a file
    assert "not with --data" in capsys.readouterr().err


def test_a_file_of_the_same_kind_can_be_looked_at(tmp_path):
    data = tmp_path / "mine.csv"
    rows = [
        f"{case},{math.sin(0.3 * step * (1 + case % 2)):.3f},{'ab'[case % 2]}"
        for case in range(20)
        for step in range(9)
    ]
    data.write_text("\n".join(["id,x,label", *rows]))
    words = ["train", "--data", str(data), "--target", "label", "--hidden", "4", "--epochs", "1", "--run", "run", "-q"]
    words[-2] = str(tmp_path / "run")
    assert main([*words, "--set", "cell.options.backend=reference"]) == 0
    diagnosis = diagnose_run(tmp_path / "run", data=data)
    assert diagnosis.about[1][1].startswith("20 sequences of 9 steps")


def test_the_page_is_written_at_every_evaluation_and_changes_nothing(tmp_path):
    """Weights are the same bits with and without the watch; the page of the last evaluation has all of the log."""
    plain, watched, seen = tmp_path / "plain", tmp_path / "watched", []
    train_run(settings(), plain, progress=False)
    watch = Watch(watched, settings(), settings().task.load())

    def look(model, update):
        watch(model, update)
        seen.append(update)

    train_run(settings(), watched, look=look, at="evaluations", progress=False)
    assert seen == [2, 4, 6]
    for name in ("last.safetensors", "best.safetensors", "log.jsonl"):
        assert (plain / name).read_bytes() == (watched / name).read_bytes()
    assert '"x": [2, 4, 6]' in watch.path.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_warns_once_and_the_training_ends(tmp_path):
    warned = []
    watch = Watch(tmp_path / "run", settings(), settings().task.load(), warned.append)
    watch.path = tmp_path / "missing" / "page.html"
    outcome = train_run(settings(), tmp_path / "run", look=watch, at="evaluations", progress=False)
    assert (outcome.status, outcome.updates) == ("finished", 6)
    assert len(warned) == 1
    assert "could not be written after update 2" in warned[0]


def test_a_training_loss_that_rises_is_unstable_training(tmp_path):
    """Ten entries that fall and then rise fourfold; one that falls, however unevenly near zero, is no fault."""

    def rises(*losses):
        numbers = _trouble(tuple({"update": i, "train_loss": loss} for i, loss in enumerate(losses)), tmp_path)
        rows = [{"row": "layer 1", "kind": "any", "third_lr": 1e-3, **numbers}]
        return [it.rule for it in findings(rows)]

    assert rises(1, 0.9, 0.8, 0.7, 0.6, 0.6, 0.6, 2.4, 2.4, 2.4) == ["unstable_training"]
    assert rises(1, 0.8, 0.5, 0.1, 0.01, 0.001, 0.001, 0.001, 0.02, 0.01, 0.01) == []
    assert rises(1, 0.9) == []


def test_a_run_that_diverged_says_so(tmp_path):
    """Also if it diverged before its first evaluation, so that there are no weights: then its start is diagnosed."""
    with pytest.raises(DivergedError):
        train_run(settings(optimiser="sgd", lr=1e38, evaluate_every=6), tmp_path / "run", progress=False)
    assert not list((tmp_path / "run").glob("*.safetensors"))
    diagnosis = diagnose_run(tmp_path / "run")
    assert [finding.rule for finding in diagnosis.findings][:2] == ["learning_rate", "unstable_training"]
    assert "training diverged" in diagnosis.findings[1].sentence
    assert "at its start" in diagnosis.notes[0]
