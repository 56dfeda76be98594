"""States of a ``Reservoir`` at every step of several series."""

from __future__ import annotations

import numpy as np
import torch

from holdfast.layers import Reservoir

__all__ = ["states", "step_reservoir"]


def step_reservoir(input_size: int, seed: int) -> Reservoir:
    """8 small cells: few series have enough steps for more. The settings were chosen on the development series.

    Example:
        >>> len(step_reservoir(1, seed=0).cells)
        8
    """
    horizons, scales = (3, 4, 8, 16), (0.3, 1.0)
    kind = {"nonlinearities": ("tanh",), "quantiles": ()}
    return Reservoir(
        input_size, steps=horizons[-1], units=8, horizons=horizons, scales=scales, seed=seed, **kind
    ).double()


def states(reservoir: Reservoir, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """All units at every step: (time, columns) to (time, units) for every series.

    Example:
        >>> states(step_reservoir(1, seed=0), [np.zeros((7, 1)), np.ones((5, 1))])[1].shape
        (5, 64)
    """
    lengths = torch.tensor([len(x) for x in inputs])
    padded = torch.zeros(len(inputs), int(lengths.max()), inputs[0].shape[1], dtype=torch.float64)
    for index, x in enumerate(inputs):
        padded[index, : len(x)] = torch.from_numpy(x)
    hs = reservoir.states(padded, lengths).numpy()
    return [hs[index, : len(x)] for index, x in enumerate(inputs)]
