"""The examples in the usage pages run, as those in the README do; and so do the example programs."""

import doctest
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "usage").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_usage_page_run(page):
    torch.set_default_dtype(torch.float32)  # as users have it
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testfile(str(page), module_relative=False, optionflags=flags)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.slow
def test_the_addition_example_ends_with_a_table_and_a_plot(tmp_path):
    """A miniature of `make demo`: both cells, the baseline, and a file where it says."""
    program = [sys.executable, str(ROOT / "examples" / "01_addition.py")]
    options = ["--steps", "6", "--updates", "3", "--output", str(tmp_path)]
    done = subprocess.run([*program, *options], capture_output=True, text=True, check=True)
    assert all(word in done.stdout for word in ("SGORNN", "LSTM", "1,411", "67,713", "always 1", "addition.png"))
    assert (tmp_path / "addition.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_example_of_an_own_cell_learns():
    """Four of five waves at least, where guessing gives one of two."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "02_own_cell.py")], capture_output=True, text=True, check=True
    )
    assert float(done.stdout.rsplit(":", 1)[1].strip().rstrip("%")) > 80
