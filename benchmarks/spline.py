"""What looking inside costs over running the network. Writes a dated report beside this file.

    HOLDFAST_DATA=... python benchmarks/spline.py     about two minutes; the machine should be idle

A ReLU RNN on MNIST pixel by pixel, T = 784, H = 128, 10 classes, float32. Each round runs every row once; medians over
the rounds, and ratios of medians. Without MNIST's files the images are noise of the same size, and the report says so.
"""

from __future__ import annotations

import datetime
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.runs.environment import environment
from holdfast.spline import affine_piece, initial_state_slope, partition_code, templates
from holdfast.tasks import PixelMNIST
from holdfast.train import ModelSettings, build

STEPS, HIDDEN, IMAGES, BLOCK = 784, 128, 10_000, 250
PIECE_TARGET, CODE_TARGET = 3.0, 2.0


class Spec:
    """MNIST's, for a model without its files."""

    input_size, output_size, tokens, every_step = 1, 10, False, False


def images() -> tuple[Tensor, str]:
    try:
        task = PixelMNIST().load()
    except HoldfastError:
        return torch.rand(STEPS, IMAGES, 1), "noise in the place of MNIST, whose files are not there"
    return torch.cat([batch.inputs for batch in task.evaluation("test", 1000)], dim=1), "MNIST's test set"


def medians(rows: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Milliseconds of each row, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    for run in rows.values():
        run()  # compiles
    for _ in range(rounds):
        for name, run in rows.items():
            begin = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(some) for name, some in times.items()}


def main() -> None:
    load = os.getloadavg()[0]
    torch.manual_seed(0)
    model = build(ModelSettings("rnn", HIDDEN, options={"nonlinearity": "relu", "init": "identity"}), Spec())
    xs, what = images()
    x, label = xs[:, 0].contiguous(), torch.tensor([7])

    def pass_() -> None:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x.unsqueeze(1))[0], label).backward()

    def copies() -> None:
        many = x.unsqueeze(1).repeat(1, 10, 1).requires_grad_()
        torch.autograd.grad(model(many)[0].diagonal().sum(), many)

    def loop() -> None:
        for row in range(10):
            one = x.unsqueeze(1).requires_grad_()
            torch.autograd.grad(model(one)[0][0, row], one)

    one = medians(
        {
            "forward and backward": pass_,
            "`affine_piece`, A whole": lambda: affine_piece(model, x),
            '`affine_piece(form="operator")`, B and pattern': lambda: affine_piece(model, x, form="operator"),
            "`templates`": lambda: templates(model, x),
            "autograd on ten copies, A alone": copies,
            "autograd ten times, A alone": loop,
        },
        rounds=25,
    )

    @torch.no_grad()
    def forward() -> None:
        for block in xs.split(BLOCK, dim=1):
            model(block)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    many = medians({"forward": forward, "`partition_code`": lambda: partition_code(model, xs)}, rounds=3)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    slope = medians({"`initial_state_slope`, 8 images": lambda: initial_state_slope(model, xs[:, :8])}, rounds=3)

    date = datetime.date.today().isoformat()
    base, whole = one["forward and backward"], many["forward"]
    lines = [f"| {name} | {ms:.1f} | {ms / base:.2f} |" for name, ms in (one | slope).items()]
    rows = [f"| {name} | {ms / 1e3:.2f} | {ms / whole:.2f} |" for name, ms in many.items()]
    piece, code = one["`affine_piece`, A whole"] / base, many["`partition_code`"] / whole
    met = {True: "met", False: "**not met**"}
    size = xs.shape[1] * STEPS * HIDDEN / 8e6
    report = f"""# Looking inside, {date}

{environment().sentence}; load before the run {load:.2f}.

ReLU RNN, T = {STEPS}, H = {HIDDEN}, 10 classes, float32; {what}.
Written by `python benchmarks/spline.py`.

| one input | ms | of a forward and backward pass |
| --- | --- | --- |
{chr(10).join(lines)}

Target: A for at most {PIECE_TARGET:g} passes; measured {piece:.2f}: {met[piece <= PIECE_TARGET]}.

| {xs.shape[1]:,} images | s | of the forward pass |
| --- | --- | --- |
{chr(10).join(rows)}

Target: codes for at most {CODE_TARGET:g} forward passes; measured {code:.2f}: {met[code <= CODE_TARGET]}. The most
memory this process held grew by {after - before:.0f} MB meanwhile, of which the codes are {size:.0f} MB.
"""
    path = Path(__file__).parent / f"{date}-spline.md"
    path.write_text(report)
    print(report)


if __name__ == "__main__":
    main()
