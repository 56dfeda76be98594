"""A small sample of ``hammer.py``; run it by hand for thousands of cases."""

import subprocess
import sys

import pytest

from helpers import environment, hammer
from holdfast.train import sums


def test_a_mutated_folder_gives_a_clear_error_or_the_same_bits(capsys):
    assert hammer.mutations(150, seed=0) == 0, capsys.readouterr().out


def test_the_hammer_finds_what_it_looks_for(monkeypatch, capsys):
    """Without SHA256SUMS and without the digest of the log, damage goes unnoticed, and the hammer says so."""
    monkeypatch.setattr(sums, "check", lambda folder, *names: None)
    monkeypatch.setattr(sums, "check_log", lambda path, position, sha256="": path.read_bytes()[:position])
    assert hammer.mutations(150, seed=0, limit=1) == 1
    assert "WRONG: seed 0, case " in capsys.readouterr().out


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits():
    """In a process of its own, since it forks; SIGKILL at random moments, every end compared byte by byte."""
    words = [sys.executable, "-m", "helpers.hammer", "kills", "12", "--seed", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of them different from the run left alone" in done.stdout
