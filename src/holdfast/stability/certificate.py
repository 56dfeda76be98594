"""What is proved about a model, with every premise and whether it holds.

    k(ε): ‖y_t - y_t^k‖ ≤ L_f (M^k r)_m ≤ ε                          (1) Lemma 1, Proposition 1; stack.py
    ‖∇p_T - ∇p_T^k‖ ≤ G(k)                                           (2) Lemma 2; gaps.py (2)
    ‖w_recurr - w_trunc‖ ≤ δ_N(k)                                    (3) Proposition 2; gaps.py (3), (4)
    ‖y_T - y_T^k‖ ≤ L_f (L_w δ_N(k) / (1 - λ) + λ^k R)               (4) Theorem 1; gaps.py (6)

(1) is for stacks too. (2) needs one layer and the loss's constants; (3) and (4) also need a ``Region`` that
training is projected onto, since their constants must hold for all weights that training reaches. Nothing is measured
on data, except the bound on the inputs if data are given instead of it.

Source: S4, §3 and §4. Derivations: docs/theory/s4-stability.md.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from holdfast.cells import Cell
from holdfast.errors import NoBoundError, SettingError, ShapeError, positive_number, positive_size
from holdfast.layers import Recurrent
from holdfast.stability.assumptions import Assumption, assumptions_of, readout_lipschitz, shown
from holdfast.stability.gaps import GapForm, gradient_gap, gradient_smoothness, trained_output_gap, weight_gap
from holdfast.stability.stack import Stack, as_layer, stack_bounds
from holdfast.stability.step import Region

__all__ = ["Certificate", "certificate"]


@dataclass(frozen=True)
class Certificate:
    """The bounds (1) to (4) of a model. ``print`` it, or take ``to_json()``; the methods answer for any k.

    Args:
        model: its name and sizes.
        stack: rates, Lipschitz and smoothness constants of each layer, and of their stack.
        input_bound, input_norm: B, and the norm it is in.
        readout_lipschitz: L_f from the last layer's output, in the norm of the stack, to y, in the Euclidean one.
        loss_lipschitz, loss_smoothness: of the loss in y; None if not given.
        eps: ε.
        region: Ω; None if not given.
        assumptions: the premises.
        root_size: √n, n the numbers in one layer's state.

    Example:
        >>> from holdfast import SGORNN
        >>> proved = certificate(SGORNN(3, 8), input_bound=1.0)
        >>> proved.stable, round(proved.rate, 3)
        (True, 0.976)
        >>> proved.output_gap(proved.horizon()) <= 1e-3 < proved.output_gap(proved.horizon() - 1)
        True
    """

    model: str
    stack: Stack
    input_bound: float
    input_norm: str
    readout_lipschitz: float
    loss_lipschitz: float | None
    loss_smoothness: float | None
    eps: float
    region: Region | None
    assumptions: tuple[Assumption, ...]
    root_size: float

    @property
    def rate(self) -> float:
        """λ; of a stack, in the norm of ``stack.weights``."""
        return self.stack.rate

    @property
    def stable(self) -> bool:
        """Whether every layer contracts."""
        return self.stack.stable

    @property
    def iterations_l2(self) -> int | None:
        """For a stable LSTM or GRU: the least r for which r steps together contract in the Euclidean norm, too.

        S4 Proposition 5: √n λ^r < 1, n the numbers in the state, 2d for an LSTM of d units.
        """
        last = self.stack.layers[-1]
        if len(self.stack.layers) > 1 or last.norm != "linf" or not self.stable:
            return None
        return max(1, math.floor(math.log(self.root_size) / -math.log(last.rate)) + 1) if last.rate > 0 else 1

    def state_gap(self, k: int) -> float:
        """‖h_t - h_t^k‖ of the last layer, at most: Lemma 1."""
        return self.stack.state_gap(positive_size("state_gap", "k", k))[-1]

    def output_gap(self, k: int) -> float:
        """‖y_t - y_t^k‖, at most: Proposition 1."""
        return self.readout_lipschitz * self.stack.output_gap(positive_size("output_gap", "k", k))

    def horizon(self, eps: float | None = None) -> int:
        """The least k with ``output_gap(k)`` ≤ ε: Proposition 1. Raises an error with λ if no k is proved to do."""
        k = self.stack.horizon(self.eps if eps is None else eps, self.readout_lipschitz)
        if k is None:
            raise NoBoundError(no_horizon(self.model, self.stack))
        return k

    def gradient_gap(self, k: int, form: GapForm = "exact") -> float:
        """‖∇_w p_T - ∇_w p_T^k‖, at most, w the weights of the one layer: Lemma 2."""
        return gradient_gap(k, **self._training(), form=form)

    @property
    def gradient_smoothness(self) -> float:
        """β of Lemma 3."""
        setting = self._training()
        del setting["state_bound"]
        return gradient_smoothness(**setting)

    def weight_gap(self, k: int, steps: int, alpha: float, decay: float = 1.0) -> float:
        """‖w_recurr - w_trunc‖, at most, after ``steps`` of projected gradient descent: Proposition 2.

        Args:
            k: the window.
            steps: N.
            alpha, decay: step i has size alpha / i^decay; 1 is the proposition's.
        """
        self._needs_region()
        sizes = (alpha / i**decay for i in range(1, steps + 1))
        return weight_gap(self.gradient_gap(k), self.gradient_smoothness, sizes)

    def trained_output_gap(self, k: int, steps: int, alpha: float, decay: float = 1.0) -> float:
        """‖y_T - y_T^k‖, at most, of two models trained as in ``weight_gap``: Theorem 1."""
        layer = self.stack.layers[-1]
        return trained_output_gap(
            k,
            rate=layer.rate,
            state_bound=self.stack.radii[-1],
            weight_lipschitz=layer.smoothness.weights,
            output_lipschitz=self.readout_lipschitz * layer.output_lipschitz,
            weights_apart=self.weight_gap(k, steps, alpha, decay),
        )

    def _training(self) -> dict[str, Any]:
        if (count := len(self.stack.layers)) > 1:
            raise NoBoundError(
                f"The constants for training are derived for one layer; {self.model} has {count}. "
                "States and outputs are certified: output_gap, horizon."
            )
        if self.loss_lipschitz is None or self.loss_smoothness is None:
            raise SettingError(
                "Bounds on gradients depend on the loss: give loss_lipschitz and loss_smoothness, the Lipschitz "
                "constants of the loss and of its gradient as functions of the outputs."
            )
        layer, gain = self.stack.layers[-1], self.readout_lipschitz * self.stack.output_gains[-1]
        return {
            "rate": layer.rate,
            "state_bound": self.stack.radii[-1],
            "smoothness": layer.smoothness,
            "loss_lipschitz": gain * self.loss_lipschitz,
            "loss_smoothness": gain**2 * self.loss_smoothness,
        }

    def _needs_region(self) -> None:
        if self.region is None:
            raise SettingError(
                "Weights change in training, and the constants must hold for all of them: give "
                "region=Region(recurrent, input, bias) to certificate, and project onto it with project_ or Projected."
            )

    def to_json(self) -> str:
        """Everything that ``print`` shows, as JSON; infinity is the string "inf"."""
        report = asdict(self) | {
            "rate": self.rate,
            "stable": self.stable,
            "horizon": self._horizon_or_none(),
            "iterations_l2": self.iterations_l2,
        }
        return json.dumps(_finite(report), allow_nan=False, ensure_ascii=False)

    def __str__(self) -> str:
        layer, k = self.stack.layers[-1], self._horizon_or_none()
        rows: list[tuple[str, Any]] = [("contraction rate λ", self.rate)]
        if len(self.stack.layers) > 1:
            rows.append(("λ of each layer", ", ".join(shown(step.rate) for step in self.stack.layers)))
        rows += [
            ("norm of states", {"l2": "Euclidean", "linf": "largest entry"}[layer.norm]),
            ("bound on inputs B", self.input_bound),
            ("bound on states R", layer.state_bound),
            ("Lipschitz in x, L_x", layer.input_lipschitz),
            ("Lipschitz in w, L_w", layer.smoothness.weights),
            ("readout L_f", self.readout_lipschitz),
        ]
        rows += [(f"smoothness β_{name}", getattr(layer.smoothness, name)) for name in ("ww", "wh", "hw", "hh")]
        rows.append((f"horizon k(ε = {shown(self.eps)})", "none" if k is None else k))
        if k is not None:
            rows.append((f"output gap at k = {k}", self.output_gap(k)))
            if len(self.stack.layers) == 1 and self.loss_lipschitz is not None and self.loss_smoothness is not None:
                rows.append((f"gradient gap at k = {k}", self.gradient_gap(k)))
                rows.append(("smoothness of the loss in w, β", self.gradient_smoothness))
        if self.iterations_l2 is not None:
            rows.append(("steps to contract in ℓ2", self.iterations_l2))
        width = max(len(name) for name, _ in rows)
        head = f"{self.model}: {'stable' if self.stable else 'not certified as stable'}"
        lines = [head, *(f"  {name:<{width}}  {shown(value)}" for name, value in rows), "  assumptions"]
        return "\n".join([*lines, *(f"    {assumption}" for assumption in self.assumptions)])

    def _horizon_or_none(self) -> int | None:
        return self.stack.horizon(self.eps, self.readout_lipschitz)


def certificate(
    model: Cell | Recurrent,
    input_bound: float | Tensor,
    *,
    input_norm: str = "l2",
    readout: nn.Linear | Tensor | float | None = None,
    loss_lipschitz: float | None = None,
    loss_smoothness: float | None = None,
    eps: float = 1e-3,
    region: Region | None = None,
) -> Certificate:
    """What is proved about a cell or layer with bounded inputs, in evaluation mode.

    Args:
        model: a certified cell, or a layer of them in one direction.
        input_bound: B ≥ ‖x_t‖ for every t, or data (..., input_size), from which the largest ‖x_t‖ is computed.
        input_norm: the norm of that, "l2", or "linf" for the largest entry.
        readout: what is read from the outputs: a linear layer, its matrix, or a Lipschitz constant; default: nothing.
        loss_lipschitz, loss_smoothness: of the loss p as a function of what is read, for gradients.
        eps: the ε of the horizon that is printed.
        region: certify all weights of it, for training; default: the weights as they are.

    Example:
        >>> from holdfast import RNN
        >>> layer = RNN(3, 4, bias=False)
        >>> proved = certificate(
        ...     layer, 1.0, loss_lipschitz=1.0, loss_smoothness=1.0, region=Region(recurrent=0.5, input=1.0)
        ... )
        >>> proved.weight_gap(k=40, steps=100, alpha=0.01) < 1e-6
        True

    References:
        Miller & Hardt (2019), Stable recurrent models.
    """
    layer = as_layer(model, "certificate")
    positive_number("certificate", "eps", eps)
    bound, from_data = _input_bound(layer, input_bound, input_norm)
    stack = stack_bounds(model, bound, input_norm=input_norm, region=region)
    cell, last = layer.cells[-1], stack.layers[-1]
    for name, value in (("loss_lipschitz", loss_lipschitz), ("loss_smoothness", loss_smoothness)):
        if value is not None and not (value >= 0 and math.isfinite(value)):
            raise SettingError(f"certificate expects {name} to be finite and at least 0, got {value}.")
    return Certificate(
        model=f"{type(model).__name__}({layer.extra_repr()})",
        stack=stack,
        input_bound=bound,
        input_norm=input_norm,
        readout_lipschitz=readout_lipschitz(readout, last.norm, cell.state_sizes[0]),
        loss_lipschitz=loss_lipschitz,
        loss_smoothness=loss_smoothness,
        eps=eps,
        region=region,
        assumptions=tuple(assumptions_of(layer, stack, bound, from_data, loss_lipschitz, loss_smoothness, region)),
        root_size=math.sqrt(sum(cell.state_sizes)),
    )


def no_horizon(model: str, stack: Stack) -> str:
    """Why no k is proved to be enough, with λ, and what to do."""
    rates = ", ".join(shown(step.rate) for step in stack.layers)
    if not stack.stable:
        return (
            f"{model} is not certified as stable: λ = {rates} ≥ 1, so no window is proved to be long enough. Make it "
            "stable with project_(model, rate=0.95) or Projected while training, or choose k yourself."
        )
    return f"{model} is stable with λ = {rates}, but its states are not bounded: give input_bound, the largest ‖x_t‖."


def _input_bound(layer: Recurrent, given: float | Tensor, norm: str) -> tuple[float, bool]:
    if not isinstance(given, Tensor) or given.dim() == 0:
        return float(given), False
    if given.shape[-1] != layer.input_size:
        raise ShapeError(f"certificate expects data of shape (..., {layer.input_size}), got {tuple(given.shape)}.")
    order = 2.0 if norm == "l2" else math.inf
    return given.detach().double().norm(dim=-1, p=order).max().item(), True


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return "inf" if isinstance(value, float) and not math.isfinite(value) else value
