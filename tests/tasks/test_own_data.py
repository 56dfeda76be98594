"""A person's own file: what is asked is done, the rest is worked out and said, and no bytes do harm."""

import io
import json
import pickle
import sys
import time
import tracemalloc
import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import DataError, HoldfastError, MissingExtraError, SettingError
from holdfast.tasks import OwnData, Preparation, limits, options
from holdfast.tasks.formats import read_data
from holdfast.tasks.tables import read_table

RANDOM = np.random.default_rng(0)

few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def csv_text(columns):
    rows = zip(*columns.values(), strict=True)
    return "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n"


def long_columns(sequences=20, steps=5, seed=0):
    """Sequences "s0", "s1", …, two features, a label that the first feature's sign tells, an amount."""
    rng = np.random.default_rng(seed)
    side = np.arange(sequences) % 2
    n = np.repeat(np.arange(sequences), steps)
    return {
        "id": [f"s{i}" for i in n],
        "time": np.tile(np.arange(steps), sequences),
        "a": rng.normal(3, 2, len(n)).round(6) + 10 * side[n],
        "b": rng.integers(-5, 5, len(n)),
        "label": np.array(["down", "up"])[side[n]],
        "amount": 100.0 + 7 * n,
    }


@pytest.fixture
def write(tmp_path):
    def written(columns, suffix=".csv", name="mine"):
        path = tmp_path / f"{name}{suffix}"
        if suffix == ".csv":
            path.write_text(columns if isinstance(columns, str) else csv_text(columns))
        elif suffix == ".parquet":
            pyarrow.parquet.write_table(pyarrow.table({name: list(v) for name, v in columns.items()}), path)
        else:
            np.savez(path, **columns)
        return path

    return written


def without(columns, *names):
    return {name: values for name, values in columns.items() if name not in names}


# What comes out


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_long_table_becomes_one_sequence_an_id(write, suffix):
    columns = without(long_columns(), "amount")
    path = write(columns, suffix)
    task = OwnData(path, target="label", validation=0, test=0).load()
    batch = task.data["train"]
    assert (batch.inputs.shape, batch.lengths, task.spec.classes) == ((20, 5, 2), None, ("down", "up"))
    original = np.stack([columns["a"], columns["b"]], axis=1).reshape(20, 5, 2)
    expected = (original - original.mean(axis=(0, 1))) / original.std(axis=(0, 1))
    torch.testing.assert_close(batch.inputs, torch.from_numpy(expected))
    assert batch.targets.tolist() == [0, 1] * 10


def test_the_order_of_rows_does_not_matter_when_there_is_a_time_column(write):
    columns = without(long_columns(), "amount")
    order = np.random.default_rng(1).permutation(100)
    mixed = {name: np.array(values)[order] for name, values in columns.items()}
    plain, shuffled = (
        OwnData(write(c, name=str(i)), validation=0, test=0).load() for i, c in enumerate((columns, mixed))
    )
    by_name = dict(zip(shuffled.preparation.apply(write(mixed)).ids, shuffled.data["train"].inputs, strict=True))
    for name, xs in zip(plain.preparation.apply(write(columns)).ids, plain.data["train"].inputs, strict=True):
        torch.testing.assert_close(by_name[name], xs)


def test_unequal_lengths_are_padded_and_kept_out_of_the_statistics(write):
    rows = [(i, j * 1.0 + i, i % 2) for i in range(12) for j in range(i % 4 + 1)]
    path = write(dict(zip(("id", "x", "label"), zip(*rows, strict=True), strict=True)))
    task = OwnData(path, validation=0, test=0).load()
    data = task.data["train"]
    assert data.lengths.tolist() == [i % 4 + 1 for i in range(12)]
    x = np.array([row[1] for row in rows])
    inside = torch.arange(4) < data.lengths[:, None]
    torch.testing.assert_close(data.inputs[inside][:, 0], torch.from_numpy((x - x.mean()) / x.std()))
    assert (data.inputs[~inside] == 0).all()


def test_regression_is_standardised_and_answers_in_its_own_units(write):
    path = write(without(long_columns(), "label"))
    task = OwnData(path, target="amount").load()
    y = task.data["train"].targets
    torch.testing.assert_close(y.mean(), torch.tensor(0.0), rtol=0, atol=1e-12)
    torch.testing.assert_close(y.std(correction=0), torch.tensor(1.0))
    original = set(
        task.preparation.answers(torch.cat([task.data[split].targets for split in task.spec.splits]))[:, 0].round(6)
    )
    assert original == {100.0 + 7 * i for i in range(20)}
    assert (task.spec.loss, task.spec.metric, task.spec.output_size) == ("mse", "mse", 1)
    assert any("in the target's own units" in choice for choice in task.choices)


def test_several_targets_are_one_answer_of_several_numbers(write):
    columns = without(long_columns(), "label")
    path = write({**columns, "other": np.asarray(columns["amount"]) ** 2})
    task = OwnData(path, target=("amount", "other")).load()
    assert task.spec.output_size == 2
    assert task.data["train"].targets.shape == (14, 2)


def test_next_step_targets_are_the_inputs_one_step_on(write):
    path = write(without(long_columns(), "label", "amount"))
    task = OwnData(path).load()
    data = task.data["train"]
    assert (task.spec.every_step, task.spec.output_size, data.inputs.shape) == (True, 2, (14, 4, 2))
    torch.testing.assert_close(data.inputs[:, 1:], data.targets[:, :-1])


@pytest.mark.parametrize("window", [None, 7])
def test_one_series_is_cut_by_time_and_into_pieces(write, window):
    """Pieces, joined, are the series without its last step; targets the same one step on; splits follow in time."""
    task = OwnData(write({"x": np.arange(1000.0)}), window=window, standardise=False).load()
    ends = []
    for split in ("train", "validation", "test"):
        data = task.data[split]
        lengths = torch.full((len(data),), data.inputs.shape[1]) if data.lengths is None else data.lengths
        assert lengths.max() == (window or 100)
        inside = torch.arange(data.inputs.shape[1]) < lengths[:, None]
        inputs, targets = data.inputs[inside][:, 0], data.targets[inside][:, 0]
        assert torch.equal(inputs, torch.arange(len(inputs)) + inputs[0])
        assert torch.equal(targets, inputs + 1)
        ends += [int(inputs[0]), int(targets[-1])]
    assert ends == [0, 699, 700, 849, 850, 999]


