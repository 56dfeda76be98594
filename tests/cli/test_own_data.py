"""From a file of one's own to predictions."""

import csv
import json

import numpy as np
import pytest


def test_what_was_worked_out_is_said(own):
    _, _, ran = own
    for said in ("40", "2 classes: fast (20), slow (20)", "Splits: ", "Batches of", "Adam with learning rate"):
        assert said in ran.err


def test_a_run_is_scored_on_another_file(command, own, waves, tmp_path):
    folder, _, _ = own
    scored = json.loads(command("evaluate", folder, "--data", waves(tmp_path / "more.csv", count=10), "--json").out)
    assert set(scored["scores"]) == {"loss", "accuracy"}
    assert scored["scores"]["accuracy"] * 10 == pytest.approx(round(scored["scores"]["accuracy"] * 10))


def test_predictions_are_classes_with_probabilities_that_add_up(command, own, waves, tmp_path):
    folder, _, _ = own
    data = waves(tmp_path / "new.csv", target=None, count=7)
    ran = command("predict", folder, "--data", data, "--out", tmp_path / "p.csv")
    assert ran.code == 0, ran.text
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["sequence"] for row in rows] == [f"s{index}" for index in range(7)]
    for row in rows:
        shares = {name: float(row[f"p({name})"]) for name in ("fast", "slow")}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-6)
        assert row["prediction"] == max(shares, key=shares.get)


def test_predictions_are_the_same_in_every_kind_of_file(command, own, waves, tmp_path):
    folder, _, _ = own
    data = waves(tmp_path / "new.csv", target=None, count=5)
    for suffix in ("csv", "npz", "parquet"):
        if suffix == "parquet":
            pytest.importorskip("pyarrow")
        assert command("predict", folder, "--data", data, "--out", tmp_path / f"p.{suffix}").code == 0
    with (tmp_path / "p.csv").open() as file:
        table = {
            name: list(column)
            for name, column in zip(
                *(lambda rows: (rows[0], zip(*rows[1:], strict=True)))(list(csv.reader(file))), strict=True
            )
        }
    arrays = np.load(tmp_path / "p.npz")
    import pyarrow.parquet

    parquet = pyarrow.parquet.read_table(tmp_path / "p.parquet").to_pydict()
    assert list(table) == list(arrays) == list(parquet)
    assert table["prediction"] == arrays["prediction"].tolist() == parquet["prediction"]
    np.testing.assert_allclose([float(share) for share in table["p(fast)"]], arrays["p(fast)"], atol=1e-8)
    np.testing.assert_array_equal(parquet["p(fast)"], arrays["p(fast)"])


def test_numbers_come_back_in_their_own_units(command, waves, tmp_path):
    """Targets lie around 107 with deviation 5: so do predictions, though the network sees mean 0 and deviation 1."""
    data = waves(tmp_path / "mine.csv", target="speed")
    words = ["--target", "speed", "--set", "task.sequence=name", "--cell", "gru", "--hidden", 4, "--epochs", 1, "-q"]
    assert command("train", "--data", data, *words, "--run", tmp_path / "r").code == 0
    assert command("predict", tmp_path / "r", "--data", data, "--out", tmp_path / "p.npz").code == 0
    speeds = np.load(tmp_path / "p.npz")["speed"]
    assert len(speeds) == 40
    assert (abs(speeds - 107) < 30).all()


def test_the_next_step_of_every_feature_is_predicted(command, waves, tmp_path):
    data = waves(tmp_path / "mine.csv", target=None)
    words = ["--set", "task.sequence=name", "--hidden", 4, "--epochs", 1, "-q", "--run", tmp_path / "r"]
    assert command("train", "--data", data, *words).code == 0
    assert command("predict", tmp_path / "r", "--data", data, "--out", tmp_path / "p.csv").code == 0
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == "sequence,next x,next y"


def test_what_cannot_be_predicted_is_said_and_nothing_is_written(command, own, trained, waves, tmp_path):
    folder, data, _ = own
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for words, said in {
        (trained, "--data", data, "--out", tmp_path / "p.csv"): "was trained on the task addition, not with --data",
        (folder, "--data", data, "--out", tmp_path / "p.txt"): "--out must end in .csv, .parquet or .npz",
        (folder, "--data", tmp_path / "none.csv", "--out", tmp_path / "p.csv"): "none.csv",
        (folder, "--data", tmp_path / "other.csv", "--out", tmp_path / "p.csv"): "other.csv",
        (folder, "--data", data, "--out", tmp_path / "none" / "p.csv"): "No such file or directory",
        (tmp_path, "--data", data): "is not a run folder",
    }.items():
        ran = command("predict", *words)
        assert ran.code == 1, words
        assert said in ran.err
        assert "Traceback" not in ran.text
        assert "unexpected" not in ran.text
    assert not list(tmp_path.glob("p.*"))


