"""A run folder is enough: predictions need no training file, and every kind of data gives the same ones."""

import json

import numpy as np
import pandas
import polars
import pytest
import torch

import holdfast
from holdfast.errors import CheckpointError, ConfigError, DataError
from holdfast.runs import Request, choose, evaluate_run, predict_run, resume_run, train_run
from holdfast.runs.pictures import draw_run
from holdfast.tasks import Batch, in_memory
from holdfast.train.log import read_log
from holdfast.train.metrics import loss_sum

STEPS = 6


@pytest.fixture(autouse=True)
def _float32():
    torch.set_default_dtype(torch.float32)


def _waves(count=30, seed=0):
    """(cases, time, 2), and a class that the first channel's sign tells."""
    rng = np.random.default_rng(seed)
    side = np.arange(count) % 2
    return rng.normal(size=(count, STEPS, 2)) + 3 * side[:, None, None] - 1.5, np.array(["down", "up"])[side]


def _long(x, y):
    """The same as a table, one row per step."""
    columns = {"id": np.repeat(np.arange(len(x)), STEPS), "a": x[..., 0].ravel(), "b": x[..., 1].ravel()}
    return columns if y is None else {**columns, "label": np.repeat(y, STEPS)}


def _csv(path, columns):
    rows = zip(*(list(values) for values in columns.values()), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


@pytest.fixture
def trained(tmp_path):
    """A run on a .csv file, and that file."""
    data = _csv(tmp_path / "mine.csv", _long(*_waves()))
    return _train(tmp_path / "run", data), data


def _train(folder, data, target="label", **options):
    small = {"train.epochs": 3, "cell.hidden_size": 4, "cell.name": "gru", "cell.options.backend": "reference"}
    chosen = choose(Request(data=data, target=target, options={**small, **options}))
    train_run(chosen.settings[0], folder, task=chosen.tasks[0], progress=False)
    return folder


def test_predictions_and_scores_need_no_training_file(trained, tmp_path):
    folder, data = trained
    new = _csv(tmp_path / "new.csv", _long(*_waves(9, seed=1)))
    before = holdfast.load_run(folder).predict_proba(new)
    scores = evaluate_run(folder, data=new).scores
    data.unlink()
    np.testing.assert_array_equal(holdfast.load_run(folder).predict_proba(new), before)
    assert evaluate_run(folder, data=new).scores == scores
    assert predict_run(folder, new, tmp_path / "p.csv").columns == ("sequence", "prediction", "p(down)", "p(up)")


def test_a_class_renamed_in_the_training_file_changes_no_prediction(trained, tmp_path):
    """The name "zebra" would be the second class by name: read from the file, probabilities would change places."""
    folder, data = trained
    new = _long(_waves(9, seed=1)[0], None)
    before = holdfast.load_run(folder).predict_proba(_csv(tmp_path / "new.csv", new))
    data.write_text(data.read_text().replace("down", "zebra"))
    run = holdfast.load_run(folder)
    assert run.preparation.classes == ("down", "up")
    np.testing.assert_array_equal(run.predict_proba(tmp_path / "new.csv"), before)
    with pytest.raises(CheckpointError, match=r"The data of the run in .* has changed"):
        evaluate_run(folder, "test")


def test_a_split_is_scored_wherever_the_training_file_has_gone(trained, tmp_path):
    folder, data = trained
    before = evaluate_run(folder, "validation")
    moved = data.rename(tmp_path / "moved.csv")
    with pytest.raises(DataError, match=r"mine.csv is not there.* --data FILE --split test"):
        evaluate_run(folder, "validation")
    assert evaluate_run(folder, "validation", data=moved).scores == before.scores
    other = _csv(tmp_path / "other.csv", _long(*_waves(seed=5)))
    with pytest.raises(CheckpointError, match="has changed: expected a file with the SHA-256"):
        evaluate_run(folder, "validation", data=other)


def test_every_kind_of_data_gives_the_same_predictions(trained, tmp_path):
    run, x = holdfast.load_run(trained[0]), _waves(9, seed=1)[0]
    columns = _long(x, None)
    expected = run.predict_proba(_csv(tmp_path / "new.csv", columns))
    for data in (x, list(x), x.tolist(), pandas.DataFrame(columns), polars.DataFrame(columns)):
        np.testing.assert_allclose(run.predict_proba(data), expected, atol=1e-6)
    assert (run.predict(x) == np.array(["down", "up"])[expected.argmax(axis=1)]).all()
    shorter = [x[0], x[1][:3]]
    np.testing.assert_allclose(run.predict_proba(shorter)[1], run.predict_proba([x[1][:3]])[0], atol=1e-6)


def test_numbers_and_next_steps_come_in_the_units_of_the_data(tmp_path):
    x, _ = _waves()
    level = 1000 + x.mean(axis=(1, 2))
    np.savez(tmp_path / "a.npz", x=x, y=np.stack([level, -level], axis=1))
    run = holdfast.load_run(_train(tmp_path / "two", tmp_path / "a.npz", target="y"))
    assert run.predict(x).shape == (30, 2)
    assert abs(run.predict(x) - [1000, -1000]).max() < 50
    with pytest.raises(ConfigError, match="trained for regression; probabilities are of classes"):
        run.predict_proba(x)
    np.savez(tmp_path / "b.npz", x=x + 500, y=level)
    assert holdfast.load_run(_train(tmp_path / "one", tmp_path / "b.npz", target="y")).predict(x + 500).shape == (30,)
    np.savez(tmp_path / "c.npz", x=x + 500)
    after = holdfast.load_run(_train(tmp_path / "next", tmp_path / "c.npz", target=())).predict(x + 500)
    assert after.shape == (30, 2)
    assert abs(after - 500).max() < 50


def test_the_preparation_of_a_run_is_under_its_checksums(trained):
    folder, _ = trained
    path = folder / "preparation.json"
    assert path.name in (folder / "SHA256SUMS").read_text()
    table = json.loads(path.read_text())
    table["preparation"]["classes"] = ["up", "down"]
    path.write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match=r"preparation.json is damaged or comes from another run"):
        holdfast.load_run(folder)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"preparation.json is missing"):
        holdfast.load_run(folder)