def test_a_row_can_be_a_sequence_with_its_columns_as_steps(write):
    rng = np.random.default_rng(0)
    columns = {"label": ["x", "y"] * 10, **{f"t{i}": rng.normal(size=20) for i in range(30)}}
    task = OwnData(write(columns), target="label").load()
    assert task.train_batch(0, 4, seed=0).inputs.shape == (30, 4, 1)
    assert "every row is one" in task.choices[1]


def test_arrays_come_with_lengths_and_padding_of_any_kind(write):
    x = np.random.default_rng(0).normal(size=(30, 8, 3))
    lengths = np.arange(30) % 8 + 1
    x[np.arange(8) >= lengths[:, None]] = np.nan  # padding is never looked at
    task = OwnData(write({"X": x, "Lengths": lengths, "labels": np.arange(30) % 3}, ".npz")).load()
    assert task.spec.classes == ("0", "1", "2")
    assert all(torch.isfinite(data.inputs).all() for data in task.data.values())
    assert sorted(torch.cat([data.lengths for data in task.data.values()]).tolist()) == sorted(lengths.tolist())


@pytest.mark.parametrize(
    ("arrays", "kind", "shape"),
    [
        (
            {"x": np.zeros((20, 5)) + np.arange(20)[:, None], "y": np.array(["a", "b"] * 10)},
            "classification",
            (5, 4, 1),
        ),
        ({"x": RANDOM.random((20, 5, 2)), "y": RANDOM.random(20)}, "regression", (5, 4, 2)),
        ({"x": RANDOM.random((20, 5, 2)), "y": RANDOM.random((20, 3))}, "regression", (5, 4, 2)),
        ({"x": RANDOM.random((20, 5, 2))}, "next-step", (4, 4, 2)),
        ({"anything": RANDOM.random((20, 5, 2))}, "next-step", (4, 4, 2)),
        ({"x": np.arange(1000)}, "next-step", (100, 4, 1)),
        (
            {"data": RANDOM.integers(0, 255, (20, 5), np.uint8), "targets": np.arange(20) % 2 == 0},
            "classification",
            (5, 4, 1),
        ),
    ],
)
def test_the_kind_of_task_is_worked_out_from_the_arrays(write, arrays, kind, shape):
    task = OwnData(write(arrays, ".npz")).load()
    assert task.preparation.kind == kind
    assert task.train_batch(0, 4, seed=0).inputs.shape == shape


@pytest.mark.parametrize(
    ("values", "kind", "asked"),
    [
        (["a", "b"], "classification", "auto"),
        ([0, 1], "classification", "auto"),
        ([0.0, 1.0], "classification", "auto"),
        (["true", "false"], "classification", "auto"),
        ([0.25, 1.5], "regression", "auto"),
        (range(40), "regression", "auto"),
        ([0, 1], "regression", "regression"),
        ([0.25, 1.5], "classification", "classification"),
    ],
)
def test_text_and_few_whole_numbers_are_classes_and_other_numbers_amounts(write, values, kind, asked):
    values = [values[i % len(values)] for i in range(40)]
    path = write({"id": np.repeat(np.arange(40), 2), "x": np.arange(80.0), "y": np.repeat(values, 2)})
    assert OwnData(path, target="y", kind=asked).load().preparation.kind == kind


def test_classes_of_numbers_are_in_numerical_order(write):
    path = write({"id": np.repeat(np.arange(40), 2), "x": np.arange(80.0), "y": np.repeat(np.arange(40) % 4 * 5, 2)})
    assert OwnData(path, target="y").load().spec.classes == ("0", "5", "10", "15")


def test_it_says_what_it_chose(write):
    path = write({**long_columns(), "note": ["abc"] * 100})
    said = OwnData(path, target="label", features=("a", "b")).load().choices
    assert said == [
        "mine.csv: 100 rows, columns id, time, a, b, label, amount, note.",
        "Sequences: 20, named by 'id', 5 steps each, in the order of 'time'.",
        "Inputs: 'a', 'b'; not used: 'amount', 'note'.",
        "Target: 'label', 2 classes: down (10), up (10) (classification).",
        "Splits: 14 train, 3 validation, 3 test (sequences), drawn by sequence with seed 0.",
        "Score: accuracy; always the most frequent class has 0.667.",
    ]


def test_the_splits_are_of_whole_sequences_fixed_by_the_seed_and_fair_to_classes(write):
    labels = ["rare"] * 10 + ["usual"] * 90
    path = write(
        {"id": np.repeat(np.arange(100), 2), "x": np.repeat(np.arange(100.0), 2), "label": np.repeat(labels, 2)}
    )
    tasks = [OwnData(path, standardise=False, seed=seed).load() for seed in (0, 0, 1)]
    members = [{split: set(data.inputs[:, 0, 0].tolist()) for split, data in task.data.items()} for task in tasks]
    assert members[0] == members[1] != members[2]
    assert [len(part) for part in members[0].values()] == [70, 15, 15]
    assert set.union(*members[0].values()) == set(range(100))
    for data in tasks[0].data.values():
        assert abs(float((data.targets == 0).double().mean()) - 0.1) <= 0.06


def test_a_class_with_one_member_is_trained_on(write):
    path = write({"id": range(21), "x": RANDOM.random(21), "label": ["odd"] + ["a", "b"] * 10})
    for seed in range(5):
        assert 2 in OwnData(path, sequence="id", seed=seed).load().data["train"].targets


def test_statistics_come_from_the_training_split_alone(write):
    task = OwnData(write(without(long_columns(), "amount"))).load()
    train = task.data["train"].inputs
    torch.testing.assert_close(train.mean(dim=(0, 1)), torch.zeros(2), rtol=0, atol=1e-12)
    assert task.data["test"].inputs.mean(dim=(0, 1)).abs().min() > 1e-6


