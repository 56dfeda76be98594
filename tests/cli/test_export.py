"""``holdfast export``: from a run folder to a file that answers as the run does, and what bad input comes to."""

import csv
import json
import os

import numpy as np
import onnx
import pytest
import torch

from helpers.disk import disk_that_takes
from helpers.har_run import exported_har
from helpers.onnx_runs import session
from holdfast.runs import load_run


def test_a_run_on_a_file_answers_the_same_in_onnx_runtime(command, own, here):
    """From the command line to classes and probabilities, of sequences of several lengths, in the data's own units."""
    run, data, _ = own
    ran = command("export", run, "--to", "model.onnx")
    assert ran.code == 0, ran.text
    assert "Inputs that may be left out: lengths, h_0" in ran.out
    assert command("predict", run, "--data", data, "--out", "expected.csv").code == 0
    with open("expected.csv", newline="") as file:
        expected = list(csv.DictReader(file))
    rows: dict[str, list[list[float]]] = {}
    with open(data, newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["name"], []).append([float(row["x"]), float(row["y"])])
    runtime = session("model.onnx")
    about = runtime.get_modelmeta().custom_metadata_map
    labels = json.loads(about["labels"])
    assert json.loads(about["columns"]) == ["x", "y"]
    assert about["run"] == "run"
    x = np.zeros((len(rows), max(map(len, rows.values())), 2), np.float32)
    for index, steps in enumerate(rows.values()):
        x[index, : len(steps)] = steps
    lengths = np.array([*map(len, rows.values())])
    found = runtime.run(["probabilities"], {"x": x, "lengths": lengths})[0]
    assert [labels[index] for index in found.argmax(axis=1)] == [row["prediction"] for row in expected]
    wanted = [[float(row[f"p({label})"]) for label in labels] for row in expected]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_run_on_a_task_is_exported_with_either_weights(command, trained, here):
    for which in ("best", "last"):
        assert command("export", trained, "--to", f"{which}.onnx", "--which", which, "--name", "mine").code == 0
        made, model = onnx.load(f"{which}.onnx"), load_run(trained, which).model
        assert made.graph.name == "mine"
        x = torch.randn(3, 9, 2)
        found = session(f"{which}.onnx").run(["output"], {"x": x.numpy()})[0]
        np.testing.assert_allclose(found, model(x.transpose(0, 1))[0].detach().numpy(), atol=1e-5)


def test_a_run_becomes_a_file_of_c_and_its_header(command, own, here):
    """In float and in int8, calibrated on a file; what C makes of them is in tests/export/test_c.py."""
    run, data, _ = own
    ran = command("export", run, "--to", "model.c")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "Wrote model.c and model.h"), ran.text
    assert "Made by Holdfast" in (here / "model.c").read_text()
    ran = command("export", run, "--to", "small.c", "--name", "waves", "--int8", "--data", data)
    assert ran.code == 0, ran.text
    assert "int8" in ran.out
    assert "waves_step" in (here / "small.h").read_text()
    ran = command("export", run, "--to", "other.c", "--name", "9 lives")
    assert ran.code == 1
    assert "C identifier" in ran.err
    (here / "third.h").write_text("mine")
    ran = command("export", run, "--to", "third.c")
    assert ran.code == 1
    assert "third.h exists and is kept; add --force" in ran.err
    assert sorted(os.listdir(here)) == ["model.c", "model.h", "small.c", "small.h", "third.h"]


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, about its own
def test_a_run_becomes_a_program_of_pytorch(command, own, here):
    """Its inputs are those of the file of ONNX, and its answers those of the run."""
    run, data, _ = own
    ran = command("export", run, "--to", "model.pt2")
    assert ran.code == 0, ran.text
    assert "It runs without Holdfast." in ran.out
    program, loaded = torch.export.load("model.pt2").module(), load_run(run)
    flat = loaded.preparation.apply(data)
    x = flat.inputs * torch.tensor(loaded.preparation.std) + torch.tensor(loaded.preparation.mean)
    state = {"h_0": torch.zeros(1, len(x), 4)}
    found = program(x.float(), flat.lengths, state)["probabilities"]
    np.testing.assert_allclose(found.numpy(), loaded.predict_proba(data), atol=1e-5)


@pytest.mark.slow
def test_every_test_window_of_har_gets_the_same_class(command, here):
    """Train, export and evaluate by the command line; then the accuracy of ONNX Runtime on all 2,947 windows."""
    run, scored = exported_har(command, "har.onnx")
    runtime = session("har.onnx")
    labels = json.loads(runtime.get_modelmeta().custom_metadata_map["labels"])
    right = total = 0
    for batch in run.task.evaluation("test", 512):
        x = batch.inputs.transpose(0, 1).contiguous()
        found = torch.from_numpy(runtime.run(["output"], {"x": x.numpy()})[0])
        with torch.no_grad():
            expected = run.model(batch.inputs)[0]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(found.argmax(1), expected.argmax(1))
        right += int((found.argmax(1) == batch.targets).sum())
        total += len(x)
    assert total == 2947
    assert right / total == pytest.approx(scored, abs=1e-9)
    assert len(labels) == 6


