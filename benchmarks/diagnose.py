"""What a diagnosis costs: seconds, memory and the size of the page. Writes a dated report here.

    python benchmarks/diagnose.py            H = 256, T = 1,000, 64 sequences; some minutes, the machine should be idle
    python benchmarks/diagnose.py --quick    small sizes, to see that it runs

Each network is diagnosed in a process of its own, so that the memory is its own: the largest resident size, with Python
and PyTorch. The time is that of ``holdfast.diagnose`` and of writing the page, without imports.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET_SECONDS, TARGET_GB, TARGET_MB = 60, 2, 8
NETWORKS = ("torch.nn.RNN", "torch.nn.GRU", "torch.nn.LSTM", "holdfast.SGORNN")


def diagnosed(name: str, hidden: int, steps: int, sequences: int, threads: int) -> dict[str, float]:
    """One diagnosis in this process."""
    import resource

    import torch

    import holdfast

    torch.set_num_threads(threads)
    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            home = torch.nn if name.startswith("torch") else holdfast
            self.rnn = getattr(home, name.rpartition(".")[2])(8, hidden)
            self.readout = torch.nn.Linear(hidden, 4)

        def forward(self, xs: torch.Tensor) -> torch.Tensor:
            return self.readout(self.rnn(xs)[0])

    model, xs = Model(), torch.randn(steps, sequences, 8)
    targets = torch.randint(0, 4, (steps, sequences))
    begin = time.perf_counter()
    diagnosis = holdfast.diagnose(model, xs, targets, lr=0.1, progress=True)
    with tempfile.TemporaryDirectory() as folder:
        size = diagnosis.save(Path(folder) / "page.html").stat().st_size
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"seconds": seconds, "gb": peak, "mb": size / 1e6, "findings": len(diagnosis.findings)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--output", type=Path, help="where to write the report; default: a dated file in benchmarks/")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: one per core")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each network; default: 3")
    parser.add_argument("--one", nargs=4, metavar=("NAME", "HIDDEN", "STEPS", "SEQUENCES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, *sizes = arguments.one
        print(json.dumps(diagnosed(name, *map(int, sizes), arguments.threads)))
        return
    from holdfast.runs.environment import environment

    today, load = datetime.date.today().isoformat(), os.getloadavg()[0]
    sizes = ("32", "60", "8") if arguments.quick else ("256", "1000", "64")
    turns = [name for name in NETWORKS for _ in range(1 if arguments.quick else arguments.rounds)]
    random.Random(0).shuffle(turns)  # a busy moment hits all alike
    found: dict[str, list[dict[str, float]]] = {name: [] for name in NETWORKS}
    for name in turns:
        command = [sys.executable, __file__, "--one", name, *sizes, "--threads", str(arguments.threads)]
        environment_ = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment_)
        found[name].append(json.loads(done.stdout))
        print(name, found[name][-1], flush=True)
    lines = [
        f"# What a diagnosis costs, {today}",
        "",
        f"{environment().sentence}; load before the run {load:.2f}.",
        "",
        f"H = {sizes[0]}, T = {sizes[1]}, {sizes[2]} sequences, 8 features, a class at every step, a learning rate. "
        f"The largest of {len(found[NETWORKS[0]])} measurements, {arguments.threads} threads. Targets: at most "
        f"{TARGET_SECONDS} s, {TARGET_GB} GB and a page of {TARGET_MB} MB. Written by `python benchmarks/diagnose.py`.",
        "",
        "| network | seconds | memory, GB | page, MB | targets |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, every in found.items():
        seconds, gb, mb = (max(one[key] for one in every) for key in ("seconds", "gb", "mb"))
        met = "met" if seconds <= TARGET_SECONDS and gb <= TARGET_GB and mb <= TARGET_MB else "missed"
        lines.append(f"| {name} | {seconds:.1f} | {gb:.2f} | {mb:.2f} | {met} |")
    print("\n".join(lines))
    if not arguments.quick or arguments.output:
        target = arguments.output or Path(__file__).parent / f"{today}-diagnose.md"
        target.write_text("\n".join(lines) + "\n")
        print(f"written to {target}")


if __name__ == "__main__":
    main()