def test_a_constant_column_is_said_and_harmless(write):
    task = OwnData(write({**without(long_columns(), "amount"), "c": [7] * 100})).load()
    assert (task.data["train"].inputs[..., 2] == 0).all()
    assert any("Constant in the training split: 'c'" in choice for choice in task.choices)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_delimiter_is_that_of_the_header(write, delimiter):
    path = write(csv_text(without(long_columns(), "amount")).replace(",", delimiter))
    assert OwnData(path, target="label").load().spec.input_size == 2


def test_a_column_of_whole_numbers_may_go_on_with_fractions(write):
    """The kind of a column is worked out from all of it: here the first fraction comes behind 2 MB."""
    rows = 300_000
    path = write("x\n" + "123456\n" * rows + "0.5\n")
    table = read_table(path)
    assert table["x"][-1] == 0.5
    assert table.rows == rows + 1


def test_the_hash_of_the_file_tells_whether_it_changed(write):
    columns = without(long_columns(), "amount")
    first, again = (OwnData(write(columns)).load().sha256 for _ in range(2))
    assert first == again != OwnData(write(without(columns, "b"))).load().sha256


def test_the_task_trains(write):
    """The label is the sign of a feature: plain logistic regression on the last step finds it."""
    task = OwnData(options("own", path=str(write(without(long_columns(100), "amount")))).path, target="label").load()
    weight = torch.zeros(2, 2, requires_grad=True)
    for index in range(200):
        batch = task.train_batch(index, 20, seed=0)
        loss = torch.nn.functional.cross_entropy(batch.inputs.mean(dim=0) @ weight, batch.targets)
        (gradient,) = torch.autograd.grad(loss, weight)
        weight = (weight - gradient).detach().requires_grad_()
    (test,) = task.evaluation("test", 100)
    assert ((test.inputs.mean(dim=0) @ weight).argmax(dim=1) == test.targets).double().mean() > 0.9


# The same again for another file


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_new_file_is_prepared_as_the_first_was(write, suffix):
    columns = without(long_columns(), "amount")
    task = OwnData(write(columns), target="label", validation=0, test=0).load()
    preparation = Preparation.from_json(task.preparation.to_json())
    new = preparation.apply(
        write({**without(columns, "label"), "extra": range(100)}, suffix, "new")
    )  # no answers there
    assert new.ids == tuple(f"s{i}" for i in range(20))
    torch.testing.assert_close(new.inputs, task.data["train"].inputs)
    scored = preparation.sequences(write(columns, suffix, "scored"))
    assert torch.equal(scored.targets, task.data["train"].targets)
    assert preparation.answers(torch.eye(2)) == ["down", "up"]


def test_a_new_file_keeps_the_last_step_when_the_next_is_predicted(write):
    task = OwnData(write({"x": np.arange(500.0)})).load()
    new = task.preparation.apply(write({"x": np.arange(30.0)}, name="new"))
    assert (new.ids, new.inputs.shape) == (("new",), (1, 30, 1))
    torch.testing.assert_close(
        torch.from_numpy(task.preparation.answers(new.inputs[0, :, :])), torch.arange(30.0)[:, None]
    )


def test_arrays_are_prepared_again(write):
    x = RANDOM.random((20, 5, 2))
    task = OwnData(write({"x": x, "y": np.arange(20) % 2}, ".npz"), validation=0, test=0).load()
    torch.testing.assert_close(task.preparation.apply(write({"x": x}, ".npz", "new")).inputs, task.data["train"].inputs)


def test_what_a_new_file_lacks_is_named(write):
    columns = without(long_columns(), "amount")
    preparation = OwnData(write(columns), target="label").load().preparation
    with pytest.raises(DataError, match=r"new\.csv: the column 'b' is not in it; columns: id, time, a"):
        preparation.apply(write(without(columns, "b"), name="new"))
    with pytest.raises(DataError, match="unknown class 'sideways'; known: down, up"):
        preparation.sequences(write({**columns, "label": ["sideways"] * 100}, name="new"))
    with pytest.raises(DataError, match="holds arrays, but the training data were columns; give the same kind of file"):
        preparation.apply(write({"x": np.zeros((3, 4, 2))}, ".npz"))
    arrays = OwnData(write({"x": RANDOM.random((20, 5, 2))}, ".npz")).load().preparation
    with pytest.raises(DataError, match="expected 2 features a step, got 3"):
        arrays.apply(write({"x": np.zeros((3, 4, 3))}, ".npz", "new"))


@given(st.data())
@few
def test_a_preparation_that_was_meddled_with_is_refused_or_sound(data):
    text = Preparation.from_json(
        '{"kind": "next-step", "columns": {"layout": "series", "features": ["x"], "sequence": null, "time": null, '
        '"target": []}, "mean": [0.5], "std": [2.0], "classes": [], "target_mean": [], "target_std": []}'
    ).to_json()
    fields = json.loads(text)
    junk = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.lists(st.text() | st.floats(), max_size=3)
    )
    table = data.draw(st.sampled_from([fields, fields["columns"]]))
    key = data.draw(st.sampled_from(sorted(table)) | st.text(max_size=3))
    table[key] = data.draw(junk)
    try:
        made = Preparation.from_json(json.dumps(fields))
    except DataError:
        return
    assert Preparation.from_json(made.to_json()) == made


@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda raw: raw.decode("latin1")))
@few
def test_any_text_that_is_no_preparation_is_refused(text):
    with pytest.raises(DataError, match="not a preparation"):
        Preparation.from_json(text)


# What is refused


def changed(**columns):
    return {**without(long_columns(), "amount"), **columns}


NAN = np.r_[np.nan, np.zeros(99)]


