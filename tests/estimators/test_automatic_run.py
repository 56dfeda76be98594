"""An automatic choice is a run like any other: kept, resumed, loaded, checked."""

import json

import numpy as np
import pytest
import torch

import holdfast
from holdfast.errors import CheckpointError, ConfigError, Interrupted
from holdfast.estimators import train_automatic
from holdfast.runs import evaluate_run, predict_run, run_settings, train_run
from holdfast.runs.pictures import draw_run
from holdfast.train import ModelSettings, sums


@pytest.fixture(autouse=True)
def _float32():
    torch.set_default_dtype(torch.float32)


def settings(path, seed=0, **options):
    """Those of the command line, for few and short sequences."""
    return run_settings(
        {
            "task": {"name": "own", "path": str(path), "validation": 0.0},
            "cell": {"name": "auto", "options": {"minutes": 0.0, "units": 4, **options}},
            "train": {"updates": 2, "weights": "last", "seed": seed},
        }
    )


def write(folder, *, numbers=False, noise=2.0, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(60) % 2
    x = noise * rng.normal(size=(60, 9)) + y[:, None]
    np.savez(folder / "mine.npz", x=x, y=10 + 3 * x.mean(axis=1) if numbers else np.array(["a", "b"])[y])
    return folder / "mine.npz"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("run")
    path = write(folder)
    return folder / "run", path, train_automatic(settings(path), folder / "run", progress=False)


def test_the_folder_alone_gives_the_predictions_that_were_scored(run, tmp_path):
    folder, path, choice = run
    assert choice.chosen == "reservoir"
    scored = evaluate_run(folder)
    assert scored.scores == choice.test
    assert scored.count == 9
    moved = path.rename(tmp_path / "moved.npz")
    try:
        loaded = holdfast.load_run(folder)
        assert loaded.settings.network.name == "reservoir"
        x = np.load(moved)["x"]
        assert set(loaded.predict(x)) == {"a", "b"}
        np.testing.assert_allclose(loaded.predict_proba(x).sum(axis=1), 1)
        assert predict_run(folder, moved, tmp_path / "p.csv").rows == 60
    finally:
        moved.rename(path)


def test_numbers_come_back_in_their_own_units(tmp_path):
    path = write(tmp_path, numbers=True)
    choice = train_automatic(settings(path), tmp_path / "run", progress=False)
    assert choice.metric == "error per variance"
    data = np.load(path)
    error = holdfast.load_run(tmp_path / "run").predict(data["x"]) - data["y"]
    assert np.mean(error**2) < 0.2 * data["y"].var()


def test_an_ended_choice_is_not_repeated_and_other_settings_are_refused(run, monkeypatch):
    folder, path, choice = run
    monkeypatch.setattr("holdfast.estimators.automatic_run.automatic", None)
    assert train_automatic(settings(path), folder) == choice
    with pytest.raises(ConfigError, match=r"holds a run with train.seed = 0, but 1 was asked for"):
        train_automatic(settings(path, seed=1), folder)


def test_a_stopped_choice_goes_on_from_its_journal_and_ends_the_same(tmp_path, monkeypatch):
    """Stopped in the second of two fits; the folder says how to go on and is refused until then."""
    path = write(tmp_path)
    expected = train_automatic(settings(path), tmp_path / "whole", progress=False)

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.estimators.choice.baselines", stop)
        with pytest.raises(Interrupted, match=r"Stopped by SIGINT; .*holdfast resume .*run"):
            train_automatic(settings(path), tmp_path / "run", progress=False)
    with pytest.raises(CheckpointError, match=r"the automatic choice has not ended. Resume it: holdfast resume"):
        holdfast.load_run(tmp_path / "run")
    with (tmp_path / "run" / sums.LOG).open("ab") as file:
        file.write(b'{"piece": "base')  # a line that a crash cut short
    again = train_automatic(settings(path), tmp_path / "run", progress=False)
    assert again.scores[0].value == expected.scores[0].value
    assert again.verdict == expected.verdict
    x = np.load(path)["x"]
    both = [holdfast.load_run(tmp_path / name).predict_proba(x) for name in ("run", "whole")]
    np.testing.assert_array_equal(*both)


def test_a_trained_cell_is_kept_and_loaded_too(tmp_path, monkeypatch):
    """With every cell as good as its name: the chosen layer is pooled, in both directions."""
    path = write(tmp_path, noise=4.0)
    monkeypatch.setattr("holdfast.estimators.choice._gain", lambda old, new: 2.0 if new.name == "rnn" else -1.0)
    monkeypatch.setattr("holdfast.estimators.choice.seconds_per_update", lambda *args, **kwargs: 1e-3)

    def network(layer, hidden_size=4):
        plain = {} if layer == "plain gru" else {"bidirectional": True, "pooled": True}
        return ModelSettings(layer.split()[-1], hidden_size, **plain, options={"backend": "reference"})  # no compiling

    monkeypatch.setattr("holdfast.estimators.choice.network_of", network)
    monkeypatch.setattr("holdfast.estimators.trained.network_of", lambda layer, units: network(layer))
    choice = train_automatic(settings(path, minutes=1.0, cells=["rnn"]), tmp_path / "run", progress=False)
    assert choice.chosen == "rnn"
    assert sorted(one.name for one in choice.scores if one.how == "5 folds") == ["plain gru", "rnn"]
    loaded = holdfast.load_run(tmp_path / "run")
    assert loaded.settings.network.pooled
    assert loaded.settings.network.bidirectional
    assert evaluate_run(tmp_path / "run").scores == choice.test


def test_a_changed_file_is_noticed(run, tmp_path):
    folder, _, _ = run
    for name in (sums.CHOICE, sums.LAST, sums.PREPARATION, sums.SETTINGS):
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw.replace(b"0", b"1", 1))
        try:
            with pytest.raises(CheckpointError, match="damaged"):
                holdfast.load_run(folder)
        finally:
            (folder / name).write_bytes(raw)
    kept = (folder / sums.NAME).rename(tmp_path / sums.NAME)
    with pytest.raises(CheckpointError, match="SHA256SUMS is missing"):
        holdfast.load_run(folder)
    kept.rename(folder / sums.NAME)
    assert b"pickle" not in (folder / sums.LAST).read_bytes()[:64]
    holdfast.load_run(folder)


