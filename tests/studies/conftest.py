"""A study of three cells that ends in a second, as a file."""

import pytest

from holdfast.studies.run import run_study
from holdfast.studies.study import load_study

TINY = """
title  = "Tiny addition"
source = "S3, §3.1"
note   = "Small enough for a test."

[defaults]
task  = { name = "addition", steps = 6, validation = 16, test = 8 }
cell  = { hidden_size = 4 }
train = { optimiser = "rmsprop", lr = 1e-2, batch = 4, updates = 4, evaluate_every = 2 }

[[run]]
name  = "sgornn"
label = "SGORNN"
set   = { "cell.name" = "sgornn" }
paper = { "validation.mse" = "converges" }

[[run]]
name  = "fastrnn"
set   = { "cell.name" = "fastrnn", cell.options.nonlinearity = "relu" }
try   = { key = "train.lr", values = [1e-2, 1e-3, 1e-4], until = { metric = "validation.mse", at_most = 1e-9 } }

[[run]]
name  = "exploding"
set   = { "cell.name" = "linear", "train.lr" = 1e30, "train.optimiser" = "sgd" }

[scale.smoke]
seeds = [0]
runs  = ["sgornn"]

[scale.small]
seeds = [0, 1]
each.fastrnn = { seeds = [3], tries = 2 }

[[claim]]
text   = "it has 27 parameters"
run    = "sgornn"
metric = "parameters"
equals = 27
paper  = 27

[[claim]]
text   = "it answers without a mistake"
run    = "sgornn"
metric = "validation.mse"
at_most = 0.0
paper  = "converges"

[[claim]]
text   = "the exploding one explodes"
run    = "exploding"
metric = "diverged"
at_least = 1.0

[[figure]]
name = "figure-1"
title = "Error"
y = "validation.mse"
log = true
baseline = 0.1667
"""


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """The study run once at its scale ``small``: the study, the result, and the folder that holds the results."""
    folder = tmp_path_factory.mktemp("ran")
    path = folder / "studies" / "s0" / "tiny.toml"
    path.parent.mkdir(parents=True)
    path.write_text(TINY)
    study = load_study(path)
    return (
        study,
        run_study(study, "small", folder / "results", runs=folder / "runs", progress=False),
        folder / "results",
    )


@pytest.fixture
def tiny_text():
    """What the file says."""
    return TINY


@pytest.fixture
def tiny(tmp_path):
    """The path of the file."""
    path = tmp_path / "studies" / "s0" / "tiny.toml"
    path.parent.mkdir(parents=True)
    path.write_text(TINY)
    return path
