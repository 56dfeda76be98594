"""Write your own cell: define one step and get a layer.

The cell is a bank of damped oscillators. At every step, each pair of units turns by a learned angle and shrinks by a
learned factor, and the input drives it. It learns to tell slow waves from fast ones, in noise.

    h_t = ρ R(ω) h_{t-1} + W x_t,  0 < ρ < 1, one ρ and one ω per pair

    python examples/02_own_cell.py
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import holdfast


class OscillatorCell(holdfast.Cell):
    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.randn(hidden_size, input_size) / math.sqrt(hidden_size))
        self.damping_logit = nn.Parameter(torch.full((hidden_size // 2,), 3.0))
        self.angles = nn.Parameter(torch.empty(hidden_size // 2).uniform_(0, 1))

    def drive(self, x: Tensor) -> Tensor:
        return x @ self.weight_ih.mT

    def weights(self) -> tuple[Tensor, ...]:
        damping = torch.sigmoid(self.damping_logit)
        return damping * torch.cos(self.angles), damping * torch.sin(self.angles)

    def step(self, drive: Tensor, state: tuple[Tensor, ...], weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,), (cos, sin) = state, weights
        a, b = h.chunk(2, dim=1)
        return (torch.cat([cos * a - sin * b, sin * a + cos * b], dim=1) + drive,)


class Classifier(nn.Module):
    def __init__(self, hidden_size: int = 16):
        super().__init__()
        self.rnn = holdfast.Recurrent(OscillatorCell, 1, hidden_size)
        self.readout = nn.Linear(hidden_size, 1)

    def forward(self, xs: Tensor) -> Tensor:
        _, h_n = self.rnn(xs, need_output=False)
        return self.readout(h_n[-1].square()).squeeze(1)  # the energy of each oscillator


def waves(batch: int, steps: int = 60) -> tuple[Tensor, Tensor]:
    """Waves (time, batch, 1) of random phase in noise. The label is 1 for fast waves."""
    fast = torch.randint(0, 2, (batch,))
    frequency, phase = 0.3 + 0.15 * fast, 2 * math.pi * torch.rand(batch)
    clean = torch.sin(frequency * torch.arange(steps).unsqueeze(1) + phase)
    return (clean + torch.randn(steps, batch)).unsqueeze(-1), fast.float()


def main(updates: int = 100) -> float:
    torch.manual_seed(0)
    model = Classifier()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(updates):
        xs, labels = waves(64)
        loss = nn.functional.binary_cross_entropy_with_logits(model(xs), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        xs, labels = waves(1000)
        accuracy = ((model(xs) > 0) == labels.bool()).double().mean().item()
    count = sum(weight.numel() for weight in model.parameters())
    print(f"{count} parameters, accuracy on 1000 new waves: {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
