"""S2's studies: they are as printed where print says how, run at smoke, and their procedures measure what they say."""

import functools
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import ConfigError
from holdfast.optim import kappa_first, kappa_second
from holdfast.runs.prepare import prepare
from holdfast.runs.settings import run_settings
from holdfast.studies.procedures import PROCEDURES
from holdfast.studies.run import run_study
from holdfast.studies.s2 import best_of_starts, kappa_ratio
from holdfast.studies.study import load_study
from holdfast.tasks import Addition, Spec
from holdfast.tasks.fetch import find
from holdfast.train import ModelSettings, build
from holdfast.train.loop import read_outcome

ROOT = Path(__file__).parents[2] / "studies"
GRID = (1e-2, 1e-3, 1e-4)


@functools.cache
def study(name):
    return load_study(ROOT / "s2" / f"{name}.toml", ROOT)


def settings(name, run, scale="paper", value=None):
    it = study(name)
    return run_settings(it.table(next(one for one in it.run if one.name == run), scale, 0, value))


@pytest.mark.parametrize("steps", [100, 400, 750])
def test_addition_at_paper_scale_is_as_printed(steps):
    """§5.2: 100 units, U = I, all other weights within 0.01, one grid of rates, ten starts for IRNN."""
    it = study("addition")
    for name in ("path", "irnn"):
        made = settings("addition", f"{name}-{steps}")
        model, _ = prepare(made)
        assert made.task.steps == steps
        assert torch.equal(model.rnn.l0.weight_hh, torch.eye(100))
        for weight in (model.rnn.l0.weight_ih, model.readout.weight):
            assert 0.005 < weight.abs().max() <= 0.01
    path, irnn = (next(run for run in it.run if run.name == f"{name}-{steps}") for name in ("path", "irnn"))
    assert set(it.values(path, "paper")) == {2e-2, 1e-2, 5e-3, 1e-3}  # ours: fractions of the path norm
    options = it.options(irnn, "paper")
    assert (options["starts"], set(options["rates"]), "trial" in options) == (10, set(GRID), False)
    assert settings("addition", path.name).training.options["steps"] == steps
    ours = settings("addition", f"invariant-{steps}").training
    assert ours.options == {"steps": steps, "invariant": True}
    assert ours.clip is None  # of the Euclidean norm, which a rescaling changes


def test_mnist_at_paper_scale_is_as_printed():
    made = settings("mnist", "path")
    assert (made.task.steps, made.network.hidden_size, made.training.options["steps"]) == (784, 100, 784)
    assert made.network.options["start"] == {"recurrent": "identity", "others": 0.01}


def test_the_quoted_systems_have_the_printed_errors_and_the_sizes_of_their_papers():
    """Table 2, in per cent: uRNN 0, 3, 16.7, 4.9; LSTM 0, 2, 16.7, 1.8; np-RNN 0, 2, above 2, 3.1."""
    it = study("table2")
    printed = {run.name: next(iter(run.paper.values())) for run in it.run}
    assert [printed[f"urnn-{it}"] for it in (100, 400, 750, "mnist")] == [0.0, 0.03, 0.167, 0.951]
    assert [printed[f"lstm-{it}"] for it in (100, 400, 750, "mnist")] == [0.0, 0.02, 0.167, 0.982]
    assert [printed[f"np-{it}"] for it in (100, 400, 750, "mnist")] == [0.0, 0.02, "> 0.02", 0.969]
    urnn = build(settings("table2", "urnn-mnist").network, Spec(1, 10, "cross_entropy", "accuracy"))
    assert sum(weight.numel() for weight in urnn.parameters()) == 16_394
    rnn = build(settings("table2", "np-100").network, Addition(steps=5).load().spec).rnn
    torch.testing.assert_close(torch.linalg.eigvalsh(rnn.l0.weight_hh)[-1], torch.tensor(1.0))


