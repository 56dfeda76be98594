"""``study``, ``data``, ``sweep`` and ``bench``, from the outside."""

import json
import os

import pytest

STUDY = """
title = "Tiny"
source = "S3, nowhere"
[defaults]
task = { name = "addition", steps = 4, validation = 8 }
cell = { hidden_size = 4 }
train = { updates = 2, batch = 4, evaluate_every = 1 }
[[run]]
name = "a"
paper = { "validation.mse" = 0.01 }
[scale.smoke]
[scale.small]
[[claim]]
text = "it has 29 parameters"
run = "a"
metric = "parameters"
at_least = 1
[sweep]
objective = { metric = "validation.mse" }
"train.lr" = { low = 1e-4, high = 1e-1, log = true }
"train.optimiser" = { choices = ["adam", "sgd"] }
"""


@pytest.fixture
def studies(here):
    (here / "studies" / "s3").mkdir(parents=True)
    (here / "studies" / "s3" / "tiny.toml").write_text(STUDY)
    return here


def test_studies_are_listed(command, studies):
    ran = command("study", "list")
    assert ran.code == 0
    assert all(word in ran.out for word in ("s3/tiny", "Tiny", "S3, nowhere", "smoke, small"))
    assert json.loads(command("study", "list", "--json").out)[0]["sweep"] is True
    assert "No study files in none" in command("study", "list", "--root", "none").out


def test_outside_a_clone_the_studies_that_come_with_holdfast_are_there(command, here):
    """In an empty folder: listed, reported from the committed results, found by name; and nothing is written."""
    listed = {study["name"] for study in json.loads(command("study", "list", "--json").out)}
    assert {"s1/sst", "s2/figure2", "s3/addition", "s4/figure1", "s5/table1"} <= listed
    rows = json.loads(command("study", "report", "--json").out)
    assert {row["study"] for row in rows} <= listed
    assert sum(row["status"] == "met" for row in rows) > 20
    assert command("study", "report", "s3/addition").out.startswith("# S3: the addition problem")
    assert not list(here.iterdir())
    ran = command("study", "run", "s4/figure1", "--scale", "smoke", "-q")
    assert ran.code == 0, ran.text
    assert (here / "results" / "s4" / "figure1" / "smoke" / "report.md").is_file()


def test_a_study_is_run_and_reported(command, studies):
    before = command("study", "report", "s3/tiny")
    assert before.code == 1
    assert "no result" in before.err
    ran = command("study", "run", "s3/tiny", "--scale", "small", "-q")
    assert ran.code == 0, ran.text
    assert "it has 29 parameters" in ran.out
    assert (studies / "results" / "s3" / "tiny" / "small" / "report.md").read_text().strip() == ran.out.strip()
    assert command("study", "report", "s3/tiny").out.strip() == ran.out.strip()
    overview = command("study", "report")
    assert "| s3/tiny | it has 29 parameters |" in overview.out
    assert json.loads(command("study", "report", "--json").out)[0]["status"] == "met"


def test_what_cannot_be_studied_is_said(command, studies):
    (studies / "bad.toml").write_text("title = 'Bad'\ncolour = 'red'\n")
    (studies / "odd.toml").write_bytes(b"\xff\xfe")
    for words, said in {
        ("study", "run", "s9/none"): "There is no study 's9/none'",
        ("study", "run", "bad.toml"): "unknown key 'colour'",
        ("study", "run", "odd.toml"): "utf-8",
        ("study", "run", "s3/tiny", "--scale", "huge"): "no scale 'huge'; known: smoke, small",
        ("study", "run", "s3/tiny", "--only", "b"): "--only b matches no run",
        ("sweep", "bad.toml"): "unknown key 'colour'",
        ("sweep", "s3/tiny", "--storage", "nosuch://host/db"): "nosuch",
        ("sweep", "s3/tiny", "--scale", "huge"): "no scale 'huge'",
    }.items():
        ran = command(*words)
        assert ran.code == 1, (words, ran.text)
        assert said in ran.err, ran.err
        assert "Traceback" not in ran.text
        assert "unexpected" not in ran.text
    assert command("sweep", "s3/tiny", "--sampler", "bayes").code == 2
    assert command("study", "report", "--scale", "small").code == 2


def test_a_sweep_says_what_came_of_it(command, studies):
    ran = command("sweep", "s3/tiny", "--trials", 3, "-q", "--sampler", "random")
    assert ran.code == 0, ran.text
    assert ran.err.count("Trial ") == 3
    assert "validation.mse, minimised; 3 trials" in ran.out
    assert (studies / "runs" / "sweep-s3-tiny" / "sweep.db").is_file()
    again = json.loads(command("sweep", "s3/tiny", "--trials", 3, "-q", "--sampler", "random", "--json").out)
    assert len(again["trials"]) == 3
    best = again["trials"][0]
    assert best["score"] == min(trial["score"] for trial in again["trials"])
    assert command("evaluate", studies / "runs" / "sweep-s3-tiny" / best["folder"]).code == 0


def test_files_of_the_tasks_are_listed_and_checked(command, here, monkeypatch):
    """A file that is there and is not what it should be is damaged; one that is not there is absent."""
    (here / "data" / "ptb").mkdir(parents=True)
    (here / "data" / "ptb" / "ptb.valid.txt").write_text("not the file")
    monkeypatch.setenv("HOLDFAST_DATA", str(here / "data"))
    monkeypatch.setenv("HOLDFAST_CACHE", str(here / "cache"))
    listed = command("data", "list")
    assert listed.code == 0
    assert "ptb/ptb.valid.txt" in listed.out
    checked = command("data", "check")
    assert checked.code == 1
    assert "1 damaged" in checked.err
    states = {entry["path"]: entry["state"] for entry in json.loads(command("data", "list", "--json").out)}
    assert (states["ptb/ptb.valid.txt"], states["ptb/ptb.test.txt"]) == ("in HOLDFAST_DATA", "absent")
    got = command("data", "get", "addition")
    assert got.code == 1
    assert "is not a task with files; known: " in got.err
    monkeypatch.setenv("HOLDFAST_DATA", str(here / "none"))
    assert "HOLDFAST_DATA" in command("data", "list").err


def test_files_that_are_there_are_got_by_checking_them(command):
    folder = os.environ.get("HOLDFAST_DATA", "")
    if not os.path.exists(os.path.join(folder, "ptb", "ptb.train.txt")):
        pytest.skip("needs HOLDFAST_DATA with ptb/")
    ran = command("data", "get", "ptb")
    assert ran.code == 0
    assert ran.out.count("ptb/ptb.") == 6  # each file and its place


def test_layers_are_timed_against_torchs(command):
    words = ["bench", "--cell", "sgornn", "--steps", 5, "--batch", 2, "--hidden", 4, "--rounds", 1]
    ran = command(*words)
    assert ran.code == 0
    assert all(word in ran.out for word in ("torch.nn.LSTM", "sgornn", "of GRU", "T = 5"))
    timed = {layer["name"]: layer for layer in json.loads(command(*words, "--json").out)["layers"]}
    ratio = timed["sgornn"]["milliseconds"] / timed["torch.nn.LSTM"]["milliseconds"]
    assert timed["sgornn"]["ratios"]["torch.nn.LSTM"] == pytest.approx(ratio)
    bad = command("bench", "--cell", "lsmt")
    assert bad.code == 1
    assert "unknown cell 'lsmt'; known: antisymmetric" in bad.err
