"""A network with its pattern fixed: an affine map, run forward and transposed by ``scan``.

With G_t = α diag(s of each unit's region) and c_t the intercepts times α, a layer is

    h_t = G_t (W x_t + b) + c_t + G_t U h_{t-1} + β h_{t-1}                          (1) S5 Theorem 1, step by step
    g_t = q_t + (Uᵀ G_{t+1} + β) g_{t+1}                                             (2) (1) transposed
    dz/dx_t = Wᵀ G_t g_t,   dz/dh_0 = (Uᵀ G_1 + β) g_1                               (3)

q_t is what comes from above: the readout, or the next layer's (3): S5 Theorem 2 from its last factor to its first. In
the paper's letters, 𝒜_{t:T} = Π_{s=T}^{t+1} (G_s U + β), and (2) is row times matrix instead of matrix times matrix:
any number of rows costs one backward pass.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.cells.nonlinearity import regions_of
from holdfast.engine import scan
from holdfast.spline.network import SplineNetwork, Walked
from holdfast.spline.pattern import pattern_of, spline_form
from holdfast.types import State, Weights

__all__ = ["FrozenNetwork", "FrozenRow", "freeze"]


class _Given(Cell):
    """A cell whose weights are set for each call, so that the engine traces and compiles it once."""

    weight_hh: Tensor  # buffers, which the engine knows by their shapes
    beta: Tensor | None

    def __init__(self, features: int, hidden: int):
        super().__init__(features, hidden)
        self.register_buffer("weight_hh", None, persistent=False)
        self.register_buffer("beta", None, persistent=False)

    def drive(self, x: Tensor) -> Tensor:
        return x

    def weights(self) -> Weights:
        return (self.weight_hh,) if self.beta is None else (self.weight_hh, self.beta)


class TangentCell(_Given):
    """(1), with all that does not depend on the state as its drive: (v_t, G_t)."""

    def step(self, drive: Tensor, state: State, weights: Weights) -> State:
        (h,), (weight_hh, *beta) = state, weights
        v, gain = drive.split([self.hidden_size, self.hidden_size], dim=1)
        new = v + gain * (h @ weight_hh.mT)
        return (new + beta[0] * h if beta else new,)  # (1)


class CotangentCell(_Given):
    """(2) and G_t g_t, driven by G_t, or by (q_t, G_t). The state is (G_t g_t, what the step before receives)."""

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return self.hidden_size, self.hidden_size

    def step(self, drive: Tensor, state: State, weights: Weights) -> State:
        (_, g), (weight_hh, *beta) = state, weights
        if self.input_size > self.hidden_size:
            q, drive = drive.split([self.hidden_size, self.hidden_size], dim=1)
            g = q + g
        gained = drive * g
        before = gained @ weight_hh
        return gained, before + beta[0] * g if beta else before  # (2)


_cells = threading.local()


def _run(kind: type[_Given], xs: Tensor, state: State, row: FrozenRow, *, reverse: bool) -> tuple[Tensor, State]:
    """One scan of a cell of this kind with the weights of ``row``."""
    known = _cells.__dict__.setdefault("known", {})
    key = kind, xs.shape[-1], state[-1].shape[-1], row.beta is not None, xs.dtype
    if key not in known:
        known[key] = kind(*key[1:3])
    cell = known[key]
    cell.weight_hh, cell.beta = row.weight_hh[...], row.beta  # a view, since a Parameter cannot be a buffer
    try:
        outputs, last = scan(cell, xs, state, reverse=reverse, backend=row.backend)
    finally:
        cell.weight_hh = cell.beta = None
    assert outputs is not None
    return outputs, last


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenRow:
    """A layer in one direction with its pattern fixed.

    Args:
        weight_ih, weight_hh, bias, beta: its weights; None for a bias or β that is zero.
        bits: its pattern, (time, batch, units · knots).
        gain: G, (time, batch, hidden).
        shift: c, or None where it is zero.
        reverse: whether it reads from the end.
        start: h_0, (batch, hidden).
        backend: as in ``holdfast.scan``; the layer's own.
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias: Tensor | None
    beta: Tensor | None
    bits: Tensor
    gain: Tensor
    shift: Tensor | None
    reverse: bool
    start: Tensor
    backend: str

    def forward(self, xs: Tensor, *, affine: bool) -> tuple[Tensor, Tensor]:
        """(1) for (time, copies, features): outputs and last state; only its linear part unless ``affine``."""
        batch = xs.shape[1]
        gain = _copied(self.gain, batch)
        drive = torch.nn.functional.linear(xs, self.weight_ih, self.bias if affine else None) * gain
        if affine and self.shift is not None:
            drive = drive + _copied(self.shift, batch)
        start = _copied(self.start.unsqueeze(0), batch)[0]
        state = start if affine else torch.zeros_like(start)
        drives = torch.cat([drive, gain], dim=-1)
        hs, (last,) = _run(TangentCell, drives, (state,), self, reverse=self.reverse)
        return hs, last

    def backward(self, g: Tensor, qs: Tensor | None) -> tuple[Tensor, Tensor]:
        """(2) from g at the end, (rows, hidden), and q at every step: G_t g_t at every step, and dz/dh_0."""
        drive = _copied(self.gain, len(g))
        if qs is not None:
            drive = torch.cat([qs, drive], dim=-1)
        state = torch.zeros_like(g), g
        gained, (_, start) = _run(CotangentCell, drive, state, self, reverse=not self.reverse)
        return gained, start


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenNetwork:
    """All layers of a network with their patterns fixed.

    Args:
        rows: layer by layer, forward before backward.
        directions: 1 or 2.
        weight, bias: of the readout.
        every: whether z is read at every step.
    """

    rows: tuple[FrozenRow, ...]
    directions: int
    weight: Tensor
    bias: Tensor | None
    every: bool

    @property
    def steps(self) -> int:
        return len(self.rows[0].gain)

    def forward(self, xs: Tensor, *, affine: bool) -> Tensor:
        """The answers z of (time, copies, features): (copies, outputs), or (time, copies, outputs)."""
        lasts: list[Tensor] = []
        for layer in self._layers():
            done = [row.forward(xs, affine=affine) for row in layer]
            xs, lasts = torch.cat([hs for hs, _ in done], dim=-1), [last for _, last in done]
        hs = xs if self.every else torch.cat(lasts, dim=-1)
        return torch.nn.functional.linear(hs, self.weight, self.bias if affine else None)

    def backward(self, cotangent: Tensor, *, inputs: bool = True) -> tuple[Tensor | None, Tensor]:
        """(3) for rows of cotangents of z.

        Args:
            cotangent: (rows, outputs), or (time, rows, outputs) if z is read at every step. With a batch of samples
                their rows are adjacent: row = sample · (rows per sample) + number.
            inputs: whether dz/dx is wanted, or dz/dh_0 alone.

        Returns:
            dz/dx, (time, rows, features), or None; and dz/dh_0, (layers · directions, rows, hidden).
        """
        above = cotangent @ self.weight  # on the last layer's outputs
        qs = above if self.every else None
        starts: list[Tensor] = []
        layers = self._layers()
        for depth, layer in enumerate(reversed(layers)):
            ends = None if self.every or depth else above
            below, first = None, []
            for way, row in enumerate(layer):
                hidden = row.gain.shape[-1]
                own = slice(way * hidden, (way + 1) * hidden)
                g = cotangent.new_zeros(cotangent.shape[-2], hidden) if ends is None else ends[:, own]
                gained, start = row.backward(g.contiguous(), None if qs is None else qs[..., own])
                first.append(start)
                if inputs or depth + 1 < len(layers):
                    part = gained @ row.weight_ih  # (3)
                    below = part if below is None else below + part
            starts = first + starts
            qs = below
        return qs if inputs else None, torch.stack(starts)

    def _layers(self) -> list[tuple[FrozenRow, ...]]:
        count = self.directions
        return [self.rows[begin : begin + count] for begin in range(0, len(self.rows), count)]


