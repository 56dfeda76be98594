"""Stacked layers: how a difference of states develops over k steps of the whole stack.

    Δ^l₊ ≤ λ_l Δ^l + L_l o^{l-1},   o^l = c_l Δ^l₊ + d_l o^{l-1},   o^0 = 0              (1) one step, layer by layer
    Δ₊ ≤ M Δ,  M ≥ 0 lower triangular with λ_1, ..., λ_m on its diagonal                 (2) the same, as a matrix
    ‖h^l_t - h^{l,k}_t‖ ≤ (M^k r)_l,  r_l ≥ ‖h^l_{t-k}‖                                  (3) S4 Lemma 1, for stacks
    ‖Δ‖_v = max_l Δ^l / v_l,  λ = max_l (M v)_l / v_l                                    (4) one rate for the stack

Δ^l is how far two states of layer l lie apart, o^l the same of its outputs; λ, L, c, d are those of ``StepBounds``. If
all λ_l < 1, M^k vanishes for any gains between layers. For (4), v = 1 is taken if the largest row sum of M is at
most (1 + max λ_l) / 2, the middle between the slowest layer and 1; else v is chosen to make it just that. If a layer
does not contract, v = 1 and λ ≥ 1. With one layer all this is S4's own: M = λ.

Where neighbours have different norms, a factor √n turns largest entries into lengths. Source of (1)-(4): ours, with
proofs in docs/theory/s4-stability.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from holdfast.cells import Cell
from holdfast.errors import DTypeError, SettingError, positive_number
from holdfast.layers import Recurrent
from holdfast.stability.contraction import contraction_rate
from holdfast.stability.step import Region, StepBounds, state_norm, step_bounds, times

__all__ = ["Stack", "as_layer", "stack_bounds"]


@dataclass(frozen=True)
class Stack:
    """The bounds (1) to (4) of a layer.

    Args:
        layers: the bounds of each layer's step, from the input up.
        matrix: M.
        radii: r, enlarged where needed so that M r ≤ r and (3) falls with k.
        output_gains: the last layer's o as a sum over Δ^l.
        rate: λ of (4).
        weights: v of (4).

    Example:
        >>> from holdfast import RNN
        >>> layer = RNN(3, 4, num_layers=2)
        >>> with torch.no_grad():
        ...     for cell in layer.cells:
        ...         _ = cell.weight_hh.mul_(0.5 / torch.linalg.matrix_norm(cell.weight_hh, 2))
        >>> stack = stack_bounds(layer, input_bound=1.0)
        >>> stack.rate < 1, stack.output_gap(20) < stack.output_gap(10)
        (True, True)
    """

    layers: tuple[StepBounds, ...]
    matrix: tuple[tuple[float, ...], ...]
    radii: tuple[float, ...]
    output_gains: tuple[float, ...]
    rate: float
    weights: tuple[float, ...]

    @property
    def stable(self) -> bool:
        """Whether every layer contracts."""
        return all(layer.rate < 1 for layer in self.layers)

    def state_gap(self, k: int) -> tuple[float, ...]:
        """(3): how far, at most, a state of each layer is from that of the last k inputs alone; infinity if unstable.

        Example:
            >>> from holdfast import LinearCell
            >>> cell = LinearCell(1, 1, bias=False)
            >>> with torch.no_grad():
            ...     _ = cell.weight_hh.fill_(0.5), cell.weight_ih.fill_(1.0)
            >>> stack_bounds(cell, input_bound=1.0).state_gap(3)  # 0.5³ · 1 / (1 - 0.5)
            (0.25,)
        """
        if not self.stable or not all(map(math.isfinite, self.radii)):
            return (math.inf,) * len(self.layers)
        if len(self.layers) == 1:
            return (self.layers[0].rate ** k * self.radii[0],)
        power = torch.linalg.matrix_power(torch.tensor(self.matrix, dtype=torch.float64), k)
        return tuple((power @ torch.tensor(self.radii, dtype=torch.float64)).tolist())

    def output_gap(self, k: int) -> float:
        """The same for the last layer's output: S4 Proposition 1."""
        gaps = self.state_gap(k)
        return sum(gain * gap for gain, gap in zip(self.output_gains, gaps, strict=True) if gain)

    def horizon(self, eps: float, readout: float = 1.0) -> int | None:
        """The least k of at least 1 with ``readout`` · output_gap(k) ≤ ε; None if no k is proved to suffice."""
        positive_number("horizon", "eps", eps)
        if not math.isfinite(self.output_gap(1)):
            return None
        low, high = 0, 1  # the gap falls with k, since M r ≤ r
        while readout * self.output_gap(high) > eps:
            low, high = high, 2 * high
            if high > 1 << 60:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if readout * self.output_gap(middle) > eps else (low, middle)
        return high


def as_layer(model: Cell | Recurrent, who: str) -> Recurrent:
    """The model as a layer in one direction; an error for anything else."""
    if isinstance(model, Cell):
        return Recurrent(model)
    if not isinstance(model, Recurrent):
        raise DTypeError(
            f"{who} expects a holdfast cell or layer, got {type(model).__name__}; convert a torch.nn layer with "
            "holdfast.from_torch, for a larger model give its recurrent layer."
        )
    if model.bidirectional:
        raise SettingError(
            f"{who} expects a layer in one direction, got a bidirectional {type(model).__name__}; certify its cells "
            "one by one: layer.cells."
        )
    return model


