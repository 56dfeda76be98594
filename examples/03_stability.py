"""Why stability matters: the two counterexamples of stable recurrence (S4), a certificate, and how to use it.

python examples/03_stability.py
"""

from __future__ import annotations

import math

import torch
from torch import nn

import holdfast
from holdfast.stability import Projected, certificate, contraction_rate, observed_contraction, project_, truncate


def scalar(a: float) -> holdfast.LinearRNN:
    """h_t = a h_{t-1} + x_t."""
    layer = holdfast.LinearRNN(1, 1, bias=False, backend="reference")  # one unit: compiling takes longer than this
    nn.init.constant_(layer.l0.weight_hh, a)
    nn.init.ones_(layer.l0.weight_ih)
    return layer


def no_window_is_long_enough(k: int = 20) -> list[float]:
    """Proposition 3: an impulse at the start, a = 2. The truncated model forgets it, the full one doubles it."""
    print(f"Proposition 3: h_t = a h_(t-1) + x_t after an impulse, truncated to the last k = {k} inputs")
    xs, errors = torch.zeros(61, 1, 1), []
    xs[0] = 1.0
    for a in (2.0, 0.5):
        layer = scalar(a)
        with torch.no_grad():
            gap = (truncate(layer, k)(xs)[0] - layer(xs)[0]).abs().flatten()
        errors.append(gap[-1].item())
        bound = truncate(layer, k, input_bound=1.0).error_bound
        print(f"  a = {a:g}: error at t = 21, 41, 61: {gap[20]:.3g}, {gap[40]:.3g}, {gap[60]:.3g}; proved: {bound:.3g}")
    return errors


def descent_that_flies_apart(steps: int = 20, length: int = 10) -> list[float]:
    """Proposition 4: learn y_t = x_t, so a = 0, from a = 1.5 with step sizes 1/i, with and without projection."""
    print(f"\nProposition 4: gradient descent on a, from 1.5, target 0, T = {length}, step sizes 1/i")
    ends = []
    for projected in (False, True):
        layer = scalar(1.5).double()  # overflows a few steps later than float32
        layer.l0.weight_ih.requires_grad_(False)  # b = 1 is known
        optimiser: torch.optim.Optimizer = torch.optim.SGD([layer.l0.weight_hh], lr=1.0)
        if projected:
            optimiser = Projected(optimiser, layer, rate=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: 1 / (i + 1))
        path = [layer.l0.weight_hh.item()]
        for _ in range(steps):
            optimiser.zero_grad()
            (0.5 * (layer(torch.ones(length, 1, 1, dtype=torch.float64))[0][-1] - 1).square()).sum().backward()
            optimiser.step()
            schedule.step()
            path.append(layer.l0.weight_hh.item())
            if not math.isfinite(path[-1]):
                break
        name = "projected onto |a| ≤ 0.9" if projected else "free"
        print(
            f"  {name}: a = {', '.join(f'{a:.3g}' for a in path[:5])}, ..., {path[-1]:.3g} after {len(path) - 1} steps"
        )
        ends.append(path[-1])
    return ends


def certified() -> float:
    """A stable network, what is proved about it, and the feed-forward network that replaces it."""
    layer, readout = project_(holdfast.RNN(3, 32), rate=0.9), nn.Linear(32, 2)
    xs = torch.randn(2000, 4, 3)
    xs /= xs.norm(dim=2, keepdim=True)
    proved, seen = contraction_rate(layer), observed_contraction(layer, xs)
    print(f"\nA tanh RNN, projected: proved λ = {proved:.3f}, observed {seen:.3f}\n")
    print(certificate(layer, xs, readout=readout, loss_lipschitz=1.0, loss_smoothness=1.0))
    short = truncate(layer, eps=1e-3, input_bound=1.0, readout=readout, stride=100)
    with torch.no_grad():
        gap = (readout(short(xs)[0]) - readout(layer(xs)[0])).norm(dim=2).max().item()
    print(
        f"\nTruncated to the last k = {short.k} inputs: output error {gap:.2g}, proved bound {short.error_bound:.2g}."
    )
    return gap


def main() -> tuple[list[float], list[float], float]:
    torch.manual_seed(0)
    return no_window_is_long_enough(), descent_that_flies_apart(), certified()


if __name__ == "__main__":
    main()
