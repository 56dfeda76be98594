"""The examples in the usage pages run, as those in the README do; and so do the example programs."""

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "usage").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_usage_page_run(page):
    torch.set_default_dtype(torch.float32)  # as users have it
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testfile(str(page), module_relative=False, optionflags=flags)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.slow
def test_the_addition_example_ends_with_an_error_and_its_baseline(tmp_path):
    program = [sys.executable, str(ROOT / "examples" / "01_addition.py"), "6", "3", str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert all(word in done.stdout for word in ("1,411 parameters", "3 updates", "test error: 0.", "0.1667"))


def test_the_demo_ends_with_a_table_and_a_plot(tmp_path, monkeypatch):
    """The command of `make demo`, in miniature: both cells, the baseline, and a file where it says."""
    from typer.testing import CliRunner

    from holdfast.cli import app

    torch.set_default_dtype(torch.float32)
    line = re.search(r"\$\(BIN\)/holdfast (train .*?)\n\n", (ROOT / "Makefile").read_text(), re.DOTALL)
    monkeypatch.chdir(ROOT)
    words = shlex.split(line.group(1).replace("\\\n", " ").replace("demo-output", str(tmp_path)))
    small = ["--updates", "2", "--set", "task.steps=6", "--set", "task.test=20"]
    done = CliRunner().invoke(app, [*words, *small])
    assert done.exit_code == 0, done.output
    assert all(word in done.output for word in ("sgornn", "lstm", "1,411", "67,201", "0.16667", "addition.png"))
    assert (tmp_path / "addition.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_example_of_an_own_cell_learns():
    """Four of five waves at least, where guessing gives one of two."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "02_own_cell.py")], capture_output=True, text=True, check=True
    )
    assert float(done.stdout.rsplit(":", 1)[1].strip().rstrip("%")) > 80
