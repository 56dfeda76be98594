"""A model on an emulated Cortex-M4F: built by arm-none-eabi-gcc, run by qemu-system-arm on the board mps2-an386.

    on_device(model, sequences, folder)  →  Measured(classes, outputs, flash, instructions, ...)

Instructions: with ``-icount shift=0`` qemu's clock advances by 1 ns per instruction, and the board's SysTick counts
every 40 ns of it. main.c first measures a loop of 3,000,000 instructions, and ``on_device`` refuses a wrong count.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.export import CReport, c

HERE = Path(__file__).parent
TOOLS = ("arm-none-eabi-gcc", "arm-none-eabi-size", "qemu-system-arm")
INSTALL = "apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm"
CPU = ("-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard")
FLAGS = (
    "-std=c99",
    "-O2",
    "-ffp-contract=fast",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffunction-sections",
    "-fdata-sections",
)
TICK = 40  # instructions
LOOP = 3_000_000  # instructions of the loop that checks the count


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """What a model did on the device.

    Args:
        classes, outputs: of each sequence; the first output at its last step.
        model_flash: bytes of model.c in flash: code and constants.
        flash: bytes of the whole program in flash, with libm and the harness, without the test sequences.
        ram: bytes of the model's state.
        stack: bytes of stack that the program used at most.
        instructions: of one step.
        report: of the export.
    """

    classes: np.ndarray
    outputs: np.ndarray
    model_flash: int
    flash: int
    ram: int
    stack: int
    instructions: float
    report: CReport


def missing_tools() -> list[str]:
    """The programs that are not installed."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def on_device(model: Any, sequences: np.ndarray, folder: Path, **options: Any) -> Measured:
    """Export, build and run.

    Args:
        model: for ``holdfast.export.c``, with classes as its answer.
        sequences: (sequences, time, inputs), in the units that the model takes in.
        folder: for all files.
        options: of ``holdfast.export.c``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report = c(model, folder / "model.c", name="model", force=True, **options)
    _write_sequences(sequences, folder / "sequences.h")
    program = folder / "program.elf"
    sources = [str(folder / "model.c"), str(HERE / "main.c"), str(HERE / "startup.c")]
    objects = [str(folder / Path(source).with_suffix(".o").name) for source in sources]
    for source, target in zip(sources, objects, strict=True):
        _run("arm-none-eabi-gcc", *CPU, *FLAGS, f"-I{folder}", f"-I{HERE}", "-c", source, "-o", target)
    link = ("-nostartfiles", "--specs=nosys.specs", "-Wl,--gc-sections", f"-T{HERE / 'board.ld'}")
    _run("arm-none-eabi-gcc", *CPU, *link, *objects, "-lm", "-o", str(program))
    sizes = _sections(program)
    said = _run(
        "qemu-system-arm", "-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none",
        "-semihosting-config", "enable=on,target=native", "-icount", "shift=0", "-kernel", str(program),
    )  # fmt: skip
    return _parsed(said, sequences.shape[1], sizes, _code_and_constants(Path(objects[0])), report)


def _parsed(said: str, steps: int, sizes: dict[str, int], model_flash: int, report: CReport) -> Measured:
    lines = [line.split() for line in said.splitlines()]
    single = {words[0]: int(words[1]) for words in lines if words and words[0] in ("loop", "ticks", "stack")}
    answers = [words[1:] for words in lines if words and words[0] == "class"]
    if {"loop", "ticks", "stack"} - set(single):
        raise RuntimeError(f"the device stopped early; it said: {said[-500:]}")
    counted = single["loop"] * TICK
    if abs(counted - LOOP) > 0.001 * LOOP:
        raise RuntimeError(f"the loop of {LOOP:,} instructions was counted as {counted:,}; -icount does not work here")
    bits = np.array([int(word) for _, word in answers], np.uint32)
    return Measured(
        classes=np.array([int(word) for word, _ in answers]),
        outputs=bits.view(np.float32),
        model_flash=model_flash,
        flash=sizes[".text"] + sizes.get(".ARM.exidx", 0) + sizes.get(".data", 0),
        ram=report.ram,
        stack=single["stack"],
        instructions=single["ticks"] * TICK / (len(answers) * steps),
        report=report,
    )


def _write_sequences(sequences: np.ndarray, path: Path) -> None:
    count, steps, _ = sequences.shape
    numbers = ",\n".join(", ".join(f"{np.float32(v)!s}f" for v in row) for row in sequences.reshape(count * steps, -1))
    path.write_text(
        f"#define SEQUENCES {count}\n#define STEPS {steps}\n"
        '__attribute__((section(".sequences"))) static const float sequences[] = {\n' + numbers + "};\n"
    )


def _sections(path: Path) -> dict[str, int]:
    rows = (line.split() for line in _run("arm-none-eabi-size", "-A", str(path)).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 3 and row[1].isdigit()}


def _code_and_constants(path: Path) -> int:
    return sum(size for name, size in _sections(path).items() if name.startswith((".text", ".rodata", ".data")))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout + done.stderr
