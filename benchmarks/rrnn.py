"""What Algorithm 1 costs, batched, against itself done literally in tensors. Writes a dated report beside this file.

    python benchmarks/rrnn.py     about ten minutes; the machine should be idle and have 8 GB free for the literal side

Literally: in every round every candidate is rebuilt from the pool, by its own products L_r c_i and R_r c_j as in line
11, and scored, with the gradient recorded for all of it; all pairs and all samples are one tensor. Both sides make one
training step: forward, loss (6) with its margin and tree distance, backward. First the trees and the loss are compared,
in float64; then both are timed in float32, in turns, and medians are taken. The epoch is S1's Wiki-5k, 5,000 sequences
of 20 characters in batches of 16, with batch normalisation as in the paper; --updates makes a part of it.

RRNN with a soft choice, and RRNN-GRU as S1's authors ran it, make an update with loss (6) too; what counts there is CPU
time on one thread. RRNN-GRU takes turns, in random order, with itself on the plain loop.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from holdfast import GRUCell
from holdfast.rrnn import ACTIVATIONS, OPERATORS, RRNN, RRNNGRU, Grown, TreeLoss, gru_target, tolerance
from holdfast.rrnn.loss import parts_of
from holdfast.runs.environment import environment

SIZE, TUPLES, ROUNDS, HIDDEN, BATCH, STEPS, CLASSES = 100, 4, 8, 256, 16, 20, 27
LOSS = TreeLoss(tree=1e-5, margin=1e-3, ridge=1e-3)  # S1, Appendix E.2, in the order of its authors' code
SPEED, MINUTES, GIGABYTES = 20.0, 4.0, 2.0
GRU_BATCH, GRU_SECONDS, SOFT_SECONDS = 128, 0.25, 3.0
EPOCH = 313  # batches of 16 in 5,000 sequences


# -- literally -----------------------------------------------------------------------------------------------------


def literal_step(leaves: Tensor, layer: RRNN) -> Grown:
    """Algorithm 1 for a batch, (leaves, batch, p), with autograd on all of it."""
    cell = layer.l0
    (sets,), matrices, scorer = cell.sets, cell.tuples[0](), cell.scorers[0]
    pool, choices, best, second = leaves, [], [], []
    batch = torch.arange(leaves.shape[1])
    for _ in range(sets.rounds):
        right, left = torch.tril_indices(len(pool), len(pool), offset=-1)
        values = []
        for r, o, u in itertools.product(range(sets.tuples), sets.operators, sets.activations):  # line 9
            l, c = pool[left] @ matrices.left[r].mT, pool[right] @ matrices.right[r].mT
            values.append(ACTIVATIONS[u].apply(OPERATORS[o].apply(l, c) + matrices.bias[r]))  # line 11, all pairs
        v = torch.stack(values, dim=1).flatten(0, 1)  # (candidates, batch, p), in the documented order
        scores = scorer(v)
        with torch.no_grad():
            close = tolerance(v.dtype) * v.abs().amax(dim=2).clamp_min(1)
            seen = torch.zeros_like(scores, dtype=torch.bool)
            for node in pool[len(leaves) :]:
                seen |= (v - node).abs().amax(dim=2) <= close
            first = first_best(scores.masked_fill(seen, -torch.inf))
            seen |= (v - v[first, batch]).abs().amax(dim=2) <= close[first, batch]
            other = first_best(scores.masked_fill(seen, -torch.inf))
        best.append(scores[first, batch])
        second.append(scores[other, batch])
        pool = torch.cat((pool, v[first, batch][None]))
        inner = torch.cartesian_prod(*map(torch.arange, (sets.tuples, len(sets.operators), len(sets.activations))))
        pair = first // len(inner)
        choices.append(torch.cat((left[pair, None], right[pair, None], inner[first % len(inner)]), dim=1))
    return Grown(leaves, torch.stack(choices), pool[len(leaves) :], torch.stack(best), torch.stack(second))


def first_best(scores: Tensor) -> Tensor:
    top = scores.max(dim=0).values
    return (scores >= top - tolerance(top.dtype) * top.abs().clamp_min(1)).to(torch.uint8).argmax(dim=0)


def literal_loss(layer: RRNN, readout: nn.Linear, xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
    h, steps, zero = xs.new_zeros(xs.shape[1:]), [], xs.new_zeros(xs.shape[1:])
    for x in xs:
        steps.append((literal_step(torch.stack((x, h, zero)), layer),))
        h = steps[-1][0].vectors[-1]
    hs = torch.stack([step[0].vectors[-1] for step in steps])
    grown = Grown.over_time([step for (step,) in steps])
    parts = parts_of((grown,), layer.l0.leaf_names, LOSS, [*layer.parameters(), *readout.parameters()])
    loss = nn.functional.cross_entropy(readout(hs).flatten(0, 1), ys.flatten()) + parts.weighted(LOSS) / len(xs)
    return loss, torch.stack([step[0].choices for step in steps])


# -- ours ----------------------------------------------------------------------------------------------------------


def our_loss(layer: RRNN, readout: nn.Linear, xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
    hs, _ = layer(xs)
    loss = nn.functional.cross_entropy(readout(hs).flatten(0, 1), ys.flatten())
    loss = loss + layer.penalty(readout.parameters()) / len(xs)
    return loss, layer.noted.grown[0][0].choices.transpose(0, 1)


def problem(dtype: torch.dtype, steps: int) -> tuple[RRNN, nn.Linear, Tensor, Tensor]:
    torch.manual_seed(0)
    layer = RRNN(SIZE, SIZE, tuples=TUPLES, rounds=ROUNDS, scorer=HIDDEN, loss=LOSS)
    with torch.no_grad():
        # a score that is highest near 1/2: one that is drawn at random may prefer products that grow or shrink for ever
        scorer = layer.l0.scorers[0]
        scorer.weight_out.abs_().neg_()
        scorer.bias.copy_(-0.5 * scorer.weight.sum(dim=1))
    readout = nn.Linear(SIZE, CLASSES)
    xs, ys = 0.3 * torch.randn(steps, BATCH, SIZE), torch.randint(CLASSES, (steps, BATCH))
    return layer.to(dtype), readout.to(dtype), xs.to(dtype), ys


def gradients(loss: Tensor, layer: RRNN, readout: nn.Linear) -> list[Tensor]:
    return list(
        torch.autograd.grad(
            loss, [*layer.parameters(), *readout.parameters()], materialize_grads=True, allow_unused=True
        )
    )


def agreement(steps: int = 4) -> tuple[float, float, float]:
    """In float64: the share of equal choices, and the largest relative differences of loss and gradient."""
    layer, readout, xs, ys = problem(torch.float64, steps)
    ours, our_choices = our_loss(layer, readout, xs, ys)
    theirs, their_choices = literal_loss(layer, readout, xs, ys)
    same = (our_choices == their_choices).double().mean().item()
    loss = (abs(ours - theirs) / abs(theirs)).item()
    pairs = zip(gradients(ours, layer, readout), gradients(theirs, layer, readout), strict=True)
    return same, loss, max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-12)) for a, b in pairs)


def timed(which: str) -> tuple[float, float]:
    """Seconds of a training step, and the most memory, in GB."""
    layer, readout, xs, ys = problem(torch.float32, STEPS)
    make, times = {"ours": our_loss, "literal": literal_loss}[which], []
    for _ in range(4 if which == "ours" else 2):
        begin = time.perf_counter()
        loss, _ = make(layer, readout, xs, ys)
        loss.backward()
        times.append(time.perf_counter() - begin)
        del loss
    return statistics.median(times[1:]), most_memory()


def epoch(updates: int) -> tuple[float, float]:
    """Minutes of an epoch, from so many of its updates, with batch normalisation and the optimiser's step; and GB."""
    torch.manual_seed(0)
    layer = RRNN(
        SIZE,
        SIZE,
        tuples=TUPLES,
        rounds=ROUNDS,
        scorer=HIDDEN,
        loss=LOSS,
        batch_norm=True,
        identity=False,
        start_norm=0.223,
    )
    embedding, readout = nn.Embedding(CLASSES, SIZE), nn.Linear(SIZE, CLASSES)
    weights = [*layer.parameters(), *embedding.parameters(), *readout.parameters()]
    optimiser = torch.optim.Adam(weights, lr=1e-3)
    begin = time.perf_counter()
    for _ in range(updates):
        tokens, ys = torch.randint(CLASSES, (2, STEPS, BATCH))
        optimiser.zero_grad()
        loss, _ = our_loss(layer, readout, embedding(tokens), ys)
        loss.backward()
        optimiser.step()
    return (time.perf_counter() - begin) / updates * EPOCH / 60, most_memory()


