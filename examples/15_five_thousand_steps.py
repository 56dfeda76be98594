"""Learn the addition problem at T = 5,000 in a minute, by growing the sequences.

An SGORNN learns to add two marked numbers among 100. Then the sequences grow to 500, 2,000 and 5,000 steps. The gates
keep their share of the length: with α ← α T / T', the memory grows with the sequence, and the readout is scaled by
T' / T. A constant answer has an error of 1/6. The published way, T = 5,000 from the first update, is the study
s3/addition: it took thousands of updates.

    python examples/15_five_thousand_steps.py [share of the updates, 0.01 to 1]     writes addition.png
"""

from __future__ import annotations

import sys

import matplotlib
import torch
from torch import Tensor, nn

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import holdfast

UNITS = 128
STAGES = {100: (2500, 1e-2), 500: (500, 3e-3), 2000: (200, 3e-3), 5000: (200, 3e-3)}  # T: updates, first rate


def batch(steps: int, size: int) -> tuple[Tensor, Tensor]:
    """(time, size, 2): numbers and marks, one mark in each half. The answer is the sum of the marked numbers."""
    numbers, marks, columns = torch.rand(steps, size), torch.zeros(steps, size), torch.arange(size)
    for first in (0, steps // 2):
        marks[torch.randint(first, first + steps // 2, (size,)), columns] = 1
    return torch.stack([numbers, marks], dim=2), (numbers * marks).sum(0)


def layer(horizon: int) -> holdfast.SGORNN:
    return holdfast.SGORNN(2, UNITS, gates=holdfast.ScalarGates(clip="2alpha", horizon=horizon))


def grown(rnn: holdfast.SGORNN, readout: nn.Linear, factor: float) -> holdfast.SGORNN:
    """The layer with a memory that is ``factor`` times as long, and the readout scaled to it."""
    old = rnn.l0.gates()[0].item()
    longer = layer(round(factor / old))
    weights = {name: it for name, it in rnn.state_dict().items() if "gates" not in name}
    longer.load_state_dict({**longer.state_dict(), **weights})
    with torch.no_grad():
        readout.weight *= old / longer.l0.gates()[0]
    return longer


@torch.no_grad()
def error(rnn: holdfast.SGORNN, readout: nn.Linear, steps: int, size: int = 256) -> float:
    xs, answers = batch(steps, size)
    return nn.functional.mse_loss(readout(rnn(xs, need_output=False)[1][-1])[:, 0], answers).item()


def main(share: float = 1.0) -> dict[int, float]:
    torch.manual_seed(0)
    rnn, readout, before, errors, curve = layer(min(STAGES)), nn.Linear(UNITS, 1), min(STAGES), {}, []
    figure, axes = plt.subplots(figsize=(7, 4))
    for steps, (updates, rate) in STAGES.items():
        rnn, updates = grown(rnn, readout, steps / before) if steps > before else rnn, max(1, round(share * updates))
        weights = [*rnn.parameters(), *readout.parameters()]
        optimiser = torch.optim.RMSprop(weights, lr=rate, alpha=0.9, eps=1e-7)
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 1 / updates, updates)
        axes.axvline(len(curve), color="lightgrey")
        axes.annotate(f" T = {steps:,}", (len(curve), 20), rotation=90, va="top", fontsize=8)
        for _ in range(updates):
            xs, answers = batch(steps, 32)
            loss = nn.functional.mse_loss(readout(rnn(xs, need_output=False)[1][-1])[:, 0], answers)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()
            schedule.step()
            curve.append(loss.item())
        errors[steps], before = error(rnn, readout, steps), steps
        print(f"T = {steps:5,}: {updates:5,} updates, error {errors[steps]:.4f}; a constant answer has 0.1667")
    axes.semilogy(torch.tensor(curve).unfold(0, min(10, len(curve)), 1).mean(1))
    axes.axhline(1 / 6, color="black", linestyle=":", label="constant answer")
    axes.set(xlabel="update", ylabel="mean squared error")
    axes.legend()
    figure.savefig("addition.png", dpi=120, bbox_inches="tight")
    return errors


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
