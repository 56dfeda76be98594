"""How far does a gradient reach? The slope of the last state in every input, before any training.

In an RNN it vanishes within tens of steps. In SGORNN with gates that span the sequence it neither vanishes nor
explodes. This is why SGORNN can learn dependencies over thousands of steps.

    python examples/07_gradients.py     writes gradients.png
"""

from __future__ import annotations

import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import holdfast


def reach(layer: torch.nn.Module, steps: int) -> torch.Tensor:
    """‖∂ Σ h_T / ∂ x_t‖ for every step t, the mean over 8 sequences."""
    xs = torch.randn(steps, 8, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(layer(xs)[0][-1].sum(), xs)
    return slope.norm(dim=2).mean(dim=1)


def main(steps: int = 500) -> dict[str, float]:
    torch.manual_seed(0)
    layers = {
        "RNN, tanh": holdfast.RNN(2, 64),
        "LSTM": holdfast.LSTM(2, 64),
        "SGORNN": holdfast.SGORNN(2, 64),
        f"SGORNN, horizon {steps}": holdfast.SGORNN(2, 64, gates=holdfast.ScalarGates(clip="2alpha", horizon=steps)),
    }
    ratios, (figure, axes) = {}, plt.subplots(figsize=(7, 4))
    for name, layer in layers.items():
        sizes = reach(layer, steps)
        ratios[name] = (sizes[0] / sizes[-1]).item()
        axes.semilogy(range(steps, 0, -1), sizes.clamp(min=1e-30), label=name)
        print(f"{name:20} the first input's gradient is {ratios[name]:.1e} of the last one's")
    axes.set(xlabel="steps before the end", ylabel="gradient of the last state", ylim=(1e-12, None))
    axes.legend()
    figure.savefig("gradients.png", dpi=120, bbox_inches="tight")
    return ratios


if __name__ == "__main__":
    main()
