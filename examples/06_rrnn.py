"""Search for a cell: an RRNN learns to remember, and prints the trees that it uses.

The network reads letters one by one and names the previous one. For every sample and step, a scorer chooses the nodes
of a tree among sums and products under σ and tanh. The choice is soft, so the loss of the task also trains the scorer.
The printed tree has the candidate with the largest weight at each node.

    python examples/06_rrnn.py [updates]     about 20 seconds
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from holdfast.rrnn import RRNN, TreeLoss, gradient_conditions, tree_svg, tree_text, tuple_changes

LETTERS, SIZE, STEPS, BATCH = 4, 16, 10, 32


def main(updates: int) -> None:
    torch.manual_seed(0)
    loss = TreeLoss(tree=1e-3, margin=1e-2, ridge=1e-5)  # loss (6): close to the GRU's tree, with clear choices
    # every node ends in σ or tanh, which bounds the state; with the identity among them, training may diverge
    settings = {"tuples": 3, "identity": False, "activations": ["sigmoid", "tanh"], "scorer": 32, "choice": "soft"}
    layer = RRNN(SIZE, SIZE, rounds=3, loss=loss, **settings)
    embedding, readout = nn.Embedding(LETTERS, SIZE), nn.Linear(SIZE, LETTERS)
    weights = [*layer.parameters(), *embedding.parameters(), *readout.parameters()]
    optimiser = torch.optim.Adam(weights, lr=1e-2)
    fixed = embedding(torch.randint(LETTERS, (STEPS, BATCH))).detach()
    before = layer.trace(fixed).records[0].tuples

    for update in range(updates):
        letters = torch.randint(LETTERS, (STEPS, BATCH))
        output, _ = layer(embedding(letters))
        answers, wanted = readout(output[1:]), letters[:-1]
        task = nn.functional.cross_entropy(answers.flatten(0, 1), wanted.flatten())
        optimiser.zero_grad()
        (task + layer.penalty(readout.parameters()) / STEPS).backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        if (update + 1) % max(updates // 5, 1) == 0:
            right = (answers.argmax(dim=-1) == wanted).float().mean().item()
            print(
                f"update {update + 1}: loss {task.item():.3f}, {100 * right:.0f}% right (chance: {100 / LETTERS:.0f}%)"
            )

    record = layer.trace(fixed).records[0]
    print(f"{tuple_changes(before, record.tuples)} of {before.numel()} choices of tuples have changed")
    common = record.count().most_common(3)
    for tree, times in common:
        print(f"\n{100 * times / (STEPS * BATCH):.0f}% of all steps: {tree.formula()}\n{tree_text(tree)}")
    picture = tree_svg([tree for tree, _ in common], [f"{times} of {STEPS * BATCH}" for _, times in common])
    print(f"\nThe same as SVG: {len(picture):,} characters")
    print(gradient_conditions(layer, fixed).follows)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
