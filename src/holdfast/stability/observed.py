"""The contraction rate, measured on data: a lower bound on the true one.

    ‖f(x, h) - f(x, k)‖ / ‖h - k‖,  h, k reached from zero by the data               (1) pairs
    ‖J v‖ / ‖v‖,  J = ∂f/∂h at a reached state                                       (2) directions, the worst found
    v ← the v of norm 1 with the largest ⟨Jᵀ y, v⟩,  ⟨y, J v⟩ = ‖J v‖, ‖y‖* = 1          by a power method

Source of the power method: Higham (1992), Estimating the matrix p-norm. ``contraction_rate`` bounds both from above.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.cells import Cell
from holdfast.engine import scan
from holdfast.errors import SettingError, ShapeError
from holdfast.layers import Recurrent
from holdfast.stability.stack import as_layer, stack_bounds
from holdfast.stability.step import norm_of, state_norm
from holdfast.types import State

__all__ = ["observed_contraction"]

States = list[State]  # one per layer


def observed_contraction(
    model: Cell | Recurrent, data: Tensor, *, times: int = 4, iterations: int = 12, input_bound: float | None = None
) -> float:
    """The largest of (1) and (2) over states that ``data`` reach: a lower bound on the true rate.

    Law: at most ``contraction_rate(model, input_bound)``, up to rounding, in the same norm.

    Args:
        model: a certified cell, or a layer of them in one direction.
        data: inputs as the layer takes them, (time, batch, input), at least 2 steps.
        times: how many steps to sample, drawn at random.
        iterations: of the power method, at each of them.
        input_bound: for the norm of a stack of LSTMs or GRUs; default: the largest ‖x_t‖ of the data.

    Example:
        >>> from holdfast import RNN
        >>> from holdfast.stability import contraction_rate
        >>> layer = RNN(3, 8)
        >>> 0 < observed_contraction(layer, torch.randn(20, 4, 3)) <= contraction_rate(layer) * (1 + 1e-6)
        True
    """
    layer = as_layer(model, "observed_contraction")
    xs = time_first(layer, data, "observed_contraction")
    if times < 1 or iterations < 0:
        raise SettingError(f"observed_contraction expects times ≥ 1 and iterations ≥ 0, got {times} and {iterations}.")
    if len(xs) < 2:
        raise ShapeError(f"observed_contraction expects data of at least 2 steps, got {tuple(data.shape)}.")
    xs = xs.detach()
    bound = xs.norm(dim=-1).max().item() if input_bound is None else input_bound
    scales = [1.0] if layer.num_layers == 1 else list(stack_bounds(layer, bound).weights)
    largest = 0.0
    for t in torch.randint(1, len(xs), (min(times, len(xs) - 1),)).tolist():
        states, x = _reached(layer, xs[:t]), xs[t]
        others = [tuple(entry.roll(1, 0) for entry in state) for state in states]
        apart = _size(layer, _minus(states, others), scales)
        moved = _size(layer, _minus(_step(layer, x, states), _step(layer, x, others)), scales)
        ratios = torch.where(apart > 1e-6 * (1 + _size(layer, states, scales)), moved / apart, 0.0)  # (1)
        largest = max(largest, ratios.max().item(), _worst_direction(layer, x, states, scales, iterations))
    return largest


def time_first(layer: Recurrent, data: Tensor, who: str) -> Tensor:
    """Inputs as (time, batch, input), checked."""
    layer.cells[0].check_input(
        data, ("time", "batch", "input_size") if data.dim() != 2 else ("time", "input_size"), who
    )
    xs = data.unsqueeze(1) if data.dim() == 2 else data.transpose(0, 1) if layer.batch_first else data
    if xs.shape[0] == 0 or xs.shape[1] == 0:
        raise ShapeError(f"{who} expects at least one step and one sample, got {tuple(data.shape)}.")
    return xs


@torch.no_grad()
def _reached(layer: Recurrent, xs: Tensor) -> States:
    states = []
    for cell in layer.cells:
        xs, state = scan(cell, xs, backend=layer.backend)  # type: ignore[assignment]
        states.append(state)
    return states


def _step(layer: Recurrent, x: Tensor, states: States) -> States:
    new = []
    for cell, state in zip(layer.cells, states, strict=True):
        after = cell.step(cell.drive(x), state, cell.weights())
        x = after[0]
        new.append(after)
    return new


def _worst_direction(layer: Recurrent, x: Tensor, states: States, scales: list[float], iterations: int) -> float:
    """(2), from a random direction for each sample."""
    flat, shape = _flat(states)
    flat = [entry.detach().requires_grad_() for entry in flat]
    outputs, _ = _flat(_step(layer, x, _nested(flat, shape)))
    cotangents = [torch.zeros_like(output, requires_grad=True) for output in outputs]
    pulled = torch.autograd.grad(outputs, flat, cotangents, create_graph=True, allow_unused=True)
    pulled = [torch.zeros_like(h) if p is None else p for p, h in zip(pulled, flat, strict=True)]
    linear = [p for p in pulled if p.requires_grad]  # Jᵀ y, as a function of y

    def push(v: list[Tensor]) -> list[Tensor]:  # J v: the derivative of ⟨Jᵀ y, v⟩ in y
        wanted = [direction for direction, p in zip(v, pulled, strict=True) if p.requires_grad]
        found = torch.autograd.grad(linear, cotangents, wanted, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(o) if f is None else f for f, o in zip(found, outputs, strict=True)]

    def pull(y: list[Tensor]) -> list[Tensor]:  # Jᵀ y
        found = torch.autograd.grad(outputs, flat, y, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(h) if f is None else f for f, h in zip(found, flat, strict=True)]

    v, largest = _unit(layer, _nested([torch.randn_like(h) for h in flat], shape), scales), 0.0
    for _ in range(iterations):
        after = _nested(push(_flat(v)[0]), shape)
        largest = max(largest, _size(layer, after, scales).max().item())
        v = _unit(layer, _nested(pull(_flat(_support(layer, after, scales))[0]), shape), scales)
    return largest


def _size(layer: Recurrent, states: States, scales: list[float]) -> Tensor:  # (batch,)
    """The norm of the stacked state: the largest of the layers', each over its scale."""
    norms = [state_norm(cell, s) / v for cell, s, v in zip(layer.cells, states, scales, strict=True)]
    return torch.stack(norms).amax(dim=0)


