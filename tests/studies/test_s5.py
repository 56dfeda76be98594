"""S5's studies: as printed at paper scale, running at smoke, and procedures that measure what they say."""

import csv
import functools
import os
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.errors import ConfigError, DataError
from holdfast.runs import load_run
from holdfast.runs.prepare import prepare
from holdfast.runs.settings import run_settings
from holdfast.spline import initial_state_slope, partition_code
from holdfast.studies.claims import answer_count
from holdfast.studies.procedures import PROCEDURES
from holdfast.studies.result import read_result
from holdfast.studies.run import run_study
from holdfast.studies.s5.bird import BirdNetwork, auc
from holdfast.studies.study import load_study

ROOT = Path(__file__).parents[2] / "studies"
data = pytest.mark.skipif("HOLDFAST_DATA" not in os.environ, reason="the data is not here: HOLDFAST_DATA is not set")


@functools.cache
def study(name):
    return load_study(ROOT / f"s5/{name}.toml", ROOT)


def smoke(name, tmp_path, only=None):
    it = study(name)
    result = run_study(it, "smoke", tmp_path / "results", runs=tmp_path / "runs", progress=False, only=only)
    return result, tmp_path / "results" / "s5" / name / "smoke"


# -- as printed --------------------------------------------------------------------------------------------------------


def test_table_1_has_the_printed_accuracies_and_setting():
    it = study("table1")
    printed = {run.name: run.paper["test.accuracy"] for run in it.run}
    assert printed["mnist-rnn1-zero"] == 0.970
    assert printed["mnist-rnn2-random"] == 0.987
    assert printed["permuted-rnn1-random"] == 0.922
    assert printed["sst2-lstm"] == 0.849
    starts = {
        "mnist-rnn1-random": 0.1,
        "mnist-rnn2-random": 0.5,
        "permuted-rnn2-random": 0.005,
        "sst2-rnn1-random": 0.1,
    }
    quoted = {run.name: run.paper["test.accuracy"] for run in it.run if "quoted" in run.label}
    assert quoted == {
        "urnn-mnist": 0.951,
        "urnn-permuted": 0.914,
        "scornn-mnist": 0.985,
        "scornn-permuted": 0.966,
        "c-lstm-sst2": 0.878,
        "tree-lstm-sst2": 0.88,
    }
    for run in it.run:
        settings = run_settings(it.table(run, "paper", 0))
        network, training = settings.network, settings.training
        if run.name in quoted:  # from other papers, with their sizes
            continue
        sst = run.name.startswith("sst2")
        assert (network.hidden_size, training.batch, training.epochs) == ((300, 64, 100) if sst else (128, 64, 200))
        assert training.schedule.factor == 0.7
        assert training.schedule.patience == 5
        assert training.optimiser == ("adam" if sst else "rmsprop")
        assert network.initial_state == starts.get(run.name, network.initial_state)
        assert (network.initial_state == "zeros") == ("random" not in run.name)


def test_table_4_has_every_cell_of_the_grid():
    it = study("table4")
    assert len(it.run) == 2 * 4 * 6
    printed = {run.name: run.paper["test.accuracy"] for run in it.run}
    assert printed["rmsprop-1.5e-4-0"] == 0.114
    assert printed["rmsprop-2e-4-5"] == 0.981
    assert printed["sgd-1.5e-6-0"] == 0.098
    assert printed["sgd-1.25e-6-0.01"] == 0.922
    for run in it.run:
        optimiser, *rate, std = (
            run.name.rsplit("-", 1)[0].split("-", 1)[0],
            run.name.split("-", 1)[1],
            run.name.rsplit("-", 1)[1],
        )
        settings = run_settings(it.table(run, "paper", 0))
        assert settings.training.optimiser == optimiser
        assert f"{settings.training.lr:g}" == f"{float(rate[0].rsplit('-', 1)[0]):g}"
        assert settings.network.initial_state == ("zeros" if std == "0" else float(std))


@pytest.mark.parametrize("name", ["adding", "bird", "figures7-9", "table1", "table3", "table4"])
def test_every_scale_above_small_has_three_seeds(name):
    it = study(name)
    for scale in set(it.scale) - {"smoke", "small"}:
        assert {it.seeds(run, scale) for run in it.runs_at(scale)} == {(0, 1, 2)}


@pytest.mark.parametrize("name", ["table1", "table4", "figures7-9"])
def test_medium_differs_from_paper_in_the_epochs_alone(name):
    """T = 784, both optimisers at the printed rates, all phrases; and every claim can be judged there."""
    it = study(name)
    for run in it.runs_at("medium"):
        tables = [it.table(run, scale, 0) for scale in ("medium", "paper")]
        epochs = [table["train"].pop("epochs") for table in tables]
        assert tables[0] == tables[1]
        assert 6 <= epochs[0] < epochs[1]
    there = {run.name for run in it.runs_at("medium")}
    assert all("medium" in claim.scales and {claim.run, claim.than or claim.run} <= there for claim in it.claim)


