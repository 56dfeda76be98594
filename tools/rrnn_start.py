"""Why the first updates of RRNN-GRU explode, and what a start that meets Theorem 7 changes about it.

    python tools/rrnn_start.py      half a minute of one core; prints a table for docs/theory/s1-rrnn.md

A chain of 27 characters with random transitions, 100 entries, batches of 16, Adam at 1e-3, gradients clipped at 1: S1's
setting of Wiki-10k on data that need no download. Non-finite gradients are skipped.
"""

from __future__ import annotations

import torch
from torch import nn

from holdfast import GRUCell
from holdfast.rrnn import RRNNGRU, TreeLoss, gradient_conditions, gru_target

SIZE, BATCH, STEPS, UPDATES = 100, 16, 20, 60


def batch(chain: torch.Tensor) -> torch.Tensor:
    tokens = [torch.randint(len(chain), (BATCH,))]
    for _ in range(STEPS):
        tokens.append(torch.multinomial(chain[tokens[-1]], 1)[:, 0])
    return torch.stack(tokens)


def rows(start_norm: float | None) -> list[str]:
    torch.manual_seed(0)
    chain, vectors = torch.softmax(2 * torch.randn(27, 27), dim=1), torch.randn(27, SIZE)
    target = gru_target(GRUCell(SIZE, SIZE, reset="before"), "teacher")
    loss = TreeLoss(tree=0.003, margin=0.1, ridge=1e-8, target=(target,))
    layer = RRNNGRU(SIZE, SIZE, setting="published code", start_norm=start_norm, loss=loss, backend="reference")
    readout, found = nn.Linear(SIZE, 27), []
    weights = [*layer.parameters(), *readout.parameters()]
    optimiser = torch.optim.Adam(weights, lr=1e-3)
    for update in range(UPDATES):
        tokens = batch(chain)
        xs = vectors[tokens[:-1]]
        optimiser.zero_grad()
        hs, _ = layer(xs)
        task = nn.functional.cross_entropy(readout(hs).flatten(0, 1), tokens[1:].flatten())
        (STEPS * task + layer.penalty(readout.parameters())).backward()
        norm = nn.utils.clip_grad_norm_(weights, 1.0)
        if update in (0, 10, 20, 30, UPDATES - 1):
            product = gradient_conditions(layer, xs).product
            largest = float(hs.detach().abs().max())
            found.append(f"| {start_norm} | {update} | {product:.3g} | {largest:.3g} | {task.item() / 0.693147:.3g} |")
        if norm.isfinite():
            optimiser.step()
    return found


if __name__ == "__main__":
    print("| start_norm | update | C₁C₂C₃ | largest entry of h | bits |\n| --- | --- | --- | --- | --- |")
    for norm in (None, 0.223):
        print("\n".join(rows(norm)), flush=True)
