"""What a kernel takes of a GPU, as Triton's own compiler counts it. No GPU is needed.

resources(kernel, SM_80)  →  Resources(registers, spills, shared)
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from holdfast.engine.targets.triton.emit import Kernel, function_of

__all__ = ["TARGETS", "Resources", "compiled", "largest_shared", "resources", "target_here"]

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED = {"80": 163 << 10, "90": 227 << 10, "gfx942": 64 << 10}  # bytes that one program may have
OPTIONS = {"num_stages": 1, "enable_fp_fusion": True}  # nothing to load ahead: a step waits for the one before


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


def compiled(function: Any, parameters: Mapping[str, str], warps: int, target: GPUTarget) -> Any:
    """A kernel as Triton compiles it, with pointers and strides aligned as tensors usually are."""
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(parameters.values()) if kind != "i32"}
    source = ASTSource(function, dict(parameters), {}, aligned)
    return triton.compile(source, target=target, options={"num_warps": warps, **OPTIONS})


def resources(kernels: Sequence[Kernel], target: GPUTarget) -> list[Resources] | None:
    """What each kernel takes; None if one of them cannot be compiled.

    A process of its own compiles them: an assertion that fails inside the compiler ends the process.
    """
    asked = {
        "target": [target.backend, target.arch, target.warp_size],
        "kernels": [[k.name, k.text, dict(k.parameters), k.shape.warps] for k in kernels],
    }
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", __name__]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, env=environment)
    if done.returncode:
        return None
    return [Resources(*numbers) for numbers in json.loads(done.stdout.splitlines()[-1])]


def _answer(asked: dict[str, Any]) -> list[tuple[int, int, int]]:
    """What the process of ``resources`` does."""
    target, found = GPUTarget(*asked["target"]), []
    for name, text, parameters, warps in asked["kernels"]:
        made = compiled(function_of(name, text), parameters, warps, target)
        use = (_of_nvidia if target.backend == "cuda" else _of_amd)(made)
        found.append(dataclasses.astuple(use))
    return found


def _of_nvidia(made: Any) -> Resources:
    """From the machine code that would run: what a thread keeps on its stack is what did not fit into registers."""
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "kernel.cubin"
        code.write_bytes(made.asm["cubin"])
        command = [_dumper(), "--dump-resource-usage", str(code)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    stack = _number(r"STACK:(\d+)", said) + _number(r"LOCAL:(\d+)", said)
    return Resources(_number(r"REG:(\d+)", said), stack, _shared(made))


def _of_amd(made: Any) -> Resources:
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
def _dumper() -> str:
    """NVIDIA's tool that reads machine code, which comes with Triton."""
    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump")


if __name__ == "__main__":
    print(json.dumps(_answer(json.load(sys.stdin))))