def test_other_data_is_refused_when_a_choice_goes_on(tmp_path, monkeypatch):
    path = write(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.estimators.automatic_run.automatic", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train_automatic(settings(path), tmp_path / "run", progress=False)
    write(tmp_path, seed=1)
    with pytest.raises(CheckpointError, match="has changed"):
        train_automatic(settings(path), tmp_path / "run", progress=False)


def test_pictures_show_scores_and_answers(run):
    folder, _, _ = run
    assert [path.name for path in draw_run(folder)] == ["scores.png", "answers.png"]


def test_every_score_is_in_the_file_with_n_and_an_interval(run):
    folder, _, choice = run
    held = json.loads((folder / sums.CHOICE).read_text())
    assert {one["name"] for one in held["scores"]} == {
        "reservoir",
        "most common",
        "nearest neighbour",
        "ridge on the raw series",
    }
    for one in held["scores"]:
        assert one["n"] == 51
        assert one["low"] <= one["value"] <= one["high"]
    assert held["verdict"].startswith("reservoir was chosen: ")
    assert choice.parameters > 0


def test_what_it_is_not_for_is_named(tmp_path):
    addition = {"task": {"name": "addition"}, "cell": {"name": "auto"}, "train": {"updates": 1}}
    with pytest.raises(ConfigError, match="for your own data"):
        train_automatic(run_settings(addition), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"expects cell.name = .auto., got 'gru'"):
        train_automatic(run_settings({**addition, "cell": {"name": "gru"}}), tmp_path / "run")
    with pytest.raises(ConfigError, match="not trained step by step"):
        train_run(run_settings(addition), tmp_path / "run")
    with pytest.raises(ConfigError, match="auto has no option 'minute'; known: cells, minutes, units"):
        run_settings({**addition, "cell": {"name": "auto", "options": {"minute": 1}}})
    assert not (tmp_path / "run").exists()
