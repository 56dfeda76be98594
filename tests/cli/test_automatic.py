"""``train --data FILE --target T`` and nothing else: a model is chosen, compared, kept and used."""

import csv
import json

import numpy as np
import pytest
import torch

import holdfast
from holdfast.engine.targets.c import step_of
from holdfast.errors import ConfigError
from holdfast.export import network_of
from holdfast.export.simulate import Simulated, exact_parts
from holdfast.export.to_c import as_input

QUICK = ("--cell", "reservoir", "--hidden", 4, "-q")


@pytest.fixture(scope="module")
def chosen(command, waves, tmp_path_factory):
    """The folder of an automatic choice without trained cells, its file, and what the command said."""
    folder = tmp_path_factory.mktemp("chosen")
    data = waves(folder / "mine.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.estimators.readout.UNITS", 4)
        ran = command("train", "--data", data, "--target", "label", "--minutes", 0, "--run", folder / "run")
    assert ran.code == 0, ran.text
    return folder / "run", data, ran


def test_data_and_target_alone_give_the_automatic_choice(chosen):
    folder, _, ran = chosen
    assert json.loads((folder / "settings.json").read_text())["cell"]["name"] == "auto"
    assert "Sequences: 40, named by 'name'" in ran.err
    assert "Model: chosen automatically from a reservoir and simple baselines (--minutes; --cell NAME" in ran.err
    for name in ("reservoir", "most common", "nearest neighbour", "ridge on the raw series"):
        assert name in ran.out  # the table
        assert f"{name}: accuracy" in ran.err  # as it is known
    assert "95% interval" in ran.out
    assert "reservoir was chosen: " in ran.out
    assert "Test: loss" in ran.out
    assert "(n = 6, 95% interval " in ran.out
    assert f"Next: holdfast predict {folder} --data NEW_FILE" in ran.out
    assert f"Pictures: {folder / 'scores.png'}, {folder / 'answers.png'}" in ran.err


def test_its_folder_is_scored_applied_resumed_and_shown_again(command, chosen, tmp_path):
    folder, data, _ = chosen
    assert "accuracy" in command("evaluate", folder).out
    assert command("evaluate", folder, "--data", data, "--json").code == 0
    assert command("predict", folder, "--data", data, "--out", tmp_path / "p.csv").code == 0
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["prediction"] for row in rows] == holdfast.load_run(folder).predict(data).tolist()
    again = json.loads(command("resume", folder, "--json").out)
    assert again["chosen"] == "reservoir"
    assert again["scores"][0]["n"] == 34
    assert command("evaluate", folder, "--which", "best").code == 1


def test_what_needs_one_cell_refuses_its_folder_and_says_what_to_do(command, chosen, tmp_path):
    folder, _, _ = chosen
    with pytest.raises(ConfigError, match=r"A stream expects a run of one cell.*ReservoirModel.*--cell gru"):
        holdfast.load_run(folder).stream()
    ran = command("diagnose", folder, "--out", tmp_path / "page.html")
    assert ran.code == 1
    assert "expects a run of one cell" in ran.text
    assert not (tmp_path / "page.html").exists()


def test_its_choice_is_exported(command, chosen, tmp_path):
    """ONNX Runtime answers as the run does; a share of steps above a threshold may flip by rounding."""
    runtime = pytest.importorskip("onnxruntime")
    folder, data, _ = chosen
    assert command("export", folder, "--to", tmp_path / "model.onnx").code == 0
    run, options = holdfast.load_run(folder), runtime.SessionOptions()
    options.log_severity_level = 3
    ready, preparation = run.preparation.apply(data), run.preparation
    x = (ready.inputs.numpy() * preparation.std + preparation.mean).astype(np.float32)
    given = {"x": x} if ready.lengths is None else {"x": x, "lengths": ready.lengths.numpy()}
    found = runtime.InferenceSession(tmp_path / "model.onnx", options).run(["probabilities"], given)[0]
    np.testing.assert_allclose(found, run.predict_proba(data), atol=0.02)
    assert command("export", folder, "--to", tmp_path / "model.c").code == 0
    assert "accuracy on test" in command("export", folder, "--to", tmp_path / "small.c", "--int8").out


