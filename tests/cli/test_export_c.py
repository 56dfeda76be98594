"""``holdfast export RUN --to model.c``: from a run folder to compiled C that answers as the run does."""

import csv
import ctypes
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.c_model import Model, compiled, needs_gcc
from helpers.disk import disk_that_takes
from helpers.har_run import exported_har

FLOATS = ctypes.POINTER(ctypes.c_float)
WHOLE_WINDOWS = """
#include "har.h"
void all_windows(const float *x, int count, float *y);
void all_windows(const float *x, int count, float *y)
{
    har_state state;
    for (int n = 0; n < count; n++, y += HAR_OUTPUTS) {
        har_init(&state);
        for (int t = 0; t < 128; t++, x += HAR_INPUTS)
            har_step(&state, x, t < 127 ? 0 : y);
    }
}
"""


@needs_gcc
def test_a_run_on_a_file_answers_the_same_in_c(command, own, here):
    """Classes of sequences of several lengths, from the numbers as they stand in the file; int8 tells its accuracy."""
    run, data, _ = own
    exact = command("export", run, "--to", "model.c", "--name", "wave")
    rounded = command("export", run, "--to", "model8.c", "--int8", "--data", data)
    assert (exact.code, rounded.code) == (0, 0), exact.text + rounded.text
    assert "bytes of flash for constants" in exact.out
    assert "multiply-adds per step" in exact.out
    assert "scales chosen by 40 sequences" in rounded.out
    assert "in float32" in rounded.out
    assert command("predict", run, "--data", data, "--out", "expected.csv").code == 0
    with open("expected.csv", newline="") as file:
        expected = [row["prediction"] for row in csv.DictReader(file)]
    rows: dict[str, list[list[float]]] = {}
    with open(data, newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["name"], []).append([float(row["x"]), float(row["y"])])
    library = compiled(here)
    for header, name, most in (("model.h", "wave", 0), ("model8.h", "model8", 2)):
        model, answers = Model(library, here / header, name), []
        for steps in rows.values():
            model.reset()
            answers.append(model.label(model.chosen(model.run(np.array(steps, np.float32))[-1])))
        assert sum(one != other for one, other in zip(answers, expected, strict=True)) <= most
    assert "Inputs (2): x, y. They are standardised inside." in Path("model.h").read_text()
    assert ", run run (best weights)." in " ".join(Path("model.h").read_text().split())


@needs_gcc
@pytest.mark.slow
def test_every_test_window_of_har_gets_the_same_class(command, here):
    """Train, export and evaluate by the command line; then the accuracy of the C on all 2,947 windows."""
    run, scored = exported_har(command, "har.c")
    (here / "all.c").write_text(WHOLE_WINDOWS)
    library = compiled(here)
    right = total = 0
    for batch in run.task.evaluation("test", 512):
        with torch.no_grad():
            expected = run.model(batch.inputs)[0].numpy()
        windows = np.ascontiguousarray(batch.inputs.numpy().swapaxes(0, 1))
        found = np.zeros_like(expected)
        library.all_windows(windows.ctypes.data_as(FLOATS), len(windows), found.ctypes.data_as(FLOATS))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        right += int((found.argmax(axis=1) == batch.targets.numpy()).sum())
        total += len(windows)
    assert total == 2947
    assert right / total == pytest.approx(scored, abs=1e-3)  # one window may lie on the border


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--to", "model.c", "--name", "2fast"], "expects name to be a C identifier"),
        (["--to", "model.c", "--int8", "--data", "none.csv"], "none.csv"),
        (["--to", "3d.c"], "got '3d', made of 3d.c"),
    ],
)
def test_bad_options_are_told_and_write_nothing(command, own, here, words, told):
    ran = command("export", own[0], *words)
    assert ran.code == 1
    assert told in " ".join(ran.err.split())
    assert os.listdir(here) == []


def test_existing_files_are_kept_unless_forced(command, trained, here):
    (here / "model.h").write_text("mine")
    ran = command("export", trained, "--to", "model.c")
    assert ran.code == 1
    assert "model.h exists and is kept; add --force to overwrite it" in ran.err
    assert os.listdir(here) == ["model.h"]
    assert command("export", trained, "--to", "model.c", "--force").code == 0
    assert "model_step" in (here / "model.h").read_text()


def test_a_full_disk_leaves_neither_file(command, trained, here):
    """The header still fits and the source does not: none of the two appears."""
    with disk_that_takes(2000):
        ran = command("export", trained, "--to", "model.c")
    assert ran.code == 1
    assert ran.err.startswith("holdfast export: model.c: File too large")
    assert os.listdir(here) == []
