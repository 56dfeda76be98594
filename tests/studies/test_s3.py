"""The shipped studies: they load, they are as printed, and S3's addition runs."""

import functools
from pathlib import Path

import pytest
import torch

from holdfast.runs.prepare import prepare
from holdfast.runs.settings import run_settings
from holdfast.studies.claims import answer_count
from holdfast.studies.run import run_study
from holdfast.studies.study import find_studies, load_study
from holdfast.tasks import Spec
from holdfast.train.model import LAYERS, build, made_options

ROOT = Path(__file__).parents[2] / "studies"
FILES = find_studies(ROOT)


@functools.cache
def study(name):
    return load_study(ROOT / f"{name}.toml", ROOT)


@pytest.mark.parametrize("path", FILES, ids=[path.relative_to(ROOT).as_posix() for path in FILES])
def test_every_shipped_study_loads_and_has_its_scales(path):
    it = load_study(path, ROOT)
    assert it.name == path.relative_to(ROOT).with_suffix("").as_posix()
    if it.sweep and not it.claim:
        return  # a search has no claims, and one scale is enough
    assert [name for name in it.scale if name != "medium"] == ["smoke", "small", "paper"]
    assert all(it.runs_at(scale) for scale in it.scale)
    assert it.source
    assert it.claim
    assert {run.name for scale in ("small", "paper") for run in it.runs_at(scale)} == {run.name for run in it.run}


@pytest.mark.parametrize("path", FILES, ids=[path.relative_to(ROOT).as_posix() for path in FILES])
def test_the_standard_error_of_every_accuracy_is_known(path):
    """For every claim on an accuracy, at every scale it is judged at: its settings say how many answers it counts."""
    it = load_study(path, ROOT)
    for claim in it.claim:
        for part in claim.metric.split(" - "):
            for scale in claim.scales or it.scale:
                for run in (claim.run, claim.than or claim.run):
                    if part.endswith("accuracy"):
                        assert claim.of or answer_count(it, scale, run, part), (claim.text, scale)


def test_s3_is_whole():
    assert {"s3/addition", "s3/har2", "s3/ptb"} <= {load_study(path, ROOT).name for path in FILES}


@pytest.mark.parametrize("steps", [500, 1000, 5000])
@pytest.mark.parametrize(("model", "count"), [("sgornn", 1411), ("vprnn", 1409), ("fastrnn", 16899), ("lstm", 67201)])
def test_addition_at_paper_scale_is_as_the_authors_ran_it(model, count, steps):
    """§3.1: 128 units, batches of 64, 20,000 updates, 640 sequences every 100; a constant rate, and Keras' LSTM."""
    it = study("s3/addition")
    run = next(run for run in it.run if run.name == f"{model}-{steps}")
    assert it.values(run, "paper") == (1e-2, 1e-3, 1e-4)
    settings = run_settings(it.table(run, "paper", 0, 1e-2))
    network, _ = prepare(settings)
    assert sum(weight.numel() for weight in network.parameters()) == count
    assert (settings.task.steps, settings.task.validation) == (steps, 640)
    training = settings.training
    assert (training.optimiser, training.options) == ("rmsprop", {"alpha": 0.9, "eps": 1e-7})
    assert (training.batch, training.updates, training.evaluate_every, training.clip) == (64, 20_000, 100, None)
    assert training.schedule.multiplier(5_000, 20_000) == 1.0
    if model == "lstm":
        assert network.rnn.cells[0].bias.view(4, -1).mean(dim=1).tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("model", ["sgornn", "vprnn", "lstm"])
def test_addition_over_5000_steps_as_printed_has_the_decay_and_nothing_else(model):
    """Linear to zero over 20,000 updates; the LSTM starts as PyTorch's. All else is as the authors ran it."""
    it = study("s3/addition")
    theirs, printed = (
        it.table(next(run for run in it.run if run.name == f"{model}-5000{suffix}"), "paper", 0, 1e-2)
        for suffix in ("", "-printed")
    )
    assert printed["train"].pop("schedule") == {"kind": "linear", "over": 20_000}
    assert theirs["cell"].pop("options", {}) == ({"forget_bias": 1.0} if model == "lstm" else {})
    assert printed == theirs


@pytest.mark.parametrize("steps", [500, 1000, 5000])
def test_fastrnn_has_the_gates_of_sgornn_and_as_printed_those_of_its_own_paper(steps):
    it = study("s3/addition")
    for suffix, start, clip, rate in (("", (-3.75, 3.0), "2alpha", 1.0), ("-printed", (-3.0, 3.0), None, 0.75)):
        run = next(run for run in it.run if run.name == f"fastrnn-{steps}{suffix}")
        settings = run_settings(it.table(run, "small", 0, 1e-2))
        network, _ = prepare(settings)
        gates = network.rnn.cells[0].gates
        assert (gates.start, gates.clip) == (start, clip)
        assert settings.training.schedule.multiplier(5_000, 20_000) == rate


