"""The path norm of a ReLU network and its curvature in every parameter.

    γ²(p) = Σ_ζ Π_{e∈ζ} w_e²,  ζ a path from an input or the bias node to an output          (1) S2 (2), (3)
    κ⁽¹⁾_i = Σ_{e∈E_i} Σ_{ζ∋e} Π_{e'∈ζ, e'≠e} w_e'²                                          (2) S2 (9)
    κ⁽²⁾_i = p_i² Σ_{e₁≠e₂∈E_i} Σ_{ζ∋e₁,e₂} Π_{e'∈ζ, e'≠e₁,e₂} w_e'²                         (3) S2 (10), ordered pairs
    ½ ∂²γ²/∂p_i² = κ⁽¹⁾_i + 2 κ⁽²⁾_i                                                         (4) "exact"
    κ_i = κ⁽¹⁾_i + κ⁽²⁾_i                                                                    (5) "published", Lemma 1

E_i are the edges that share parameter i: the steps of time, and any other place where the model uses the same tensor. A
path that uses p_i n times contributes c p_i^(2n), of half second derivative n(2n-1) = n + 2·n(n-1): (4). Lemma 1 loses
the 2. Both forms are right for Theorem 2. Source: S2, §4, Appendix A. Derivations: docs/theory/s2-path-norm.md.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.errors import SettingError, one_of, positive_size
from holdfast.optim.describe import path_network
from holdfast.optim.network import PathNetwork
from holdfast.optim.one_layer import EXACT, LOST, is_one_layer, one_layer_first
from holdfast.optim.pieces import compact, outer
from holdfast.optim.second_term import edge_pairs
from holdfast.optim.squared_network import (
    Backward,
    Forward,
    backward_flows,
    first_finite,
    forward_flows,
    one_thread_if_small,
    saturated,
)

__all__ = ["Form", "Kappa", "Outputs", "kappa", "kappa_first", "kappa_second", "path_norm_sq"]

Outputs = Literal["last", "every"]
"""The steps at which a model is read."""

Form = Literal["exact", "published"]
"""How κ⁽¹⁾ and κ⁽²⁾ are added up."""

Kappa = dict[Tensor, Tensor]
"""One κ of the parameter's shape for each parameter, which is the key itself; float64 by default."""


def path_norm_sq(model: nn.Module | PathNetwork, steps: int = 1, outputs: Outputs | None = None) -> Tensor:
    """γ² of (1): the sum over paths of the product of squared weights, in float64.

    Law: invariant under ``rescale_``; differentiable in the weights, twice and more. Past the largest float64 it is
    that number, never infinity or NaN.

    Args:
        model: what ``path_network`` can read, or a ``PathNetwork``.
        steps: T, the length of the sequences.
        outputs: the output nodes: "last" or "every" step. Not needed for a model with ``last_only``.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
        >>> _ = nn.init.ones_(model[0].weight), nn.init.ones_(model[2].weight)
        >>> path_norm_sq(model).item()  # 3 · 4 · 2 paths
        24.0
    """
    network, every = _checked("path_norm_sq", model, steps, outputs)

    def total(rate: float) -> Tensor:
        return saturated(forward_flows(network, steps, every, rate).decoded[-1].sum(), rate * steps)

    return first_finite("path_norm_sq", network, steps, total, lambda value: [value.detach()])


@torch.no_grad()
def kappa_first(
    model: nn.Module | PathNetwork,
    steps: int = 1,
    outputs: Outputs | None = None,
    *,
    dtype: torch.dtype = torch.float64,
) -> Kappa:
    """κ⁽¹⁾ of (2), the gradient of γ² in the squared parameters (S2, Theorem 3).

    Law: κ⁽¹⁾_i ≥ 0 and finite; multiplied by (β_u/β_v)² if ``rescale_`` multiplies p_i by β_v/β_u.

    Args: as in ``path_norm_sq``, and
        dtype: float64, or float32 for a recurrent network with float32 weights, which takes half the time. If the range
            of float32 is too small, and for other networks, κ is float64 anyway.

    Example:
        >>> from holdfast import RNN
        >>> rnn = RNN(1, 1, nonlinearity="relu", bias=False)  # its state is its output
        >>> _ = nn.init.constant_(rnn.l0.weight_ih, 1.0), nn.init.constant_(rnn.l0.weight_hh, 2.0)
        >>> kappa_first(rnn, steps=3, outputs="last")[rnn.l0.weight_hh].item()  # of 1 + p² + p⁴: 1 + 2p², p = 2
        9.0
    """
    network, every = _checked("kappa_first", model, steps, outputs)
    one_of("kappa_first", "dtype", dtype, (torch.float32, torch.float64))

    def compute(rate: float) -> Kappa:
        forward = forward_flows(network, steps, every, rate, to_the_end=False)
        return _first(network, forward, backward_flows(network, forward))

    single = dtype == torch.float32
    if single and (found := one_layer_first(network, steps, every)):
        return found  # its two flows take a thread each
    with one_thread_if_small(network):
        if single and not is_one_layer(network) and (found := _single(network, steps, every)):
            return found
        return first_finite("kappa_first", network, steps, compute, lambda found: list(found.values()))


