"""Find out why a network learns nothing, follow the advice, and train again.

The label of a sequence is the sign of its first input, 100 steps before the end. A tanh network is trained on it, and
learns nothing. ``holdfast.diagnose`` says why. The second network is what the advice says.

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

STEPS = 100


class Model(nn.Module):
    def __init__(self, rnn: nn.Module):
        super().__init__()
        self.rnn, self.readout = rnn, nn.Linear(32, 1)

    def forward(self, xs: Tensor) -> Tensor:
        return self.readout(self.rnn(xs)[0][-1])


def batch(size: int) -> tuple[Tensor, Tensor]:
    """(time, size, 2) noise, and whether the first number of each sequence is positive."""
    xs = torch.randn(STEPS, size, 2)
    return xs, (xs[0, :, :1] > 0).float()


def train(model: Model, updates: int) -> list[float]:
    """The loss of every update. Knowing nothing has log 2 = 0.69."""
    optimiser, losses = torch.optim.Adam(model.parameters(), lr=3e-3), []
    for _ in range(updates):
        xs, labels = batch(32)
        loss = nn.functional.binary_cross_entropy_with_logits(model(xs), labels)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    return losses


def main(updates: int = 600) -> dict[str, tuple[float, tuple[str, ...]]]:
    torch.manual_seed(0)
    networks = {
        "before": nn.RNN(2, 32),
        "after": holdfast.SGORNN(2, 32, gates=holdfast.ScalarGates(clip="2alpha", horizon=STEPS)),
    }
    ends, (figure, (reach, curve)) = {}, plt.subplots(1, 2, figsize=(10, 4))
    for name, rnn in networks.items():
        model = Model(rnn)
        xs, labels = batch(16)
        found = holdfast.diagnose(model, xs, labels, nn.functional.binary_cross_entropy_with_logits)
        print(f"--- {name} ---")
        found.show()
        losses = train(model, updates)
        smooth = torch.tensor(losses).unfold(0, min(25, updates), 1).mean(1)
        ends[name] = smooth[-1].item(), tuple(finding.rule for finding in found.findings)
        print(f"loss after {updates} updates: {ends[name][0]:.3f}\n")
        reach.semilogy(gradients(model, xs, labels), label=name)
        curve.plot(smooth, label=name)
    reach.set(xlabel="step", ylabel="gradient of the loss by the input of a step")
    curve.set(xlabel="update", ylabel="loss")
    curve.legend()
    figure.savefig("diagnosis.png", dpi=120, bbox_inches="tight")
    return ends


def gradients(model: Model, xs: Tensor, labels: Tensor) -> Tensor:
    """‖∂ loss / ∂ x_t‖ of every step."""
    xs = xs.detach().requires_grad_()
    loss = nn.functional.binary_cross_entropy_with_logits(model(xs), labels)
    (slopes,) = torch.autograd.grad(loss, xs)
    return slopes.norm(dim=(1, 2))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