def freeze(network: SplineNetwork, walked: Sequence[Walked], *, fixed: bool) -> FrozenNetwork:
    """The network with the pattern of this pass.

    Args:
        network: the model.
        walked: the rows of one pass through it.
        fixed: copy the weights; else they keep their gradients, and the pattern, which is piecewise constant, has none.
    """

    def held(weight: Any) -> Any:  # a tensor or None
        return weight.detach().clone() if fixed and weight is not None else weight

    rows = []
    for one in walked:
        form = spline_form(one.cell)
        regions, bits = regions_of(form.phi), pattern_of(one, form)
        if regions.knots:
            slope, shift = regions.lines(bits, one.hs.dtype)
        else:
            slope, shift = torch.full_like(one.hs, regions.slopes[0], requires_grad=False), None
        alpha, beta = (None, None) if form.alpha_beta is None else map(held, form.alpha_beta)
        if alpha is not None:
            slope, shift = alpha * slope, None if shift is None else alpha * shift
        W, U, b = (held(weight) for weight in (form.weight_ih, form.weight_hh, form.bias))
        rows.append(FrozenRow(W, U, b, beta, bits, slope, shift, one.reverse, one.start[0], network.rnn.backend))
    weight, bias = held(network.weight), held(None if network.readout is None else network.readout.bias)
    return FrozenNetwork(tuple(rows), network.rnn.directions, weight, bias, network.read == "every")


def _copied(values: Tensor, rows: int) -> Tensor:
    """(time, batch, features) as (time, rows, features): every sample repeated, its copies adjacent."""
    steps, batch, features = values.shape
    if batch == rows:
        return values
    return values.unsqueeze(2).expand(steps, batch, rows // batch, features).reshape(steps, rows, features)
