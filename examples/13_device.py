"""Put a network on a microcontroller: train, export to C, run on an emulated Cortex-M4F, and compare with Python.

The task is HAR-2: from 128 steps of a phone's sensors, tell two groups of activities apart. The data are read, not
downloaded: ``holdfast data har`` says where to get them. Without them the program makes up sensor signals of two
frequencies, and says so. The emulator is qemu; its board, linker script and ``main`` are in tools/device.

    python examples/13_device.py [updates] [sequences]     writes device.png
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from torch import nn

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import holdfast
from holdfast.errors import DataError
from holdfast.export import network_of
from holdfast.tasks.har import windows
from holdfast.train import SequenceModel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools" / "device"))
import qemu  # type: ignore[import-not-found]

Split = tuple[np.ndarray, np.ndarray]  # signals (sequences, time, channels), and 0 or 1 for each


def signals() -> tuple[str, Split, Split]:
    """The task's name, its training and its test sequences."""
    try:
        (xs, labels, _), (test, test_labels, _) = windows()
        return "HAR-2", (xs, labels % 2), (test, test_labels % 2)
    except DataError as error:
        print(f"No HAR data ({error}), so two frequencies in noise are told apart instead.")
    rng, parts = np.random.default_rng(0), []
    for count in (2000, 500):
        classes = rng.integers(0, 2, count)
        phase, speed = rng.uniform(0, 6.3, (2, count, 1, 1))
        waves = np.sin((0.2 + 0.1 * classes[:, None, None] + 0.005 * speed) * np.arange(128)[:, None] + phase)
        parts.append(((waves + rng.normal(0, 1, (count, 128, 9))).astype(np.float32), classes))
    return "made-up signals", parts[0], parts[1]


def train(xs: torch.Tensor, classes: torch.Tensor, updates: int) -> SequenceModel:
    torch.manual_seed(0)
    model = SequenceModel(holdfast.SGORNN(xs.shape[2], 128), nn.Linear(128, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, updates)
    for _ in range(updates):
        rows = torch.randint(len(xs), (100,))
        logits, _ = model(xs[rows].transpose(0, 1))
        loss = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], classes[rows])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return model.eval()


def main(updates: int = 1000, sequences: int = 60) -> dict[str, Any]:
    if missing := qemu.missing_tools():
        print(f"The device needs {', '.join(missing)}. Install: {qemu.INSTALL}")
        return {}
    name, (xs, classes), (test, test_classes) = signals()
    mean, scale = (torch.tensor(it, dtype=torch.float32) for it in (xs.mean((0, 1)), xs.std((0, 1))))
    model = train((torch.from_numpy(xs) - mean) / scale, torch.from_numpy(classes).float(), updates)
    with torch.no_grad():
        python = model(((torch.from_numpy(test) - mean) / scale).transpose(0, 1))[0][:, 0].numpy()
    accuracy, size = ((python > 0) == test_classes).mean(), sum(weight.numel() for weight in model.parameters())
    print(f"{name}: SGORNN with {size:,} parameters, accuracy {accuracy:.3f} on {len(test):,} test sequences in Python")
    network = dataclasses.replace(network_of(model), answer="binary", mean=mean, scale=scale)  # takes in raw signals
    some, measured = np.linspace(0, len(test) - 1, sequences).astype(int), {}
    figure, axes = plt.subplots(figsize=(5, 4.5))
    for kind, options in (("float32", {}), ("int8", {"int8": True, "calibrate": xs[:256]})):
        one = measured[kind] = qemu.on_device(network, test[some], Path(kind), **options)
        same = ((one.outputs > 0) == (python[some] > 0)).sum()
        print(
            f"{kind:8} {same} of {sequences} classes as in Python; model {one.model_flash:,} bytes of flash, "
            f"{one.ram:,} of RAM; {one.instructions:,.0f} instructions per step"
        )
        axes.plot(python[some], one.outputs, "o", markersize=4, alpha=0.7, label=kind)
    axes.axline((0, 0), slope=1, color="black", linewidth=0.8)
    axes.set(xlabel="output in Python", ylabel="output on the device", title=f"{name}, {sequences} test sequences")
    axes.legend()
    figure.savefig("device.png", dpi=120, bbox_inches="tight")
    return {"accuracy": accuracy, "python": python[some], **measured}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
