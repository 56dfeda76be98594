"""Print the figures of docs/theory/s2-path-norm.md that are measured.

    python tools/path_geometry.py            all but trainings: half a minute
    python tools/path_geometry.py --train    two trainings at T = 100, with κ⁽¹⁾ and with κᴬ: two minutes

    J_i = ∂y/∂p_i of a sequence,  mean over sequences and entries of J²/κ          (1) its effect on y, squared
    κᴬ(U)_ij = (Σ_t √g_t[i] a_{t-1}[j])²,  a_t = Σ_{r<t} √(Ũʳ φ),  φ = W̃ 1 + b̃    (2) amplitudes added over time
    κᴬ(W)_ij = (Σ_t √g_t[i])²,  κᴬ(V)_i = a_T[i]²,  g_t = (Ũᵀ)^(T-t) Ṽᵀ 1           (3) squares added over space

All of it at the start of S2's addition problem: H = 100, U = I, other weights uniform in ±0.01.
"""

from __future__ import annotations

import math
import statistics
import sys

import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.optim import PathAdam, PathSGD, kappa_first, kappa_second, path_network
from holdfast.optim.scales import PathScales
from holdfast.tasks import Addition

HIDDEN = 100
STEPS = (100, 400, 750)


class Model(nn.Module):
    """S2's network for the addition problem, at its start."""

    def __init__(self, hidden: int = HIDDEN):
        super().__init__()
        self.rnn, self.last_only = hf.RNN(2, hidden, nonlinearity="relu", init="identity"), True
        self.readout = nn.Linear(hidden, 1)
        cell = self.rnn.cells[0]
        for weight in (cell.weight_ih, self.readout.weight):
            nn.init.uniform_(weight, -0.01, 0.01)
        for bias in (cell.bias, self.readout.bias):
            nn.init.zeros_(bias)

    def forward(self, xs: Tensor) -> Tensor:
        return self.readout(self.rnn(xs, need_output=False)[1][-1])

    def named(self) -> dict[str, Tensor]:
        cell = self.rnn.cells[0]
        return {"U": cell.weight_hh, "W": cell.weight_ih, "b": cell.bias, "V": self.readout.weight}


def amplitude(model: Model, steps: int) -> dict[str, Tensor]:
    """(2) and (3), for one layer that is read at its last step."""
    U, W, b, V = (model.named()[name].detach().double().square() for name in "UWbV")
    rows, flows = [W.sum(1) + b], [V.sum(0)]
    for _ in range(steps - 1):
        rows.append(U @ rows[-1])
        flows.append(U.mT @ flows[-1])
    G = torch.stack(flows[::-1]).sqrt()
    a = torch.cat([torch.zeros_like(G[:1]), torch.stack(rows).sqrt().cumsum(0)])
    total = G.sum(0).square()
    return {"U": (G.mT @ a[:-1]).square(), "W": total[:, None], "b": total, "V": a[-1].square()}


def effects(model: Model, steps: int, sequences: int = 8) -> dict[str, list[Tensor]]:
    """J of each tensor, for each of some sequences."""
    xs = Addition(steps=steps).load().train_batch(0, sequences, 0).inputs
    found = [torch.autograd.grad(model(xs[:, [k]]).sum(), list(model.named().values())) for k in range(sequences)]
    return {name: [one[index].double() for one in found] for index, name in enumerate(model.named())}


