"""LSTM and GRU in the largest-entry norm: how far states reach, and how a step moves them. S4 Lemma 5, Proposition 5.

    |h_j| ≤ h̄_j,  |c_j| ≤ c̄_j = ī_j ḡ_j / (1 - f̄_j)                           (1) states reached from zero: Lemma 5
    ‖Δc₊‖ ≤ f̄ ‖Δc‖ + (¼ c̄ ‖U_f‖ + ¼ ḡ ‖U_i‖ + ī ‖U_g‖) ‖Δh‖                   (2) LSTM memory: Proposition 5
    ‖Δh₊‖ ≤ ō ‖Δc₊‖ + ¼ tanh(c̄) ‖U_o‖ ‖Δh‖                                    (3) LSTM output: Proposition 5
    ‖Δh₊‖ ≤ max_z (z + (1 - z) n') ‖Δh‖ + ¼ (h̄ + n̄) ‖U_z‖ ‖Δh‖                (4) GRU, ours; n' the rate of n

Norms are largest entries; of a matrix, largest row sums. A bar is the largest value over the states of (1) and all
inputs within the bound. Everything is computed per unit and combined by the sum, product and chain rules, up to second
derivatives in the state and the weights (``Jet``); a norm is the largest unit. Printed (2), (3) have 1 for ī, ḡ,
ō, tanh(c̄) and 1/(1 - ‖f‖) for c̄: ours is never larger.

Source: S4, §6.3 and A.3.2; (4) and the second order: docs/theory/s4-stability.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from holdfast.cells import GRUCell, LSTMCell
from holdfast.cells.nonlinearity import name_of, slopes
from holdfast.errors import NoBoundError

__all__ = ["Box", "Jet", "Wrt", "gru_step", "lstm_step"]

Wrt = Literal["state", "input"]
_ROUNDS = 20  # each shrinks the box; the bound holds after any number


@dataclass(frozen=True)
class Box:
    """The inputs that are allowed: ``radius`` in the norm "l2" or "linf", of width ``width``."""

    radius: float
    norm: str
    width: int

    def reach(self, weight: Tensor) -> Tensor:  # (rows, width) to (rows,)
        """Max |w·x| for each row w."""
        return self.radius * (weight.norm(dim=1) if self.norm == "l2" else weight.abs().sum(dim=1))

    @property
    def length(self) -> float:
        """Max ‖x‖₂."""
        return self.radius * (1.0 if self.norm == "l2" else math.sqrt(self.width))


@dataclass(frozen=True)
class Jet:
    """Bounds per unit on a quantity and its derivatives: s in the state (or the input), w in the weights.

    A derivative in the state is bounded for directions of largest entry 1, one in the weights for those of length 1.
    """

    sup: Tensor
    s: Tensor
    w: Tensor
    ss: Tensor
    sw: Tensor
    ww: Tensor

    @classmethod
    def of(cls, sup: Tensor, s: float | Tensor = 0.0, w: float = 0.0) -> Jet:
        """A quantity without second derivatives: an entry of the state, or a drive."""
        zero = torch.zeros_like(sup)
        return cls(sup, zero + s, zero + w, zero, zero, zero)

    def __add__(self, other: Jet) -> Jet:
        return Jet(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __mul__(self, other: Jet) -> Jet:
        a, b = self, other
        return Jet(
            sup=a.sup * b.sup,
            s=a.s * b.sup + a.sup * b.s,
            w=a.w * b.sup + a.sup * b.w,
            ss=a.ss * b.sup + 2 * a.s * b.s + a.sup * b.ss,
            sw=a.sw * b.sup + a.s * b.w + a.w * b.s + a.sup * b.sw,
            ww=a.ww * b.sup + 2 * a.w * b.w + a.sup * b.ww,
        )

    def linear(self, weight: Tensor, others: float = 0.0) -> Jet:
        """U a, U free; ``others`` is the squared length of the other factors of the same row of weights."""
        a, size = self, weight.abs()
        return Jet(
            sup=size @ a.sup,
            s=size @ a.s,
            w=size @ a.w + math.sqrt(a.sup.square().sum().item() + others),  # dU_j a ≤ ‖dU_j‖ ‖a‖
            ss=size @ a.ss,
            sw=size @ a.sw + a.s.norm(),
            ww=size @ a.ww + 2 * a.w.norm(),
        )

    def through(self, sup: Tensor, slope: float | Tensor, curvature: float) -> Jet:
        """φ of it, |φ| ≤ sup, |φ'| ≤ slope, |φ''| ≤ curvature."""
        return Jet(
            sup=sup,
            s=slope * self.s,
            w=slope * self.w,
            ss=curvature * self.s * self.s + slope * self.ss,
            sw=curvature * self.s * self.w + slope * self.sw,
            ww=curvature * self.w * self.w + slope * self.ww,
        )

    def sigmoid(self, centre: Tensor) -> Jet:
        """The sigmoid of centre + it."""
        low, high = centre - self.sup, centre + self.sup
        nearest = torch.sigmoid(torch.zeros_like(low).clamp(low, high))  # σ' is largest nearest to 0
        return self.through(torch.sigmoid(high), nearest * (1 - nearest), slopes("sigmoid").smoothness)

    def tanh(self, centre: Tensor | None = None) -> Jet:
        """The hyperbolic tangent of centre + it."""
        centre = torch.zeros_like(self.sup) if centre is None else centre
        low, high = centre - self.sup, centre + self.sup
        slope = 1 - torch.zeros_like(low).clamp(low, high).tanh().square()
        return self.through(torch.maximum(low.abs(), high.abs()).tanh(), slope, slopes("tanh").smoothness)

    def mix(self, lowest: Tensor, a: Jet, b: Jet) -> Jet:
        """Z a + (1 - z) b with z this jet, z between ``lowest`` and ``sup``: z a' + (1 - z) b' + z' (a - b)."""
        z = self

        def between(of_a: Tensor, of_b: Tensor) -> Tensor:
            return torch.maximum(lowest * of_a + (1 - lowest) * of_b, z.sup * of_a + (1 - z.sup) * of_b)

        apart = a.sup + b.sup
        return Jet(
            sup=torch.maximum(a.sup, b.sup),
            s=between(a.s, b.s) + z.s * apart,
            w=between(a.w, b.w) + z.w * apart,
            ss=between(a.ss, b.ss) + 2 * z.s * (a.s + b.s) + z.ss * apart,
            sw=between(a.sw, b.sw) + z.s * (a.w + b.w) + z.w * (a.s + b.s) + z.sw * apart,
            ww=between(a.ww, b.ww) + 2 * z.w * (a.w + b.w) + z.ww * apart,
        )


