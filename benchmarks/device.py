"""Flash, RAM and instructions of exported networks on an emulated Cortex-M4F. Writes a dated report here.

    python benchmarks/device.py            200 test sequences, some five minutes; the first time trains four networks
    python benchmarks/device.py --quick    10 sequences, no report

Nothing here is timed: sizes are those of the program, and instructions are counted, so that the machine may be busy.
Needs arm-none-eabi-gcc and qemu-system-arm: see ``make device``.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NAMES = {
    "sgornn": "SGORNN, 128 units, relu",
    "fastrnn": "FastRNN, 128 units, relu",
    "lstm": "LSTM, 64 units",
    "fastgrnn": "FastGRNN, 80 units, ranks 3 and 8",
}
PUBLISHED = """\
| FastGRNN (low rank, sparse, quantised) | 3 KB | 95.59% |
| FastGRNN-LSQ (none of these) | 29 KB | 95.38% |
| FastRNN | 29 KB | 94.50% |
| RNN | 29 KB | 91.31% |
| GRU | 71 KB | 93.62% |
| LSTM | 74 KB | 93.65% |"""


def _har() -> Any:
    spec = importlib.util.spec_from_file_location("device_har", ROOT / "tools/device/har.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def report(har: Any, folder: Path, count: int) -> list[str]:
    compiler, emulator = (
        subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
        for tool in ("arm-none-eabi-gcc", "qemu-system-arm")
    )
    lines = [
        f"# HAR-2 on a Cortex-M4F, {datetime.date.today().isoformat()}",
        "",
        f"{compiler}; {emulator}, board mps2-an386. Flags: `{' '.join((*har.qemu.CPU, *har.qemu.FLAGS))}`.",
        "",
        f"{count} sequences from all over the test set, 128 steps of 9 raw signals each, run on the emulated device. "
        "Written by `python benchmarks/device.py`.",
        "",
        "- *Constants*: weights, tables and labels. *Flash*: the whole program with code, `libm` and the test harness, "
        "without the test sequences.",
        "- *RAM*: the state, scratch memory included. *Stack*: what the whole program used at most.",
        f"- *Instructions per step*: by qemu's `-icount`; a loop of {har.qemu.LOOP:,} is counted to 0.1%.",
        "- *As in Python*: sequences with the class that the float32 model has in Python. *Accuracy*: of this file's "
        "weights on all 2,947 test sequences, in Python.",
        "- The networks were trained for 10 epochs (SGORNN, FastGRNN: 20), not for the 300 of the paper, and the best "
        "epoch was chosen on four held-out people.",
        "",
        "| network | parameters | weights | constants | flash | RAM | stack | multiply-adds per step "
        "| instructions per step | as in Python | accuracy |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cell in har.CELLS:
        for row in har.on_device(cell, folder, count):
            m = row.measured
            lines.append(
                f"| {NAMES[cell]} | {row.parameters:,} | {row.kind} | {m.report.flash:,} | {m.flash:,} | {m.ram:,} | "
                f"{m.stack:,} | {m.report.multiply_adds:,} | {m.instructions:,.0f} | {row.same} of {row.sequences} | "
                f"{row.accuracy:.2%} |"
            )
            print(lines[-1], flush=True)
    lines += [
        "",
        "In int8, matrices have one scale per row and the angles of SGORNN's rotations have 8 bits; biases and states "
        "stay in float32. A Cortex-M4F has no instruction that multiplies int8 by float32, so int8 saves flash and "
        "costs instructions.",
        "",
        "## Published sizes",
        "",
        "EdgeML's, HAR-2: Kusupati et al. (2018), *FastGRNN*, Table 3, as printed there, after 300 epochs. Their model "
        "size stands beside *constants* above.",
        "",
        "| network | model size | accuracy |",
        "| --- | --- | --- |",
        PUBLISHED,
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 sequences, no report")
    parser.add_argument("--output", type=Path, help="where to write the report; default: a dated file in benchmarks/")
    parser.add_argument("--folder", type=Path, default=ROOT / "device-output", help="for runs and programs")
    arguments = parser.parse_args()
    har = _har()
    if missing := har.qemu.missing_tools():  # `make bench` goes on without
        print(f"not run: it needs {', '.join(missing)}. Install: {har.qemu.INSTALL}")
        return
    lines = report(har, arguments.folder, 10 if arguments.quick else 200)
    if not arguments.quick or arguments.output:
        today = datetime.date.today().isoformat()
        target = arguments.output or Path(__file__).parent / f"{today}-device.md"
        target.write_text("\n".join(lines) + "\n")
        print(f"written to {target}")


if __name__ == "__main__":
    main()
