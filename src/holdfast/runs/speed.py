"""How long a layer takes here: forward and backward through time, ours beside PyTorch's.

    ratio = median milliseconds of ours / median milliseconds of torch.nn's        (1) below 1: ours is faster

The layers take turns, so that other load on the machine affects all of them: each round runs every layer once, and (1)
compares medians over the rounds. The loss reads the last output only, as in tasks with one target per sequence.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import SettingError
from holdfast.rrnn.layer import TreeLayer
from holdfast.train.model import LAYERS

__all__ = ["PEERS", "TIMED", "Timing", "time_layers"]

PEERS: dict[str, type[nn.Module]] = {"torch.nn.RNN": nn.RNN, "torch.nn.LSTM": nn.LSTM, "torch.nn.GRU": nn.GRU}
"""PyTorch's layers, which ours are compared with."""

TIMED = tuple(name for name, layer in LAYERS.items() if not issubclass(layer, TreeLayer))
"""Layers that are timed by default; RRNN searches at every step, and would take minutes per round."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """One layer's row.

    Args:
        name: as settings call it, or PyTorch's.
        parameters: how many numbers it learns.
        milliseconds: median over the rounds, forward and backward.
        ratios: (1), by the name of PyTorch's layer.

    Example:
        >>> Timing("sgornn", 1282, 4.0, {"torch.nn.LSTM": 0.1}).ratios["torch.nn.LSTM"]
        0.1
    """

    name: str
    parameters: int
    milliseconds: float
    ratios: dict[str, float]


def time_layers(
    names: Sequence[str] = TIMED,
    *,
    steps: int = 200,
    batch: int = 64,
    hidden: int = 128,
    inputs: int = 2,
    rounds: int = 7,
    seconds: float = 5.0,
) -> list[Timing]:
    """Time PyTorch's layers and ours on the same input.

    Args:
        names: which of ``holdfast.train.LAYERS``.
        steps, batch, hidden, inputs: T, sequences, units and features.
        rounds: measurements of each layer, after one that does not count: the first call compiles.
        seconds: begin no further round after this long, but make three, if ``rounds`` allows.

    Returns:
        PyTorch's first, then ours.

    Example:
        >>> [row.name for row in time_layers(["gru"], steps=5, batch=2, hidden=4, rounds=1)]
        ['torch.nn.RNN', 'torch.nn.LSTM', 'torch.nn.GRU', 'gru']
    """
    for name, value in {"steps": steps, "batch": batch, "hidden": hidden, "inputs": inputs, "rounds": rounds}.items():
        if value < 1:
            raise SettingError(f"--{name} must be at least 1, got {value}.")
    for name in names:
        if name not in LAYERS:
            raise SettingError(f"unknown cell {name!r}; known: {', '.join(sorted(LAYERS))}.")
    xs = torch.randn(steps, batch, inputs)
    layers: dict[str, nn.Module] = {name: peer(inputs, hidden) for name, peer in PEERS.items()}
    layers |= {name: LAYERS[name](inputs, hidden) for name in names}
    runs = {name: _forward_backward(layer, xs, ours=name not in PEERS) for name, layer in layers.items()}
    times: dict[str, list[float]] = {name: [] for name in layers}
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds
    for turn in range(rounds):
        if turn >= 3 and time.perf_counter() >= end:
            break
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - begin))
    medians = {name: statistics.median(measured) for name, measured in times.items()}
    return [
        Timing(
            name,
            sum(weight.numel() for weight in layer.parameters()),
            medians[name],
            {peer: medians[name] / medians[peer] for peer in PEERS},  # (1)
        )
        for name, layer in layers.items()
    ]


def _forward_backward(layer: nn.Module, xs: Tensor, *, ours: bool) -> Callable[[], None]:
    options: dict[str, Any] = {"need_output": False} if ours else {}

    def run() -> None:
        layer.zero_grad()
        _, state = layer(xs, **options)
        (state if isinstance(state, Tensor) else state[0]).sum().backward()

    return run
