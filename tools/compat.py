"""Run the engine's agreement suite on the oldest and newest supported torch, numpy and llvmlite.

    make compat                                     or: python tools/compat.py [--large] [--tests PATH ...]

The ranges are those of pyproject.toml. Each case changes one package of the environment that runs this script, or all
to their oldest: the package goes into a temporary folder in front of the import path, and nothing installed changes.
A torch that comes with CUDA libraries (gigabytes) is skipped unless --large asks for it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "numpy", "llvmlite")
SUITE = ["tests/engine", "tests/laws"]
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--ignore-installed", "--only-binary", ":all:"]
PROBE = "import torch, numpy, llvmlite; print(torch.__version__, numpy.__version__, llvmlite.__version__)"


class Skipped(Exception):
    """Why a case is not run."""


def ranges() -> dict[str, str]:
    """What pyproject.toml asks of each package: {"numpy": ">=1.26", ...}."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = (re.fullmatch(r"([\w-]+)(.*)", line) for line in project["dependencies"])
    return {match[1]: match[2] for match in found if match is not None and match[1] in PACKAGES}


def oldest(wanted: str) -> str:
    """The first release of a range: ">=1.26,<3" gives "1.26.0"."""
    lower = re.search(r">=([\d.]+)", wanted)
    assert lower is not None, f"{wanted} has no lower bound"
    return ".".join([*lower[1].split("."), "0", "0"][:3])


def resolved(*requirements: str) -> dict[str, str]:
    """Names and versions that pip would install, without installing them."""
    done = subprocess.run(
        [*PIP, "--dry-run", "--report", "-", *requirements], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Skipped(f"pip finds no {' '.join(requirements)} for this Python and platform")
    chosen = (item["metadata"] for item in json.loads(done.stdout)["install"])
    return {item["name"].lower(): item["version"] for item in chosen}


def cases() -> dict[str, dict[str, str]]:
    """What each case changes: {"numpy oldest": {"numpy": "1.26.0"}, ...}."""
    wanted = ranges()
    found: dict[str, dict[str, str]] = {"as installed": {}}
    for name in PACKAGES:
        found[f"{name} oldest"] = {name: oldest(wanted[name])}
        found[f"{name} newest"] = {name: resolved("--no-deps", f"{name}{wanted[name]}")[name]}
    found["all oldest"] = {name: oldest(wanted[name]) for name in PACKAGES}
    installed = {name: version(name).partition("+")[0] for name in PACKAGES}
    return {case: {k: v for k, v in changed.items() if v != installed[k]} for case, changed in found.items()}


def run(changed: dict[str, str], tests: list[str], large: bool) -> tuple[list[str], str, bool]:
    """The versions of a case, how its tests went, and whether they passed."""
    exact = [f"{name}=={number}" for name, number in changed.items()]
    if "torch" in changed and not large:
        cuda = [name for name in resolved(*exact) if name.startswith(("nvidia-", "cuda-"))]
        if cuda:
            raise Skipped(f"torch {changed['torch']} needs {len(cuda)} packages of CUDA, gigabytes; pass --large")
    with tempfile.TemporaryDirectory(prefix="holdfast-compat-") as folder:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([f"{folder}/packages", str(ROOT / "src")]),
            "HOLDFAST_CACHE": f"{folder}/cache",
        }
        options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "check": False}
        extra = [] if "torch" in changed else ["--no-deps"]
        packages = [*PIP, "--target", f"{folder}/packages", *extra, *exact]
        if exact and (failed := subprocess.run(packages, **options)).returncode:
            return ["?"] * 3, failed.stderr.splitlines()[-1], False
        probe = subprocess.run([sys.executable, "-c", PROBE], **options)
        if probe.returncode:
            return ["?"] * 3, probe.stderr.splitlines()[-1], False
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", *tests], **options
        )
    if done.returncode:
        print(done.stdout[-20_000:], done.stderr[-2_000:], file=sys.stderr)
    return probe.stdout.split(), done.stdout.splitlines()[-1].strip("= "), done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the engine's tests on the oldest and newest supported packages.")
    parser.add_argument("--large", action="store_true", help="also run a torch that brings gigabytes of CUDA libraries")
    parser.add_argument("--only", metavar="TEXT", default="", help="run the cases whose name contains TEXT")
    parser.add_argument("--tests", nargs="+", default=SUITE, help=f"what pytest runs (default: {' '.join(SUITE)})")
    arguments = parser.parse_args()
    print(
        f"| {'case':16} | {'torch':11} | {'numpy':7} | {'llvmlite':8} | result |",
        "|---" * 5 + "|",
        sep="\n",
        flush=True,
    )
    passed, seen = True, {}
    for name, changed in cases().items():
        if arguments.only not in name:
            continue
        start = time.monotonic()
        try:
            same = seen.setdefault(tuple(changed.items()), name)
            if same != name:
                raise Skipped(f"the same as {same!r}")
            versions, result, good = run(changed, arguments.tests, arguments.large)
            result = f"{result}, {time.monotonic() - start:.0f} s in all"
        except Skipped as reason:
            versions, result, good = [changed.get(package, "") for package in PACKAGES], f"skipped: {reason}", True
        passed = passed and good
        torch, numpy, llvmlite = versions
        print(f"| {name:16} | {torch:11} | {numpy:7} | {llvmlite:8} | {result} |", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
