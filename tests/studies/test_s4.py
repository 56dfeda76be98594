"""S4's studies: as printed at paper scale, running at smoke, and procedures that measure what they say."""

import dataclasses
import functools
import math
import random
from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.errors import ConfigError, SettingError
from holdfast.runs import load_run, train_run
from holdfast.runs.measured import measure
from holdfast.runs.settings import overridden, run_settings
from holdfast.stability import Truncated, contraction_rate
from holdfast.studies.procedures import PROCEDURES
from holdfast.studies.run import run_study
from holdfast.studies.s4.instances import _growth, _rate
from holdfast.studies.search import read_search
from holdfast.studies.study import load_study
from holdfast.train.loop import read_outcome
from holdfast.train.optimisers import build_optimiser

ROOT = Path(__file__).parents[2] / "studies"


@functools.cache
def study(name):
    return load_study(ROOT / f"s4/{name}.toml", ROOT)


def settings_of(name, run):
    it = study(name)
    return run_settings(it.table(next(one for one in it.run if one.name == run), "paper", 0))


@pytest.fixture
def text(tmp_path):
    """A corpus of twenty words, in the files that WikiText-2 has."""
    draw = random.Random(0)
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        lines = (" ".join(f"w{draw.randrange(20)}" for _ in range(9)) for _ in range(70))
        (folder / f"wiki.{split}.tokens").write_text("\n".join(lines) + "\n")
    return folder


def call(name, table, folder, **options):
    return PROCEDURES[name](table, options, folder, progress=False, label="tiny")


# -- as printed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["stable", "unconstrained"])
def test_wikitext2_at_paper_scale_is_as_printed(run):
    """A.5: 1024 features, 256 units, dropout 0.25, learning rate 2, 40 epochs, batches of 20, sequences of 35."""
    it = settings_of("wikitext2", run)
    network, training = it.network, it.training
    assert (network.name, network.embedding, network.hidden_size, network.layers) == ("rnn", 1024, 256, 1)
    assert (network.input_dropout, network.output_dropout) == (0.25, 0.25)
    assert (training.lr, training.epochs, training.batch, it.task.window) == (2.0, 40, 20, 35)
    assert (training.clip, training.carry_state, it.task.limit, it.task.size) == (0.25, True, None, None)
    assert training.options == ({"project": {"rate": 1.0}} if run == "stable" else {})


@pytest.mark.parametrize(("run", "dropout", "lr"), [("rnn", 0.65, 5.0), ("lstm", 0.2, 20.0)])
def test_figures_2_and_3_at_paper_scale_are_as_printed(run, dropout, lr):
    """A.5: 1500 features and units, sequences of 65, 40 epochs of batches of 20; k of Figure 3; the RNN's rates."""
    for it in (settings_of("figure2", run), settings_of("figure3", f"{run}-5")):
        network, training = it.network, it.training
        assert (network.name, network.embedding, network.hidden_size) == (run, 1500, 1500)
        assert (network.input_dropout, training.lr, training.epochs, training.batch) == (dropout, lr, 40, 20)
        assert it.task.window == 65
    contexts = [settings_of("figure3", one.name).network.context for one in study("figure3").run]
    assert contexts == 2 * [5, 10, 15, 25, 35, 50, 64]


@pytest.mark.parametrize("name", ["wikitext2", "figure2", "figure3"])
def test_medium_reads_the_whole_text_with_10000_words_from_three_seeds(name):
    """Window, batch and rates are the printed ones. Figures 2 and 3 have networks of fewer units and less dropout."""
    it = study(name)
    for run in it.runs_at("medium"):
        assert it.seeds(run, "medium") == (0, 1, 2)
        medium, paper = (run_settings(it.table(run, scale, 0)) for scale in ("medium", "paper"))
        assert (medium.task.size, medium.task.limit) == (10_000, None)
        assert dataclasses.replace(medium.task, size=None) == paper.task
        assert dataclasses.replace(medium.training, epochs=40) == paper.training
    there = {run.name for run in it.runs_at("medium")}
    for claim in it.claim:
        assert ("medium" in claim.scales) == (claim.metric != "test.perplexity" or claim.than is not None)
        assert "medium" not in claim.scales or {claim.run, claim.than or claim.run} <= there


