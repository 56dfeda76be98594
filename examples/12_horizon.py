"""Start with a memory as long as the sequence: SGORNN's gates on the addition problem, with and without a horizon.

With the published start, α = 0.023 and β = 0.953, a network remembers about 40 steps. ``ScalarGates(horizon=T)`` starts
at α = 1/T and β = 1 - 2/T. The task is to add two marked numbers among T = 100.

    python examples/12_horizon.py [updates]     writes horizon.png
"""

from __future__ import annotations

import sys

import matplotlib
import torch
from torch import nn

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import holdfast

STEPS, BATCH = 100, 32


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """(time, batch, 2): numbers and marks, one mark in each half. The answer is the sum of the marked numbers."""
    numbers, marks, columns = torch.rand(STEPS, BATCH), torch.zeros(STEPS, BATCH), torch.arange(BATCH)
    for first in (0, STEPS // 2):
        marks[torch.randint(first, first + STEPS // 2, (BATCH,)), columns] = 1
    return torch.stack([numbers, marks], dim=2), (numbers * marks).sum(0)


def train(gates: holdfast.ScalarGates | None, updates: int) -> list[float]:
    torch.manual_seed(0)
    rnn, readout = holdfast.SGORNN(2, 128, gates=gates), nn.Linear(128, 1)
    optimiser = torch.optim.RMSprop([*rnn.parameters(), *readout.parameters()], lr=1e-2, alpha=0.9, eps=1e-7)
    errors = []
    for _ in range(updates):
        xs, answers = batch()
        loss = nn.functional.mse_loss(readout(rnn(xs, need_output=False)[1][-1]).squeeze(1), answers)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        errors.append(loss.item())
    return errors


def main(updates: int = 800) -> dict[str, float]:
    starts = {"published start": None, f"horizon {STEPS}": holdfast.ScalarGates(clip="2alpha", horizon=STEPS)}
    ends, (figure, axes) = {}, plt.subplots(figsize=(7, 4))
    for name, gates in starts.items():
        errors = train(gates, updates)
        smooth = torch.tensor(errors).unfold(0, min(25, updates), 1).mean(1)
        ends[name] = smooth[-1].item()
        axes.plot(range(len(errors) - len(smooth), len(errors)), smooth, label=name)
        print(f"{name:16} error of the last updates {ends[name]:.4f}; a constant answer has 0.1667")
    axes.axhline(1 / 6, color="black", linestyle=":", label="constant answer")
    axes.set(xlabel="update", ylabel="mean squared error")
    axes.legend()
    figure.savefig("horizon.png", dpi=120, bbox_inches="tight")
    return ends


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