@torch.no_grad()
def kappa_second(model: nn.Module | PathNetwork, steps: int = 1, outputs: Outputs | None = None) -> Kappa:
    """κ⁽²⁾ of (3), which is zero except for recurrent weights (S2, footnote 3).

    Law: as for ``kappa_first``; zero for feed-forward and convolutional networks.

    Args: as in ``path_norm_sq``.

    Example:
        >>> from holdfast import RNN
        >>> rnn = RNN(1, 1, nonlinearity="relu", bias=False)
        >>> _ = nn.init.constant_(rnn.l0.weight_ih, 1.0), nn.init.constant_(rnn.l0.weight_hh, 2.0)
        >>> kappa_second(rnn, steps=3, outputs="last")[rnn.l0.weight_hh].item()  # of 1 + p² + p⁴: 2p², p = 2
        8.0
    """
    network, every = _checked("kappa_second", model, steps, outputs)
    _no_parameter_twice("kappa_second", network)
    zero = torch.zeros((), dtype=torch.float64, device=next(network.edges()).device)

    def compute(rate: float) -> Kappa:
        found = {parameter: zero.expand(parameter.shape) for parameter in network.parameters()}
        if network.layers:
            forward = forward_flows(network, steps, every, rate, to_the_end=False)
            found |= _second(network, forward, backward_flows(network, forward))
        return found

    return first_finite("kappa_second", network, steps, compute, lambda found: list(found.values()))


@torch.no_grad()
def kappa(
    model: nn.Module | PathNetwork, steps: int = 1, outputs: Outputs | None = None, *, form: Form = "exact"
) -> Kappa:
    """κ = κ⁽¹⁾ + 2κ⁽²⁾, half the second derivative of γ² (4), or as published, κ⁽¹⁾ + κ⁽²⁾ (5).

    Law: ``"exact"`` is ½ ∂²γ²/∂p_i² for every i. Both forms are multiplied by (β_u/β_v)² if ``rescale_`` multiplies p_i
    by β_v/β_u, so the step p_i - (lr/κ_i) ∂L/∂p_i commutes with it (S2, Theorem 2).

    Args: as in ``path_norm_sq``, and
        form: ``"exact"`` or ``"published"``.

    Example:
        >>> from holdfast import RNN
        >>> rnn = RNN(1, 1, nonlinearity="relu", bias=False)
        >>> _ = nn.init.constant_(rnn.l0.weight_ih, 1.0), nn.init.constant_(rnn.l0.weight_hh, 2.0)
        >>> [kappa(rnn, 3, "last", form=form)[rnn.l0.weight_hh].item() for form in ("exact", "published")]  # 1 + 6p²
        [25.0, 17.0]
    """
    one_of("kappa", "form", form, ("exact", "published"))
    network, every = _checked("kappa", model, steps, outputs)
    _no_parameter_twice("kappa", network)
    weight = 2.0 if form == "exact" else 1.0  # the lost factor of Lemma 1
    largest = torch.finfo(torch.float64).max

    def compute(rate: float) -> Kappa:
        forward = forward_flows(network, steps, every, rate, to_the_end=False)
        backward = backward_flows(network, forward)
        found = _first(network, forward, backward)
        for parameter, second in _second(network, forward, backward).items():
            both = torch.add(found[parameter], second, alpha=weight)
            found[parameter] = both if rate == 0 else both.clamp(max=largest)
        return found

    return first_finite("kappa", network, steps, compute, lambda found: list(found.values()))