def test_every_row_of_table_1_runs_at_small_with_the_reductions_of_its_neighbours():
    it = study("table1")
    assert it.runs_at("small") == it.run
    tables = {run.name: it.table(run, "small", 0) for run in it.run}
    for name, table in tables.items():
        if "sst2" in name:
            assert (table["task"]["phrases"], table["train"]["epochs"]) == (False, 4)
        elif "rnn1" not in name and "rnn2" not in name:
            neighbour = tables["mnist-gru"]["train"]
            assert [table["train"][key] for key in ("updates", "lr")] == [neighbour[key] for key in ("updates", "lr")]
            assert (table["task"]["pool"], table["cell"]["hidden_size"]) == (4, 128)


def test_adding_is_as_printed():
    """Table 2: 128 units, RMSprop, 1e-4, batches of 50, 100 epochs of 1,000 updates, T = 100."""
    it = study("adding")
    for run in it.run:
        settings = run_settings(it.table(run, "paper", 0))
        training = settings.training
        assert (settings.task.steps, settings.network.hidden_size) == (100, 128)
        assert (training.optimiser, training.lr, training.batch, training.updates) == ("rmsprop", 1e-4, 50, 100_000)


@pytest.mark.parametrize("name", ["adding", "bird", "figures7-9", "table1", "table3", "table4"])
def test_the_rate_follows_the_validation_loss(name):
    """Appendix C: times 0.7 after five evaluations without a lower loss, at every scale above small."""
    it = study(name)
    for scale in set(it.scale) - {"smoke", "small"}:
        for run in it.runs_at(scale):
            schedule = run_settings(it.table(run, scale, 0)).training.schedule
            assert (schedule.kind, schedule.factor, schedule.patience, schedule.on) == ("plateau", 0.7, 5, "loss")


@pytest.mark.parametrize("name", ["adding", "figures7-9", "table1", "table3", "table4"])
def test_at_small_the_rate_never_fell(name):
    """By the logs; where the curve has no rate, the sixth of six evaluations is the first that could lower it."""
    result = read_result(ROOT.parent / "results" / "s5" / name / "small" / "result.json")
    for entry in result.results:
        for attempt in entry.attempts:
            rates = set(attempt.measured.curve.get("lr", ()))
            run = next(run for run in study(name).run if run.name == entry.run)
            training = run_settings(study(name).table(run, "small", entry.seed)).training
            assert len(rates) == 1 or attempt.measured.updates <= 6 * training.evaluate_every


def test_the_recurrent_weights_start_at_the_identity_and_nothing_else_does():
    it = study("adding")
    model, _ = prepare(run_settings(it.table(it.run[0], "smoke", 0)))
    assert torch.equal(model.rnn.l0.weight_hh, torch.eye(4))
    assert model.rnn.l0.weight_ih.abs().min() > 0
    assert model.rnn.l0.bias.abs().min() > 0


# -- smoke -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["three-class-1", "sum-1"])
def test_adding_runs_at_smoke_and_tracks_the_slope(tmp_path, name):
    it = study("adding")
    run = next(run for run in it.runs_at("smoke") if run.name == name)
    table, options = it.table(run, "smoke", 0), it.options(run, "smoke")
    found = PROCEDURES[run.procedure](table, options, tmp_path, progress=False, label=name)
    assert found.curve["update"] == (0, 2, 4)
    assert found.curve["gradient"][0] is None
    assert all(value > 0 for value in found.curve["state-slope"][1:])
    assert found.value("state-slope.mean", "last") == pytest.approx(np.mean(found.curve["state-slope"][1:]))
    assert all(value is not None for value in found.curve["validation.loss"][1:])


def test_the_tracked_slope_is_that_of_the_weights_that_were_saved(tmp_path):
    table = {
        "task": {"name": "addition", "steps": 6, "form": "three-class", "validation": 8},
        "cell": {"name": "rnn", "hidden_size": 4, "options": {"nonlinearity": "relu", "init": "np"}},
        "train": {"updates": 4, "batch": 4, "evaluate_every": 2, "lr": 0.05},
    }
    found = PROCEDURES["start-slope"](table, {"every": 4, "sequences": 8}, tmp_path, progress=False, label="tiny")
    model, task = prepare(run_settings(table))
    from holdfast.train.checkpoint import load_model_

    load_model_(model, tmp_path / "last.safetensors")
    inputs = next(task.evaluation("validation", 8)).inputs
    assert found.curve["state-slope"][-1] == initial_state_slope(model, inputs).state_norm.mean().item()
    with pytest.raises(ConfigError, match="no option 'evry'"):
        PROCEDURES["start-slope"](table, {"evry": 4}, tmp_path, progress=False, label="tiny")


