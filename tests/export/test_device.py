"""Exported C on an emulated Cortex-M4F."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import holdfast as hf
from helpers.scripts import script
from holdfast.export import network_of
from holdfast.train import SequenceModel

qemu = script("tools/device/qemu.py")
needs_a_device = pytest.mark.skipif(
    bool(qemu.missing_tools()), reason=f"no {', '.join(qemu.missing_tools())}: {qemu.INSTALL}"
)


@needs_a_device
@pytest.mark.slow
def test_a_device_answers_as_python_does(tmp_path):
    """Classes and scores of a network with every kind of statement, float32 and int8, and the count of instructions."""
    torch.manual_seed(0)
    model = SequenceModel(hf.SGORNN(4, 32, num_layers=2, backend="reference"), nn.Linear(32, 3)).eval()
    with torch.no_grad():
        for weight in model.rnn.l0.parameters():
            weight.add_(0.5 * torch.randn_like(weight))
    scale = {"mean": torch.full((4,), 3.0, dtype=torch.float32), "scale": torch.full((4,), 2.0, dtype=torch.float32)}
    network = dataclasses.replace(network_of(model), answer="classes", labels=("a", "b", "c"), **scale)
    sequences = (3 + 2 * np.random.default_rng(0).normal(size=(6, 20, 4))).astype(np.float32)
    with torch.no_grad():
        answers = model(torch.from_numpy((sequences.astype(np.float64) - 3) / 2).transpose(0, 1))[0].numpy()
    exact = qemu.on_device(network, sequences, tmp_path / "float32")
    np.testing.assert_array_equal(exact.classes, answers.argmax(axis=1))
    np.testing.assert_allclose(exact.outputs, answers[:, 0], rtol=1e-4, atol=1e-4)
    rounded = qemu.on_device(network, sequences, tmp_path / "int8", int8=True, calibrate=sequences)
    np.testing.assert_allclose(rounded.outputs, answers[:, 0], atol=0.1)
    assert rounded.model_flash < exact.model_flash < exact.flash
    assert exact.report.multiply_adds < exact.instructions < 20 * exact.report.multiply_adds
    assert exact.stack < 1024


def test_a_device_that_faults_is_reported():
    """A program that stops before its last line is an error, not a short list of answers."""
    with pytest.raises(RuntimeError, match="stopped early"):
        qemu._parsed("loop 75000\nclass 1 0\nfault\n", 1, {".text": 1}, 1, None)
    with pytest.raises(RuntimeError, match="3,000,000 instructions was counted as 2,000,000"):
        qemu._parsed("loop 50000\nclass 1 0\nticks 1\nstack 1\n", 1, {".text": 1}, 1, None)


def test_without_the_tools_it_says_what_to_install(monkeypatch):
    har = script("tools/device/har.py")
    monkeypatch.setattr(har.qemu, "missing_tools", lambda: ["qemu-system-arm"])
    with pytest.raises(SystemExit, match=r"needs qemu-system-arm\. Install: apt-get install gcc-arm-none-eabi"):
        har.require_tools()