@pytest.mark.parametrize(("corpus", "steps"), [("ptb", 50), ("text8", 180)])
def test_characters_at_paper_scale_are_as_printed(corpus, steps):
    """§5.3: 2,048 units (LSTM 1,024), Adam at three rates, ReLU within 0.01 and 0.2, the LSTM orthogonal and 0.01."""
    it = study("characters")
    for name in ("path", "relu", "tanh", "lstm"):
        run = next(run for run in it.run if run.name == f"{corpus}-{name}")
        assert it.values(run, "paper") == (1e-3, 5e-4, 1e-4)
        made = settings("characters", run.name)
        assert made.network.hidden_size == (1024 if name == "lstm" else 2048)
        assert made.training.optimiser == ("path-adam" if name == "path" else "adam")
        start = made.network.options["start"]
        assert start == (
            {"recurrent": "orthogonal", "others": 0.01} if name == "lstm" else {"recurrent": 0.01, "others": 0.2}
        )
        assert made.task.corpus == corpus
    assert settings("characters", f"{corpus}-path").training.options == {"steps": steps}


def test_figure_2_at_paper_scale_is_as_printed():
    """Its caption: 10,000 words, weights within 0.1, batches of 32, T = 20; §5.1: 200 units."""
    for name in ("sgd", "path-first", "path-both"):
        made = settings("figure2", name)
        assert (made.task.window, made.task.size, made.training.batch, made.network.hidden_size) == (20, None, 32, 200)
        assert made.network.options["start"] == {"recurrent": 0.1, "others": 0.1}
    assert settings("figure2", "path-both").training.options["second"]


def needs(name):
    """Skip where the data of a study's first run is not at hand."""
    it = study(name)
    task = settings(name, it.runs_at("smoke")[0].name, "smoke").task
    if missing := [source.path for source in getattr(task, "sources", tuple)() if find(source) is None]:
        pytest.skip(f"{missing[0]} is not on this machine")


@pytest.mark.parametrize("name", ["addition", "mnist", "characters", "figure2"])
def test_every_study_runs_at_smoke(name, tmp_path):
    needs(name)
    it = study(name)
    result = run_study(it, "smoke", tmp_path / "results", runs=tmp_path / "runs", progress=False)
    assert {entry.run for entry in result.results} == {run.name for run in it.runs_at("smoke")}
    assert all(entry.measured.status == "finished" for entry in result.results)
    assert (tmp_path / f"results/s2/{name}/smoke/report.md").is_file()


def test_the_ratio_is_that_of_the_norms_of_the_two_terms():
    """‖κ⁽²⁾‖ / ‖κ⁽¹⁾‖ over all parameters, and over U, of the network that ``build`` draws from the seed."""
    cell = {"name": "rnn", "hidden_size": 5, "embedding": 3, "options": {"nonlinearity": "relu"}}
    table = {"cell": cell, "train": {"seed": 7}}
    found = kappa_ratio(table, {"words": 6, "steps": [3, 9]}, Path(), progress=False, label="tiny")
    torch.manual_seed(7)
    spec = Spec(6, 6, "cross_entropy", "perplexity", tokens=True, every_step=True)
    model = build(ModelSettings("rnn", 5, embedding=3, options={"nonlinearity": "relu"}), spec)
    for steps in (3, 9):
        first, second = kappa_first(model, steps), kappa_second(model, steps)
        whole = [torch.cat([kappa[p].flatten() for p in model.parameters()]).norm() for kappa in (second, first)]
        U = model.rnn.l0.weight_hh
        assert found.value(f"ratio-{steps}", "last") == pytest.approx((whole[0] / whole[1]).item(), rel=1e-12)
        assert found.value(f"recurrent-{steps}", "last") == pytest.approx((second[U].norm() / first[U].norm()).item())