@pytest.mark.parametrize(
    ("contents", "asked", "message"),
    [
        (changed(), {"target": "lable"}, "the column 'lable' is not in it; columns: id, time, a, b, label"),
        (changed(), {"sequence": "ID2"}, "'ID2' is not in it"),
        (changed(), {"features": ("a", "zz")}, "'zz' is not in it"),
        (changed(), {"features": ("a", "label"), "target": "label"}, "'label' cannot be a feature and something else"),
        (changed(), {"features": ("id",), "target": "label", "sequence": "id"}, "'id' cannot be a feature"),
        (changed(note=["x"] * 100), {"features": ("a", "note")}, "'note' holds text, 1 different ones; an input may"),
        (changed(a=NAN), {}, "'a' has no value, NaN or infinity in row 1 .*1 of 100"),
        (changed(a=np.r_[np.zeros(99), np.inf]), {}, "in row 100"),
        (changed(a=["", *range(99)]), {}, "'a' has no value"),
        (changed(id=["", *long_columns()["id"][1:]]), {}, "'id' has no value"),
        (changed(label=["", *long_columns()["label"][1:]]), {}, "'label' has no value"),
        (changed(label=["up"] * 100), {}, "'label' is up everywhere; classification needs 2 classes"),
        (changed(label=["up", "down"] * 50), {"kind": "classification"}, "'label' changes inside the sequence 's0'"),
        (changed(label=np.arange(100) * 0.5), {}, "'label' changes inside the sequence 's0'.* kind='tagging'"),
        (changed(label=long_columns()["id"]), {}, "20 classes in 20 sequences"),
        (changed(time=[1] * 100), {}, "'s0' has two steps with the same 'time'"),
        (changed(a=["x"] * 100, b=["y"] * 100), {}, "no column of numbers left for the inputs"),
        (changed(), {"target": "label", "kind": "regression"}, "holds text; regression needs numbers"),
        (without(changed(), "label"), {"kind": "classification"}, "name the target for classification"),
        (without(changed(), "id"), {"target": "label", "kind": "classification"}, "one sequence in time"),
        (without(changed(label=np.arange(100) * 0.5), "id"), {"target": "label"}, "one sequence in time"),
        (without(changed(), "id"), {"target": "label", "layout": "long"}, "name the column that says"),
        (without(changed(), "id", "label"), {"layout": "rows"}, "name the target"),
        (long_columns(2), {"target": "label"}, "2 sequences: not enough"),
        (long_columns(1), {"target": "amount"}, "one sequence; a target needs several"),
        (without(long_columns(10, 1), "label", "amount"), {"sequence": "id"}, "has 1 step and so no next step"),
        ({"x": [1, 2, 3]}, {}, "3 steps: not enough"),
        (changed(a=[1e308, -1e308] * 50), {}, "too large"),
        (changed(n=[3] * 100), {"kind": "regression", "target": "n"}, "target is 3"),
        ("id,x\n", {}, "no rows"),
        ("x,x\n1,2\n", {}, "the same name: x"),
        ("", {}, "is empty"),
        ("id,x\n1,2\n1,2,3\n", {}, "not a readable .csv"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used_is_refused_with_the_reason(write, contents, asked, message):
    path = write(contents)
    with pytest.raises(DataError, match=message) as caught:
        OwnData(path, **asked).load()
    assert "mine.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "asked", "message"),
    [
        ({"x": np.array([[1.0, 2.0], [3.0]], dtype=object)}, {}, "holds object, which is not read: Python objects"),
        ({"x": np.zeros((3, 4), complex)}, {}, "holds complex128"),
        ({"a": np.zeros(3), "b": np.zeros(3)}, {}, "arrays a, b; expected one named x or inputs"),
        ({"x": np.array(["a", "b"])}, {}, "expected 'x' to hold numbers"),
        ({"x": np.zeros((2, 3, 4, 5))}, {}, "got float64 of shape"),
        ({"x": np.zeros((0, 3))}, {}, r"shape \(0, 3\)"),
        ({"x": np.full((9, 3), np.nan)}, {}, "NaN or infinity, first in sequence 0; .*lengths"),
        ({"x": np.zeros((9, 3)), "lengths": np.full(9, 4)}, {}, "9 whole numbers from 1 to 3, got int64.* 4 to 4"),
        ({"x": np.zeros((9, 3)), "lengths": np.zeros(9, int)}, {}, "from 0 to 0"),
        ({"x": np.zeros((9, 3)), "lengths": np.ones(8, int)}, {}, r"shape \(8,\)"),
        ({"x": np.zeros((9, 3)), "lengths": np.ones(9)}, {}, "got float64"),
        ({"x": np.zeros((9, 3)), "y": np.zeros(8)}, {}, r"'y' to have the shape \(9,\) or \(9, answers\), got \(8,\)"),
        ({"x": np.zeros((9, 3)), "y": np.r_[np.nan, np.zeros(8)]}, {}, "'y' holds NaN"),
        ({"x": np.zeros((9, 3)), "y": np.zeros(9)}, {"target": "z"}, "arrays x, y; expected one named 'z'"),
        ({"x": np.zeros((9, 3)), "y": np.ones(9, int)}, {}, "'y' is 1 everywhere"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_with_the_reason(write, arrays, asked, message):
    with pytest.raises(DataError, match=message):
        OwnData(write(arrays, ".npz"), **asked).load()


def test_a_hostile_pickle_in_an_archive_is_never_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path / "ran").touch, ()

    raw = io.BytesIO()
    np.lib.format.write_array_header_1_0(raw, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    with zipfile.ZipFile(tmp_path / "evil.npz", "w") as archive:
        archive.writestr("x.npy", raw.getvalue() + pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="could run code"):
        OwnData(tmp_path / "evil.npz").load()
    assert not (tmp_path / "ran").exists()


def test_an_array_that_announces_more_than_it_has_does_not_take_the_memory(tmp_path):
    raw = io.BytesIO()
    np.lib.format.write_array_header_1_0(raw, {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**6)})
    with zipfile.ZipFile(tmp_path / "vast.npz", "w") as archive:
        archive.writestr("x.npy", raw.getvalue() + bytes(800))
    with pytest.raises(DataError, match=r"announces 8,000,000,000,000,000 bytes and has 800"):
        OwnData(tmp_path / "vast.npz").load()


@pytest.fixture
def pool():
    """What pyarrow allocates in this test alone."""
    before = pyarrow.default_memory_pool()
    pyarrow.set_memory_pool(pool := pyarrow.proxy_memory_pool(before))
    yield pool
    pyarrow.set_memory_pool(before)


def _npz_bomb(path, numbers):
    np.savez_compressed(path, x=np.zeros((10, numbers // 10), np.int8))


def _parquet_bomb(path, numbers):
    pyarrow.parquet.write_table(pyarrow.table({"x": pyarrow.array(np.zeros(numbers), pyarrow.float64())}), path)


@pytest.mark.parametrize(("suffix", "write_bomb"), [(".npz", _npz_bomb), (".parquet", _parquet_bomb)])
def test_a_small_file_that_would_fill_the_memory_is_refused_before_it_is_read(
    tmp_path, monkeypatch, suffix, write_bomb, request
):
    """2·10⁶ zeros take a few kilobytes in the file and 16 MB as numbers; less than 1 MB is allocated."""
    path = tmp_path / f"bomb{suffix}"
    write_bomb(path, 2_000_000)
    assert path.stat().st_size < 30_000
    monkeypatch.setenv("HOLDFAST_DATA_LIMIT", "15MB")
    pool = request.getfixturevalue("pool")
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"would take 16.0 MB when read .*; the limit is 15.0 MB \(set") as caught:
            OwnData(path).load()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        assert pool.max_memory() < 1_000_000
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert "raise the limit: HOLDFAST_DATA_LIMIT=1GB" in str(caught.value)
    monkeypatch.setenv("HOLDFAST_DATA_LIMIT", "16 MB")
    read_data(path)


def test_the_limit_is_a_sixth_of_the_memory_that_is_available(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "available_memory", lambda: 6_000_000)
    _npz_bomb(tmp_path / "bomb.npz", 200_000)
    with pytest.raises(DataError, match=r"1.6 MB when read .*; the limit is 1.0 MB \(a sixth of the memory"):
        read_data(tmp_path / "bomb.npz")


def test_a_container_leaves_its_limit_less_what_is_used_and_cannot_be_dropped(tmp_path):
    assert limits._container(tmp_path) is None
    for place, names in (
        (tmp_path / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
        (tmp_path, ("memory.max", "memory.current")),
    ):
        place.mkdir(exist_ok=True)
        for name, text in zip((*names, "memory.stat"), ("1000\n", "900\n", "anon 5\ninactive_file 300\n"), strict=True):
            (place / name).write_text(text)
        assert limits._container(tmp_path) == 400
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").unlink()
    assert limits._container(tmp_path) is None


def test_a_limit_that_is_no_size_is_refused(tmp_path, monkeypatch):
    _npz_bomb(tmp_path / "bomb.npz", 200)
    for text in ("much", "8 G", "-1", "1e9"):
        monkeypatch.setenv("HOLDFAST_DATA_LIMIT", text)
        with pytest.raises(SettingError, match="HOLDFAST_DATA_LIMIT expects a number of bytes, such as 8GB"):
            read_data(tmp_path / "bomb.npz")


def test_a_long_text_that_is_repeated_is_in_memory_once(tmp_path, request):
    """2,000 times the same 100 kB: 200 MB if each were a text of its own."""
    path = tmp_path / "a.parquet"
    texts = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0, None, 1] * 2000, pyarrow.int32()), ["a" * 100_000, "b"]
    )
    pyarrow.parquet.write_table(pyarrow.table({"s": texts, "x": np.arange(6000.0)}), path, store_schema=False)
    pool = request.getfixturevalue("pool")
    column = read_data(path)["s"]
    assert pool.max_memory() < 5_000_000
    assert [column[0] == "a" * 100_000, *column[1:3]] == [True, None, "b"]
    assert len({id(text) for text in column}) == 3


def test_texts_that_share_a_long_beginning_do_not_fill_the_memory(tmp_path, monkeypatch, request):
    """DELTA_BYTE_ARRAY stores what two neighbours share once, so no header tells how long the texts are."""
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"s": ["a" * 100_000 + str(number) for number in range(2000)], "x": np.arange(2000.0)})
    pyarrow.parquet.write_table(
        table, path, use_dictionary=["x"], column_encoding={"s": "DELTA_BYTE_ARRAY"}, store_schema=False
    )
    assert path.stat().st_size < 200_000
    pool = request.getfixturevalue("pool")
    monkeypatch.setenv("HOLDFAST_DATA_LIMIT", "20MB")
    with pytest.raises(DataError, match=r"the limit is 20.0 MB"):
        read_data(path)
    assert pool.max_memory() < 100_000_000  # of 200 MB
    monkeypatch.setenv("HOLDFAST_DATA_LIMIT", "300MB")
    assert read_data(path)["s"][1999][-5:] == "a1999"


def test_a_table_of_many_columns_is_read_in_time_linear_in_its_size(tmp_path):
    """Four times the columns take far less than the sixteen times as long of a quadratic reader: the best of three."""

    def seconds(columns):
        path = tmp_path / f"{columns}.csv"
        names, values = [f"c{index}" for index in range(columns)], ["1.5"] * columns
        lines = [",".join(["label", *names])] + [",".join([str(row % 2), *values]) for row in range(8)]
        path.write_text("\n".join(lines))
        begin = time.process_time()
        OwnData(path, standardise=False).load()
        return time.process_time() - begin

    seconds(100)
    few, many = (min(seconds(columns) for _ in range(3)) for columns in (3000, 12_000))
    assert many < 8 * max(few, 0.05)


def test_paths_that_are_no_data_files_are_refused(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "old.xls").write_bytes(b"x")
    for name, message in (
        ("folder.csv", "holds no sequences: expected files"),
        ("old.xls", r"\.npz, \.npy, \.csv, .* or \.xlsx, or as a folder"),
        ("no.csv", "not there"),
    ):
        with pytest.raises(DataError, match=message):
            OwnData(tmp_path / name).load()


def test_padding_that_would_take_all_memory_is_refused(write):
    """One sequence of 20,000 steps among 20,000 of one."""
    ids = np.r_[np.arange(20_000), np.zeros(19_999, int)]
    with pytest.raises(DataError, match="padding 20,000 sequences to the longest, 20,000 steps, takes 3 GiB; cut"):
        OwnData(write({"id": ids, "x": ids * 0.5, "label": np.where(ids % 2, "a", "b")}), validation=0, test=0).load()


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "guess"}, {"layout": "wide"}, {"validation": -0.1}, {"validation": 0.5, "test": 0.5}, {"window": 0},
        {"test": float("nan")}, {"seed": -1}, {"kind": "next-step", "target": "label"},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(write, asked):
    with pytest.raises(SettingError):
        OwnData(write(changed()), **asked).load()


@pytest.mark.parametrize("asked", [{"sequence": "x"}, {"features": ("x",)}, {"layout": "rows"}, {"target": ("y", "x")}])
def test_settings_for_columns_are_refused_for_arrays(write, asked):
    with pytest.raises(SettingError, match=r"mine\.npz"):
        OwnData(write({"x": np.zeros((9, 3)), "y": np.zeros(9)}, ".npz"), **asked).load()


def test_without_pyarrow_the_error_names_the_extra(write, monkeypatch):
    path = write(changed())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'holdfast\[data\]'"):
        OwnData(path).load()


# Fuzz: whatever the bytes are


def loads_or_explains(path, **asked):
    """Any other exception than ours fails the test, and so does a batch that is not finite."""
    try:
        task = OwnData(path, **{"validation": 0, "test": 0, **asked}).load()
    except SettingError:
        return
    except HoldfastError as error:
        said = str(error)
    else:
        assert torch.isfinite(task.train_batch(0, 2, seed=0).inputs).all()
        return
    assert str(path) in said


def mangled(raw, data):
    """Some bytes changed, cut out or doubled."""
    raw = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        match data.draw(st.sampled_from(["change", "cut", "end", "double"])):
            case "change" if raw:
                raw[at] = data.draw(st.integers(0, 255))
            case "cut":
                del raw[at : at + data.draw(st.integers(1, 20))]
            case "end":
                del raw[at:]
            case "double":
                raw[at:at] = raw[at : at + data.draw(st.integers(1, 20))]
    return bytes(raw)


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
@given(raw=st.binary(max_size=300))
@few
def test_random_bytes_give_a_clear_error(tmp_path, suffix, raw):
    path = tmp_path / f"random{suffix}"
    path.write_bytes(raw)
    loads_or_explains(path)


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
@given(data=st.data())
@few
def test_mangled_files_give_a_clear_error_or_load(write, suffix, data):
    columns = without(long_columns(6, 3), "amount")
    good = write({"x": RANDOM.random((6, 3)), "y": np.arange(6) % 2} if suffix == ".npz" else columns, suffix, "good")
    path = good.with_stem("mangled")
    path.write_bytes(mangled(good.read_bytes(), data))
    loads_or_explains(path)


words = st.sampled_from(
    ["", "nan", "inf", "-1", "0", "1e400", "1.5", "up", "up", "2020-01-01", '"', "é", "\x00", " ", "true"]
)


def test_text_alone_has_no_next_step(tmp_path):
    path = tmp_path / "moods.csv"
    path.write_text("a\ninf\ninf\ninf\nup\n")
    with pytest.raises(DataError, match=r"has no column of numbers whose next step could be predicted: 'a' is text"):
        OwnData(path, validation=0, test=0).load()


@given(
    header=st.lists(st.sampled_from(["id", "time", "a", "b", "label", "y", "", "é"]), min_size=1, max_size=5),
    rows=st.lists(st.lists(words, min_size=1, max_size=5), max_size=12),
    asked=st.fixed_dictionaries({}, optional={
        "target": st.sampled_from(["label", "a", ""]), "sequence": st.sampled_from(["id", "a"]),
        "time": st.just("time"),
        "kind": st.sampled_from(["auto", "classification", "regression", "next-step"]),
        "layout": st.sampled_from(["auto", "long", "rows", "series"]),
    }),
)  # fmt: skip
@settings(parent=few, max_examples=60)
def test_odd_tables_give_a_clear_error_or_load(tmp_path, header, rows, asked):
    path = tmp_path / "odd.csv"
    path.write_text("\n".join(",".join(row) for row in (header, *rows)), encoding="utf-8")
    loads_or_explains(path, **asked)


# Columns that are no inputs


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "index", "Row", "sample_id"])
@pytest.mark.parametrize("first", [0, 1])
def test_row_numbers_are_no_input_and_are_named(write, name, first):
    """What ``df.to_csv()`` saves along tells the order of the rows, and in the rows layout would be step 0."""
    columns = without(long_columns(), "amount", "time")
    task = OwnData(write({name: np.arange(first, first + 100), **columns}), target="label", sequence="id").load()
    assert task.preparation.columns.features == ("a", "b")
    assert f"not used: {name!r} (" in task.choices[2]
    rng = np.random.default_rng(0)
    rows = {
        name: np.arange(first, first + 20),
        "label": ["x", "y"] * 10,
        **{f"t{i}": rng.normal(size=20) for i in (0, 1)},
    }
    assert OwnData(write(rows), target="label").load().preparation.columns.features == ("t0", "t1")
    asked = OwnData(write(rows), target="label", features=(name, "t0")).load()
    assert asked.preparation.columns.features == (name, "t0")