def test_a_run_of_an_older_version_is_refused_with_what_to_do(trained):
    folder, _ = trained
    for name in ("preparation.json", "SHA256SUMS", "outcome.json"):
        (folder / name).unlink()
    for act in (holdfast.load_run, lambda folder: resume_run(folder, progress=False)):
        with pytest.raises(CheckpointError, match=r"older version.* holdfast train --config .*settings.json --run NEW"):
            act(folder)


def test_a_killed_run_does_not_go_on_with_other_data(tmp_path):
    x, y = _waves()
    data = _csv(tmp_path / "mine.csv", _long(x, y))
    folder = _train(tmp_path / "run", data)
    for name in ("outcome.json", "SHA256SUMS", "last.safetensors", "best.safetensors", "log.jsonl"):
        (folder / name).unlink()  # as if killed before the first checkpoint
    _csv(data, _long(x + 1, y))
    with pytest.raises(CheckpointError, match="has changed"):
        resume_run(folder, progress=False)


def test_the_baseline_is_that_of_the_data_scored(trained, tmp_path):
    """Nine of ten are "up" in the new file; in the training file half of them are."""
    x, _ = _waves(10)
    new = _csv(tmp_path / "new.csv", _long(x, np.array(["down"] + ["up"] * 9)))
    assert evaluate_run(trained[0], data=new).baseline == pytest.approx(0.9)


def test_only_own_data_has_a_preparation(tmp_path):
    options = {"task.steps": 4, "task.validation": 4, "task.test": 4, "cell.hidden_size": 2, "train.updates": 1}
    train_run(choose(Request("addition", options=options)).settings[0], tmp_path, progress=False)
    run = holdfast.load_run(tmp_path)
    assert not run.model.training
    with pytest.raises(ConfigError, match="was trained on the task addition, not with --data"):
        run.predict(np.zeros((1, 4, 2)))


def test_a_task_in_memory_is_that_of_a_file(tmp_path):
    x, y = _waves()
    np.savez(tmp_path / "a.npz", x=x, y=y)
    from_file = choose(Request(data=tmp_path / "a.npz")).tasks[0]
    for made in (in_memory(x, y), in_memory(list(x), list(y)), in_memory(pandas.DataFrame(_long(x, y)))):
        assert made.preparation.classes == from_file.preparation.classes
        torch.testing.assert_close(made.data["train"].inputs, from_file.data["train"].inputs)
        assert torch.equal(made.data["test"].targets, from_file.data["test"].targets)