def tiny(**train):
    return {
        "task": {"name": "addition", "steps": 4, "validation": 16},
        "cell": {"name": "rnn", "hidden_size": 4},
        "train": {"updates": 3, "batch": 4, "evaluate_every": 1, "optimiser": "sgd", **train},
    }


def test_the_best_of_several_starts_is_reported_and_those_that_diverge_are_counted(tmp_path):
    """A rate of 1e30 diverges from every start; of the others the best on validation is what is reported."""
    options = {"starts": 3, "rates": [1e30, 1e-2], "metric": "validation.mse"}
    table = tiny(seed=5)
    table["cell"] = {"name": "linear", "hidden_size": 4}
    found = best_of_starts(table, options, tmp_path, progress=False, label="tiny")
    singles = [
        PROCEDURES["train"](
            {**table, "train": {**table["train"], "seed": seed, "lr": 1e-2}},
            {},
            tmp_path / str(seed),
            progress=False,
            label="",
        )
        for seed in (5, 6, 7)
    ]
    assert found.status == "finished"
    assert found.value("starts.diverged") == 0.5
    assert found.value("validation.mse") == min(one.value("validation.mse") for one in singles)
    again = best_of_starts(table, options, tmp_path, progress=False, label="tiny")
    assert again == found  # nothing was trained twice


def test_with_a_trial_only_the_best_start_is_trained_in_full(tmp_path):
    options = {"starts": 3, "rates": [1e-2], "metric": "validation.mse", "trial": 1}
    found = best_of_starts(tiny(), options, tmp_path, progress=False, label="tiny")
    assert found.updates == 3
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["full", "trial", "trial", "trial"]
    spent = sum(read_outcome(path).cpu_seconds for path in tmp_path.iterdir())
    assert found.cpu_seconds == pytest.approx(spent, abs=2e-3)  # of all four, each rounded


def test_unknown_and_missing_options_are_named(tmp_path):
    with pytest.raises(ConfigError, match="best-of-starts has no option 'start'; known: metric, rates, starts, trial"):
        best_of_starts(tiny(), {"start": 3}, tmp_path, progress=False, label="tiny")
    with pytest.raises(ConfigError, match="needs the option 'steps'"):
        kappa_ratio({}, {"words": 3}, tmp_path, progress=False, label="tiny")


def test_a_start_of_weights_is_applied_gate_by_gate():
    """``options.start``: recurrent weights, all others, biases; the frozen one-hot embedding stays."""
    spec = Addition(steps=8).load().spec
    model = build(ModelSettings("lstm", 4, options={"start": {"recurrent": "orthogonal", "others": 0.1}}), spec)
    for gate in model.rnn.l0.weight_hh.split(4):
        torch.testing.assert_close(gate @ gate.mT, torch.eye(4))
    assert not model.rnn.l0.bias.any()
    assert model.readout.weight.abs().max() <= 0.1
    model = build(ModelSettings("rnn", 4, initial_state="learned", options={"start": {"recurrent": 0.5}}), spec)
    assert 0.1 < model.rnn.l0.weight_hh.abs().max() <= 0.5
    assert isinstance(model.rnn, holdfast.RNN)
    assert isinstance(model.readout, nn.Linear)


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ({"recurrent": "eye"}, "got 'eye', None and None"),
        ({"others": -1.0}, "got None, -1.0 and None"),
        ({"embedding": -1.0}, "got None, None and -1.0"),
        ({"other": 1}, "start has no option 'other'; known: recurrent, others, embedding"),
    ],
)
def test_an_impossible_start_is_refused(start, reason):
    table = {
        "task": {"name": "addition"},
        "cell": {"name": "rnn", "options": {"start": start}},
        "train": {"updates": 1},
    }
    with pytest.raises(ConfigError, match=reason):
        run_settings(table)
    with pytest.raises(ConfigError, match="VPRNN has no weight_hh"):
        prepare(run_settings({**table, "cell": {"name": "vprnn", "options": {"start": {"recurrent": "identity"}}}}))