def test_numbers_that_do_not_count_rows_stay_inputs(write):
    columns = {**without(long_columns(), "amount", "time"), "index": np.tile(np.arange(5), 20), "no": np.arange(7, 107)}
    assert OwnData(write(columns), target="label").load().preparation.columns.features == ("a", "b", "index", "no")


@pytest.mark.parametrize("name", ["year", "Year", "date"])
def test_a_year_is_the_order_and_neither_an_input_nor_a_forecast(write, name):
    """Written backwards, so that a column that were not the order would be seen."""
    years = np.arange(1999, 1899, -1)
    task = OwnData(write({name: years, "level": (years - 1900) ** 2.0}), standardise=False).load()
    assert (task.preparation.columns.features, task.preparation.columns.time) == (("level",), name)
    assert task.data["train"].inputs[0, :3, 0].tolist() == [0, 1, 4]


def test_parts_of_a_date_are_no_forecast(write):
    months = {
        "year": np.repeat(np.arange(1990, 2000), 12),
        "month": np.tile(np.arange(1, 13), 10),
        "x": RANDOM.random(120),
    }
    task = OwnData(write(months)).load()
    assert (task.preparation.columns.features, task.preparation.columns.time) == (("x",), None)
    assert "not used: 'year' (time), 'month' (time)" in task.choices[2]
    both = {"time": np.arange(120), "date": np.arange(20200101, 20200221), "x": RANDOM.random(120)}
    assert OwnData(write(both)).load().preparation.columns.features == ("x",)


