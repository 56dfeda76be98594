"""Where a number was measured: versions and hardware, and nothing that says whose machine it is."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
from pathlib import Path

import torch

__all__ = ["Environment", "environment"]

_PACKAGES = ("torch", "numpy", "llvmlite", "lightning-fabric")


@dataclasses.dataclass(frozen=True)
class Environment:
    """Versions and hardware.

    Args:
        versions: by package, Python's and Holdfast's own among them.
        system: operating system and architecture.
        cpu: the processor's model.
        cores: that this process may use.
        threads: that PyTorch uses.
        accelerators: models of the GPUs that PyTorch sees.

    Example:
        >>> print(Environment({"torch": "2.13.0"}, "Linux x86_64", "a CPU", 2, 1).sentence)
        a CPU, 2 cores, 1 thread, Linux x86_64; torch 2.13.0
    """

    versions: dict[str, str]
    system: str
    cpu: str
    cores: int
    threads: int
    accelerators: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        hardware = ", ".join([self.cpu, _count(self.cores, "core"), _count(self.threads, "thread"), *self.accelerators])
        return f"{hardware}, {self.system}; {', '.join(f'{name} {it}' for name, it in self.versions.items())}"


def environment() -> Environment:
    """This machine and what is installed on it, as far as results depend on it.

    Example:
        >>> environment().cores >= 1
        True
    """
    versions = {"holdfast": _version("holdfast"), "python": platform.python_version()}
    versions |= {name: _version(name) for name in _PACKAGES}
    accelerators = tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return Environment(
        versions={name: version for name, version in versions.items() if version},
        system=f"{platform.system()} {platform.machine()}",
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        accelerators=accelerators,
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine() or "unknown CPU"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
