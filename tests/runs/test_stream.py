"""A run's stream: at every step the prediction of the run for the sequence so far, from raw numbers."""

import numpy as np
import pandas
import pytest
import torch

import holdfast
from holdfast.errors import ConfigError, DataError, SettingError
from holdfast.runs import Request, choose, run_settings, train_run

STEPS = 5


@pytest.fixture(autouse=True)
def _float32():
    torch.set_default_dtype(torch.float32)


def _frame(seed=0, cases=12, missing=False, text=False, target="class"):
    rng = np.random.default_rng(seed)
    a, b = 5 + 3 * rng.normal(size=(2, cases * STEPS))
    table = {"id": np.repeat(np.arange(cases), STEPS), "a": a, "b": 100 * b}
    if missing:
        table["b"][rng.random(cases * STEPS) < 0.3] = np.nan
    if text:
        table["place"] = rng.choice(["in", "out"], size=cases * STEPS)
    if target == "class":
        table["y"] = np.repeat(np.where(np.arange(cases) % 2, "up", "down"), STEPS)
    elif target == "number":
        table["y"] = np.repeat(rng.normal(size=cases) * 7 + 50, STEPS)
    return pandas.DataFrame(table)


def _run(tmp_path, frame, target="y", **options):
    path = tmp_path / "mine.csv"
    frame.to_csv(path, index=False)
    small = {"train.epochs": 1, "cell.hidden_size": 4, "cell.name": "gru", "cell.options.backend": "reference"}
    chosen = choose(Request(data=path, target=target, options={**small, **options}))
    train_run(chosen.settings[0], tmp_path / "run", task=chosen.tasks[0], progress=False)
    return holdfast.load_run(tmp_path / "run")


def _assert_same(run, frame, columns):
    """For the sequences of a table, side by side and one alone: each answer is that of the run for the steps so far."""
    cases = frame["id"].nunique()
    stream, single = run.stream(batch=cases), run.stream()
    heres, steps = [], []
    for t in range(STEPS):
        so_far = frame.groupby("id").head(t + 1)
        here = so_far.groupby("id").tail(1)[columns].to_dict("records")
        expected = run.predict(so_far.drop(columns="y", errors="ignore"))
        answers, alone = stream.step(here), single.step(here[0])
        heres.append(here)
        steps.append(answers)
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(answers, expected, rtol=1e-4)
            np.testing.assert_allclose(alone, expected[0], rtol=1e-4)
        else:
            assert answers.tolist() == expected.tolist()
            assert alone == expected[0]
            np.testing.assert_allclose(stream.probabilities, run.predict_proba(so_far), rtol=1e-4)
    pieces, alone = run.stream(batch=cases), run.stream().run([here[0] for here in heres])
    found = np.concatenate([pieces.run(heres[:2]), pieces.run(heres[2:])])
    assert alone.shape == found[:, 0].shape
    assert pieces.run([]).shape == (0, *found.shape[1:])
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, steps, rtol=1e-4)
        np.testing.assert_allclose(alone, found[:, 0], rtol=1e-4)
    else:
        assert found.tolist() == np.stack(steps).tolist()
        assert alone.tolist() == found[:, 0].tolist()
        np.testing.assert_allclose(pieces.probabilities, stream.probabilities, rtol=1e-4)
    np.testing.assert_allclose(pieces.state["last"], stream.state["last"])
    return stream


@pytest.mark.parametrize("impute", ["mean", "last", "zero"])
def test_classes_from_numbers_and_text_with_numbers_missing(tmp_path, impute):
    run = _run(tmp_path, _frame(missing=True, text=True), **{"task.impute": impute})
    fresh = _frame(seed=1, cases=3, missing=True, text=True)
    stream = _assert_same(run, fresh, ["a", "b", "place"])
    assert fresh["b"].isna().any()
    saved, x = stream.state, [{"a": 1.0, "b": None, "place": "in"}] * 3
    answer, chances = stream.step(x), stream.probabilities
    stream.reset()
    assert not np.array_equal(stream.step(x) == answer, [True] * 3) or not np.allclose(stream.probabilities, chances)
    stream.state = saved
    stream.step(x)
    np.testing.assert_allclose(stream.probabilities, chances)
    for wrong, message in [
        ([{"a": 1.0, "b": 2.0, "place": "up"}] * 3, "unknown text 'up' in the column 'place'; known: in, out"),
        ([{"a": 1.0, "b": 2.0}] * 3, "wrong: place"),
        (np.zeros((3, 2)), "columns of text"),
        ([{"a": 1.0, "b": np.inf, "place": "in"}] * 3, "infinite"),
        ([{"a": "1", "b": 2.0, "place": "in"}] * 3, "number in the column 'a', got '1'"),
        ([{"a": 1.0, "b": 2.0, "place": "in"}] * 2, r"\(3, 4\)"),
    ]:
        with pytest.raises(DataError, match=message):
            stream.step(wrong)
    with pytest.raises(SettingError, match="a dict with 'layer' and 'last'"):
        stream.state = {"layer": saved["layer"]}


def test_numbers_in_their_own_units(tmp_path):
    run = _run(tmp_path, _frame(target="number"))
    stream = _assert_same(run, _frame(seed=1, cases=3, target="number"), ["a", "b"])
    one, rows = run.stream(), run.stream(batch=2)
    assert isinstance(one.step([4.0, 90.0]), float)
    np.testing.assert_allclose(
        rows.step(np.array([[4.0, 90.0], [1.0, 2.0]]))[0], one.trained.predict([[[4.0, 90.0]]])[0], rtol=1e-4
    )
    with pytest.raises(ConfigError, match="probabilities are of classes"):
        _ = stream.probabilities
    with pytest.raises(DataError, match="no number for 'a', and the training data had none missing"):
        one.step([np.nan, 1.0])
    with pytest.raises(DataError, match="too large"):
        one.step([1e300, 1.0])
    with pytest.raises(DataError, match=r"A step holds numbers, or is a dict"):
        one.step("a")
    one.step([4.0, 90.0])
    before = one.state
    for bad, message in [(np.nan, "no number for 'a'"), (1e300, r"too large for torch.float32, got \[1e\+300, 1.0\]")]:
        with pytest.raises(DataError, match=message):
            one.run([[5.0, 91.0], [bad, 1.0]])
        torch.testing.assert_close(one.state, before, rtol=0, atol=0)  # nothing of a piece with a bad step is taken


def test_a_run_without_data_of_its_own_streams_its_task(tmp_path):
    table = {"task": {"name": "addition", "steps": 4, "validation": 8}, "train": {"updates": 1, "batch": 4}}
    train_run(run_settings(table), tmp_path / "run", progress=False)
    run = holdfast.load_run(tmp_path / "run")
    xs = torch.randn(4, 2)
    stream = run.stream()
    answers = [stream.step(x) for x in xs]
    with torch.no_grad():
        torch.testing.assert_close(answers[-1], run.model(xs.unsqueeze(1))[0][0])