def growth_table(starts: int = 5) -> None:
    print("Mean of J²/κ⁽¹⁾, of J²/(κ⁽¹⁾ + 2κ⁽²⁾) and of J²/κᴬ over entries, 8 sequences and", starts, "starts:\n")
    print("| T | κ | U | W | b | V | √(W/U) | 3/√T |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    for steps in STEPS:
        rows: dict[str, dict[str, list[float]]] = {}
        for seed in range(starts):
            torch.manual_seed(seed)
            model = Model()
            first, second = kappa_first(model, steps), kappa_second(model, steps)
            curvatures = {
                "κ⁽¹⁾": {name: first[weight] for name, weight in model.named().items()},
                "both": {name: first[weight] + 2 * second[weight] for name, weight in model.named().items()},
                "κᴬ": amplitude(model, steps),
            }
            J = effects(model, steps)
            for kind, curvature in curvatures.items():
                for name in J:
                    own = statistics.fmean(float((one.square() / curvature[name]).mean()) for one in J[name])
                    rows.setdefault(kind, {}).setdefault(name, []).append(own)
        for kind, row in rows.items():
            means = {name: statistics.fmean(values) for name, values in row.items()}
            entries = " | ".join(f"{means[name]:.4g}" for name in "UWbV")
            share = math.sqrt(means["W"] / means["U"])
            print(f"| {steps} | {kind} | {entries} | {share:.3g} | {3 / math.sqrt(steps):.3g} |")
    print()


def shares(steps: int = 100, updates: int = 4000) -> None:
    """Which part of Σ g²/κ each tensor has, at the start and after some updates of Path-SGD with relative steps."""
    torch.manual_seed(0)
    model, task = Model(), Addition(steps=steps).load()
    optimiser = PathSGD(model.parameters(), model, lr=1e-2, steps=steps, relative=True)
    for update in range(updates + 1):
        batch = task.train_batch(update, 16, 0)
        optimiser.zero_grad()
        (model(batch.inputs) - batch.targets).square().mean().backward()
        if update in (0, 300, updates):
            found = kappa_first(model, steps)
            named = {**model.named(), "output bias": model.readout.bias}
            own = {name: float((w.grad.double().square() / found[w]).sum()) for name, w in named.items()}  # type: ignore[union-attr]
            total = sum(own.values())
            radius = float(torch.linalg.eigvals(model.named()["U"].detach()).abs().max())
            text = ", ".join(f"{name} {100 * value / total:.3g}%" for name, value in own.items())
            print(f"T = {steps}, lr = 1e-2 falling to 0, update {update}: ρ(U) = {radius:.3f}; of Σ g²/κ: {text}")
        for group in optimiser.param_groups:
            group["lr"] = 1e-2 * (1 - update / (updates + 1))
        optimiser.step()
    print()


def first_steps(steps: int = 200, starts: int = 20) -> None:
    """How far one step of relative length lr moves ρ(U), in units of lr √(H/T)."""
    moves = []
    for seed in range(starts):
        torch.manual_seed(seed)
        model, lr = Model(), 1e-4
        optimiser = PathSGD(model.parameters(), model, lr=lr, steps=steps, relative=True)
        batch = Addition(steps=steps).load().train_batch(seed, 16, 0)
        (model(batch.inputs) - batch.targets).square().mean().backward()
        optimiser.step()
        U = model.named()["U"].detach().double()
        moves.append((float(torch.linalg.eigvals(U).abs().max()) - 1) / (lr * math.sqrt(HIDDEN / steps)))
    print(
        f"T = {steps}, {starts} starts: one step of relative length lr moves ρ(U) by lr √(H/T) times "
        f"{min(moves):.2g} to {max(moves):.2g}, mean {statistics.fmean(moves):.2g}\n"
    )


def rounding() -> None:
    """The relative error of κ⁽¹⁾ in float32."""
    for layers, hidden, steps in ((1, 128, 100), (1, 100, 750), (2, 128, 100)):
        torch.manual_seed(0)
        model = Model(hidden)
        if layers > 1:
            model.rnn = hf.RNN(2, hidden, layers, nonlinearity="relu", init="identity")
        fast, exact = kappa_first(model, steps, dtype=torch.float32), kappa_first(model, steps)
        worst = max(float(((fast[w].double() - exact[w]) / exact[w]).abs().max()) for w in exact)
        kinds = {str(value.dtype).removeprefix("torch.") for value in fast.values()}
        print(
            f"H = {hidden}, T = {steps}, {layers} layers: κ⁽¹⁾ in {', '.join(kinds)}, "
            f"relative error at most {worst:.1e}"
        )


class AmplitudeScales(PathScales):
    """``PathAdam(invariant=True)`` with κᴬ in place of κ⁽¹⁾, and no share for U."""

    def _kappa(self) -> dict[Tensor, Tensor]:
        found = amplitude(self.model, self.steps)
        named = self.model.named()
        return {**{named[name]: value.expand_as(named[name]) for name, value in found.items()},
                self.model.readout.bias: torch.ones(1, dtype=torch.float64)}  # fmt: skip


def trained(kind: str, steps: int = 100, updates: int = 8000, lr: float = 0.03) -> None:
    """The error of a training from seed 0, and the radius that it ends with."""
    torch.manual_seed(0)
    model, task = Model(), Addition(steps=steps, validation=512).load()
    optimiser = PathAdam(model.parameters(), model, lr=lr, steps=steps, invariant=True)
    if kind == "κᴬ":
        optimiser.preconditioner = AmplitudeScales(path_network(model), steps=steps, recurrent=1.0)
        optimiser.preconditioner.model = model
    for update in range(updates):
        batch = task.train_batch(update, 16, 0)
        for group in optimiser.param_groups:
            group["lr"] = lr * min(1.0, (update + 1) / 500) * (1 - update / updates)
        optimiser.zero_grad()
        (model(batch.inputs) - batch.targets).square().mean().backward()
        optimiser.step()
    with torch.no_grad():
        errors = [float((model(it.inputs) - it.targets).square().mean()) for it in task.evaluation("validation", 512)]
    radius = float(torch.linalg.eigvals(model.named()["U"].detach()).abs().max())
    print(f"T = {steps}, {updates} updates, lr = {lr}, {kind}: validation error {errors[0]:.2g}, ρ(U) = {radius:.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--train" in sys.argv[1:]:
        trained("κ⁽¹⁾")
        trained("κᴬ")
    else:
        growth_table()
        first_steps()
        shares()
        rounding()