def test_the_inputs_that_int8_is_judged_by_are_those_of_the_exported_network(chosen):
    """The network in Python, with exact weights, answers as the run's model does."""
    run = holdfast.load_run(chosen[0])
    network = network_of(run)
    steps = [step_of(row.cell) for row in network.rows]
    batch = next(iter(run.task.evaluation("train", 50)))
    with torch.no_grad():
        found = Simulated(network, steps, exact_parts(network, steps))(
            as_input(network, run, batch.inputs), batch.lengths
        )[0]
        np.testing.assert_allclose(found, run.model(batch.inputs, batch.lengths)[0], atol=0.05)
        wrong = Simulated(network, steps, exact_parts(network, steps))(batch.inputs + 1, batch.lengths)[0]
        assert (wrong - found).abs().max() > 0.5


def test_any_option_of_a_training_trains_one_cell(command, waves, tmp_path):
    data = waves(tmp_path / "mine.csv")
    words = ["--data", data, "--target", "label", "--epochs", 1, "-q", "--run", tmp_path / "r"]
    assert command("train", *words, "--set", "cell.options.backend=reference").code == 0
    assert json.loads((tmp_path / "r" / "settings.json").read_text())["cell"]["name"] == "sgornn"


def test_without_one_answer_per_sequence_a_cell_is_trained_and_that_is_said(command, waves, tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.runs.request._UPDATES", 1)
    data = waves(tmp_path / "mine.csv", target=None)
    ran = command("train", "--data", data, "--sequence", "name", "-q", "--run", tmp_path / "r")
    assert ran.code == 0, ran.text
    assert "The automatic choice is for one answer per sequence; for the next step, an SGORNN is trained" in ran.err
    assert json.loads((tmp_path / "r" / "settings.json").read_text())["task"]["validation"] == 0.15


def test_a_reservoir_is_fitted_by_name_to_several_numbers(command, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 8, 2))
    np.savez(tmp_path / "a.npz", x=x, y=np.stack([x.mean((1, 2)), 100 + x.std((1, 2))], axis=1))
    ran = command(
        "train", "--data", tmp_path / "a.npz", "--set", "task.order=time-first", *QUICK, "--run", tmp_path / "r"
    )
    assert ran.code == 0, ran.text
    assert "error per variance" in ran.out
    assert command("predict", tmp_path / "r", "--data", tmp_path / "a.npz", "--out", tmp_path / "p.npz").code == 0
    assert abs(np.load(tmp_path / "p.npz")["y 1"].mean() - 101) < 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("addition", "--minutes", 1), 2, "add --data"),
        (("addition", "--cell", "auto"), 1, "--cell auto is for your own data; add --data FILE"),
        (("--data", "mine.csv", "--minutes", 1, "--cell", "gru"), 2, "--cell gru trains one"),
        (("--data", "mine.csv", "--minutes", 1, "--hidden", 3), 2, "--hidden trains one"),
        (("--data", "mine.csv", "--minutes", -1), 2, "greater than or equal to 0"),
        (("--data", "mine.csv", "--minutes", "inf"), 1, "minutes"),
        (("--data", "mine.csv", "--cell", "auto", "--cell", "gru"), 2, "stands alone"),
        (("--data", "mine.csv", "--cell", "auto", "--lr", 1), 2, "no use for --lr"),
        (("--data", "mine.csv", "--cell", "reservoir", "--minutes", 1), 2, "needs no time"),
        (("--data", "mine.csv", "--set", "cell.options.cells=['no']", "--cell", "auto"), 1, "got 'no'"),
        (("--data", "mine.csv", "--forecast", "x", "--minutes", 1), 2, "--forecast or --minutes, not both"),
        (("--data", "mine.csv", "--target", "lable"), 1, "the column 'lable' is not in it"),
        (("--data", "one.csv", "--target", "label"), 1, "classification needs 2 classes"),
        (("--data", "few.csv", "--target", "label"), 1, "not enough for"),
    ],
)
def test_what_cannot_be_chosen_is_said_and_nothing_is_left(command, waves, here, words, code, said):
    waves(here / "mine.csv", count=12)
    (here / "one.csv").write_text("id,x,label\n" + "".join(f"{i},{i % 3},a\n{i},1,a\n" for i in range(9)))
    (here / "few.csv").write_text("id,x,label\n0,1,a\n0,2,a\n1,3,b\n1,1,b\n")
    ran = command("train", *words, "--run", here / "r")
    assert ran.code == code, ran.text
    assert said in " ".join(ran.text.replace("│", " ").split())
    assert "Traceback" not in ran.text
    assert "unexpected" not in ran.text
    assert not (here / "r" / "choice.json").exists()
