"""A certificate, and the truncated model that it allows.

A stable network forgets: a window of its last k inputs gives nearly the same output. The proved error falls as λ^k. The
measured error is below it at every k (stable recurrence, S4).

    python examples/11_window.py     writes window.png
"""

from __future__ import annotations

import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import holdfast
from holdfast.stability import contraction_rate, project_, truncate


def main(rate: float = 0.8, longest: int = 60) -> tuple[list[float], list[float]]:
    torch.manual_seed(0)
    layer = project_(holdfast.RNN(3, 32), rate=rate)
    print(f"proved contraction per step: {contraction_rate(layer):.3f}")
    xs = torch.nn.functional.normalize(torch.randn(400, 4, 3), dim=-1)
    windows, proved, seen = list(range(2, longest, 4)), [], []
    with torch.no_grad():
        whole = layer(xs)[0]
        for k in windows:
            short = truncate(layer, k, input_bound=1.0)
            proved.append(short.error_bound)
            seen.append((short(xs)[0] - whole).norm(dim=2).max().item())
    print(f"k = {windows[-1]}: proved error {proved[-1]:.1e}, measured {seen[-1]:.1e}")
    print(f"the window for an error of 1e-3: k = {truncate(layer, eps=1e-3, input_bound=1.0).k}")
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.semilogy(windows, proved, label="proved")
    axes.semilogy(windows, seen, "o-", label="largest error seen")
    axes.set(xlabel="window k", ylabel="error of the state")
    axes.legend()
    figure.savefig("window.png", dpi=120, bbox_inches="tight")
    return proved, seen


if __name__ == "__main__":
    main()
