"""The squared network fed with ones: what flows to every unit, and from every unit to the outputs.

    f_t = Ũ f_{t-1} + W̃ f^(below)_t + b̃,  g_t = Ũᵀ g_{t+1} + W̃ᵀ g^(above)_t   (1) S2 (15), (16): f = h(p̃), g = ∂γ²/∂h(p̃)
    f_t = 2^(ηt) F_t,  g_t = 2^(η(T-t)) G_t                                   (2) η ≥ 0, one for all layers
    f_{t-1} g_t = 2^(η(T-1)) F_{t-1} G_t                                      (3) the same factor at every step

F and G obey (1) with Ũ/2^η for Ũ, so a network that grows as ρᵗ is computed with numbers that do not grow, and by (3)
every sum over time is taken among numbers of one scale. η is 0 unless float64 would overflow. Source: S2, Theorem 3 and
its proof. Derivations, and what saturates: docs/theory/s2-path-norm.md.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from holdfast.engine.kernels.flow import LARGEST
from holdfast.errors import SettingError
from holdfast.optim.flow import driven_flow, growth_rate, krylov_rows, powers_of, squarings, steady_flow
from holdfast.optim.network import PathNetwork, Recurrence
from holdfast.optim.pieces import Squares, compact

__all__ = ["Backward", "Forward", "backward_flows", "first_finite", "forward_flows", "one_thread_if_small", "saturated"]

Result = TypeVar("Result")


@dataclass(frozen=True)
class Forward:
    """The flow to every unit.

    Args:
        steps, every: T, and whether outputs are read at every step or at the last.
        rate: η of (2).
        decay: 2^(-ηt), t = 0..T; ``None`` if η = 0.
        powers: (Ũ/2^η)^(1, 2, 4, ...) of each layer.
        encoded, decoded: what enters each piece of the encoder and the decoder and, last, what leaves it; the decoder's
            are summed over the steps of output and divided by 2^(ηT).
        states: F of each layer, (T + 1, hidden).
    """

    squares: Squares
    steps: int
    every: bool
    rate: float
    decay: Tensor | None
    powers: list[list[Tensor]]
    encoded: list[Tensor]
    states: list[Tensor]
    decoded: list[Tensor]

    def fading(self, value: Tensor) -> Tensor:
        """2^(-ηt) times what is constant in time, t = 1..T: (T, ...)."""
        return value.expand(self.steps, -1) if self.decay is None else self.decay[1:, None] * value

    def summed(self, rows: Tensor) -> Tensor:
        """Σ_t 2^(-ηt) of rows t = 1..T."""
        return rows.sum(0) if self.decay is None else self.decay[1:] @ rows


@dataclass(frozen=True)
class Backward:
    """The flow from every unit to the outputs.

    Args:
        decoder, encoder: ∂γ²/∂y of each piece; the encoder's are summed over time and divided by 2^(ηT).
        states: G of each layer, (T, hidden), t = 1..T.
        sums: Σ_t 2^(-ηt) G_t of each layer, which is Σ_t g_t / 2^(ηT).
    """

    decoder: list[Tensor]
    states: list[Tensor]
    sums: list[Tensor]
    encoder: list[Tensor]


def forward_flows(
    network: PathNetwork,
    steps: int,
    every: bool,
    rate: float = 0.0,
    *,
    to_the_end: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Forward:
    """The flow f of (1); differentiable in the weights. What leaves the last piece is left out unless ``to_the_end``.

    Example:
        >>> from holdfast.optim import Dense, Recurrence
        >>> one = torch.ones(1, 1)
        >>> network = PathNetwork(layers=(Recurrence(one, 2 * one),), decoder=(Dense(one),))
        >>> flows = forward_flows(network, 3, every=False)
        >>> flows.states[0].flatten().tolist()
        [0.0, 1.0, 5.0, 21.0]
    """
    squares, encoded = Squares(dtype), [network.ones(dtype)]
    for piece in network.encoder:
        encoded.append(piece.forward(encoded[-1], 1.0, squares))
    decay = None
    if rate != 0:
        decay = torch.exp2(-rate * torch.arange(steps + 1, dtype=dtype, device=encoded[0].device))
    flows = Forward(squares, steps, every, rate, decay, [], encoded, [], [])
    for layer in network.layers:
        recurrent = layer.squared(layer.weight_hh, squares)
        recurrent = recurrent if rate == 0 else recurrent / 2.0**rate
        flows.powers.append(powers_of(recurrent, squarings(recurrent, steps, driven=bool(flows.states))))
        flows.states.append(_layer_forward(layer, flows))
    flows.decoded.append(_read(flows))
    one = (steps if every else 1) * 2.0 ** (-rate * steps)
    for piece in network.decoder if to_the_end else network.decoder[:-1]:
        flows.decoded.append(piece.forward(flows.decoded[-1], one, squares))
    return flows


def _layer_forward(layer: Recurrence, flows: Forward) -> Tensor:
    start, bias = layer.squared_start(flows.squares), layer.squared_bias(flows.squares)
    weight, powers = layer.squared(layer.weight_ih, flows.squares), [power.mT for power in flows.powers[-1]]
    if flows.states:
        rows = flows.states[-1][1:] @ weight.mT + flows.fading(bias)
    else:
        drive = weight @ flows.encoded[-1] + bias
        if flows.rate == 0 and layer.initial is None:
            return steady_flow(powers, drive, flows.steps + 1)
        rows = flows.fading(drive)
    return driven_flow(powers, torch.cat([start[None], rows]))


def _read(flows: Forward) -> Tensor:
    """What is read, summed over the steps of output and divided by 2^(ηT)."""
    if not flows.states:
        return flows.steps * flows.encoded[-1] if flows.every else flows.encoded[-1]
    if not flows.every:
        return flows.states[-1][-1]
    rows = flows.states[-1][1:]
    return rows.sum(0) if flows.decay is None else flows.decay[:-1].flip(0) @ rows


def backward_flows(network: PathNetwork, forward: Forward) -> Backward:
    """The flow g of (1), for that of ``forward_flows``.

    Example:
        >>> from holdfast.optim import Dense, Recurrence
        >>> one = torch.ones(1, 1)
        >>> network = PathNetwork(layers=(Recurrence(one, 2 * one),), decoder=(Dense(one),))
        >>> flows = backward_flows(network, forward_flows(network, 3, every=True))
        >>> flows.states[0].flatten().tolist()
        [21.0, 5.0, 1.0]
    """
    squares, inputs = forward.squares, forward.decoded[: len(network.decoder)]
    end = network.decoder[-1].output_shape(inputs[-1]) if network.decoder else forward.decoded[0].shape
    g = torch.ones((), dtype=squares.dtype, device=forward.decoded[0].device).expand(end)
    decoder = []
    for piece, x in zip(reversed(network.decoder), reversed(inputs), strict=True):
        decoder.append(g)
        g = piece.backward(x, g, squares)
    states: list[Tensor] = []  # last layer first, last step first
    for index in range(len(network.layers) - 1, -1, -1):
        states.append(_layer_backward(network, forward, index, states, g))
    states = [rows.flip(0) for rows in reversed(states)]
    sums = [forward.summed(rows) for rows in states]
    if network.encoder:
        g = _to_encoder(network, forward, sums, g)
    encoder = []
    for piece, x in zip(reversed(network.encoder), reversed(forward.encoded[:-1]), strict=True):
        encoder.append(g)
        g = piece.backward(x, g, squares) if len(encoder) < len(network.encoder) else g
    return Backward(decoder[::-1], states, sums, encoder[::-1])


def _layer_backward(network: PathNetwork, forward: Forward, index: int, above: list[Tensor], g: Tensor) -> Tensor:
    powers = forward.powers[index]
    if above:
        layer = network.layers[index + 1]
        return driven_flow(powers, above[-1] @ layer.squared(layer.weight_ih, forward.squares))
    if forward.decay is None:
        steps = forward.steps
        return steady_flow(powers, g, steps + 1)[1:] if forward.every else krylov_rows(powers, g, steps)
    weight = forward.decay[:-1].clone()
    weight[1:] *= forward.every
    return driven_flow(powers, weight[:, None] * g)


def _to_encoder(network: PathNetwork, forward: Forward, sums: list[Tensor], g: Tensor) -> Tensor:
    if not network.layers:
        return forward.steps * g if forward.every else g
    first = network.layers[0]
    return sums[0] @ first.squared(first.weight_ih, forward.squares)


def saturated(value: Tensor, log2_factor: float) -> Tensor:
    """2^log2_factor · value, at most the largest float64.

    Example:
        >>> saturated(torch.tensor([0.0, 3.0, 2.0**1000], dtype=torch.float64), 100.0).tolist()
        [0.0, 3.80295180068...e+30, 1.7976931348623157e+308]
    """
    if log2_factor == 0:
        return value
    logs = torch.log2(torch.where(value > 0, value, 1.0)) + log2_factor
    return torch.where(value > 0, torch.exp2(logs).clamp(max=torch.finfo(value.dtype).max), value)


def first_finite(
    who: str,
    network: PathNetwork,
    steps: int,
    compute: Callable[[float], Result],
    tensors: Callable[[Result], list[Tensor]],
) -> Result:
    """``compute(η)`` for η = 0 or, on overflow, the growth rate; the largest float64 for what still overflows.

    With η = 0 nothing is lost, and overflow is rare. With η = log₂ ρ(Ũ) no flow grows in the long run.
    """
    found = compute(0.0)
    if _all_finite(tensors(found)):
        return found
    for weight in network.parameters():
        if not weight.isfinite().all():
            raise SettingError(
                f"{who} found a weight of shape {tuple(weight.shape)} with entries that are not finite: paths through "
                "them have no value. Training has diverged; lower the learning rate or clip gradients."
            )
    if network.layers:
        squares = Squares()
        with torch.no_grad():
            rates = [growth_rate(layer.squared(layer.weight_hh, squares), steps) for layer in network.layers]
        found = compute(max(rates))
    largest = torch.finfo(torch.float64).max
    for tensor in tensors(found):
        compact(tensor).nan_to_num_(nan=largest, posinf=largest)
    return found


@contextlib.contextmanager
def one_thread_if_small(network: PathNetwork) -> Iterator[None]:
    """One thread inside, for networks of few weights: synchronising threads would take longer than the work.

    On a busy machine threads wait for each other, hundreds of times as long as the work takes.

    Example:
        >>> from holdfast.optim import Dense
        >>> with one_thread_if_small(PathNetwork(decoder=(Dense(torch.ones(2, 2)),))):
        ...     torch.get_num_threads()
        1
    """
    threads = torch.get_num_threads()
    if threads == 1 or sum(weight.numel() for weight in network.parameters()) > 2 * LARGEST**2:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _all_finite(tensors: list[Tensor]) -> bool:
    return math.isfinite(torch.stack([compact(tensor).amax() for tensor in tensors]).sum().item())
