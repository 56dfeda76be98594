"""What a kernel takes of a GPU, as Triton's own compiler counts it. No GPU is needed.

resources(kernel, SM_80)  →  Resources(registers, spills, shared)
"""

from __future__ import annotations

import dataclasses
import functools
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from holdfast.engine.targets.triton.emit import Kernel

__all__ = ["TARGETS", "Resources", "compiled", "largest_shared", "resources", "target_here"]

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED = {"80": 163 << 10, "90": 227 << 10, "gfx942": 64 << 10}  # bytes that one program may have
OPTIONS = {"num_stages": 1, "enable_fp_fusion": True}  # a pipeline must not load scratch memory before it is written


@dataclasses.dataclass(frozen=True)
class Resources:
    """``registers`` of a thread; ``spills``: bytes (NVIDIA) or registers (AMD) that a thread keeps in memory instead;
    ``shared``: bytes of a program.
    """

    registers: int
    spills: int
    shared: int


def target_here() -> GPUTarget:
    """The GPU that this process uses."""
    return triton.runtime.driver.active.get_current_target()  # type: ignore[attr-defined]


def largest_shared(target: GPUTarget) -> int:
    """Bytes of shared memory that one program may have; of a GPU that is not listed, what all of them have."""
    return SHARED.get(str(target.arch), 48 << 10)


def compiled(kernel: Kernel, target: GPUTarget) -> Any:
    """The kernel as Triton compiles it, with pointers and strides aligned as tensors usually are."""
    names = list(kernel.parameters)
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if kernel.parameters[name] != "i32"}
    source = ASTSource(kernel.function, dict(kernel.parameters), {}, aligned)
    return triton.compile(source, target=target, options={"num_warps": kernel.shape.warps, **OPTIONS})


def resources(kernel: Kernel, target: GPUTarget) -> Resources:
    known = kernel.__dict__.setdefault("_resources", {})
    if target not in known:
        made = compiled(kernel, target)
        read = _of_nvidia if target.backend == "cuda" else _of_amd
        known[target] = read(made, target)
    return known[target]


def _of_nvidia(made: Any, target: GPUTarget) -> Resources:
    """From the assembler's report."""
    suffix = "a" if target.arch >= 90 else ""  # as Triton assembles it
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(made.asm["ptx"])
        command = [_assembler(), "-v", f"--gpu-name=sm_{target.arch}{suffix}", str(source), "-o", f"{source}.o"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return Resources(_number(r"Used (\d+) registers", said), _number(r"(\d+) bytes spill stores", said), _shared(made))


def _of_amd(made: Any, target: GPUTarget) -> Resources:
    """From the code object's metadata."""
    text = made.asm["amdgcn"]
    return Resources(
        _number(r"\.vgpr_count:\s+(\d+)", text), _number(r"\.vgpr_spill_count:\s+(\d+)", text), _shared(made)
    )


def _shared(made: Any) -> int:
    return int(made.metadata.shared)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"the compiler's report has no {pattern!r}: {text[-500:]}")
    return int(found[1])


@functools.cache
def _assembler() -> str:
    """NVIDIA's assembler, which comes with Triton."""
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas")
