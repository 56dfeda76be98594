"""What a cell compiles to: an own cell in three methods, its loop, and that both ways give the same numbers.

h_t = h_{t-1} + α tanh(W x_t + (A - Aᵀ) h_{t-1})     α is small, so the state turns more than it grows

python examples/10_compiled.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import holdfast
from holdfast.types import State, Weights


class AntisymmetricCell(holdfast.Cell):
    """One step; everything else (layers, directions, gradients, the native loop) comes with it."""

    def __init__(self, input_size: int, hidden_size: int):
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(0.3 * torch.randn(hidden_size, input_size))
        self.skew = nn.Parameter(0.3 * torch.randn(hidden_size, hidden_size))

    def drive(self, x: Tensor) -> Tensor:  # once for all steps
        return x @ self.weight_ih.mT

    def weights(self) -> Weights:  # once per sequence
        return (self.skew - self.skew.mT,)

    def step(self, drive: Tensor, state: State, weights: Weights) -> State:  # this is compiled
        (h,), (matrix,) = state, weights
        return (h + 0.1 * torch.tanh(drive + h @ matrix.mT),)


def main(steps: int = 200) -> float:
    torch.manual_seed(0)
    cell = AntisymmetricCell(2, 16)
    print(holdfast.fused_source(cell))
    xs = torch.randn(steps, 8, 2)
    results = []
    for backend in ("fused", "reference"):
        output, _ = holdfast.scan(cell, xs, backend=backend)
        slopes = torch.autograd.grad(output.square().mean(), list(cell.parameters()))
        results.append([output.detach(), *slopes])
    gap = max((a - b).abs().max().item() for a, b in zip(*results, strict=True))
    print(f"\nThe compiled loop and the plain one differ by at most {gap:.1e} in outputs and gradients.")
    return gap


if __name__ == "__main__":
    main()
