"""The premises of S4's theorems, as a certificate lists them, and the Lipschitz constant of a readout.

    contractive, smooth, f(0, 0) = 0, h_0 = 0, deterministic, bounded inputs,
    a Lipschitz and smooth loss, weights that stay in a convex Ω                              (1) the premises
    ‖V x‖₂ ≤ ‖V‖₂ ‖x‖₂;   ‖V x‖₂ ≤ min(√n ‖V‖₂, (Σ_i ‖V_i‖₁²)^½) max_j |x_j|                  (2) a linear readout

"holds" and "broken" are checked on the model; "unknown" depends on what only the caller knows. A broken premise does
not always break the bound: each reason says what follows. Source of (1): S4, §2 and A.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from holdfast.errors import DTypeError, SettingError, ShapeError
from holdfast.layers import RandomStart, Recurrent
from holdfast.linalg.norms import spectral_norm
from holdfast.stability.stack import Stack
from holdfast.stability.step import Region

__all__ = ["Assumption", "assumptions_of", "readout_lipschitz", "shown"]

Verdict = Literal["holds", "broken", "unknown"]
_CHECKED: tuple[Verdict, Verdict] = ("holds", "broken")


@dataclass(frozen=True)
class Assumption:
    """A premise of the theory, and whether this model meets it.

    Example:
        >>> print(Assumption("inputs are bounded", "unknown", "‖x_t‖ ≤ 1 is assumed, not checked"))
        unknown  inputs are bounded: ‖x_t‖ ≤ 1 is assumed, not checked
    """

    name: str
    verdict: Verdict
    reason: str

    def __str__(self) -> str:
        return f"{self.verdict:<8} {self.name}: {self.reason}"


def assumptions_of(
    layer: Recurrent,
    stack: Stack,
    bound: float,
    from_data: bool,
    loss_lipschitz: float | None,
    loss_smoothness: float | None,
    region: Region | None,
) -> list[Assumption]:
    """Every premise of S4's theorems, as this layer meets it."""
    rates = ", ".join(shown(step.rate) for step in stack.layers)
    kinks = "; ".join(dict.fromkeys(step.caveat for step in stack.layers if step.caveat))
    rest = max(step.rest for step in stack.layers)
    kind = layer.initial_state.kind
    noisy = layer.training and (isinstance(kind, RandomStart) or (layer.dropout > 0 and layer.num_layers > 1))

    def checked(name: str, good: bool, if_good: str, if_not: str, verdicts: tuple[Verdict, Verdict] = _CHECKED) -> None:
        found.append(Assumption(name, verdicts[0] if good else verdicts[1], if_good if good else if_not))

    found: list[Assumption] = []
    checked("contractive", stack.stable, f"λ = {rates}", f"λ = {rates}")
    checked("smooth", not kinks, "the step has bounded second derivatives, listed above", kinks)
    carried = f"‖f(0, 0)‖ = {shown(rest)}; the bound on states carries it, so what is printed still holds"
    checked("f(0, 0) = 0", rest == 0, "without input a state at zero stays there", carried)
    learned = "the start is learned; the bounds carry its length"
    checked("h_0 = 0", kind != "learned", "unless a call gives h_0", learned)
    noise = "dropout or a random start is active in training mode; the bounds are those of evaluation mode"
    checked("deterministic", not noisy, "one input sequence, one state sequence", noise)
    largest = f"the largest ‖x_t‖ of the data is {shown(bound)}"
    assumed = f"‖x_t‖ ≤ {shown(bound)} is assumed, not checked"
    checked("inputs are bounded", from_data, largest, assumed, ("holds", "unknown"))
    given = loss_lipschitz is not None and loss_smoothness is not None
    constants = f"L = {shown(loss_lipschitz)}, β = {shown(loss_smoothness)} is assumed, not checked"
    nothing = "no constants were given; gradients are not bounded"
    checked("loss Lipschitz and smooth", given, constants, nothing, ("unknown", "unknown"))
    if region is not None:
        return [*found, _in_region(layer.cells[0], region)]
    return [*found, Assumption("weights stay in a convex Ω", "unknown", "no region was given; weights are not bounded")]


def _in_region(cell: Any, region: Region) -> Assumption:
    norms = [spectral_norm(weight.detach().double()).item() for weight in (cell.weight_hh, cell.weight_ih)]
    norms.append(0.0 if cell.bias is None else cell.bias.detach().double().norm().item())
    radii = list(vars(region).values())
    inside = all(norm <= radius for norm, radius in zip(norms, radii, strict=True))
    return Assumption(
        "weights stay in a convex Ω",
        "unknown" if inside else "broken",
        "the weights are in the region now; project after every step to keep them there"
        if inside
        else f"‖U‖, ‖W‖, ‖b‖ = {', '.join(map(shown, norms))}, and the radii are {', '.join(map(shown, radii))}",
    )


def readout_lipschitz(readout: Any, norm: str, size: int) -> float:
    """From outputs, in ``norm``, to what is read, in the Euclidean one."""
    if readout is None:
        return 1.0 if norm == "l2" else math.sqrt(size)
    if isinstance(readout, int | float):
        if not (readout >= 0 and math.isfinite(readout)):
            raise SettingError(f"certificate expects a readout's Lipschitz constant, finite, got {readout}.")
        return float(readout) * (1.0 if norm == "l2" else math.sqrt(size))
    weight = readout.weight if isinstance(readout, nn.Linear) else readout
    if not isinstance(weight, Tensor):
        raise DTypeError(
            f"certificate expects readout to be a torch.nn.Linear, a matrix or a Lipschitz constant, got "
            f"{type(readout).__name__}."
        )
    weight = weight.detach().double()
    if weight.dim() != 2 or weight.shape[1] != size:
        raise ShapeError(f"certificate expects a readout of shape (features, {size}), got {tuple(weight.shape)}.")
    spectral = spectral_norm(weight).item()
    if norm == "l2":
        return spectral
    return min(math.sqrt(size) * spectral, weight.abs().sum(dim=1).norm().item())  # both bound ‖V x‖₂ by max |x_j|


def shown(value: Any) -> str:
    """A number as a person reads it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
