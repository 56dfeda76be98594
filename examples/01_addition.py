"""The addition problem: SGORNN and torch.nn.LSTM, side by side, in under three minutes.

A sequence holds T pairs (u_t, c_t): u_t uniform in [0, 1], c_t zero but at two marked steps, one in each half. The
answer is the sum of the two marked numbers. Always answering 1 gives a mean squared error of 1/6 = 0.167; to do better
a network must carry a number over as many as T steps. S3, §3.1.

Both networks see the same batches, take the same number of updates and answer from their last state.

    python examples/01_addition.py --steps 500 --updates 2000 --seconds 900
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

import holdfast

STEPS = 200  # T
UPDATES = 1000
SECONDS = 150.0  # of training, both networks together; whichever of the two ends first ends the run
BATCH = 64
HIDDEN = 128
VALIDATION_SEQUENCES, TEST_SEQUENCES = 256, 1000
BASELINE = 1 / 6  # always answering 1: twice the variance of a uniform number
# Both fall to 0 over the last third. The LSTM begins to learn at T = 50, where 1e-2 did better than 1e-3.
LEARNING_RATES = {"SGORNN": 1e-2, "LSTM": 1e-2}


def addition(batch: int, steps: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences (time, batch, 2) and their answers (batch, 1)."""
    numbers = torch.rand(steps, batch, generator=generator)
    half, rows = steps // 2, torch.arange(batch)
    marks = torch.zeros(steps, batch)
    marks[torch.randint(0, half, (batch,), generator=generator), rows] = 1
    marks[torch.randint(half, steps, (batch,), generator=generator), rows] = 1
    return torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(dim=0).unsqueeze(1)


def unseen(batch: int, settings: argparse.Namespace, offset: int) -> tuple[Tensor, Tensor]:
    return addition(batch, settings.steps, torch.Generator().manual_seed(settings.seed + offset))


def always_one(answers: Tensor) -> float:
    return (answers - 1).square().mean().item()


class SGORNNModel(nn.Module):
    """Scalar gates over plane rotations; the gates start with a memory as long as the sequence."""

    def __init__(self, steps: int):
        super().__init__()
        gates = holdfast.ScalarGates(clip="2alpha", horizon=steps)
        self.rnn = holdfast.SGORNN(2, HIDDEN, gates=gates)
        self.readout = nn.Linear(HIDDEN, 1)

    def forward(self, xs: Tensor) -> Tensor:
        _, h_n = self.rnn(xs, need_output=False)
        return self.readout(h_n[-1])


class LSTMModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(2, HIDDEN)
        self.readout = nn.Linear(HIDDEN, 1)

    def forward(self, xs: Tensor) -> Tensor:
        _, (h_n, _) = self.rnn(xs)
        return self.readout(h_n[-1])


class Contestant:
    """A network, its optimiser, its clock and its curve."""

    def __init__(self, name: str, model: nn.Module):
        self.name, self.model, self.lr = name, model, LEARNING_RATES[name]
        self.optimiser = torch.optim.RMSprop(model.parameters(), lr=self.lr, alpha=0.9, eps=1e-7)  # as in S3
        self.seconds, self.updates, self.curve = 0.0, 0, []

    def update(self, xs: Tensor, answers: Tensor, progress: float) -> None:
        begin = time.perf_counter()
        self.optimiser.param_groups[0]["lr"] = self.lr * min(1.0, 3 * (1 - progress))
        loss = nn.functional.mse_loss(self.model(xs), answers)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.seconds, self.updates = self.seconds + time.perf_counter() - begin, self.updates + 1

    @torch.no_grad()
    def error(self, xs: Tensor, answers: Tensor) -> float:
        return nn.functional.mse_loss(self.model(xs), answers).item()


