"""A short run on HAR by the command line, for exports that are compared on every test window."""

import json
import os
from pathlib import Path

import pytest

from holdfast.runs import load_run


def exported_har(command, target):
    """Train, export to ``target`` and evaluate: the run, and the accuracy on the test set. Skips without the data."""
    if not any(Path(os.environ.get("HOLDFAST_DATA", ""), "har").glob("*.zip")):
        pytest.skip("HOLDFAST_DATA holds no har")
    words = ["--cell", "sgornn", "--hidden", 16, "--updates", 12, "--batch", 64, "--set", "task.classes=6", "-q"]
    assert command("train", "har", *words, "--run", "r").code == 0
    assert command("export", "r", "--to", target).code == 0
    return load_run("r"), json.loads(command("evaluate", "r", "--json").out)["scores"]["accuracy"]