# The order of the axes


def _signals(cases=40, channels=3, steps=60, seed=0):
    rng = np.random.default_rng(seed)
    phase, pace = rng.uniform(0, 6, (cases, channels, 1)), rng.uniform(0.1, 0.5, (cases, 1, 1))
    return np.sin(pace * np.arange(steps) + phase) + rng.normal(0, 0.1, (cases, channels, steps))


@pytest.mark.parametrize(("channels", "steps"), [(3, 60), (12, 26), (1, 50), (6, 100)])
def test_channels_before_time_are_found_by_shape_and_smoothness(write, channels, steps):
    x, y = _signals(channels=channels, steps=steps), np.arange(40) % 2
    first = OwnData(write({"x": x, "y": y}, ".npz"), validation=0, test=0).load()
    assert first.spec.input_size == channels
    assert "read as (sequences, features, time); order='time-first' if it is not" in first.choices[2]
    turned = OwnData(write({"x": x.swapaxes(1, 2), "y": y}, ".npz", "turned"), validation=0, test=0).load()
    torch.testing.assert_close(first.data["train"].inputs, turned.data["train"].inputs)
    new = first.preparation.apply(write({"x": x[:5]}, ".npz", "new")).inputs
    torch.testing.assert_close(new, first.data["train"].inputs[:5])
    torch.testing.assert_close(Preparation.from_json(first.preparation.to_json()).apply(x[:5]).inputs, new)


