"""Every test: float64, a seed of its own, warnings as errors (pyproject.toml)."""

import os
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HOLDFAST_CACHE", str(Path(__file__).parents[1] / ".cache"))  # for workers and subprocesses too
if not torch.cuda.is_available():  # Triton reads this when it is imported, by whichever test does so first
    os.environ.setdefault("TRITON_INTERPRET", "1")


if "PYTEST_XDIST_WORKER" in os.environ:  # a worker a core: threads of their own would only wait for each other
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _float64_and_a_seed():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)
