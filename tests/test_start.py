"""The page that people begin with: its commands and examples run in the order of the page, in one empty folder."""

import doctest
import re
import shlex
from pathlib import Path

import pytest
import torch

from holdfast.cli import main

PAGE = Path(__file__).parents[1] / "docs" / "start.md"


@pytest.mark.slow
def test_every_command_and_example_of_the_start_runs(tmp_path, monkeypatch, capfd):
    """Installing aside. Each `holdfast` ends with 0; each example gives what the page shows."""
    torch.set_default_dtype(torch.float32)  # as users have it
    monkeypatch.chdir(tmp_path)
    text, names, ran = PAGE.read_text(encoding="utf-8"), {}, 0
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "python":
            test = doctest.DocTestParser().get_doctest(block, names, "start.md", str(PAGE), 0)
            runner.run(test, clear_globs=False)
            names = test.globs
            continue
        for line in (it for it in block.splitlines() if it.startswith("holdfast ")):
            ran += 1
            assert main(shlex.split(line, comments=True)[1:]) == 0, f"{line}\n{capfd.readouterr().err}"
    assert runner.summarize(verbose=False).failed == 0
    assert ran == text.count("\nholdfast ")
    answers = (tmp_path / "answers.csv").read_text().splitlines()
    assert len(answers) == 9  # a heading and the eight pumps
    assert "@misc{sgornn," in capfd.readouterr().out
