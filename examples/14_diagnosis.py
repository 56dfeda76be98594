"""Find out why a network learns nothing, follow the advice, and train again.

The task is to add two marked numbers among 100. A tanh network is trained on it and stays at the error of a constant
answer, 0.167. ``holdfast.diagnose`` says why. The second network is the one that the advice names: gradients reach the
first step, and it learns. It also remembers how it was started, which the second diagnosis reports.

    python examples/14_diagnosis.py [updates]     writes diagnosis.png
"""

from __future__ import annotations

import sys

import matplotlib
import torch
from torch import Tensor, nn

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import holdfast

STEPS, UNITS = 100, 128
RATES = {nn.RNN: 1e-3, holdfast.SGORNN: 1e-2}  # 1e-2 makes the first one diverge


class Model(nn.Module):
    def __init__(self, rnn: nn.Module):
        super().__init__()
        self.rnn, self.readout = rnn, nn.Linear(UNITS, 1)

    def forward(self, xs: Tensor) -> Tensor:
        return self.readout(self.rnn(xs)[0][-1])


def batch(size: int) -> tuple[Tensor, Tensor]:
    """(time, size, 2): numbers and marks, one mark in each half. The answer is the sum of the marked numbers."""
    numbers, marks, columns = torch.rand(STEPS, size), torch.zeros(STEPS, size), torch.arange(size)
    for first in (0, STEPS // 2):
        marks[torch.randint(first, first + STEPS // 2, (size,)), columns] = 1
    return torch.stack([numbers, marks], dim=2), (numbers * marks).sum(0)[:, None]


def train(model: Model, updates: int) -> list[float]:
    optimiser = torch.optim.RMSprop(model.parameters(), lr=RATES[type(model.rnn)], alpha=0.9, eps=1e-7)
    losses = []
    for _ in range(updates):
        xs, answers = batch(32)
        loss = nn.functional.mse_loss(model(xs), answers)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    return losses


def main(updates: int = 800) -> dict[str, tuple[float, tuple[str, ...]]]:
    torch.manual_seed(0)
    networks = {
        "before": nn.RNN(2, UNITS),
        "after": holdfast.SGORNN(2, UNITS, gates=holdfast.ScalarGates(clip="2alpha", horizon=STEPS)),
    }
    ends, (figure, (reach, curve)) = {}, plt.subplots(1, 2, figsize=(10, 4))
    for name, rnn in networks.items():
        model = Model(rnn)
        xs, answers = batch(16)
        found = holdfast.diagnose(model, xs, answers, nn.functional.mse_loss)
        print(f"--- {name} ---")
        found.show()
        reach.semilogy(gradients(model, xs, answers).clamp_min(1e-45), label=name)
        losses = train(model, updates)
        smooth = torch.tensor(losses).unfold(0, min(25, updates), 1).mean(1)
        ends[name] = smooth[-1].item(), tuple(finding.rule for finding in found.findings)
        print(f"error after {updates} updates: {ends[name][0]:.3f}; a constant answer has 0.167\n")
        curve.plot(smooth, label=name)
    reach.set(xlabel="step", ylabel="gradient by the input of a step, before training")
    curve.set(xlabel="update", ylabel="mean squared error")
    curve.legend()
    figure.savefig("diagnosis.png", dpi=120, bbox_inches="tight")
    return ends


def gradients(model: Model, xs: Tensor, answers: Tensor) -> Tensor:
    """‖∂ loss / ∂ x_t‖ of every step."""
    xs = xs.detach().requires_grad_()
    loss = nn.functional.mse_loss(model(xs), answers)
    (slopes,) = torch.autograd.grad(loss, xs)
    return slopes.norm(dim=(1, 2))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