def test_a_run_is_loaded_with_the_weights_that_it_chose(tmp_path):
    """With few validation sequences the last weights, else or when asked the best."""
    data = _csv(tmp_path / "mine.csv", _long(*_waves()))
    chosen = choose(Request(data=data, target="label"))
    assert (chosen.settings[0].training.weights, chosen.settings[0].training.schedule.kind) == ("last", "linear")
    assert chosen.settings[0].training.patience is None
    assert any("4 validation sequences are too few to choose the best by" in said for said in chosen.choices)
    for options in ({"train.patience": 3}, {"train.weights": "best"}):
        assert choose(Request(data=data, target="label", options=options)).settings[0].training.weights == "best"
    many = _csv(tmp_path / "many.csv", _long(*_waves(400)))
    assert choose(Request(data=many, target="label")).settings[0].training.patience is not None
    folder = _train(tmp_path / "run", data, **{"train.weights": "last", "train.epochs": 12})
    last, best = holdfast.load_run(folder, "last"), holdfast.load_run(folder, "best")
    assert holdfast.load_run(folder).which == "last"
    used = holdfast.load_run(folder).model.state_dict()
    assert all(torch.equal(used[name], value) for name, value in last.model.state_dict().items())
    assert not all(torch.equal(used[name], value) for name, value in best.model.state_dict().items())
    assert evaluate_run(folder, "test").which == "last"


def test_a_test_file_is_the_test_split(tmp_path):
    data = _csv(tmp_path / "train.csv", _long(*_waves(20)))
    test = _csv(tmp_path / "test.csv", _long(*_waves(14, seed=3)))
    folder = _train(tmp_path / "run", data, **{"task.test_path": str(test)})
    scored = evaluate_run(folder)
    assert (scored.on, scored.count) == ("test", 14)
    assert scored.scores == evaluate_run(folder, data=test).scores
    low, high = scored.interval
    assert low <= scored.scores["accuracy"] <= high < 1
    task = holdfast.load_run(folder).task
    assert [len(task.data[split]) for split in ("train", "validation", "test")] == [17, 3, 14]
    _csv(test, _long(*_waves(14, seed=4)))
    with pytest.raises(CheckpointError, match="has changed"):
        evaluate_run(folder, "test")


def test_pictures_show_what_the_run_answers(tmp_path):
    """A confusion matrix, or points; the curve for every task. Written whole, and as large as a picture is."""
    x, y = _waves()
    np.savez(tmp_path / "a.npz", x=x, y=x.mean(axis=(1, 2)))
    np.savez(tmp_path / "b.npz", x=np.cumsum(x, axis=1))
    runs = [
        _train(tmp_path / "classes", _csv(tmp_path / "mine.csv", _long(x, y))),
        _train(tmp_path / "numbers", tmp_path / "a.npz", target="y"),
        _train(tmp_path / "next", tmp_path / "b.npz", target=()),
    ]
    for folder in runs:
        made = draw_run(folder)
        assert [path.name for path in made] == ["curve.png", "answers.png"]
        assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 8000 for path in made)


def test_a_class_at_every_step_is_predicted_at_every_step(tmp_path):
    x, _ = _waves()
    columns = {**_long(x, None), "label": np.where(x[..., 0].ravel() > 0, "on", "off")}
    short = {name: values[:-2] for name, values in columns.items()}
    folder = _train(tmp_path / "run", _csv(tmp_path / "mine.csv", short), **{"train.epochs": 60, "train.lr": 0.02})
    run = holdfast.load_run(folder)
    tags = run.predict(tmp_path / "mine.csv")
    assert tags.shape == (30 * STEPS - 2,)
    assert (tags == short["label"]).mean() > 0.9
    assert run.predict_proba(tmp_path / "mine.csv").shape == (178, 2)
    made = predict_run(folder, tmp_path / "mine.csv", tmp_path / "p.csv")
    assert (made.rows, made.columns[:3]) == (178, ("sequence", "step", "prediction"))
    assert (tmp_path / "p.csv").read_text().splitlines()[-1].startswith("29,3,")
    assert evaluate_run(folder, data=tmp_path / "mine.csv").count == 178
    assert [path.name for path in draw_run(folder)] == ["curve.png", "answers.png"]


def test_class_weights_multiply_the_training_loss_alone(tmp_path):
    answers, targets = torch.randn(6, 2), torch.tensor([0, 0, 0, 0, 1, 1])
    batch, weights = Batch(torch.zeros(3, 6, 1), targets), torch.tensor([0.5, 2.0])
    terms = torch.nn.functional.cross_entropy(answers, targets, reduction="none")
    torch.testing.assert_close(loss_sum("cross_entropy", answers, batch, weights), (terms * weights[targets]).sum())
    x, _ = _waves(40)
    data = _csv(tmp_path / "mine.csv", _long(x, np.array(["rare"] * 8 + ["usual"] * 32)))
    logs = []
    for kind in ("balanced", "none"):
        folder = _train(tmp_path / kind, data, **{"task.weights": kind, "train.epochs": 1, "train.lr": 1e-12})
        (entry,) = read_log(folder / "log.jsonl")
        logs.append(entry)
    assert logs[0]["validation"] == pytest.approx(logs[1]["validation"], rel=1e-6)
    assert logs[0]["train_loss"] != pytest.approx(logs[1]["train_loss"], rel=1e-3)
