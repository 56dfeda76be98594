"""MNIST by the pixel: in order, through one permutation, by rows, and pooled."""

import gzip
import hashlib
import os

import numpy as np
import pytest
import torch

from holdfast.errors import DataError, SettingError
from holdfast.tasks import PixelMNIST, Source, pixels

real = pytest.mark.skipif("HOLDFAST_DATA" not in os.environ, reason="MNIST is not here: HOLDFAST_DATA is not set")


def idx_file(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A data folder with 30 training and 8 test images; the second half of the files unpacked."""
    rng = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (30, 28, 28)),
        "train-labels-idx1-ubyte": np.arange(30) % 10,
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (8, 28, 28)),
        "t10k-labels-idx1-ubyte": np.array([3, 3, 3, 0, 1, 2, 4, 5]),
    }
    (tmp_path / "mnist").mkdir()
    sources = []
    for index, (name, array) in enumerate(arrays.items()):
        raw = idx_file(array)
        path = tmp_path / "mnist" / (f"{name}.gz" if index < 2 else name)
        path.write_bytes(gzip.compress(raw) if index < 2 else raw)
        sources.append(Source(f"mnist/{name}", hashlib.sha256(raw).hexdigest(), len(raw)))
    monkeypatch.setattr(pixels, "SOURCES", tuple(sources))
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    return arrays


def test_an_image_is_read_pixel_by_pixel(small):
    task = PixelMNIST(validation=5).load()
    (batch,) = task.evaluation("test", 100)
    assert batch.inputs.shape == (784, 8, 1)
    images = torch.from_numpy(small["t10k-images-idx3-ubyte"]).double() / 255
    torch.testing.assert_close(batch.inputs[..., 0].T.reshape(8, 28, 28), images)
    assert batch.targets.tolist() == small["t10k-labels-idx1-ubyte"].tolist()
    assert task.data["test"].inputs.dtype == torch.uint8  # numbers are made a batch at a time
    assert task.spec.baseline == 3 / 8


def test_the_last_training_images_are_the_validation_split(small):
    task = PixelMNIST(validation=5).load()
    assert [len(task.data[split]) for split in task.spec.splits] == [25, 5, 8]
    assert task.data["validation"].targets.tolist() == [5, 6, 7, 8, 9]
    assert PixelMNIST(validation=0).load().spec.splits == ("train", "test")


def test_one_permutation_of_the_pixels_serves_all_images_and_splits(small):
    plain, mixed = (PixelMNIST(permuted=permuted, validation=5).load() for permuted in (False, True))
    order = PixelMNIST(permuted=True).permutation()
    assert order.sort().values.tolist() == list(range(784))
    for split in plain.spec.splits:
        assert torch.equal(mixed.data[split].inputs, plain.data[split].inputs[:, order])
    assert torch.equal(order, PixelMNIST(permuted=True, seed=0).permutation())
    assert not torch.equal(order, PixelMNIST(permuted=True, seed=1).permutation())


def test_by_rows_a_step_is_a_row(small):
    task = PixelMNIST(rows=True, validation=0).load()
    assert (task.spec.input_size, PixelMNIST(rows=True).steps) == (28, 28)
    assert np.array_equal(task.data["train"].inputs, small["train-images-idx3-ubyte"])


@pytest.mark.parametrize("pool", [2, 4, 7])
def test_pooling_averages_blocks_of_pixels(small, pool):
    task, side = PixelMNIST(pool=pool, validation=0).load(), 28 // pool
    assert task.data["train"].inputs.shape == (30, side * side, 1) == (30, PixelMNIST(pool=pool).steps, 1)
    images = torch.from_numpy(small["train-images-idx3-ubyte"]).double()
    means = torch.nn.functional.avg_pool2d(images[:, None], pool).reshape(30, -1, 1)
    assert (task.data["train"].inputs - means).abs().max() <= 0.5  # kept as bytes


def test_a_limit_keeps_the_first_images_of_each_split(small):
    task = PixelMNIST(limit=3, validation=5).load()
    assert [len(task.data[split]) for split in task.spec.splits] == [3, 3, 3]


@pytest.mark.parametrize("setting", [{"pool": 3}, {"pool": 0}, {"validation": 30}, {"validation": -1}, {"limit": 0}])
def test_impossible_settings_are_refused(small, setting):
    with pytest.raises(SettingError, match=f"got {next(iter(setting.values()))}"):
        PixelMNIST(**{"validation": 5, **setting}).load()


@pytest.mark.parametrize("raw", [b"", b"\0\0\x08", b"\0\0\x0d\1\0\0\0\1\0", b"\0\0\x08\1\0\0\0\3ab", b"\0\0\x08\xff\0"])
def test_what_is_no_idx_file_is_refused(raw):
    with pytest.raises(DataError, match=r"numbers\.idx"):
        pixels.idx(raw, "numbers.idx")


@real
def test_the_real_set_has_its_known_counts():
    task = PixelMNIST().load()
    train, validation, test = (task.data[split].targets for split in ("train", "validation", "test"))
    counts = [len(train), len(validation), len(test)]
    assert counts == [PixelMNIST().answers(split) for split in task.spec.splits] == [50_000, 10_000, 10_000]
    counts = (train.bincount() + validation.bincount()).tolist()
    assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert task.spec.baseline == 0.1135
    total = sum(int(task.data[split].inputs.sum(dtype=torch.int64)) for split in ("train", "validation"))
    assert round(total / (60_000 * 784 * 255), 4) == 0.1307  # the mean that everybody normalises by


@pytest.mark.parametrize("permuted", [False, True])
def test_standardised_pixels_are_the_others_shifted_and_scaled(small, permuted):
    """S5's preprocessing: (x - 0.1307) / 0.3081, after everything else."""
    (plain,) = PixelMNIST(validation=5, permuted=permuted).load().evaluation("test", 100)
    (standardised,) = PixelMNIST(validation=5, permuted=permuted, standardised=True).load().evaluation("test", 100)
    torch.testing.assert_close(standardised.inputs, (plain.inputs - 0.1307) / 0.3081)