def test_lengths_tell_the_time_axis(write):
    x, lengths = np.random.default_rng(0).normal(size=(30, 5, 9)), np.arange(30) % 9 + 1
    assert OwnData(write({"x": x, "lengths": lengths, "y": lengths % 2}, ".npz")).load().spec.input_size == 5
    lengths = np.minimum(lengths, 5)
    assert OwnData(write({"x": x, "lengths": lengths, "y": lengths % 2}, ".npz")).load().spec.input_size == 9


@pytest.mark.parametrize("shape", [(30, 5, 9), (30, 4, 64)])
def test_an_order_that_is_open_is_asked_for(write, shape):
    path = write({"x": np.random.default_rng(0).normal(size=shape), "y": np.arange(30) % 2}, ".npz")
    said = rf"may be \(sequences, time, channels\) or .*order='time-first' for {shape[1]} steps of {shape[2]} channels"
    with pytest.raises(DataError, match=said):
        OwnData(path).load()
    for order, features in (("time-first", shape[2]), ("channels-first", shape[1])):
        assert OwnData(path, order=order).load().spec.input_size == features
    with pytest.raises(SettingError, match="orders auto, time-first, channels-first; got 'C'"):
        OwnData(path, order="C").load()


def test_a_square_or_a_long_array_in_the_wrong_order_is_asked_for(write):
    """As many channels as steps, and time is clearly the last axis: not taken for the first."""
    with pytest.raises(DataError, match="Say which"):
        OwnData(write({"x": _signals(channels=30, steps=26), "y": np.arange(40) % 2}, ".npz")).load()


# Classes that are unequal


def _unequal(write, rare=10):
    labels = ["rare"] * rare + ["usual"] * (100 - rare)
    return write({"id": np.arange(100), "x": np.arange(100.0), "label": labels})


def test_unequal_classes_get_weights_of_mean_one(write):
    task = OwnData(_unequal(write), sequence="id").load()
    targets, weights = task.data["train"].targets, torch.tensor(task.spec.class_weights)
    torch.testing.assert_close(weights[targets].double().mean(), torch.tensor(1.0))
    for index in range(2):  # both classes weigh alike in all
        torch.testing.assert_close(weights[targets[targets == index]].double().sum(), torch.tensor(len(targets) / 2))
    assert any("Class weights in the training loss: 0.56 to 5" in choice for choice in task.choices)


def test_weights_can_be_left_out_or_asked_for(write):
    assert OwnData(_unequal(write), sequence="id", weights="none").load().spec.class_weights == ()
    assert OwnData(_unequal(write, 40), sequence="id").load().spec.class_weights == ()
    assert OwnData(_unequal(write, 40), sequence="id", weights="balanced").load().spec.class_weights != ()
    with pytest.raises(SettingError, match="weights auto, balanced and none; got 'some'"):
        OwnData(_unequal(write), sequence="id", weights="some").load()


def test_classes_that_are_numbers_in_text_are_in_numerical_order(write):
    path = write({"id": np.arange(40), "x": np.arange(40.0), "label": [f"n{i % 4}" for i in range(40)]})
    assert OwnData(path, sequence="id").load().spec.classes == ("n0", "n1", "n2", "n3")
    y = np.array([str(i % 4 * 5) for i in range(40)])
    assert OwnData(write({"x": RANDOM.random((40, 3)), "y": y}, ".npz")).load().spec.classes == ("0", "5", "10", "15")


# Missing numbers


HOLES = [np.nan, 2.0, np.nan, 4.0, 6.0, np.nan]  # two sequences of three steps


@pytest.mark.parametrize(
    ("impute", "filled"),
    [("mean", [4, 2, 4, 4, 6, 4]), ("zero", [0, 2, 0, 4, 6, 0]), ("last", [4, 2, 2, 4, 6, 6])],
)
@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_missing_numbers_are_filled_in_and_marked(write, suffix, impute, filled):
    """The mean is that of the numbers there are, 4; the last one is of the same sequence, else the mean."""
    columns = {"id": [0, 0, 0, 1, 1, 1], "x": ["" if np.isnan(v) else v for v in HOLES], "y": [1.5] * 3 + [2.5] * 3}
    arrays = {"x": np.array(HOLES).reshape(2, 3), "y": np.array([1.5, 2.5])}
    path = write(columns if suffix == ".csv" else arrays, suffix)
    asked = {"target": "y", "validation": 0, "test": 0, "kind": "regression"}
    with pytest.raises(DataError, match="impute='mean', impute='last' or impute='zero'"):
        OwnData(path, **asked).load()
    task = OwnData(path, impute=impute, **asked).load()
    inputs = task.data["train"].inputs
    std = np.nanstd(HOLES)
    torch.testing.assert_close(inputs[..., 0].flatten(), (torch.tensor(filled, dtype=torch.float64) - 4) / std)
    assert inputs[..., 1].flatten().tolist() == np.isnan(HOLES).astype(float).tolist()
    assert task.spec.input_size == 2
    assert any("Missing: 50.0% of the numbers, filled in with" in choice for choice in task.choices)
    again = Preparation.from_json(task.preparation.to_json()).apply(path)
    torch.testing.assert_close(again.inputs, inputs)


