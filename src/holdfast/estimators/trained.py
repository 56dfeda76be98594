"""Trained cells: a recurrent layer, pooled over time, and the shortest training loop that needs no tuning.

    η(p) = η min(p / w, 1) · (1 + cos π p) / 2,  w = 0.1            (1) warm-up and cosine over the share p that is done
    η = η* / 3,  η* where the loss of a rising rate was least        (2) range test: Smith (2017), §3

The result is a function of data, seed and number of updates. Where time is short, the number of updates is planned from
the measured time of an update, before the training begins.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.tasks import Spec
from holdfast.train import LAYERS, ModelSettings, build
from holdfast.train.progress import Progress

__all__ = ["PLAIN", "TRAINED", "UPDATES", "fit_trained", "network_of", "seconds_per_update", "updates_within"]

TRAINED = tuple(name for name in LAYERS if name not in ("rrnn", "rrnn-gru"))
"""Layers that ``fit_trained`` takes, by name."""

PLAIN = "plain gru"
"""The baseline: a GRU in one direction, read at its last state."""

UPDATES, UNITS = 600, 64  # of a training, and hidden
RISE = 40  # updates of the range test
LOWEST, HIGHEST = 1e-4, 1e-1
WARM, TIMED = 3, 5  # updates before the clock, and under it


def network_of(layer: str, hidden_size: int = UNITS) -> ModelSettings:
    """The settings of what ``fit_trained`` trains under this name.

    Example:
        >>> network_of("sgornn").bidirectional, network_of("plain gru").bidirectional
        (True, False)
    """
    if layer == PLAIN:
        return ModelSettings("gru", hidden_size)
    return ModelSettings(layer, hidden_size, bidirectional=True, pooled=True, output_dropout=0.1)


def fit_trained(
    layer: str,
    x: Tensor,
    lengths: Tensor,
    y: Tensor,
    *,
    classes: int | None,
    updates: int = UPDATES,
    hidden_size: int = UNITS,
    seed: int = 0,
    progress: Progress | None = None,
) -> nn.Module:
    """A layer of this name, trained on all of these sequences. Arguments as in ``fit_reservoir``.

    Example:
        >>> x, y = torch.randn(20, 9, 1), torch.arange(20) % 2
        >>> model = fit_trained("gru", x, torch.full((20,), 9), y, classes=2, updates=2, hidden_size=4)
        >>> model(x.transpose(0, 1))[0].shape
        torch.Size([20, 2])
    """
    with torch.random.fork_rng(devices=[]):
        model, update = _begun(layer, x, lengths, y, classes, hidden_size, seed)
        rate = _range_test(copy.deepcopy(model), update, min(RISE, updates))
        optimiser = _optimiser(model)
        if progress is not None:
            progress.start(updates, 0)
        for index in range(updates):
            done = (index + 1) / updates
            factor = min(done / 0.1, 1) * (1 + math.cos(math.pi * done)) / 2  # (1)
            loss, norm = update(model, optimiser, rate * factor)
            if progress is not None:
                progress.update(index + 1, loss, norm)
        if progress is not None:
            progress.stop()
    return model.eval()


def seconds_per_update(
    layer: str, x: Tensor, lengths: Tensor, y: Tensor, *, classes: int | None, hidden_size: int = UNITS, seed: int = 0
) -> float:
    """How long an update of ``fit_trained`` takes on this machine; compiling is not part of it.

    Example:
        >>> x, y = torch.randn(20, 9, 1), torch.arange(20) % 2
        >>> seconds_per_update("gru", x, torch.full((20,), 9), y, classes=2, hidden_size=4) > 0
        True
    """
    with torch.random.fork_rng(devices=[]):
        model, update = _begun(layer, x, lengths, y, classes, hidden_size, seed)
        optimiser, times = _optimiser(model), []
        for _ in range(WARM + TIMED):
            began = time.monotonic()
            update(model, optimiser, LOWEST)
            times.append(time.monotonic() - began)
    return max(sorted(times[WARM:])[TIMED // 2], 1e-6)


def updates_within(seconds: float, each: float) -> int:
    """How many updates fit into so many seconds, at most ``UPDATES``, after the range test; ``each`` takes that long.

    Example:
        >>> updates_within(10.0, each=0.05), updates_within(1e9, each=0.05), updates_within(0.1, each=0.05)
        (140, 600, 0)
    """
    return max(0, min(UPDATES, int(0.9 * seconds / each) - RISE))  # 0.9: updates are not all that takes time


Update = Callable[[nn.Module, torch.optim.Optimizer, float], tuple[float, float]]


def _begun(
    layer: str, x: Tensor, lengths: Tensor, y: Tensor, classes: int | None, hidden_size: int, seed: int
) -> tuple[nn.Module, Update]:
    """The model at its start, and the function that updates it with the next batch."""
    torch.manual_seed(seed)
    outputs = classes or y.shape[1]
    kind: Any = ("cross_entropy", "accuracy") if classes else ("mse", "mse")
    model = build(network_of(layer, hidden_size), Spec(x.shape[2], outputs, *kind)).to(x.dtype)
    xs = x.transpose(0, 1)
    draw = _batches(len(x), min(64, max(8, len(x) // 8)), torch.Generator().manual_seed(seed))

    def update(network: nn.Module, optimiser: torch.optim.Optimizer, rate: float) -> tuple[float, float]:
        rows = next(draw)
        z, _ = network(xs[: int(lengths[rows].max()), rows], lengths[rows])
        loss = nn.functional.mse_loss(z, y[rows]) if classes is None else nn.functional.cross_entropy(z, y[rows])
        optimiser.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.step()
        return loss.item(), float(norm)

    return model, update


def _optimiser(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), weight_decay=1e-3)


def _range_test(model: nn.Module, update: Update, rise: int) -> float:
    """η of (2), from a copy of the model; losses are smoothed over a few updates."""
    optimiser, smooth, best, at = _optimiser(model), None, math.inf, LOWEST
    for k in range(rise):
        rate = LOWEST * (HIGHEST / LOWEST) ** (k / rise)
        loss, _ = update(model, optimiser, rate)
        if not math.isfinite(loss):
            break
        smooth = loss if smooth is None else 0.7 * smooth + 0.3 * loss
        if smooth < best:
            best, at = smooth, rate
        if smooth > 4 * best:
            break
    return max(at / 3, LOWEST)


def _batches(n: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    while True:
        yield from torch.randperm(n, generator=generator).split(size)