def test_the_grid_has_the_printed_optimum_among_its_trials():
    """A.5 prints a rate, a dropout, a number of features and of units: all are searched, and one trial has them all."""
    it = study("grid-search")
    ranges = read_search(it).ranges
    printed = {"train.lr": 2.0, "cell.input_dropout": 0.25, "cell.output_dropout": 0.25}
    printed |= {"cell.embedding": 1024, "cell.hidden_size": 256}
    assert ranges.keys() == printed.keys()
    assert all(value in ranges[name].every and len(ranges[name].every) > 1 for name, value in printed.items())
    trials = math.prod(len(one.every) for one in ranges.values())
    assert f"--sampler grid --trials {trials}\n" in (ROOT / "s4" / "grid-search.toml").read_text()
    table = overridden(it.table(it.run[0], "paper", 0), printed)
    assert run_settings(table) == settings_of("wikitext2", "unconstrained")


def test_figure1_at_paper_scale_is_as_printed():
    """A.5: T = 200, 32 inputs, k = 35, α = 0.01, 200 steps, 10 runs; rates α/t, α/√t and α."""
    it = study("figure1")
    for run in it.run:
        assert it.seeds(run, "paper") == tuple(range(10))
        table = it.table(run, "paper", 3)
        assert (table["task"]["steps"], table["task"]["features"], table["train"]["seed"]) == (200, 32, 3)
        assert not it.options(run, "paper").keys() - {"line", "input_scale", "decay"}  # the rest: defaults, as printed
    decays = {it.options(run, "paper").get("decay") for run in it.run}
    assert decays == {None, 1.0, 0.5, 0.0}


# -- running -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["figure1", "wikitext2", "figure2", "figure3"])
def test_s4_runs_at_smoke(name, text, tmp_path):
    """On a small text in place of WikiText-2: every run of the scale ends, and its figures are drawn."""
    it = study(name)
    if it.defaults["task"]["name"] == "wikitext2":
        changes = {"task.folder": str(text), "cell.options.backend": "reference"}  # compiling would take longer
        it = dataclasses.replace(it, defaults=overridden(it.defaults, changes))
    result = run_study(it, "smoke", tmp_path / "results", runs=tmp_path / "runs", progress=False)
    assert {entry.run for entry in result.results} == {run.name for run in it.runs_at("smoke")}
    assert all(entry.measured.status == "finished" for entry in result.results)
    assert list((tmp_path / "results" / it.name / "smoke").glob("*.png"))


# -- projection and context in training --------------------------------------------------------------------------------

TABLE = {
    "task": {"name": "addition", "steps": 6, "validation": 8},
    "cell": {"name": "rnn", "hidden_size": 4, "options": {"backend": "reference"}},
    "train": {"updates": 6, "batch": 4, "optimiser": "sgd", "lr": 5.0, "evaluate_every": 3},
}


@pytest.mark.parametrize("context", [None, 3])
def test_a_projected_run_ends_in_the_set_and_a_free_one_does_not(context, tmp_path):
    """Steps of size 5: only the projection keeps λ at 0.5, whether the layer is truncated or not."""
    rates = []
    for name, options in (("free", {}), ("projected", {"project": {"rate": 0.5}})):
        table = overridden(TABLE, {"train.options": options, "cell.context": context})
        train_run(run_settings(table), tmp_path / name, progress=False)
        rnn = load_run(tmp_path / name, "last").model.rnn
        assert isinstance(rnn, Truncated) == (context is not None)
        rates.append(contraction_rate(rnn.layer if context else rnn))
    assert rates[1] <= 0.5 < rates[0]