def lstm_step(cell: LSTMCell, inputs: Box, wrt: Wrt = "state") -> tuple[Jet, Jet]:
    """(h₊, c₊) of a step, over all states reached from zero and all inputs of ``inputs``.

    Law: the bounds hold for all those states, inputs, and directions, at the weights that the cell has.
    """
    if cell.phi is not torch.tanh:
        raise NoBoundError(
            "LSTMCell is certified with tanh, whose states Lemma 5 of S4 keeps bounded; this one has "
            f"{name_of(cell.phi)}."
        )
    weight_ih, weight_hh, bias = (_double(t) for t in (cell.weight_ih, cell.weight_hh, cell.bias))
    centres = _chunks(bias, weight_hh, 4)
    others = inputs.length**2 + (cell.bias is not None)
    own, outside = (1.0, 0.0) if wrt == "state" else (0.0, 1.0)

    def gates(h_sup: Tensor) -> tuple[Jet, Jet, Jet, Jet, Tensor]:
        """i, f, g, o and c̄, for all states with |h| ≤ h̄."""
        h = Jet.of(h_sup, s=own)
        i, f, g, o = (
            h.linear(U, others) + Jet.of(inputs.reach(W), s=outside * W.abs().sum(dim=1))
            for U, W in zip(weight_hh.chunk(4), weight_ih.chunk(4), strict=True)
        )
        kept = torch.sigmoid(-(centres[1] + f.sup))  # 1 - f̄, without cancellation
        i, f, o = i.sigmoid(centres[0]), f.sigmoid(centres[1]), o.sigmoid(centres[3])
        g = g.tanh(centres[2])
        return i, f, g, o, i.sup * g.sup / kept  # (1)

    h_sup = torch.ones(cell.hidden_size, dtype=torch.float64)
    for _ in range(_ROUNDS):
        _, _, _, o, c_sup = gates(h_sup)
        h_sup = o.sup * c_sup.tanh()
    i, f, g, o, c_sup = gates(h_sup)
    c = f * Jet.of(c_sup, s=own) + i * g  # (2)
    return o * c.tanh(), c  # (3)


def gru_step(cell: GRUCell, inputs: Box, wrt: Wrt = "state") -> Jet:
    """h₊ of a step, over all states reached from zero and all inputs of ``inputs``.

    Law: as ``lstm_step``.
    """
    weight_ih, weight_hh, bias = (_double(t) for t in (cell.weight_ih, cell.weight_hh, cell.bias))
    centres, has_bias = _chunks(bias, weight_hh, 3), cell.bias is not None
    others = inputs.length**2 + has_bias
    own, outside = (1.0, 0.0) if wrt == "state" else (0.0, 1.0)
    U_r, U_z, U_n = weight_hh.chunk(3)
    drives = [Jet.of(inputs.reach(W), s=outside * W.abs().sum(dim=1)) for W in weight_ih.chunk(3)]

    def candidate(h: Jet) -> Jet:
        r = (h.linear(U_r, others) + drives[0]).sigmoid(centres[0])
        if cell.reset == "before":
            return ((r * h).linear(U_n, others) + drives[2]).tanh(centres[2])
        inside = h.linear(U_n, float(has_bias))
        if cell.bias_hn is not None:
            inside = inside + Jet.of(_double(cell.bias_hn).abs())
        drive = drives[2] + Jet.of(torch.zeros_like(h.sup), w=math.sqrt(others))
        return (r * inside + drive).tanh(centres[2])

    h = Jet.of(torch.ones(cell.hidden_size, dtype=torch.float64), s=own)
    for _ in range(_ROUNDS):  # h₊ lies between h and n, so a bound on n is one on h
        h = Jet.of(torch.minimum(h.sup, candidate(h).sup), s=own)
    in_z = h.linear(U_z, others) + drives[1]
    lowest = torch.sigmoid(centres[1] - in_z.sup)
    return in_z.sigmoid(centres[1]).mix(lowest, h, candidate(h))  # (4)


def _double(tensor: Tensor | None) -> Tensor:
    return torch.zeros(0, dtype=torch.float64) if tensor is None else tensor.detach().double().cpu()


def _chunks(bias: Tensor, like: Tensor, parts: int) -> tuple[Tensor, ...]:
    return (bias if len(bias) else torch.zeros(len(like), dtype=torch.float64)).chunk(parts)
