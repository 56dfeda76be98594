"""A run that is killed, or asked to stop, goes on to the same bits."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from helpers import environment
from helpers.noisy_run import noisy_run
from holdfast.errors import CheckpointError, Interrupted
from holdfast.train import fit

FILES = ("last.safetensors", "best.safetensors", "log.jsonl")

KILLS = """
import os, random, shutil, signal, sys, time
import torch
from helpers.noisy_run import noisy_run
from holdfast.train import fit
import lightning_fabric  # what every attempt needs is imported once, before the forks

folder, kills, moments, longest = sys.argv[1], 0, random.Random(11), 0.25
while kills < 20:
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        try:
            fit(*noisy_run(epochs=12), folder, progress=False)
        finally:
            os._exit(0)
    time.sleep(moments.uniform(0.0, longest))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        kills += 1
    elif os.path.exists(os.path.join(folder, "outcome.json")):
        shutil.rmtree(folder)  # a fast machine: begin again, with kills in quicker succession
        kills, longest = 0, longest / 2
torch.set_num_threads(1)
fit(*noisy_run(epochs=12), folder, progress=False)
print("killed", kills)
"""


def same_files(one, other):
    return [name for name in FILES if (one / name).read_bytes() != (other / name).read_bytes()] == []


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_with_the_same_bits_as_one_left_alone(tmp_path):
    """SIGKILL at random moments; weights, optimiser, generators and log are compared byte by byte."""
    script = [sys.executable, "-c", KILLS, str(tmp_path / "killed")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, env=environment())
    assert done.stdout == "killed 20\n", done.stderr
    alone = [sys.executable, "-c", KILLS.replace("kills < 20", "kills < 0"), str(tmp_path / "alone")]
    subprocess.run(alone, check=True, timeout=300, env=environment())
    assert same_files(tmp_path / "killed", tmp_path / "alone")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_goes_on_to_the_same_bits(number, tmp_path):
    def pull(update):
        if update == 7:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match=r"after update 7 of 51 and saved: holdfast resume") as caught:
        fit(*noisy_run(checkpoint_seconds=1e9), tmp_path / "stopped", progress=False, watch=pull)
    assert caught.value.signal == number
    for folder in ("stopped", "alone"):
        outcome = fit(*noisy_run(checkpoint_seconds=1e9), tmp_path / folder, progress=False)
        assert (outcome.status, outcome.updates) == ("finished", 51)
    assert same_files(tmp_path / "stopped", tmp_path / "alone")


def test_weights_differ_when_a_generator_is_not_put_back(tmp_path, monkeypatch):
    """The comparison can fail: without the generators' states the noise after the kill is another."""
    from holdfast.train import checkpoint

    def pull(update):
        if update == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        fit(*noisy_run(), tmp_path / "stopped", progress=False, watch=pull)
    monkeypatch.setattr(checkpoint, "set_random_states", lambda states: None)
    torch.manual_seed(99)
    fit(*noisy_run(), tmp_path / "stopped", progress=False)
    fit(*noisy_run(), tmp_path / "alone", progress=False)
    assert not same_files(tmp_path / "stopped", tmp_path / "alone")


def test_a_second_process_in_the_folder_is_refused_and_changes_nothing(tmp_path):
    """Through a process of its own, since the lock is between processes; it is free when the holder is killed."""
    fit(*noisy_run(epochs=1), tmp_path, progress=False)
    (tmp_path / "outcome.json").unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    holder = (
        f"from holdfast.files import alone_in\nwith alone_in({str(tmp_path)!r}):\n    print(flush=True)\n    input()"
    )
    with subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(CheckpointError, match="Another process is training in"):
            fit(*noisy_run(epochs=2), tmp_path, progress=False)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        other.kill()
    assert fit(*noisy_run(epochs=2), tmp_path, progress=False).status == "finished"


def test_a_finished_run_is_not_run_again(tmp_path):
    first = fit(*noisy_run(), tmp_path, progress=False)
    before = (tmp_path / "last.safetensors").stat().st_mtime_ns
    assert fit(*noisy_run(), tmp_path, progress=False) == first
    assert (tmp_path / "last.safetensors").stat().st_mtime_ns == before