def test_a_projected_run_that_was_stopped_ends_with_the_same_weights(tmp_path):
    """Projected after every 4th update and stopped after the 3rd: the count goes on, bit for bit."""
    table = overridden(TABLE, {"train.options": {"project": {"rate": 0.5, "every": 4}}, "train.lr": 0.1})
    settings = run_settings(overridden(table, {"train.checkpoint_seconds": 0.0}))

    class Stop(Exception):
        pass

    def stop(model, update):
        raise Stop

    measure(settings, tmp_path / "whole", progress=False)
    with pytest.raises(Stop):
        measure(settings, tmp_path / "cut", look=stop, at={3}, progress=False)
    measure(settings, tmp_path / "cut", progress=False)
    both = [(tmp_path / name / "last.safetensors").read_bytes() for name in ("whole", "cut")]
    assert both[0] == both[1]


def test_what_projects_is_checked_when_the_optimiser_is_made():
    layer = torch.nn.Linear(2, 2)
    with pytest.raises(SettingError, match=r"recurrent layer, rnn; Linear has none"):
        build_optimiser("sgd", layer, 0.1, {"project": {"rate": 0.5}})
    with pytest.raises(SettingError, match=r"some of every, forget, input_bound, method, rate, region; got \{'rat'"):
        build_optimiser("sgd", layer, 0.1, {"project": {"rat": 0.5}})
    layer.rnn = holdfast.RNN(2, 3)
    with pytest.raises(SettingError, match=r"region must be a table with recurrent, input and bias"):
        build_optimiser("sgd", layer, 0.1, {"project": {"region": {"u": 0.5}}})
    made = build_optimiser("adam", layer, 0.1, {"project": {"region": {"recurrent": 0.5, "input": 1.0}, "every": 2}})
    assert made.every == 2
    assert contraction_rate(layer.rnn) <= 0.5


# -- procedures --------------------------------------------------------------------------------------------------------

GAUSSIAN = {
    "task": {"name": "gaussian", "steps": 40, "features": 4},
    "cell": {"name": "linear", "hidden_size": 4},
    "train": {"seed": 1},
}


@pytest.mark.parametrize("cell", ["linear", "rnn"])
def test_gradient_gaps_fall_and_stay_below_what_is_proved(cell, tmp_path):
    table = overridden(GAUSSIAN, {"cell.name": cell})
    options = {"windows": [2, 6, 10, 14, 18], "input_scale": 0.05}
    found = call("gradient-gaps", table, tmp_path, **options)
    proved = call("gradient-gaps", table, tmp_path, line="proved", **options)
    pairs = list(zip(found.curve["gap"], proved.curve["gap"], strict=True))
    assert all(gap <= bound for gap, bound in pairs)
    assert found.curve["gap"][-1] < found.curve["gap"][0]
    assert found.last["slack"] == pytest.approx(min(bound / gap for gap, bound in pairs))
    assert found.last["rate"] < 1


@pytest.mark.parametrize("cell", ["linear", "rnn"])
def test_the_bound_of_the_papers_steps_holds_for_them(cell, tmp_path):
    """(5) has the constants of the very path, so no weight gap with steps α/t may pass it; at the first step it is α G
    or less, and with a longer window the gap is smaller.
    """
    table = overridden(GAUSSIAN, {"cell.name": cell})
    options = {"steps": 6, "input_scale": 0.05}
    found = call("weight-gaps", table, tmp_path, k=4, **options)
    bound = call("weight-gaps", table, tmp_path, k=4, line="bound", **options)
    assert found.last["passed"] == 0.0
    assert all(one <= other for one, other in zip(found.curve["gap"], bound.curve["gap"], strict=True))
    assert found.last["exponent"] >= 1
    fitted = call("weight-gaps", table, tmp_path, k=4, line="fitted", **options)
    over = [one / other for one, other in zip(found.curve["gap"], fitted.curve["gap"], strict=True)]
    assert max(over) == pytest.approx(1.0)  # it touches the path, and proves nothing for other steps
    assert found.last["passed-fitted"] == 0.0
    assert call("weight-gaps", table, tmp_path, k=12, **options).last["gap"] < found.last["gap"]


