"""Which way a scan takes through the CPU: the one place that chooses, from sizes and from what the machine has.

    way_for(plan, batch, lengths)  →  Shape (lanes over samples) or FeatureShape (lanes over features)

Lanes over samples: each thread has its own samples and reads all weights, and no thread waits for another. That is the
way for batches that fill the vectors of every thread. Lanes over features: all threads go through the steps together,
and each reads its part of the weights. That is the way for fewer samples, where the other one would compute in empty
lanes or leave threads without work.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine.program.render import render
from holdfast.engine.program.tiles import Product, Rotate, RotateBack, reachable
from holdfast.engine.targets.cpu.machine import registers, second_cache
from holdfast.engine.targets.cpu.plan import FEW, Plan, plan_for
from holdfast.engine.targets.cpu.shape import FeatureShape, Shape
from holdfast.engine.targets.cpu.team import team_size, worker_count
from holdfast.engine.targets.cpu.vec import WIDTH

__all__ = ["by_features", "by_samples", "described", "fused_source", "way_for", "widest_input"]

ALONE = 1 << 15  # entries of weights, times √batch, up to which one thread does not wait for others
FOLDED = 4  # samples of a thread for each time that the weights of its input fill the second cache
LARGE = 4  # times the second cache: weights that are better divided between threads
ROWS = 6  # samples of a product that are summed together, at most


def way_for(plan: Plan, batch: int, lengths: Tensor | None) -> Shape | FeatureShape:
    """The way of this scan."""
    key = batch, lengths is not None, torch.get_num_threads(), len(plan.refused)
    if key not in plan.ways:
        features = lengths is None and "features" not in plan.refused and _prefers_features(plan, batch)
        plan.ways[key] = by_features(plan, batch) if features else by_samples(plan, batch, lengths)
    return plan.ways[key]


def described(plan: Plan, batch: int) -> str:
    """The way of a scan of this batch in words, and why it is not the other one if that was refused."""
    way, refused = way_for(plan, batch, None), plan.refused.get("features")
    if isinstance(way, FeatureShape):
        threads = "one thread" if way.team == 1 else f"{way.team} threads together"
        return f"lanes over features, products of {way.rows} x {way.vectors * way.width}, {threads}"
    blocks = math.ceil(batch / way.lanes)
    text = f"lanes over samples, {blocks} x {way.lanes}, {worker_count(blocks)} of {torch.get_num_threads()} threads"
    return text if refused is None else f"{text}; lanes over features were refused: {refused}"


def widest_input(cell: Cell, batch: int, *, gradient: bool) -> int:
    """The widest input that is projected inside the loop of a scan; a wider one is projected before it, in one product.

    With lanes over samples the product inside is as fast as the one before, and nothing has to be written and read
    again between them, while the weights of the input stay near: all samples of a thread use them at every step. With
    lanes over features, few samples do, and the gradient of a narrow input's weights is cheaper as one product too.
    """
    dtype, threads = cell.example_weight().dtype, torch.get_num_threads()
    if batch < WIDTH.get(dtype, 8) * threads:
        return 0 if gradient else FEW
    if cell.input_size <= FEW:
        return FEW
    weights = sum(w.nbytes for w in cell.parameters() if cell.input_size in w.shape)
    return cell.input_size if FOLDED * weights * threads <= second_cache() * batch else FEW


def by_samples(plan: Plan, batch: int, lengths: Tensor | None) -> Shape:
    """As many lanes as a thread's share of the batch fills."""
    width, share = WIDTH[plan.dtype], math.ceil(batch / torch.get_num_threads())
    lanes = next((width * n for n in (1, 2, 4) if share <= width * n), width * 4)
    return Shape(plan.dtype, lanes, masked=lengths is not None or batch % lanes != 0)


def by_features(plan: Plan, batch: int) -> FeatureShape:
    """As many samples and vectors at a time as there are registers for their sums, the weights and a sample; fewer
    vectors where the parts of a team would differ much otherwise.
    """
    rows = min(range(1, min(batch, ROWS) + 1), key=lambda r: math.ceil(batch / r) * (r + 0.4))
    team = 1 if math.sqrt(batch) * sum(_products(plan)) <= ALONE else team_size()  # Note [When a team pays]
    fitting = [v for v in (8, 4, 2, 1) if rows * v + v + 1 <= registers() or rows == 1]
    shapes = [FeatureShape(plan.dtype, rows, vectors, team) for vectors in fitting]
    return min(shapes, key=lambda shape: shape.largest_part(plan.traced.state_sizes[0]))  # the first of equal ones


# Note [When a team pays]
# A step of a team costs a wait, 0.2 to 1 µs as the cores of a virtual machine lie nearer or farther apart, and moving
# the new state between caches, which grows with the batch. It saves a part of reading the weights, and of the products,
# which grow with the weights and with the batch. On two cores, near and far, µs for 200 steps alone / together: RNN of
# 256 units, one sample, 540 / 320 and 540; LSTM of 64 units, four samples, 500 / 350 and 870; LSTM of 128 units, four
# samples, 1440 / 880.


def _prefers_features(plan: Plan, batch: int) -> bool:
    """Fewer samples than the lanes of all threads; or few more, and weights that each thread should read a part of."""
    if any(isinstance(n, Rotate | RotateBack) for n in reachable(plan.lowered(True).forward.roots)):
        return False
    lanes = WIDTH[plan.dtype] * torch.get_num_threads()
    weights = sum(_products(plan)) * plan.dtype.itemsize
    return batch < lanes or (batch < 2 * lanes and weights >= LARGE * second_cache())


def _products(plan: Plan) -> list[int]:
    """Multiply-adds of each product of a step, forwards."""
    return [n.tile.features * n.features for n in reachable(plan.lowered(True).forward.roots) if isinstance(n, Product)]


def fused_source(cell: Cell, batch: int | None = None) -> str:
    """Both directions of a cell's step as text; see ``holdfast.fused_source``."""
    widest = FEW if batch is None else widest_input(cell, batch, gradient=True)
    with torch.enable_grad():
        plan = plan_for(cell, tuple(cell.weights()), gradient=True, widest=widest)
    source_grad, shape = not plan.fold, Shape(plan.dtype, 32, masked=False)
    forward, backward = plan.forward(source_grad), plan.backward(source_grad, shape)
    text = f"{render(forward, 'forward')}\n\n\n{render(backward, 'backward')}"
    return text if batch is None else f"# batch {batch}: {described(plan, batch)}\n{text}"
