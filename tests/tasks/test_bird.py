"""Birds: log mel bands of clips, and what is said when the files are not as they should be."""

import wave

import numpy as np
import pytest
import torch

from holdfast.errors import DataError, SettingError
from holdfast.tasks import BirdAudio, options
from holdfast.tasks.bird import log_mel, mel_filters

RATE = 8_000


def write(path, samples, width=2):
    with wave.open(str(path), "wb") as file:
        file.setparams((1, width, RATE, 0, "NONE", ""))
        file.writeframes(np.asarray(samples).astype("<i2" if width == 2 else "u1").tobytes())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "labels.csv").write_text(
        "itemid,datasetid,hasbird\n" + "".join(f"c{n},ff,{n % 2}\n" for n in range(10))
    )
    for number in range(10):
        write(tmp_path / f"c{number}.wav", np.random.default_rng(number).normal(0, 1000, RATE))
    return tmp_path


def test_every_clip_is_in_one_split_with_its_class(folder):
    task = options("bird", folder=str(folder), seconds=1.0).load()
    sizes = {split: len(task.data[split]) for split in task.spec.splits}
    assert sizes == {"train": 6, "validation": 2, "test": 2}
    classes = torch.cat([task.data[split].targets for split in sizes])
    assert classes.bincount().tolist() == [5, 5]
    batch = task.train_batch(0, 4, seed=0)
    assert batch.inputs.shape == (49, 4, 40)
    flat = task.data["train"].inputs.flatten(0, 1)
    torch.testing.assert_close(flat.mean(0), torch.zeros(40), atol=1e-4, rtol=0)
    torch.testing.assert_close(flat.std(0), torch.ones(40), atol=0.01, rtol=0)


def test_the_energy_of_a_tone_is_in_its_band_and_parsevals():
    """A tone of 1 kHz: the band with the largest filter there; and (1) is the windowed signal's DFT."""
    time = np.arange(RATE) / RATE
    features = log_mel(np.sin(2 * np.pi * 1000 * time), RATE, bands=20)
    filters = mel_filters(161, RATE, 20)
    assert features.mean(0).argmax() == filters[:, 40].argmax()  # bin 40 of 161 is 1 kHz
    assert (filters.sum(0)[1:-1] <= 1 + 1e-9).all()


def test_a_short_clip_is_filled_up_with_silence(folder):
    write(folder / "c3.wav", np.zeros(RATE // 2))
    assert BirdAudio(folder=folder, seconds=1.0).load().train_batch(0, 6, seed=0).inputs.shape[0] == 49


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda folder: (folder / "labels.csv").unlink(), "no table"),
        (lambda folder: (folder / "c4.wav").unlink(), "lists the clip c4"),
        (lambda folder: (folder / "c4.wav").write_bytes(b"no wave"), "not a wave file"),
        (lambda folder: write(folder / "c4.wav", np.zeros(RATE), width=1), "expected 16 bits per sample, got 8"),
        (lambda folder: (folder / "labels.csv").write_text("itemid,hasbird\nc1,maybe\n"), "line 2"),
        (lambda folder: (folder / "labels.csv").write_text("itemid,hasbird\nc1,1\n"), "at least 5"),
    ],
)
def test_what_is_wrong_is_named(folder, break_it, says):
    break_it(folder)
    with pytest.raises(DataError, match=says):
        BirdAudio(folder=folder, seconds=1.0).load()


def test_impossible_settings_are_refused(folder):
    with pytest.raises(SettingError, match="parts"):
        BirdAudio(folder=folder, parts=(0.7, 0.3)).load()
    with pytest.raises(SettingError, match="window"):
        BirdAudio(folder=folder, window=0.0).load()
    with pytest.raises(DataError, match="is not a folder"):
        BirdAudio(folder=folder / "nowhere").load()