def test_fits_find_the_line_that_is_there():
    assert _rate([(k, 3 * k * 0.7**k) for k in (5, 9, 20)]) == pytest.approx(0.7)
    assert _growth([2 * i**1.5 for i in range(1, 9)]) == pytest.approx(1.5)
    assert _rate([(1, 0.5)]) is None
    assert _growth([0.0, 0.0]) is None


def test_the_first_gradients_over_distance_are_those_of_the_untrained_model(text, tmp_path):
    """Before training g(i) is what ``gradient_reach`` gives for the model that the settings build."""
    from holdfast.runs.prepare import prepare
    from holdfast.stability import gradient_reach

    table = {
        "task": {"name": "wikitext2", "window": 10, "folder": str(text)},
        "cell": {"name": "rnn", "hidden_size": 4, "options": {"backend": "reference"}},
        "train": {"updates": 4, "batch": 4, "lr": 0.1},
    }
    found = call("gradient-reach", table, tmp_path / "run", distances=3, tokens=40, rows=4, ratios=[2])
    model, task = prepare(run_settings(table))
    batch = next(task.evaluation("validation", 4))

    def loss(h, y):
        return torch.nn.functional.cross_entropy(model.readout(h), y, reduction="none")

    mean = gradient_reach(model.rnn, model.embedding(batch.inputs), loss, batch.targets, distances=3).mean
    assert found.curve["0%"] == pytest.approx(mean)
    assert found.last["0%.at-2"] == pytest.approx(mean[2] / mean[1])
    assert found.curve["100%"] != found.curve["0%"]


def test_weights_of_the_full_context_are_at_no_distance(text, tmp_path):
    """With k = K it is the same training, with k < K another; the full model is trained once for both."""
    table = {
        "task": {"name": "wikitext2", "window": 8, "folder": str(text)},
        "cell": {"name": "rnn", "hidden_size": 4, "options": {"backend": "reference"}},
        "train": {"updates": 4, "batch": 4, "lr": 0.1},
    }
    distances, spent = {}, {}
    for k in (2, 8):
        folder = tmp_path / f"k-{k}" / "seed-0"
        found = call("weight-distance", overridden(table, {"cell.context": k}), folder, reference=8, every=2)
        distances[k], spent[k] = found.curve["distance"], found.cpu_seconds
        assert found.curve["update"] == (0, 2, 4)
    assert distances[8] == (0.0, 0.0, 0.0)
    assert distances[2][0] == 0.0 < distances[2][1]
    (reference,) = tmp_path.glob("reference-*")
    own = [read_outcome(folder).cpu_seconds for folder in (tmp_path / "k-2/seed-0", tmp_path / "k-8/seed-0", reference)]
    assert spent == {2: pytest.approx(own[0] + own[2], abs=1e-3), 8: own[1]}  # its time counts once


def test_bad_options_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"gradient-gaps has no option 'window'; known: input_scale, line, rate"):
        call("gradient-gaps", GAUSSIAN, tmp_path, window=3)
    with pytest.raises(ConfigError, match=r"line must be measured or proved, got 'bound'"):
        call("gradient-gaps", GAUSSIAN, tmp_path, line="bound", windows=[2])
    with pytest.raises(ConfigError, match=r"line must be measured, bound or fitted"):
        call("weight-gaps", GAUSSIAN, tmp_path, line="proved")
    with pytest.raises(ConfigError, match=r"task gaussian and one of the cells linear, rnn"):
        call("weight-gaps", overridden(GAUSSIAN, {"cell.name": "lstm"}), tmp_path)
    with pytest.raises(ConfigError, match=r"set cell.context"):
        call("weight-distance", TABLE, tmp_path)
    with pytest.raises(ConfigError, match=r"needs a language-modelling task, got addition"):
        call("gradient-reach", TABLE, tmp_path)
