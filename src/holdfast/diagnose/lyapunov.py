"""Lyapunov exponents along real sequences: how fast a small difference of states grows or shrinks, per step.

    Q_t R_t = J_t Q_{t-1},   λ_i = mean over t of log |R_t,ii|                      (1) QR of the product of Jacobians

λ_1 > 0: two nearby states move apart, so gradients through time explode. λ_1 < 0: differences fall to 1/e in -1/λ_1
steps. The first tenth of a sequence is left out of the mean, while Q turns into place.

Source: Engelken, Wolf & Abbott (2023), Lyapunov spectra of chaotic recurrent neural networks; Benettin et al. (1980).
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.diagnose.jacobian import FlatStep, flat
from holdfast.engine.reference import scan_reference
from holdfast.errors import positive_size
from holdfast.layers import Recurrent
from holdfast.stability.observed import time_first
from holdfast.stability.stack import as_layer
from holdfast.types import State

__all__ = ["exponents_along", "lyapunov_exponents"]


def lyapunov_exponents(model: Cell | Recurrent, data: Tensor, count: int | None = None) -> Tensor:
    """The ``count`` largest exponents (1) of each sequence, (batch, count), largest first.

    Args:
        model: a cell, or a layer of one cell in one direction.
        data: inputs as the layer takes them, (time, batch, input).
        count: how many; default all.

    Example:
        >>> from holdfast import LinearCell
        >>> cell = LinearCell(1, 2, bias=False)
        >>> with torch.no_grad():
        ...     _ = cell.weight_hh.copy_(torch.diag(torch.tensor([0.5, 2.0])))
        >>> [round(value, 6) for value in lyapunov_exponents(cell, torch.zeros(99, 1, 1))[0].exp().tolist()]
        [2.0, 0.5]
    """
    layer = as_layer(model, "lyapunov_exponents")
    xs = time_first(layer, data, "lyapunov_exponents").detach()
    cell = layer.cells[0]
    states: list[State] = [tuple(entry[0] for entry in layer.initial_state(xs.shape[1], xs, noise=False))]
    with torch.no_grad():
        for x in xs:
            states.append(scan_reference(cell, x.unsqueeze(0), states[-1])[1])
    whole = tuple(torch.stack(entries) for entries in zip(*states, strict=True))
    size = sum(cell.state_sizes)
    return exponents_along(FlatStep(cell), xs, whole, size if count is None else positive_size("", "count", count))


def exponents_along(step: FlatStep, xs: Tensor, states: State, count: int) -> Tensor:
    """(1) along states that are known, entries (time + 1, batch, size); (batch, count)."""
    count, along = min(count, step.size), flat(states)
    batch, skipped = xs.shape[1], len(xs) // 10
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(batch, step.size, count, generator=generator, dtype=torch.float64)
    q, total = torch.linalg.qr(start)[0], torch.zeros(batch, count, dtype=torch.float64)
    for t, x in enumerate(xs):
        q, r = torch.linalg.qr(step.times(x, along[t], q))
        if t >= skipped:
            total += r.diagonal(dim1=1, dim2=2).abs().clamp_min(1e-300).log()
    return (total / (len(xs) - skipped)).sort(dim=1, descending=True).values