def stack_bounds(
    model: Cell | Recurrent,
    input_bound: float | None = None,
    *,
    input_norm: str = "l2",
    region: Region | None = None,
) -> Stack:
    """The bounds (1) to (4) of a cell or a layer in one direction, in evaluation mode (no dropout, no random start).

    Law: (3) holds for every input within the bound and every t ≥ k, the truncated stack started as the full one is.

    Args:
        model: a certified cell, or a layer of them.
        input_bound, input_norm: as in ``step_bounds``; each layer's output bounds the input of the next.
        region: as in ``step_bounds``; for one layer.

    Example:
        >>> from holdfast import SGORNN
        >>> [round(layer.rate, 3) for layer in stack_bounds(SGORNN(3, 4, num_layers=2), input_bound=1.0).layers]
        [0.976, 0.976]
    """
    layer = as_layer(model, "stack_bounds")
    if region is not None and layer.num_layers > 1:
        raise SettingError(f"stack_bounds expects one layer with region, got {layer.num_layers}; leave region out.")
    bounds: list[StepBounds] = []
    starts = [_start(layer, row) for row in range(layer.num_layers)]
    bound, norm = input_bound, input_norm
    for cell, start in zip(layer.cells, starts, strict=True):
        known = None if bound is None or not math.isfinite(bound) else bound
        bounds.append(step_bounds(cell, known, input_norm=norm, start=start, region=region))
        bound, norm = bounds[-1].output_bound, bounds[-1].norm
    widths = [cell.input_size for cell in layer.cells]
    units = torch.eye(len(bounds)).tolist()
    matrix = tuple(zip(*(_one_step(bounds, widths, unit) for unit in units), strict=True))  # (2), column by column
    radii = _radii(matrix, [step.state_bound + start for step, start in zip(bounds, starts, strict=True)])
    return Stack(tuple(bounds), matrix, radii, _output_gains(bounds, widths), *_rate(matrix))


@contraction_rate.register
def _(model: Recurrent, input_bound: float | None = None, *, input_norm: str = "l2") -> float:
    return stack_bounds(model, input_bound, input_norm=input_norm).rate  # (4)


def _one_step(bounds: list[StepBounds], widths: list[int], old: list[float]) -> tuple[float, ...]:
    """(1), from the differences before the step to those after it."""
    new, output, norm = [], 0.0, "l2"
    for step, width, before in zip(bounds, widths, old, strict=True):
        below = output * _to_norm(norm, step.norm, width)
        new.append(times(step.rate, before) + times(step.input_lipschitz, below))
        output = times(step.output_lipschitz, new[-1]) + times(step.direct_lipschitz, below)
        norm = step.norm
    return tuple(new)


def _output_gains(bounds: list[StepBounds], widths: list[int]) -> tuple[float, ...]:
    """The last o of (1) as a sum over Δ₊, from the top down."""
    gains, through = [], 1.0
    for i in reversed(range(len(bounds))):
        gains.append(through * bounds[i].output_lipschitz)
        through *= bounds[i].direct_lipschitz * (_to_norm(bounds[i - 1].norm, bounds[i].norm, widths[i]) if i else 0)
    return tuple(reversed(gains))


def _to_norm(norm: str, other: str, width: int) -> float:
    """The factor by which a bound in ``norm`` becomes one in ``other``."""
    return math.sqrt(width) if (norm, other) == ("linf", "l2") else 1.0


def _radii(matrix: tuple[tuple[float, ...], ...], least: list[float]) -> tuple[float, ...]:
    """The smallest r of at least ``least`` with M r ≤ r, by forward substitution."""
    radii: list[float] = []
    for i, row in enumerate(matrix):
        below = sum(entry * radius for entry, radius in zip(row, radii, strict=False) if entry)
        radii.append(max(least[i], below / (1 - row[i]) if row[i] < 1 else math.inf if below else least[i]))
    return tuple(radii)


def _rate(matrix: tuple[tuple[float, ...], ...]) -> tuple[float, tuple[float, ...]]:
    plain, slowest = max(map(sum, matrix)), max(row[i] for i, row in enumerate(matrix))
    if len(matrix) == 1 or slowest >= 1 or plain <= (1 + slowest) / 2:
        return plain, (1.0,) * len(matrix)
    rate, weights = (1 + slowest) / 2, []
    for i, row in enumerate(matrix):  # (M v)_i ≤ λ v_i, and no smaller than the layers below
        needed = sum(entry * v for entry, v in zip(row, weights, strict=False)) / (rate - row[i])
        weights.append(max(needed, 1.0))
    return rate, tuple(weights)


def _start(layer: Recurrent, row: int) -> float:
    """‖h_0‖ of this layer, if it is learned; a random start is zero in evaluation."""
    if layer.initial_state.kind != "learned":
        return 0.0
    entries = tuple(value[row].detach().double().unsqueeze(0) for value in layer.initial_state.values)
    return state_norm(layer.cells[row], entries).item()