def update_seconds(layer: RRNN | RRNNGRU, batch: int, updates: int) -> tuple[float, float]:
    """CPU seconds of an update with loss (6), on one thread; and GB."""
    torch.set_num_threads(1)
    readout, times = nn.Linear(SIZE, CLASSES), []
    xs, ys = torch.randn(STEPS, batch, SIZE), torch.randint(CLASSES, (STEPS, batch))
    optimiser = torch.optim.Adam([*layer.parameters(), *readout.parameters()])
    for _ in range(updates):
        begin = time.process_time()
        optimiser.zero_grad()
        hs, _ = layer(xs)
        loss = STEPS * nn.functional.cross_entropy(readout(hs).flatten(0, 1), ys.flatten())
        (loss + layer.penalty(readout.parameters())).backward()
        optimiser.step()
        times.append(time.process_time() - begin)
    return statistics.median(times[2:]), most_memory()  # the first ones compile


def soft() -> tuple[float, float]:
    torch.manual_seed(0)
    layer = RRNN(SIZE, SIZE, identity=False, rounds=ROUNDS, scorer=HIDDEN, choice="soft", loss=LOSS)
    return update_seconds(layer, BATCH, 5)


def gru(forms: str, backend: str) -> tuple[float, float]:
    torch.manual_seed(0)
    target = gru_target(GRUCell(SIZE, SIZE, reset="before"), "teacher")
    loss = TreeLoss(tree=0.003, margin=0.1, ridge=1e-8, target=(target,), forms=forms)  # type: ignore[arg-type]
    layer = RRNNGRU(SIZE, SIZE, setting="published code", loss=loss, backend=backend)
    return update_seconds(layer, GRU_BATCH, 12)