def _unit(layer: Recurrent, z: States, scales: list[float]) -> States:
    """Of norm 1, with the largest ⟨z, v⟩: each layer along z, or along its signs."""
    found = []
    for cell, state, scale in zip(layer.cells, z, scales, strict=True):
        length = state_norm(cell, state).clamp_min(1e-300 if state[0].dtype == torch.float64 else 1e-37)
        linf = norm_of(cell) == "linf"
        found.append(tuple(scale * (torch.sign(e) if linf else e / length.unsqueeze(1)) for e in state))
    return found


def _support(layer: Recurrent, after: States, scales: list[float]) -> States:
    """The y with ⟨y, after⟩ = ‖after‖ and dual norm 1: on the layer, and for linf the entry, that makes the norm."""
    sizes = [state_norm(cell, s) / v for cell, s, v in zip(layer.cells, after, scales, strict=True)]
    first = torch.stack(sizes).argmax(dim=0)  # (batch,)
    found = []
    for i, (cell, state, size) in enumerate(zip(layer.cells, after, sizes, strict=True)):
        here = (first == i).unsqueeze(1)
        if norm_of(cell) == "linf":
            peak = (size * scales[i]).unsqueeze(1)
            entries = [torch.where(here & (e.abs() >= peak), torch.sign(e), 0.0) for e in state]
        else:
            entries = [torch.where(here, e, 0.0) for e in state]
            if len(entries) > 1:
                entries[0] = torch.zeros_like(entries[0])  # (y, h): only h is in the norm
        found.append(tuple(entries))
    return found


def _minus(a: States, b: States) -> States:
    return [tuple(x - y for x, y in zip(s, t, strict=True)) for s, t in zip(a, b, strict=True)]


def _flat(states: States) -> tuple[list[Tensor], list[int]]:
    return [entry for state in states for entry in state], [len(state) for state in states]


def _nested(flat: list[Tensor], shape: list[int]) -> States:
    parts = iter(flat)
    return [tuple(next(parts) for _ in range(count)) for count in shape]
