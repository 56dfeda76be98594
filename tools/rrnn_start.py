"""Why the first updates of RRNN-GRU with mixtures explode and those with a hard choice do not.

    python tools/rrnn_start.py      two minutes of one core; prints the tables of docs/theory/s1-rrnn.md

    g(s) = max ‖f(x, s u) - f(x, 0)‖ / ‖s u‖      growth of a state of size s in one step f, |u|∞ = 1        (1)

A chain of 27 characters with random transitions, 100 entries, batches of 16, Adam at 1e-3, gradients clipped at 1: S1's
setting of Wiki-10k on data that need no download. Non-finite gradients are skipped. u are the directions of the states
before the last step, and x the inputs there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast import GRUCell
from holdfast.rrnn import RRNNGRU, TreeLoss, gradient_conditions, gru_target

SIZE, BATCH, STEPS, UPDATES = 100, 16, 20, 60


def batch(chain: Tensor) -> Tensor:
    tokens = [torch.randint(len(chain), (BATCH,))]
    for _ in range(STEPS):
        tokens.append(torch.multinomial(chain[tokens[-1]], 1)[:, 0])
    return torch.stack(tokens)


@torch.no_grad()
def growth(layer: RRNNGRU, xs: Tensor, hs: Tensor, size: float) -> float:
    """(1), the largest of the batch."""
    states = size * hs[-2] / hs[-2].abs().amax(dim=1, keepdim=True)
    moved = layer.l0(xs[-1], states) - layer.l0(xs[-1], torch.zeros_like(states))
    return float((moved.norm(dim=1) / states.norm(dim=1)).max())


def fixed(layer: RRNNGRU) -> None:
    """The scorer stays as drawn."""
    layer.l0.scorer.requires_grad_(False)


def equal(layer: RRNNGRU) -> None:
    """All scores are 0 and stay so: every mixture is a plain mean."""
    for weight in layer.l0.scorer.requires_grad_(False).parameters():
        weight.zero_()


def sharp(layer: RRNNGRU) -> None:
    """Scores 20 times as far apart: every mixture is close to a choice from the start."""
    layer.l0.scorer.weight_out *= 20


def rows(name: str, seed: int, change: Callable[[RRNNGRU], None] | None = None, **options) -> tuple[list[str], float]:
    """Rows of the first table, and the highest loss in bits."""
    torch.manual_seed(seed)
    chain, vectors = torch.softmax(2 * torch.randn(27, 27), dim=1), torch.randn(27, SIZE)
    target = gru_target(GRUCell(SIZE, SIZE, reset="before"), "teacher")
    loss = TreeLoss(tree=0.003, margin=0.1, ridge=1e-8, target=(target,))
    layer = RRNNGRU(SIZE, SIZE, setting="published code", loss=loss, backend="reference", **options)
    if change is not None:
        with torch.no_grad():
            change(layer)
    readout, found, highest = nn.Linear(SIZE, 27), [], 0.0
    weights = [weight for weight in (*layer.parameters(), *readout.parameters()) if weight.requires_grad]
    optimiser = torch.optim.Adam(weights, lr=1e-3)
    for update in range(UPDATES):
        tokens = batch(chain)
        xs = vectors[tokens[:-1]]
        optimiser.zero_grad()
        hs, _ = layer(xs)
        task = nn.functional.cross_entropy(readout(hs).flatten(0, 1), tokens[1:].flatten())
        (STEPS * task + layer.penalty(readout.parameters())).backward()
        norm, highest = nn.utils.clip_grad_norm_(weights, 1.0), max(highest, task.item() / 0.693147)
        if update in (0, 10, 15, 20, 30, UPDATES - 1):
            numbers = (
                growth(layer, xs, hs.detach(), 0.1),
                growth(layer, xs, hs.detach(), 100.0),
                float(hs.detach().abs().max()),
                task.item() / 0.693147,
                gradient_conditions(layer, xs).product,
            )
            found.append(f"| {name} | {update} | " + " | ".join(f"{number:.3g}" for number in numbers) + " |")
        if norm.isfinite():
            optimiser.step()
    return found, highest


VARIANTS: dict[str, dict] = {
    "mixtures": {},
    "mixtures, scorer fixed": {"change": fixed},
    "mixtures, equal weights": {"change": equal},
    "mixtures, scores × 20": {"change": sharp},
    "hard": {"choice": "hard"},
    "hard, no identity": {"choice": "hard", "identity": False},
    "mixtures, start 0.223": {"start_norm": 0.223},
    "hard, start 0.223": {"choice": "hard", "start_norm": 0.223},
}

if __name__ == "__main__":
    print("| | update | g(0.1) | g(100) | largest entry of h | bits | C₁C₂C₃ |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    every = {}
    for name, changes in VARIANTS.items():
        every[name] = [rows(name, seed, **changes) for seed in (0, 1, 2)]
        print("\n".join(every[name][0][0]), flush=True)
    print("\n| | highest loss in bits, seeds 0, 1, 2 |\n| --- | --- |")
    for name, found in every.items():
        print(f"| {name} | " + ", ".join(f"{highest:.3g}" for _, highest in found) + " |")
