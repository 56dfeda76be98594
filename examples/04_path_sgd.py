"""Path-SGD does not depend on the scale of a network's units. Plain SGD does.

Multiply the input of a ReLU unit by 10 and its output by 1/10: the function does not change. From two such starts,
PathSGD follows the same path, and SGD follows two different ones. The task is to add the two marked numbers of 20.

    python examples/04_path_sgd.py
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

import holdfast
from holdfast.optim import PathSGD, path_norm_sq, rescale_

STEPS, HIDDEN, BATCH, UPDATES = 20, 32, 64, 300


class Adder(nn.Module):
    """The attributes that ``holdfast.optim`` reads: ``rnn``, ``readout``, and which steps are read."""

    def __init__(self):
        super().__init__()
        self.rnn = holdfast.RNN(2, HIDDEN, nonlinearity="relu", init="identity")
        self.readout, self.last_only = nn.Linear(HIDDEN, 1), True
        nn.init.uniform_(self.rnn.l0.weight_ih, -0.3, 0.3)

    def forward(self, xs: Tensor) -> Tensor:
        _, h_n = self.rnn(xs, need_output=False)
        return self.readout(h_n[-1])


def addition(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    numbers, rows = torch.rand(STEPS, batch, generator=generator), torch.arange(batch)
    marks = torch.zeros(STEPS, batch)
    marks[torch.randint(0, STEPS // 2, (batch,), generator=generator), rows] = 1
    marks[torch.randint(STEPS // 2, STEPS, (batch,), generator=generator), rows] = 1
    return torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(0).unsqueeze(1)


def train(start: Adder, name: str) -> float:
    """The error on new sequences after training a copy of ``start``. It is infinite if training diverged."""
    model, data = copy.deepcopy(start), torch.Generator().manual_seed(1)
    if name == "PathSGD":
        optimiser = PathSGD(model.parameters(), model, lr=1e-4, momentum=0.9, steps=STEPS)
    else:
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    for _ in range(UPDATES):
        xs, answers = addition(BATCH, data)
        loss = nn.functional.mse_loss(model(xs), answers)
        if not loss.isfinite():
            return math.inf
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        xs, answers = addition(1000, torch.Generator().manual_seed(2))
        return nn.functional.mse_loss(model(xs), answers).item()


def main() -> dict[str, list[float]]:
    torch.manual_seed(0)
    start = Adder()
    rescaled = copy.deepcopy(start)
    rescale_(rescaled, [10 ** torch.linspace(-1, 1, HIDDEN)])
    xs, _ = addition(BATCH, torch.Generator().manual_seed(0))
    apart = (start(xs) - rescaled(xs)).abs().max().item()
    norms = [path_norm_sq(model, STEPS).item() for model in (start, rescaled)]
    print(
        f"Two sets of weights, one function: outputs {apart:.0e} apart, path norms {norms[0]:.6g} and {norms[1]:.6g}."
    )
    errors = {name: [train(model, name) for model in (start, rescaled)] for name in ("SGD", "PathSGD")}
    print("Mean squared error after training (the constant answer 1 has 0.167):")
    for name, (one, other) in errors.items():
        print(f"  {name:8} from the first start {one:.4f}, from the rescaled one {other:.4f}")
    return errors


if __name__ == "__main__":
    main()
