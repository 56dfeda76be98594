"""Templates of digits: what a ReLU network compares an image with.

A ReLU RNN reads the eight rows of a small image and names the digit. Near one image it is an affine map, and row c of
that map is the template of class c (max-affine splines, S5). The images are scikit-learn's: nothing is downloaded.

    python examples/09_digits.py     writes templates.png
"""

from __future__ import annotations

import matplotlib
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import holdfast
from holdfast.spline import templates


class Reader(nn.Module):
    def __init__(self, hidden_size: int = 32):
        super().__init__()
        self.rnn = holdfast.RNN(8, hidden_size, nonlinearity="relu", init="np")
        self.readout = nn.Linear(hidden_size, 10)

    def forward(self, xs: Tensor) -> Tensor:  # (time, batch, pixels of a row)
        return self.readout(self.rnn(xs, need_output=False)[1][-1])


def main(updates: int = 600) -> float:
    torch.manual_seed(0)
    images, classes = (torch.as_tensor(it) for it in load_digits(return_X_y=True))
    xs = (images.float() / 16).reshape(-1, 8, 8).transpose(0, 1).contiguous()  # (rows, images, pixels)
    test = slice(1500, None)
    model = Reader()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(updates):
        chosen = torch.randint(0, 1500, (64,))
        loss = nn.functional.cross_entropy(model(xs[:, chosen]), classes[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(xs[:, test]).argmax(1) == classes[test]).float().mean().item()
    print(f"accuracy on {xs[:, test].shape[1]} new images: {accuracy:.1%}")
    figure, axes = plt.subplots(3, 6, figsize=(8, 4.2))
    for row, digit in zip(axes, (0, 4, 7), strict=True):
        number = 1500 + int((classes[test] == digit).nonzero()[0])
        item = templates(model, xs[:, number])
        best = item.products.argsort(descending=True)[:5]
        print(f"a {digit}: the templates that fit best are {', '.join(map(str, best.tolist()))}")
        row[0].imshow(xs[:, number].numpy(), cmap="gray")
        row[0].set_title(f"a {digit}", fontsize=9)
        scale = item.rows[best].abs().max().item()
        for axis, which in zip(row[1:], best, strict=True):
            axis.imshow(item.rows[which].reshape(8, 8).numpy(), cmap="RdBu", vmin=-scale, vmax=scale)
            axis.set_title(f"{which}: {item.products[which]:.1f}", fontsize=9)
    for axis in axes.flat:
        axis.set_axis_off()
    figure.savefig("templates.png", dpi=120, bbox_inches="tight")
    return accuracy


if __name__ == "__main__":
    main()
