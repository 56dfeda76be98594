"""HAR-2 and the six activities, from the archive as it is."""

import hashlib
import os
import zipfile

import numpy as np
import pytest
import torch

from holdfast.errors import DataError, SettingError
from holdfast.tasks import HAR, Source, har

real = pytest.mark.skipif("HOLDFAST_DATA" not in os.environ, reason="HAR is not here: HOLDFAST_DATA is not set")


def archive_of(path, counts, change=None):
    """An archive in the original layout: windows of random numbers, so many of each activity, three people a split."""
    rng, arrays = np.random.default_rng(0), {}
    members = {}
    for split, each in counts.items():
        labels = np.repeat(np.arange(1, 7), each)
        people = np.arange(len(labels)) % 3 + 1
        members[f"{split}/y_{split}.txt"] = "\n".join(map(str, labels)) + "\n"
        members[f"{split}/subject_{split}.txt"] = "\n".join(map(str, people)) + "\n"
        signals = rng.normal(1, 2, (9, len(labels), 128)) * np.arange(1, 10)[:, None, None]
        for channel, values in zip(har.CHANNELS, signals, strict=True):
            lines = ["".join(f" {value: .7e}" for value in row) for row in values]
            members[f"{split}/Inertial Signals/{channel}_{split}.txt"] = "\r\n".join(lines) + "\r\n"
        arrays[split] = signals.transpose(1, 2, 0), labels, people
    members.update(change or {})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            if text is not None:
                archive.writestr(f"UCI HAR Dataset/{name}", text)
    return arrays


@pytest.fixture
def make(tmp_path, monkeypatch):
    def made(counts=(3, 2), change=None):
        path = tmp_path / "har" / "UCI HAR Dataset.zip"
        path.parent.mkdir(exist_ok=True)
        arrays = archive_of(path, dict(zip(("train", "test"), counts, strict=True)), change)
        raw = path.read_bytes()
        source = Source("har/UCI HAR Dataset.zip", hashlib.sha256(raw).hexdigest(), len(raw), how="Ask UCI.")
        monkeypatch.setattr(har, "SOURCE", source)
        return arrays

    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    return made


def test_the_nine_channels_are_in_sorted_order():
    assert list(har.CHANNELS) == sorted(har.CHANNELS)
    assert len(har.CHANNELS) == 9


def test_channels_are_standardised_on_the_training_set(make):
    """Mean 0 and deviation 1 a channel over all training steps; the same numbers for the test set (of 8 digits)."""
    (xs, _, _), (test_xs, _, _) = make().values()
    task = HAR().load()
    train = task.data["train"].inputs
    torch.testing.assert_close(train.mean(dim=(0, 1)), torch.zeros(9), rtol=0, atol=1e-6)
    torch.testing.assert_close(train.std(dim=(0, 1), correction=0), torch.ones(9), rtol=0, atol=1e-6)
    expected = (test_xs - xs.mean(axis=(0, 1))) / xs.std(axis=(0, 1))
    torch.testing.assert_close(task.data["test"].inputs, torch.from_numpy(expected), rtol=0, atol=1e-6)


def test_har_2_joins_the_labels_2_4_6_against_the_others(make):
    (_, labels, _), _ = make().values()
    task = HAR().load()
    assert task.data["train"].targets.flatten().tolist() == [0.0 if label in (2, 4, 6) else 1.0 for label in labels]
    assert (task.spec.loss, task.spec.output_size) == ("binary_cross_entropy", 1)
    assert task.spec.splits == ("train", "test")
    batch = task.train_batch(0, 4, seed=0)
    assert (batch.inputs.shape, batch.targets.shape) == ((128, 4, 9), (4, 1))


def test_the_six_activities(make):
    (_, labels, _), _ = make().values()
    task = HAR(classes=6).load()
    assert task.data["train"].targets.tolist() == (labels - 1).tolist()
    assert task.spec.classes[3] == "sitting"
    assert task.spec.baseline == 1 / 6


def test_validation_keeps_whole_people_apart_also_from_the_standardisation(make):
    (xs, _, people), _ = make().values()
    task = HAR(validation=1).load()
    assert task.spec.splits == ("train", "validation", "test")
    assert len(task.data["validation"]) == (people == 3).sum()
    kept = xs[people != 3]
    expected = (xs[people == 3] - kept.mean(axis=(0, 1))) / kept.std(axis=(0, 1))
    torch.testing.assert_close(task.data["validation"].inputs, torch.from_numpy(expected), rtol=0, atol=1e-6)


def test_parsed_signals_are_kept_under_the_hash_of_the_archive(make, tmp_path):
    make()
    first = HAR().load()
    (kept,) = (tmp_path / "cache" / "data" / "har").iterdir()
    assert torch.equal(HAR().load().data["train"].inputs, first.data["train"].inputs)
    kept.write_bytes(kept.read_bytes()[:1000])  # damaged: read the archive again
    assert torch.equal(HAR().load().data["train"].inputs, first.data["train"].inputs)
    make(counts=(4, 2))  # another archive
    assert len(HAR().load().data["train"]) == 24
    assert len(list(kept.parent.iterdir())) == 2


def test_a_cache_that_cannot_be_written_costs_only_time(make, tmp_path):
    make()
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert len(HAR().load().data["train"]) == 18


@pytest.mark.parametrize(
    "change",
    [
        {"train/y_train.txt": None},
        {"train/y_train.txt": "1\n2\n3\n"},
        {"test/y_test.txt": "7\n" * 12},
        {"test/Inertial Signals/body_acc_x_test.txt": "1.0 2.0"},
        {"test/Inertial Signals/body_acc_x_test.txt": "1.0 two " * 768},
        {"test/Inertial Signals/body_acc_x_test.txt": "nan " * 12 * 128},
    ],
)
def test_an_archive_of_another_form_is_refused(make, change):
    make(change=change)
    with pytest.raises(DataError, match=r"UCI HAR Dataset\.zip.*Ask UCI"):
        HAR().load()


@pytest.mark.parametrize("setting", [{"classes": 3}, {"validation": 3}, {"validation": -1}])
def test_impossible_settings_are_refused(make, setting):
    make()
    with pytest.raises(SettingError, match="HAR"):
        HAR(**setting).load()


@real
def test_the_real_set_has_its_known_counts():
    (xs, labels, people), (test_xs, test_labels, test_people) = har.windows()
    assert (xs.shape, test_xs.shape) == ((7352, 128, 9), (2947, 128, 9))
    assert np.bincount(labels)[1:].tolist() == [1226, 1073, 986, 1286, 1374, 1407]
    assert np.bincount(test_labels)[1:].tolist() == [496, 471, 420, 491, 532, 537]
    assert (len(set(people)), len(set(test_people)), set(people) & set(test_people)) == (21, 9, set())
    task = HAR().load()
    assert [len(task.data[split]) for split in task.spec.splits] == [HAR().answers(split) for split in task.spec.splits]
    for split, counts in (("train", [3766, 3586]), ("test", [1499, 1448])):
        assert task.data[split].targets.long().flatten().bincount().tolist() == counts
    assert task.spec.baseline == 1499 / 2947