def test_numbers_missing_only_later_are_filled_in_too(write):
    columns = without(long_columns(), "amount")
    task = OwnData(write(columns), target="label", impute="last", validation=0, test=0).load()
    assert task.spec.input_size == 2
    inputs = task.preparation.apply(write({**columns, "a": ["", *columns["a"][1:]]}, name="new")).inputs
    assert inputs[0, 0, 0] == 0
    torch.testing.assert_close(inputs[1:], task.data["train"].inputs[1:])


def test_what_cannot_be_imputed_is_refused(write):
    with pytest.raises(SettingError, match="knows impute mean, last, zero, or nothing; got 'median'"):
        OwnData(write(changed()), impute="median").load()
    with pytest.raises(DataError, match="'a' has no number in the training split"):
        OwnData(write(changed(a=[""] * 100)), impute="mean").load()
    with pytest.raises(DataError, match="'label' has no value"):
        OwnData(write(changed(label=["", *long_columns()["label"][1:]])), impute="mean").load()
    with pytest.raises(DataError, match="NaN or infinity in row 100"):
        OwnData(write(changed(a=np.r_[np.zeros(99), np.inf])), impute="mean").load()


# Texts among the inputs


def test_a_column_of_text_is_zeros_and_ones(write):
    columns = changed(valve=["open", "shut", "open", "half", "shut"] * 20)
    task = OwnData(write(columns), target="label", validation=0, test=0).load()
    assert task.preparation.columns.channels == ("a", "b", "valve=half", "valve=open", "valve=shut")
    assert task.data["train"].inputs[0, :, 2:].tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert task.choices[2] == "Inputs: 'a', 'b', 'valve' (3 texts), as zeros and ones."
    preparation = Preparation.from_json(task.preparation.to_json())
    assert preparation == task.preparation
    with pytest.raises(DataError, match="unknown text 'ajar' in the column 'valve'; known: half, open, shut"):
        preparation.apply(write({**columns, "valve": ["ajar"] * 100}, name="new"))
    forecast = OwnData(write(without(columns, "label"))).load()
    assert (forecast.spec.input_size, forecast.spec.output_size) == (5, 2)


def test_a_text_that_names_sequences_is_no_input_unless_asked_for(write):
    columns = changed(name=[f"pump {i}" for i in np.repeat(np.arange(20), 5)])
    assert OwnData(write(columns), target="label").load().preparation.columns.text == ()
    asked = OwnData(write(columns), target="label", features=("a", "name")).load()
    assert asked.preparation.columns.text == ("name",)


# A class at every step


def _steps_tagged(sequences=20, steps=5, seed=0):
    columns = without(long_columns(sequences, steps, seed), "amount")
    return {**columns, "label": np.where(np.asarray(columns["b"]) > 0, "high", "low")}


def test_a_label_that_changes_inside_sequences_is_one_at_every_step(write):
    columns = _steps_tagged()
    task = OwnData(write(columns), validation=0, test=0).load()
    data = task.data["train"]
    assert (task.preparation.kind, task.spec.every_step, data.targets.shape) == ("tagging", True, (20, 5))
    assert [task.spec.classes[index] for index in data.targets.flatten()] == columns["label"].tolist()
    assert "'label' at every step, 2 classes" in task.choices[3]
    again = Preparation.from_json(task.preparation.to_json())
    assert torch.equal(again.sequences(write(columns, name="new")).targets, data.targets)
    counts = np.unique(columns["label"], return_counts=True)[1]
    assert task.spec.baseline == pytest.approx(counts.max() / 100)


def test_one_series_with_a_label_at_every_step_is_cut_by_time(write):
    x = np.random.default_rng(0).normal(size=1000)
    task = OwnData(write({"data": x, "label": (x > 0).astype(int)}), window=30, standardise=False).load()
    assert task.preparation.kind == "tagging"
    data = task.data["train"]
    inside = data.targets != -100
    assert torch.equal(data.targets[inside] == 1, data.inputs[inside][:, 0] > 0)
    assert int(inside.sum()) == 700


def test_padding_has_no_tag(write):
    columns = {name: np.asarray(values)[:-2] for name, values in _steps_tagged().items()}
    task = OwnData(write(columns), validation=0, test=0).load()
    assert task.data["train"].targets[-1].tolist()[3:] == [-100, -100]


def test_blocks_of_rows_with_one_answer_are_sequences_whatever_their_column_is_called(tmp_path):
    """A patient's number would else be an input, and every row a sequence of its own."""
    rows = [
        f"{100 + 7 * case},w{case},{case * step % 5},{step},{'ab'[case % 2]}" for case in range(20) for step in range(4)
    ]
    (tmp_path / "a.csv").write_text("\n".join(["patient,ward,x,y,label", *rows]))
    task = OwnData(tmp_path / "a.csv", target="label").load()
    assert task.preparation.columns.sequence == "patient"
    assert task.data["train"].inputs.shape[1:] == (4, 4 - 2)
    assert "Sequences: 20, named by 'patient', 4 steps each" in task.choices[1]
    # the answer in other words, sorted by it, is not a sequence
    rows = [f"{['setosa', 'virginica'][case // 10]},{case},{case * case % 7},{case // 10}" for case in range(20)]
    (tmp_path / "b.csv").write_text("\n".join(["species,x,y,label", *rows]))
    assert OwnData(tmp_path / "b.csv", target="label").load().preparation.columns.layout == "rows"
    # nor is a column whose blocks have several answers
    rows = [f"{case // 4},{case},{case * case % 7},{case % 2}" for case in range(20)]
    (tmp_path / "c.csv").write_text("\n".join(["ward,x,y,label", *rows]))
    assert OwnData(tmp_path / "c.csv", target="label").load().preparation.columns.layout == "rows"
