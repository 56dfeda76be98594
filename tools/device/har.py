"""HAR-2 on a Cortex-M4F: networks trained, exported to C, run in qemu, and compared with Python.

    make device                                   trains what is missing into device-output/, then compares classes
    .venv/bin/python tools/device/har.py --sequences 20

The device takes in the raw signals of the phone; they are standardised inside.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.errors import DataError
from holdfast.export import Network, c, network_of
from holdfast.runs import load_run
from holdfast.tasks.har import CHANNELS, windows

ROOT = Path(__file__).parents[2]
CELLS = {  # epochs, and what differs from the defaults; as in studies/s3/har2.toml where that says
    "sgornn": (20, ["--hidden", "128"]),
    "fastrnn": (10, ["--hidden", "128", "--set", "cell.options.nonlinearity=relu"]),
    "lstm": (10, ["--hidden", "64"]),
    "fastgrnn": (
        20,
        ["--hidden", "80", "--set", "cell.options.input_rank=3", "--set", "cell.options.recurrent_rank=8"],
    ),
}
PEOPLE = 4  # held out of the training set, to choose the epoch


def _neighbour(name: str) -> Any:
    """Another script of this folder."""
    spec = importlib.util.spec_from_file_location(f"device_{name}", Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


qemu = _neighbour("qemu")


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One network on the device: ``measured`` there, and ``same`` of ``sequences`` classes as in Python."""

    cell: str
    kind: str
    parameters: int
    measured: Any
    same: int
    sequences: int
    right: int
    accuracy: float  # on the whole test set, in Python


def trained(cell: str, folder: Path) -> Path:
    """The run of a cell on HAR-2, trained if it is not there yet."""
    run, (epochs, options) = folder / cell, CELLS[cell]
    if not (run / "best.safetensors").is_file() or not (run / "curve.png").is_file():
        print(f"Training {cell} for {epochs} epochs into {run} ...", flush=True)
        command = [sys.executable, "-m", "holdfast", "train", "har", "--cell", cell, "--epochs", str(epochs)]
        command += ["--optimiser", "adam", "--lr", "0.003", "--batch", "100", "--seed", "1"]
        command += ["--set", f"task.validation={PEOPLE}", "--run", str(run), "--quiet", *options]
        subprocess.run(command, check=True)
    return run


def with_signals(run: Path) -> tuple[Any, Network, np.ndarray, np.ndarray, np.ndarray]:
    """The run; its network for raw signals; calibration signals; test signals and their classes."""
    loaded = load_run(run)
    (xs, _, people), (test, labels, _) = windows()
    kept = ~np.isin(people, np.unique(people)[-PEOPLE:])
    mean, scale = xs[kept].mean(axis=(0, 1), dtype=np.float64), xs[kept].std(axis=(0, 1), dtype=np.float64)
    scaled = {"mean": torch.tensor(mean, dtype=torch.float32), "scale": torch.tensor(scale, dtype=torch.float32)}
    network = dataclasses.replace(network_of(loaded), **scaled, columns=CHANNELS)
    return loaded, network, xs[kept][:256], test, labels % 2


def on_device(cell: str, folder: Path, count: int) -> list[Row]:
    """A cell in float32 and in int8, on ``count`` test sequences from all over the test set."""
    run, network, calibration, test, classes = with_signals(trained(cell, folder))
    which = np.linspace(0, len(test) - 1, count).astype(int)
    assert network.mean is not None
    assert network.scale is not None
    signals = torch.from_numpy(test[which].swapaxes(0, 1)).to(network.mean.dtype)
    with torch.no_grad():
        expected = run.model((signals - network.mean) / network.scale)[0][:, 0].numpy()
    parameters = sum(weight.numel() for weight in run.model.parameters())
    accuracy = c(run, folder / f"{cell}.c", int8=True, force=True).score  # on the whole test set, in Python
    rows = []
    for kind, options in (("float32", {}), ("int8", {"int8": True, "calibrate": calibration})):
        measured = qemu.on_device(network, test[which], folder / f"{cell}-{kind}", **options)
        same = int((measured.classes == (expected > 0)).sum())
        right = int((measured.classes == classes[which]).sum())
        if kind == "float32":
            np.testing.assert_allclose(measured.outputs, expected, rtol=1e-3, atol=1e-3)
        rows.append(Row(cell, kind, parameters, measured, same, count, right, accuracy[kind]))
    return rows


def require_tools() -> None:
    """Leave with what to install."""
    if missing := qemu.missing_tools():
        sys.exit(f"The device needs {', '.join(missing)}. Install: {qemu.INSTALL}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=50, help="test sequences to run; default: 50, at most 600")
    parser.add_argument("--folder", type=Path, default=ROOT / "device-output", help="for runs and programs")
    arguments = parser.parse_args()
    require_tools()
    different = 0
    for cell in CELLS:
        try:
            rows = on_device(cell, arguments.folder, arguments.sequences)
        except DataError as error:
            sys.exit(str(error))
        for row in rows:
            m = row.measured
            print(
                f"{row.cell:8} {row.kind:8} {row.same} of {row.sequences} classes as in Python, "
                f"{row.right} right; flash {m.flash:,} bytes, RAM {m.ram:,} bytes, "
                f"{m.instructions:,.0f} instructions per step"
            )
            different += row.sequences - row.same if row.kind == "float32" else 0
    sys.exit(f"{different} classes differ from Python's." if different else 0)


if __name__ == "__main__":
    main()