def test_sgornn_starts_at_the_printed_gates_and_relu_is_everywhere_but_in_the_lstm():
    for name in ("s3/addition", "s3/har2", "s3/ptb"):
        it = study(name)
        for run in it.run:
            network = run_settings(it.table(run, "paper", 1)).network
            layer = LAYERS[network.name](2, 4, **{k: it for k, it in made_options(network).items() if k != "start"})
            (cell,) = layer.cells
            assert cell.phi is (torch.tanh if network.name == "lstm" else torch.relu)
            if network.name == "sgornn":
                assert (cell.gates.start, cell.gates.clip) == ((-3.75, 3.0), "2alpha")


def test_har2_at_paper_scale_is_as_printed():
    """§3.2: 300 epochs of batches of 100, the rate cut to a tenth after 200, seeds 1 to 10."""
    it = study("s3/har2")
    for run in it.runs_at("paper"):
        assert it.seeds(run, "paper") == tuple(range(1, 11))
        settings = run_settings(it.table(run, "paper", 1))
        assert settings.network.hidden_size == (64 if run.name == "lstm" else 128)
        training, updates = settings.training, 300 * 74
        assert (training.lr, training.batch, training.epochs) == (1e-3, 100, 300)
        assert training.schedule.multiplier(200 * 74 - 1, updates) == 1.0
        assert training.schedule.multiplier(200 * 74, updates) == 0.1
        assert training.evaluate_on == ("train", "test")


def test_ptb_at_paper_scale_is_as_printed():
    """§3.3: windows of 300, 256 units and features, dropout of 0.3 on the embedding, 300 epochs, one cut after 200. The
    runs `*-code` have words, windows and embedding of the authors' program, and a cut after every epoch from 200 on.
    """
    it = study("s3/ptb")
    assert {run.name for run in it.run if run.name.endswith("-code")} == {
        f"{cell}-code" for cell in ("vprnn", "sgornn", "fastrnn", "lstm")
    }
    for run in it.run:
        settings = run_settings(it.table(run, "paper", 0))
        network, task = settings.network, settings.task
        code = run.name.endswith("-code")
        words = ("keras", 35) if code else ("spaces", 300)
        assert (task.tokeniser, task.window, task.protocol) == (*words, "windows")
        assert (network.hidden_size, network.embedding, network.input_dropout, network.tied) == (256, 256, 0.3, False)
        training = settings.training
        assert (training.epochs, training.carry_state) == (300, False)
        assert (training.optimiser, training.options) == ("rmsprop", {"alpha": 0.9, "eps": 1e-7})
        epoch = 240
        rates = [training.schedule.multiplier(n * epoch + epoch // 2, 300 * epoch) for n in range(199, 205)]
        assert rates == pytest.approx([1, *(0.1**n if code else 0.1 for n in range(1, 6))])


def test_ptb_as_in_the_program_starts_with_its_embedding():
    """Uniform in ±0.05, and nothing else is put elsewhere: recurrent layer and readout start as in the others."""
    it, spec = study("s3/ptb"), Spec(400, 400, "cross_entropy", "perplexity", tokens=True, every_step=True)
    for cell in ("vprnn", "sgornn", "fastrnn", "lstm"):
        models = []
        for name in (cell, f"{cell}-code"):
            run = next(run for run in it.run if run.name == name)
            torch.manual_seed(0)
            models.append(build(run_settings(it.table(run, "paper", 0)).network, spec))
        (printed, theirs), words = (dict(model.named_parameters()) for model in models), "embedding.weight"
        assert theirs[words].abs().max() <= 0.05 < printed[words].abs().max()
        torch.testing.assert_close(theirs[words].std().item(), 0.05 / 3**0.5, rtol=0.01, atol=0)
        assert all(torch.equal(theirs[name], printed[name]) for name in printed if name != words)


def test_s3_addition_runs_at_smoke(tmp_path):
    it = study("s3/addition")
    result = run_study(it, "smoke", tmp_path / "results", runs=tmp_path / "runs", progress=False)
    assert {entry.run for entry in result.results} == {run.name for run in it.runs_at("smoke")}
    assert all(entry.measured.updates == 2 for entry in result.results)
    assert (tmp_path / "results/s3/addition/smoke/report.md").is_file()
