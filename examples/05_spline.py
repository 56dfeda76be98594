"""Train a ReLU RNN to tell rising from falling signals, then look inside.

This prints the two templates of one signal and how well they fit, how many regions a thousand signals occupy after each
step, and how often neighbours by partition code have the same class.

    python examples/05_spline.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import holdfast
from holdfast.spline import (
    affine_piece,
    initial_state_slope,
    knn_classify,
    partition_code,
    regions_through_time,
    templates,
)


class Classifier(nn.Module):
    def __init__(self, hidden_size: int = 16):
        super().__init__()
        start = holdfast.RandomStart(std=0.1)
        self.rnn = holdfast.RNN(1, hidden_size, nonlinearity="relu", init="np", initial_state=start)
        self.readout = nn.Linear(hidden_size, 2)

    def forward(self, xs: Tensor) -> Tensor:
        return self.readout(self.rnn(xs, need_output=False)[1][-1])


def signals(batch: int, steps: int = 20) -> tuple[Tensor, Tensor]:
    """Noisy ramps (time, batch, 1). Class 1 rises, class 0 falls."""
    rising = torch.randint(0, 2, (batch,))
    ramp = torch.linspace(-1, 1, steps).unsqueeze(1) * (2 * rising - 1)
    return (ramp + torch.randn(steps, batch)).unsqueeze(-1), rising


def bar(value: float, scale: float) -> str:
    """A number as a bar to the left or right of the middle."""
    length = round(12 * abs(value) / scale)
    return ("█" * length).rjust(12) + "|" + " " * 12 if value < 0 else " " * 12 + "|" + ("█" * length).ljust(12)


def main(updates: int = 300) -> tuple[float, float]:
    torch.manual_seed(0)
    model = Classifier()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(updates):
        xs, classes = signals(64)
        loss = nn.functional.cross_entropy(model(xs), classes)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()

    xs, classes = signals(1000)
    x = xs[:, 0]
    item, piece = templates(model, x), affine_piece(model, x)
    gap = (piece(x) - model(xs[:, :1])[0]).abs().max().item()
    print(f"a signal of class {classes[0].item()}: z = A x + B, error {gap:.0e}. Fit to the templates:")
    print(
        "  "
        + ", ".join(f"{name}: {value:.2f}" for name, value in zip(("falling", "rising"), item.products, strict=True))
    )
    scale = item.rows.abs().max().item()
    print("step   template of falling        template of rising")
    for step in range(0, len(x), 3):
        falling, rising = (bar(row[step, 0].item(), scale) for row in item.rows)
        print(f"{step:4}   {falling}  {rising}")

    code = partition_code(model, xs)
    counts = regions_through_time(code)
    print(
        "regions of 1000 signals after " + ", ".join(f"{step} steps: {counts[step - 1]}" for step in (1, 2, 5, 10, 20))
    )
    answers = knn_classify(code[:800], classes[:800], code[800:], k=10)
    by_code = (answers == classes[800:]).double().mean().item()
    with torch.no_grad():
        by_model = (model(xs).argmax(1) == classes).double().mean().item()
    print(f"accuracy: the network {by_model:.1%}, ten neighbours by code {by_code:.1%}")
    print(f"effect of the initial state, ‖W A_h‖: {initial_state_slope(model, xs[:, :50]).output_norm.mean():.3f}")
    return by_model, by_code


if __name__ == "__main__":
    main()