def test_shares_of_images_and_sentences_are_counted_on_as_many_as_the_options_say():
    """At most the test set's; the first 80% of the images vote on the rest."""
    counted = {
        ("table3", "smoke", "codes-1.accuracy"): 12,
        ("table3", "small", "pixels-5.accuracy"): 500,
        ("table3", "small", "templates.accuracy"): 200,
        ("table3", "paper", "codes-10.accuracy"): 2000,
        ("figures7-9", "smoke", "templates.accuracy"): 5,
        ("figures7-9", "smoke", "nearest.accuracy"): 40,
        ("figures7-9", "small", "farthest.accuracy"): 1821,
        ("figures7-9", "small", "test.accuracy"): 1821,
    }
    for (name, scale, metric), count in counted.items():
        (run,) = study(name).run
        assert answer_count(study(name), scale, run.name, metric) == count


@data
def test_table_3_runs_at_smoke_and_draws_its_figures(tmp_path):
    result, folder = smoke("table3", tmp_path)
    (entry,) = result.results
    assert {"codes-1.accuracy", "pixels-1.accuracy", "templates.accuracy", "regions"} <= set(entry.measured.best)
    for name in ("figure-2", "figure-5", "figure-6", "figure-8"):
        assert (folder / f"rnn-picture-{name}.png").stat().st_size > 3_000
        assert f"rnn-picture-{name}.png" in (folder / "report.md").read_text()
    (made,) = (tmp_path / "runs/s5/table3/smoke/rnn").iterdir()
    run = load_run(made)
    codes = partition_code(run.model, next(run.task.evaluation("test", 60)).inputs)
    assert entry.measured.curve["regions"][-1] == len({bytes(row) for row in codes.flat()})


@data
def test_the_figures_of_sentences_run_at_smoke(tmp_path):
    result, folder = smoke("figures7-9", tmp_path)
    (entry,) = result.results
    for name in ("nearest", "farthest", "templates", "answers"):
        assert 0 <= entry.measured.best[f"{name}.accuracy"] <= 1
    assert (folder / "rnn-picture-figure-9.png").stat().st_size > 3_000
    (made,) = (tmp_path / "runs/s5/figures7-9/smoke/rnn").iterdir()
    assert 4 < len((made / "neighbours.md").read_text().splitlines()) <= 4 + 10


@data
@pytest.mark.parametrize(("name", "only"), [("table1", ["*permuted*", "*-sst2"]), ("table4", ["rmsprop-1e-4-0.1"])])
def test_the_tables_run_at_smoke(tmp_path, name, only):
    result, folder = smoke(name, tmp_path, only)
    assert result.results
    assert all(entry.measured.updates == 2 for entry in result.results)
    assert (folder / "report.md").is_file()


# -- birds -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clips(tmp_path, monkeypatch):
    """Ten clips of a second: a bird is a tone of 3 kHz in noise."""
    folder, draw = tmp_path / "data" / "bird", np.random.default_rng(0)
    (folder / "wav").mkdir(parents=True)
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["itemid", "hasbird"])
        for number in range(10):
            table.writerow([number, number % 2])
            samples = 1000 * draw.standard_normal(44_100)
            samples += (number % 2) * 8000 * np.sin(2 * np.pi * 3000 * np.arange(44_100) / 44_100)
            with wave.open(str(folder / "wav" / f"{number}.wav"), "wb") as clip:
                clip.setparams((1, 2, 44_100, 0, "NONE", ""))
                clip.writeframes(samples.astype("<i2").tobytes())
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path / "data"))
    return folder


def test_birds_run_at_smoke_when_the_clips_are_there(tmp_path, clips):
    result, _ = smoke("bird", tmp_path)
    assert {entry.run for entry in result.results} == {"zero", "random"}
    for entry in result.results:
        value = entry.value("test.auc")
        assert value is None or 0 <= value <= 1
        assert entry.measured.updates == 2


def test_without_the_clips_the_study_says_what_to_get(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    with pytest.raises(DataError, match="clips of ff1010bird"):
        smoke("bird", tmp_path)


def test_the_network_is_four_convolutions_and_two_gru_layers():
    """96 maps leave one band of 40, so 96 features enter the GRU: S5's D."""
    model = BirdNetwork(40)
    kinds = [type(module).__name__ for module in model.modules()]
    assert kinds.count("Conv2d") == 4
    assert (model.rnn.input_size, model.rnn.hidden_size, model.rnn.num_layers) == (96, 256, 2)


def test_auc_is_the_share_of_pairs_in_order():
    scores, classes = torch.randn(40), torch.arange(40) % 2
    bird, none = scores[classes == 1], scores[classes == 0]
    pairs = (bird[:, None] > none).double().mean().item()
    assert auc(scores, classes) == pytest.approx(pairs)
    assert auc(classes.double(), classes) == 1.0
    assert auc(torch.zeros(40), classes) == 0.5
    assert auc(scores, torch.zeros(40)) is None
