"""Two processes follow one."""

import subprocess
import sys

import pytest
import torch

from helpers import environment
from helpers.noisy_run import run_a_stream
from holdfast.train.checkpoint import load

RUN = """
import sys, torch, warnings
warnings.filterwarnings("ignore")
from helpers.noisy_run import run_a_stream
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
run_a_stream(sys.argv[1])
"""


@pytest.mark.slow
def test_two_gloo_processes_follow_one_to_rounding(tmp_path):
    """Equal batch and seed: the same weights and scores up to the order of sums."""
    script = tmp_path / "run.py"
    script.write_text(RUN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [*torchrun, str(tmp_path / "two")], capture_output=True, text=True, timeout=240, env=environment()
    )
    assert done.returncode == 0, done.stderr
    outcome = run_a_stream(tmp_path / "one")
    one, two = (load(tmp_path / folder / "last.safetensors") for folder in ("one", "two"))
    assert len(two["processes"]) == 2
    for name, weight in one["model"].items():
        torch.testing.assert_close(two["model"][name], weight, rtol=1e-9, atol=1e-11)
    assert two["position"]["best"] == pytest.approx(outcome.best, rel=1e-9)