def most_memory() -> float:
    """The most that this process held, in GB: of its own memory, where ``ru_maxrss`` begins with its parent's."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 2**20


def apart(part: str, *more: str) -> tuple[float, ...]:
    """A part of the measurement in a process of its own, so that its memory is its own."""
    command = [sys.executable, __file__, "--part", part, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(map(float, done.stdout.split()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parts = {"agreement": agreement, "epoch": lambda: epoch(arguments.updates), "soft": soft}
    parts |= {
        f"gru {forms} {backend}": functools.partial(gru, forms, backend)
        for forms in ("nodes", "min")
        for backend in ("fused", "reference")
    }
    parts |= {side: functools.partial(timed, side) for side in ("ours", "literal")}
    parser.add_argument("--part", choices=tuple(parts), help="measure this, and print")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--updates", type=int, default=EPOCH, help="updates of the epoch to make")
    arguments = parser.parse_args()
    if arguments.part is not None:
        print(*parts[arguments.part]())
        return
    load, (same, loss, gradient) = os.getloadavg()[0], apart("agreement")
    results: dict[str, list[tuple[float, ...]]] = {"ours": [], "literal": []}
    for _ in range(arguments.turns):
        for side, rows in results.items():
            rows.append(apart(side))
    (ours, our_memory), (literal, memory) = (
        tuple(statistics.median(column) for column in zip(*results[side], strict=True)) for side in ("ours", "literal")
    )
    minutes, epoch_memory = apart("epoch", "--updates", str(arguments.updates))
    (soft_seconds, soft_memory), gru_rows = apart("soft"), {part: [] for part in parts if part.startswith("gru")}
    for _ in range(arguments.turns):
        for part in random.sample(list(gru_rows), len(gru_rows)):
            gru_rows[part].append(apart(part)[0])
    seconds = {part: statistics.median(row) for part, row in gru_rows.items()}
    date = datetime.date.today().isoformat()
    report = f"""# RRNN, {date}

{environment().sentence}; load before the run {load:.2f}.

p = {SIZE}, {TUPLES} tuples, 2 operators,
4 activations, N̄ = {ROUNDS}, scorer {HIDDEN}, B = {BATCH}, T = {STEPS}, float32. Medians of {arguments.turns} turns, a
process each. Written by `python benchmarks/rrnn.py`.

| a training step with loss (6) | seconds | of ours | most memory |
| --- | --- | --- | --- |
| `holdfast.rrnn.RRNN` | {ours:.3f} | 1.0 | {our_memory:.2f} GB |
| every candidate rebuilt and scored every round, autograd on | {literal:.3f} | {literal / ours:.1f} | {memory:.2f} GB |

Target: at least {SPEED:.0f} times faster. Same trees and losses: in float64 at T = 4, {100 * same:.2f}% of the choices
are equal, the losses differ by {loss:.1e} and the gradients by {gradient:.1e}, relative to the largest entry.

An epoch of Wiki-5k (5,000 sequences of 20 characters, batches of {BATCH}, batch normalisation, Adam):
{minutes:.2f} minutes by {arguments.updates} of its {EPOCH} updates, {epoch_memory:.2f} GB at most.
Targets: {MINUTES:.0f} minutes, {GIGABYTES:.0f} GB.

CPU seconds of an update with loss (6), margins included, one thread. RRNN: soft choice, B = {BATCH}, scorer {HIDDEN}.
RRNN-GRU: soft choice, as S1's authors ran it, B = {GRU_BATCH}, scorer 64.

| an update | seconds | target | of the plain loop |
| --- | --- | --- | --- |
| RRNN, soft choice | {soft_seconds:.2f} ({soft_memory:.2f} GB) | {SOFT_SECONDS:.1f} | |
| RRNN-GRU, distance node by node | {seconds["gru nodes fused"]:.3f} | {GRU_SECONDS:.2f} | \
{seconds["gru nodes fused"] / seconds["gru nodes reference"]:.2f} |
| RRNN-GRU, tree distance | {seconds["gru min fused"]:.3f} | {GRU_SECONDS:.2f} | \
{seconds["gru min fused"] / seconds["gru min reference"]:.2f} |
"""
    path = Path(__file__).parent / f"{date}-rrnn.md"
    path.write_text(report)
    print(report)


if __name__ == "__main__":
    main()