def _first(network: PathNetwork, forward: Forward, backward: Backward) -> Kappa:
    squares, whole = forward.squares, forward.rate * forward.steps  # log₂ of the scale that was taken out
    found: Kappa = {}

    def add(parameter: Tensor | None, value: Tensor | None, scale: float = whole) -> None:
        if parameter is not None and value is not None:
            value = saturated(value, scale)
            found[parameter] = found[parameter] + value if parameter in found else value

    for piece, x, g in zip(network.encoder, forward.encoded[:-1], backward.encoder, strict=True):
        for parameter, value in zip(piece.tensors, piece.kappa(x, g, squares), strict=True):
            add(parameter, value)
    for index, layer in enumerate(network.layers):
        F, G, total = forward.states[index], backward.states[index], backward.sums[index]
        below = outer(total, forward.encoded[-1]) if index == 0 else G.mT @ forward.states[index - 1][1:]
        add(layer.weight_ih, _a_gate(layer.weight_ih, below))
        add(layer.weight_hh, _a_gate(layer.weight_hh, G.mT @ F[:-1]), whole - forward.rate)  # Σ_t g_t f_{t-1}ᵀ
        for bias in layer.biases:
            add(bias, _a_gate(bias, total))
        if layer.initial is not None:
            start = torch.zeros_like(squares[layer.initial])
            start[layer.row] = G[0] @ forward.powers[index][0]
            add(layer.initial, start)
    count = forward.steps if forward.every else 1
    for piece, x, g in zip(network.decoder, forward.decoded, backward.decoder, strict=False):
        (weight, bias), (of_weight, of_bias) = piece.tensors, piece.kappa(x, g, squares)
        add(weight, of_weight)
        add(bias, of_bias if of_bias is None or count == 1 else count * of_bias, 0.0)
    return found


def _single(network: PathNetwork, steps: int, every: bool) -> Kappa | None:
    """κ⁽¹⁾ in float32; ``None`` if a weight is of another type, or if the range of float32 is too small.

    What underflows is at most 2⁻¹²⁶ in each of steps · width products of a flow, and what is lost of a flow at one step
    reaches a κ times at most T of the flows on its other side. So κ stands if it is 2²⁴ times as large as all that.
    """
    weights = list(network.edges())
    if not network.layers or any(weight.dtype != torch.float32 for weight in weights):
        return None
    forward = forward_flows(network, steps, every, to_the_end=False, dtype=torch.float32)
    backward = backward_flows(network, forward)
    found = _first(network, forward, backward)
    flows = [
        *forward.encoded,
        *forward.states,
        *forward.decoded,
        *backward.states,
        *backward.decoder,
        *backward.encoder,
    ]
    largest = max(float(compact(flow).amax()) for flow in flows)
    least, most = zip(*(map(float, compact(value).aminmax()) for value in found.values()), strict=True)
    width = max(max(weight.shape) for weight in weights)
    lost = LOST * steps * steps * width * len(network.layers) * max(1.0, largest)
    return found if max(*most, largest) < math.inf and min(least) > EXACT * lost else None


def _second(network: PathNetwork, forward: Forward, backward: Backward) -> Kappa:
    """(3) of the recurrent weights."""
    found: Kappa = {}
    for index, layer in enumerate(network.layers):
        pairs = edge_pairs(forward.powers[index][0], forward.states[index][:-1], backward.states[index])
        value = 2 * forward.squares[layer.weight_hh] * _a_gate(layer.weight_hh, pairs.mT)  # 2: pairs in both orders
        found[layer.weight_hh] = saturated(value, forward.rate * (forward.steps - 2))
    return found


def _a_gate(parameter: Tensor, value: Tensor) -> Tensor:
    """The κ of an edge, repeated for every gate."""
    gates = len(parameter) // len(value)
    return value if gates == 1 else value.repeat(gates, *(1 for _ in value.shape[1:]))


def _checked(who: str, model: nn.Module | PathNetwork, steps: int, outputs: Outputs | None) -> tuple[PathNetwork, bool]:
    positive_size(who, "steps", steps)
    network = path_network(model)
    return network, network.reads_every_step(who, outputs)


def _no_parameter_twice(who: str, network: PathNetwork) -> None:
    pieces = [piece.tensors[0] for piece in (*network.encoder, *network.decoder)]
    layers = [weight for layer in network.layers for weight in (layer.weight_ih, layer.weight_hh)]
    for weight, places in Counter(w for w in (*pieces, *layers) if w is not None).items():
        if places > 1:  # biases may be shared: a path has one of them, at its beginning
            raise SettingError(
                f"{who} counts pairs of edges of one recurrence, but a weight of shape {tuple(weight.shape)} has "
                f"{places} places in the network, and pairs between them are not counted. Use kappa_first, which is "
                "right for shared weights too, or untie them."
            )