def test_a_model_of_text_comes_with_its_vocabulary(command, here):
    """Tokens in, a score for every next token, one token per call."""
    for split in ("train", "valid", "test"):
        (here / f"ptb.{split}.txt").write_text("a rose is a rose\nis a rose\n" * 12)
    words = [
        "--set",
        f"task.folder={here}",
        "--set",
        "task.window=5",
        "--hidden",
        4,
        "--batch",
        2,
        "--updates",
        2,
        "-q",
    ]
    ran = command("train", "ptb", "--cell", "fastrnn", *words, "--run", "r")
    assert ran.code == 0, ran.text
    assert command("export", "r", "--to", "text.onnx").code == 0
    runtime, run = session("text.onnx"), load_run("r")
    tokens = json.loads(runtime.get_modelmeta().custom_metadata_map["vocabulary"])
    assert tuple(tokens) == run.task.vocabulary.tokens
    x = torch.tensor([[tokens.index(word) for word in ["a", "rose", "is", "a", "rose", "is"]]])  # (1, time)
    with torch.no_grad():
        expected = run.model(x.mT)[0].transpose(0, 1).numpy()
    whole = runtime.run(["output"], {"x": x.numpy()})[0]
    np.testing.assert_allclose(whole, expected, atol=1e-5)
    feed = {}
    for t in range(x.shape[1]):
        step, h_n = runtime.run(["output", "h_n"], {"x": x[:, t : t + 1].numpy(), **feed})
        np.testing.assert_allclose(step, whole[:, t : t + 1], atol=1e-5)
        feed = {"h_0": h_n}


def test_an_existing_file_is_kept_unless_forced(command, trained, here):
    (here / "model.onnx").write_text("mine")
    ran = command("export", trained, "--to", "model.onnx")
    assert ran.code == 1
    assert "model.onnx exists and is kept; add --force to overwrite it" in ran.err
    assert (here / "model.onnx").read_text() == "mine"
    assert command("export", trained, "--to", "model.onnx", "--force").code == 0
    assert onnx.load("model.onnx").producer_name == "holdfast"


def test_a_full_disk_is_told_and_leaves_nothing_half_written(command, own, here):
    with disk_that_takes(1000):
        ran = command("export", own[0], "--to", "model.onnx")
    assert ran.code == 1
    assert ran.err.startswith("holdfast export: model.onnx: File too large")
    assert os.listdir(here) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--to", "model.tflite"], "expects a file that ends in .onnx, .c or .pt2, got model.tflite"),
        (["--to", "model"], "expects a file that ends in .onnx, .c or .pt2, got model."),
        (["--to", "nowhere/model.onnx"], "nowhere: No such file or directory"),
        (["--to", "model.onnx", "--int8"], "--int8 has no meaning for .onnx files; leave it out, or write a file that"),
        (["--to", "model.onnx", "--data", "x.csv"], "--data has no meaning for .onnx files"),
        (["--to", "model.c", "--data", "x.csv"], "add --int8, or leave --data out"),
        (["--to", "model.onnx", "--which", "first"], "expected one of best, last; got 'first'"),
    ],
)
def test_bad_options_are_told_and_write_nothing(command, trained, here, words, told):
    ran = command("export", trained, *words)
    assert ran.code in (1, 2)
    assert told in " ".join(ran.err.replace("│", " ").split())
    assert os.listdir(here) == []


def test_a_folder_that_is_not_a_run_is_told(command, here):
    for folder in ("nothing", "."):
        ran = command("export", folder, "--to", "model.onnx")
        assert (ran.code, ran.err) == (1, f"holdfast export: {folder} is not a run folder: it has no settings.json.\n")
    assert os.listdir(here) == []


def test_a_model_without_a_form_in_onnx_is_named(command, tiny, here):
    assert command("train", "addition", *tiny, "--set", "cell.context=2", "--updates", 1, "--run", "r").code == 0
    ran = command("export", "r", "--to", "model.onnx")
    assert ran.code == 1
    assert "expects a recurrent model, got one that was truncated" in ran.err
    assert not (here / "model.onnx").exists()


def test_the_help_says_which_to_choose(command):
    words = " ".join(command("export", "--help").out.split())
    for part in ("Choose by where it will run", "ONNX Runtime", "microcontroller", "torch.export", "holdfast[export]"):
        assert part in words