def train(contestants: list[Contestant], settings: argparse.Namespace, console: Console) -> float:
    """Update the contestants in turn on the same batches; return the seconds it took."""
    data = torch.Generator().manual_seed(settings.seed)
    validation = unseen(VALIDATION_SEQUENCES, settings, 1)
    every, begin, elapsed = max(1, settings.updates // 40), time.perf_counter(), 0.0
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("updates", total=settings.updates)
        for update in range(settings.updates + 1):
            elapsed = time.perf_counter() - begin
            last = update == settings.updates or elapsed >= settings.seconds
            if update % every == 0 or last:
                for one in contestants:
                    one.curve.append((update, one.error(*validation)))
                errors = ", ".join(f"{one.name} {one.curve[-1][1]:.4f}" for one in contestants)
                bar.update(task, description=f"validation error: {errors}")
            if last:
                break
            xs, answers = addition(BATCH, settings.steps, data)
            for one in contestants:
                one.update(xs, answers, max(update / settings.updates, elapsed / settings.seconds))
            bar.advance(task)
    return elapsed


def result_table(contestants: list[Contestant], settings: argparse.Namespace) -> Table:
    test = unseen(TEST_SEQUENCES, settings, 2)
    caption = (
        f"mean squared error on {TEST_SEQUENCES} new sequences; always answering 1 gives {BASELINE:.3f} on average"
    )
    table = Table(title=f"Addition problem, {setting(contestants, settings)}", caption=caption)
    for name in ("cell", "parameters", "learning rate", "steps a second", "test error"):
        table.add_column(name, justify="left" if name == "cell" else "right")
    for one in contestants:
        count, speed = sum(weight.numel() for weight in one.model.parameters()), one.updates / one.seconds
        table.add_row(one.name, f"{count:,}", f"{one.lr:g}", f"{speed:.1f}", f"{one.error(*test):.5f}")
    table.add_row("always 1", "0", "", "", f"{always_one(test[1]):.5f}", style="dim")
    return table


def plot(contestants: list[Contestant], settings: argparse.Namespace, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
    for one in contestants:
        axes.plot(*zip(*one.curve, strict=True), marker=".", label=one.name)
    baseline = always_one(unseen(VALIDATION_SEQUENCES, settings, 1)[1])
    label = f"always answering 1: {baseline:.3f} on these sequences, {BASELINE:.3f} on average"
    axes.axhline(baseline, color="grey", linestyle="--", label=label)
    axes.set(
        yscale="log",
        xlabel="updates",
        ylabel=f"mean squared error on {VALIDATION_SEQUENCES} unseen sequences",
        title=f"Addition problem\n{setting(contestants, settings)}",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def setting(contestants: list[Contestant], settings: argparse.Namespace) -> str:
    return (
        f"T = {settings.steps}, {contestants[0].updates} updates of batch {BATCH}, {HIDDEN} units, RMSprop, "
        f"seed {settings.seed}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train SGORNN and torch.nn.LSTM on the addition problem.")
    parser.add_argument("--steps", type=int, default=STEPS, help="length T of a sequence (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=UPDATES, help="updates of each network (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="end after this long (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), help="folder of the plot (default: %(default)s)"
    )
    settings = parser.parse_args()
    if settings.steps < 3 or settings.updates < 1 or settings.seconds <= 0:
        parser.error("--steps must be at least 3, --updates at least 1 and --seconds above 0")

    console = Console()
    console.print(
        f"Holdfast {holdfast.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{os.cpu_count()} cores, {platform.machine()}"
    )
    torch.manual_seed(settings.seed)
    contestants = [Contestant("SGORNN", SGORNNModel(settings.steps)), Contestant("LSTM", LSTMModel())]
    elapsed = train(contestants, settings, console)
    console.print(result_table(contestants, settings))
    path = settings.output / "addition.png"
    plot(contestants, settings, path)
    console.print(f"{contestants[0].updates} updates of each in {elapsed:.0f} s. Curves: {path}", soft_wrap=True)


if __name__ == "__main__":
    main()
