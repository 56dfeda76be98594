"""Two processes follow one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from _runs import stream

from holdfast.train import ModelSettings, Training, build, fit
from holdfast.train.checkpoint import load

RUN = """
import sys, torch, warnings
warnings.filterwarnings("ignore")
sys.path.insert(0, sys.argv[1])
import test_parallel
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
test_parallel.run(sys.argv[2])
"""


def run(folder):
    torch.manual_seed(0)
    task = stream()
    training = Training(epochs=2, batch=4, lr=1e-2, clip=0.5, carry_state=True, evaluate_every=7)
    return fit(build(ModelSettings("gru", 5), task.spec), task, training, folder, progress=False)


@pytest.mark.slow
def test_two_gloo_processes_follow_one_to_rounding(tmp_path):
    """Equal batch and seed: the same weights and scores up to the order of sums."""
    script = tmp_path / "run.py"
    script.write_text(RUN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [*torchrun, str(Path(__file__).parent), str(tmp_path / "two")], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    outcome = run(tmp_path / "one")
    one, two = (load(tmp_path / folder / "last.safetensors") for folder in ("one", "two"))
    assert len(two["processes"]) == 2
    for name, weight in one["model"].items():
        torch.testing.assert_close(two["model"][name], weight, rtol=1e-9, atol=1e-11)
    assert two["position"]["best"] == pytest.approx(outcome.best, rel=1e-9)