def test_two_targets_are_two_numbers(command, tmp_path):
    rows = [f"{case},{case + step},{2 * case},{-case}.5" for case in range(20) for step in range(4)]
    (tmp_path / "mine.csv").write_text("\n".join(["id,x,a,b", *rows]) + "\n")
    words = ["--data", tmp_path / "mine.csv", "--target", "a", "--target", "b", "--hidden", 4, "--epochs", 1, "-q"]
    ran = command("train", *words, "--run", tmp_path / "r")
    assert "Inputs: 'x'." in ran.err
    assert "Target: 'a', 'b', numbers (regression)" in ran.err
    assert command("predict", tmp_path / "r", "--data", tmp_path / "mine.csv", "--out", tmp_path / "p.csv").code == 0
    assert (tmp_path / "p.csv").read_text().startswith("sequence,a,b\n")


def test_scores_of_another_file_come_with_its_own_baseline(command, own, waves, tmp_path):
    folder, _, _ = own
    data = waves(tmp_path / "more.csv", count=10)
    data.write_text(data.read_text().replace("fast", "slow"))
    assert "best constant answer: 1)" in command("evaluate", folder, "--data", data).out


def test_errors_and_choices_are_in_the_words_of_the_command_line(command, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(30, 4, 64)), y=np.arange(30) % 2)
    words = ["--hidden", 4, "--epochs", 1, "-q", "--set", "cell.options.backend=reference"]
    ran = command("train", "--data", tmp_path / "a.npz", *words)
    assert ran.code == 1
    assert "--set task.order=time-first for 4 steps of 64 channels, --set task.order=channels-first" in ran.err
    ran = command(
        "train", "--data", tmp_path / "a.npz", "--set", "task.order=time-first", *words, "--run", tmp_path / "r"
    )
    assert ran.code == 0, ran.text
    assert "--set task.kind=regression if it is an amount" in ran.err
    (tmp_path / "b.csv").write_text("time,x,label\n" + "".join(f"{i},{i * i % 7},{i % 2}.5\n" for i in range(40)))
    ran = command("train", "--data", tmp_path / "b.csv", *words)
    assert "--set task.sequence=NAME, or take --set task.layout=rows" in ran.err


def test_a_run_ends_with_its_interval_and_its_pictures(own):
    folder, _, ran = own
    assert "accuracy" in ran.out
    assert "(n = 6, 95% interval " in ran.out
    assert f"Pictures: {folder / 'curve.png'}, {folder / 'answers.png'}" in ran.err


def test_a_test_file_needs_data(command, own, waves, tmp_path):
    assert command("train", "addition", "--test", tmp_path / "x.csv").code == 2
    words = ["--target", "label", "--set", "task.sequence=name", "--hidden", 4, "--epochs", 1, "-q"]
    more = waves(tmp_path / "more.csv", count=12)
    ran = command("train", "--data", own[1], "--test", more, *words, "--run", tmp_path / "r")
    assert "34 train, 6 validation, 12 test (sequences), drawn by sequence with seed 0; test is more.csv." in ran.err
    assert "n = 12, 95% interval" in command("evaluate", tmp_path / "r").out


def test_settings_are_searched_for_a_file(command, waves, tmp_path):
    pytest.importorskip("optuna")
    data = waves(tmp_path / "mine.csv")
    words = ["--target", "label", "--set", "task.sequence=name", "--set", "train.epochs=1", "--set", "train.batch=8"]
    words += ["--set", "cell.options.backend=reference", "--cell", "gru", "--trials", 2, "-q", "--run", tmp_path / "s"]
    ran = command("sweep", "--data", data, *words)
    assert ran.code == 0, ran.text
    assert "validation.accuracy, maximised; 2 trials" in ran.out
    held = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert set(held["trials"][0]["values"]) == {"cell.hidden_size", "cell.layers", "train.lr"}
    assert command("predict", tmp_path / "s" / "trial-0000", "--data", data, "--out", tmp_path / "p.csv").code == 0
    assert command("sweep").code == 2


def test_a_comparison_comes_with_the_number_of_answers(command, own, tmp_path):
    words = ["--target", "label", "--set", "task.sequence=name", "--hidden", 4, "--epochs", 1, "-q"]
    words += ["--set", "cell.options.backend=reference"]
    ran = command("train", "--data", own[1], "--cell", "gru", "--cell", "lstm", *words, "--run", tmp_path / "r")
    assert ran.code == 0, ran.text
    assert ran.out.count("(n = 6, 95% interval ") == 2
    assert (tmp_path / "r" / "lstm" / "answers.png").is_file()
