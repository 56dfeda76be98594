"""Random instances on which S4's Lemma 2 and Proposition 2 are looked at: Figure 1.

    x_t ~ s N(0, 4 I),  y ~ U[-2, 2],  U, W ~ N(0, 1/2),  σ_i(U) ← min(σ_i, λ),  C, D ~ N(0, I)     (1) S4, A.5
    p_T = ½ (C h_T + D x_T - y)²                                                                   (2)
    ‖∇_U p_T - ∇_U p_T^k‖ over k                                                                   (3) Figure 1(a)
    ‖U_recurr - U_trunc‖_F after i steps of projected descent of sizes α / i^d                     (4) Figure 1(b)
    b_i = min(α G i^(α β + 1), 2 λ √n)                                                             (5) Proposition 2
    c_i = i max_j a_j / j,  a the gaps (4) with d = 1                                              (6) its form, fitted

Only U is trained: S4 notes that the weights are never more than 2 λ apart, which is true of U alone. s = 1 is printed.

G and β of (5) are the least that the proposition's proof needs on the path with d = 1, where they are measured: the
largest ‖∇p_T - ∇p_T^k‖ at U_trunc, and the largest ‖∇p_T(U_recurr) - ∇p_T(U_trunc)‖ / ‖U_recurr - U_trunc‖. So (5)
must hold there; 2 λ √n is the width of the ball in this norm. (6) has the proposition's form with its smallest power, β
= 0, and the least factor above that path. The constants that hold for all weights, those of ``certificate``, are in
(3); in (4) they are vacuous.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.cells import LinearCell, RNNCell
from holdfast.constraints.spectral import clip_spectral
from holdfast.engine import scan
from holdfast.errors import ConfigError
from holdfast.runs.measured import Measured
from holdfast.stability import certificate, project_, stack_bounds, weight_gap_closed
from holdfast.studies.procedures import procedure
from holdfast.tasks.gaussian import GaussianInstances

__all__ = ["gradient_gaps", "weight_gaps"]

_CELLS = {"linear": LinearCell, "rnn": RNNCell}
_SIZE = 32  # units, where the settings name none
_INSTANCE = {"rate": 0.75, "input_scale": 1.0, "line": "measured"}


@dataclasses.dataclass(frozen=True)
class _Instance:
    """(1): a stable cell, its inputs (time, 1, features), and the loss (2) of a last state."""

    cell: LinearCell | RNNCell
    xs: Tensor
    readout: Tensor
    offset: float  # D x_T - y

    def gradient(self, k: int | None = None) -> Tensor:
        """∇_U of p_T, or of p_T^k."""
        h = scan(self.cell, self.xs if k is None else self.xs[-k:], need_output=False)[1][-1]
        return torch.autograd.grad(0.5 * (h @ self.readout + self.offset).square().sum(), self.cell.weight_hh)[0]

    def constants(self) -> tuple[float, float]:
        """L_p and β_p of (2), on all states that the inputs reach, for the certificate."""
        reach = stack_bounds(self.cell, self.xs.norm(dim=2).max().item()).radii[-1]
        size = self.readout.norm().item()
        return size * (size * reach + abs(self.offset)), size**2


def _instance(table: dict[str, Any], options: dict[str, Any], label: str) -> _Instance:
    task = {key: value for key, value in table.get("task", {}).items() if key != "name"}
    cell = table.get("cell", {})
    if table.get("task", {}).get("name") != "gaussian" or cell.get("name") not in _CELLS:
        raise ConfigError(f"{label}: this procedure needs the task gaussian and one of the cells {', '.join(_CELLS)}.")
    seed = table.get("train", {}).get("seed", 0)
    batch = GaussianInstances(**{**task, "seed": seed}).load().train_batch(0, 1, 0)
    xs = options["input_scale"] * batch.inputs.double()
    generator, size, features = torch.Generator().manual_seed(seed), cell.get("hidden_size", _SIZE), xs.shape[2]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    made = _CELLS[cell["name"]](features, size, bias=False).double()
    with torch.no_grad():
        made.weight_hh.copy_(clip_spectral(math.sqrt(0.5) * normal(size, size), options["rate"]))
        made.weight_ih.copy_(math.sqrt(0.5) * normal(size, features))
    made.weight_ih.requires_grad_(False)
    readout, direct = normal(size), normal(features)
    return _Instance(made, xs, readout, (direct @ xs[-1, 0]).item() - batch.targets.item())


@procedure("gradient-gaps", {**_INSTANCE, "windows": (1, 5, 10, 15, 20, 25, 30, 35, 40, 50)})
def gradient_gaps(
    table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str
) -> Measured:
    """(3), at the start. The curve has "k" and "gap"; with ``line = "proved"`` the gap is Lemma 2's, from the cell.

    Numbers: "gap", at the largest k; "rate", r of the line k r^k that fits best through the last two thirds of those
    gaps that can be told from rounding; "passed", the share of k whose gap is above the proved one; "slack", the least
    proved / measured.

    Args:
        options: ``rate``, λ; ``input_scale``, s; ``windows``, the values of k; ``line``, "measured" or "proved".

    Example:
        >>> table = {"task": {"name": "gaussian", "steps": 30, "features": 3}, "cell": {"name": "linear"}}
        >>> found = gradient_gaps(table, {"windows": [2, 4, 8, 16]}, Path(), progress=False, label="tiny")
        >>> found.curve["k"], found.value("passed", "last")
        ((2, 4, 8, 16), 0.0)
    """
    made = _instance(table, options, label)
    lipschitz, smoothness = made.constants()
    proved = certificate(made.cell, made.xs, loss_lipschitz=lipschitz, loss_smoothness=smoothness)
    whole, windows = made.gradient(), [int(k) for k in options["windows"]]
    gaps = [(whole - made.gradient(k)).norm().item() for k in windows]
    bounds = [proved.gradient_gap(k) for k in windows]
    rounding = 1e-13 * whole.norm().item()
    seen = [(k, gap, bound) for k, gap, bound in zip(windows, gaps, bounds, strict=True) if gap > rounding]
    line = {"measured": gaps, "proved": bounds}.get(options["line"])
    if line is None:
        raise ConfigError(f"{label}: line must be measured or proved, got {options['line']!r}.")
    numbers = {
        "gap": line[-1],
        "rate": _rate([(k, gap) for k, gap, _ in seen[len(seen) // 3 :]]),
        "passed": sum(gap > bound + rounding for gap, bound in zip(gaps, bounds, strict=True)) / len(gaps),
        "slack": min((bound / gap for _, gap, bound in seen), default=None),
    }
    curve = {"k": tuple(windows), "gap": tuple(line)}
    return Measured(best=numbers, last=numbers, curve=curve)


@procedure("weight-gaps", {**_INSTANCE, "k": 35, "alpha": 0.01, "decay": 1.0, "steps": 200})
def weight_gaps(
    table: dict[str, Any], options: dict[str, Any], folder: Path, *, progress: bool, label: str
) -> Measured:
    """(4). The curve has "update" and "gap"; ``line`` puts (5) or (6), from the path with d = 1, in place of the gap.

    Numbers: "gap", at the end; "passed" and "passed-fitted", the shares of steps whose gap is above (5) and (6);
    "growth", the power of i by which the gap grows over the last half of the steps; "exponent", α β + 1.

    Args:
        options: ``rate``, ``input_scale``; ``k``; ``alpha``, ``decay``, α and d; ``steps``, N; ``line``, "measured",
            "bound" or "fitted".

    Example:
        >>> table = {"task": {"name": "gaussian", "steps": 30, "features": 3}, "cell": {"name": "linear"}}
        >>> options = {"k": 8, "steps": 5, "input_scale": 0.05}
        >>> found = weight_gaps(table, options, Path(), progress=False, label="tiny")
        >>> found.curve["update"], found.value("passed", "last")
        ((1, 2, 3, 4, 5), 0.0)
    """
    if options["line"] not in ("measured", "bound", "fitted"):
        raise ConfigError(f"{label}: line must be measured, bound or fitted, got {options['line']!r}.")
    alpha = options["alpha"]
    own, gap, beta = _descend(table, options, 1.0, label)
    size = table["cell"].get("hidden_size", _SIZE)
    width = 2 * options["rate"] * math.sqrt(size)
    bounds = [min(weight_gap_closed(gap, beta, alpha, i), width) for i in range(1, len(own) + 1)]  # (5)
    steepest = max(one / i for i, one in enumerate(own, start=1))
    fitted = [steepest * i for i in range(1, len(own) + 1)]  # (6)
    gaps = own if options["decay"] == 1 else _descend(table, options, options["decay"], label)[0]
    line = {"measured": gaps, "bound": bounds, "fitted": fitted}[options["line"]]
    numbers = {
        "gap": line[-1],
        "passed": _passed(gaps, bounds),
        "passed-fitted": _passed(gaps, fitted),
        "growth": _growth(gaps),
        "exponent": alpha * beta + 1,
    }
    curve = {"update": tuple(range(1, len(gaps) + 1)), "gap": tuple(line)}
    return Measured(best=numbers, last=numbers, curve=curve, updates=len(gaps))


def _descend(
    table: dict[str, Any], options: dict[str, Any], decay: float, label: str
) -> tuple[list[float], float, float]:
    """(4) by the step, and G and β of (5) on the way."""
    full, short = (_instance(table, options, label) for _ in range(2))
    gaps, largest, beta = [], 0.0, 0.0
    for i in range(1, options["steps"] + 1):
        here, there = full.gradient(), short.gradient(options["k"])
        whole = short.gradient()  # the full model's gradient at the truncated model's weights
        apart = (full.cell.weight_hh - short.cell.weight_hh).norm().item()
        largest = max(largest, (whole - there).norm().item())
        beta = max(beta, (here - whole).norm().item() / apart if apart else 0.0)
        with torch.no_grad():
            for one, gradient in ((full, here), (short, there)):
                one.cell.weight_hh.sub_(options["alpha"] / i**decay * gradient)
                project_(one.cell, rate=options["rate"])
        gaps.append((full.cell.weight_hh - short.cell.weight_hh).norm().item())
    return gaps, largest, beta


def _passed(gaps: list[float], bounds: list[float]) -> float:
    """The share of gaps above their bounds, by more than rounding."""
    return sum(gap > bound * (1 + 1e-9) for gap, bound in zip(gaps, bounds, strict=True)) / len(gaps)


def _rate(points: list[tuple[int, float]]) -> float | None:
    """The r of the line c k r^k through (k, gap), by least squares on logarithms."""
    if len(points) < 2:
        return None
    line = statistics.linear_regression([k for k, _ in points], [math.log(gap / k) for k, gap in points])
    return math.exp(line.slope)


def _growth(gaps: list[float]) -> float | None:
    """The power of i by which the last half of the gaps grows."""
    half = [(i, gap) for i, gap in enumerate(gaps, start=1) if i > len(gaps) // 2 and gap > 0]
    if len(half) < 2:
        return None
    return statistics.linear_regression([math.log(i) for i, _ in half], [math.log(gap) for _, gap in half]).slope
