"""Print the figures of docs/theory/s2-path-norm.md that are measured.

    python tools/path_geometry.py            all but trainings: half a minute
    python tools/path_geometry.py --train    two trainings at T = 100, with κ⁽¹⁾ and with κᴬ: two minutes
    python tools/path_geometry.py --long     the same at T = 400, with spike protection: ten minutes

    J_i = ∂y/∂p_i of a sequence,  mean over sequences and entries of J²/κ          (1) its effect on y, squared
    κᴬ(U)_ij = (Σ_t √g_t[i] a_{t-1}[j])²,  a_t = Σ_{r<t} √(Ũʳ φ),  φ = W̃ 1 + b̃    (2) amplitudes added over time
    κᴬ(W)_ij = (Σ_t √g_t[i])²,  κᴬ(V)_i = a_T[i]²,  g_t = (Ũᵀ)^(T-t) Ṽᵀ 1           (3) squares added over space

All of it at the start of S2's addition problem: H = 100, U = I, other weights uniform in ±0.01. One table has other
starts, with the gradient g of the loss of one batch in place of J.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.engine.kernels.flow import compiled_flow
from holdfast.optim import PathAdam, PathSGD, kappa_first, kappa_second, path_network
from holdfast.optim.scales import PathScales
from holdfast.tasks import Addition
from holdfast.train.spikes import Rewind

HIDDEN = 100
STEPS = (100, 400, 750)


class Model(nn.Module):
    """One ReLU layer and its readout: by default S2's network for the addition problem, at its start."""

    def __init__(
        self,
        hidden: int = HIDDEN,
        inputs: int = 2,
        outputs: int = 1,
        *,
        last_only: bool = True,
        start: str | float = "identity",
        others: float = 0.01,
    ):
        super().__init__()
        self.rnn, self.last_only = hf.RNN(inputs, hidden, nonlinearity="relu", init="identity"), last_only
        self.readout = nn.Linear(hidden, outputs)
        cell = self.rnn.cells[0]
        for weight in (cell.weight_ih, self.readout.weight):
            nn.init.uniform_(weight, -others, others)
        for bias in (cell.bias, self.readout.bias):
            nn.init.zeros_(bias)
        if start == "orthogonal":
            nn.init.orthogonal_(cell.weight_hh)
        elif isinstance(start, float):
            nn.init.uniform_(cell.weight_hh, -start, start)

    def forward(self, xs: Tensor) -> Tensor:
        output, last = self.rnn(xs, need_output=not self.last_only)
        return self.readout(last[-1] if self.last_only else output)

    def named(self) -> dict[str, Tensor]:
        cell = self.rnn.cells[0]
        return {"U": cell.weight_hh, "W": cell.weight_ih, "b": cell.bias, "V": self.readout.weight}


def amplitude(model: Model, steps: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """(2) and (3), for one layer that is read at its last step."""
    U, W, b, V = (model.named()[name].detach().to(dtype).square() for name in "UWbV")
    starts = torch.stack([W.sum(1) + b, V.sum(0)])
    rows, flows = compiled_flow(torch.stack([U.mT, U]), starts, torch.zeros_like(starts), steps)
    G, a = flows.flip(0).sqrt(), rows.sqrt().cumsum(0)
    total = G.sum(0).square()
    return {"U": (G[1:].mT @ a[:-1]).square(), "W": total[:, None], "b": total, "V": a[-1].square()}


def cost(steps: int = 400, repeats: int = 300) -> None:
    """Processor time of κ⁽¹⁾ and of κᴬ on one thread, in float32, in turns."""
    torch.manual_seed(0)
    model, times = Model(), {"κ⁽¹⁾": [], "κᴬ": []}
    network = path_network(model)
    runs = {
        "κ⁽¹⁾": lambda: kappa_first(network, steps, dtype=torch.float32),
        "κᴬ": lambda: amplitude(model, steps, torch.float32),
    }
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.thread_time()
            run()
            times[name].append(time.thread_time() - start)
    first, other = (1e6 * statistics.median(own) for own in times.values())
    print(f"H = {HIDDEN}, T = {steps}, one thread: κ⁽¹⁾ {first:.0f} µs, κᴬ {other:.0f} µs, {other / first:.2f} of it")


STARTS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "addition, U = I": ({}, (50, 100, 400, 750)),
    "addition, orthogonal U, others ±0.2": ({"start": "orthogonal", "others": 0.2}, (50, 100, 400)),
    "pixels, U = I": ({"inputs": 1, "outputs": 10}, (49, 196, 784)),
    "characters, U ±0.01, others ±0.2": (
        {"hidden": 256, "inputs": 50, "outputs": 50, "last_only": False, "start": 0.01, "others": 0.2},
        (10, 50, 180),
    ),
    "characters, orthogonal U, others ±0.2": (
        {"hidden": 256, "inputs": 50, "outputs": 50, "last_only": False, "start": "orthogonal", "others": 0.2},
        (10, 50, 180),
    ),
    "characters, U = I": ({"hidden": 256, "inputs": 50, "outputs": 50, "last_only": False}, (10, 50, 180)),
}


def first_loss(name: str, model: Model, steps: int, seed: int) -> Tensor:
    """Of one batch of 16: addition; nine tenths of the pixels black; or one-hot characters, each as likely."""
    if name.startswith("addition"):
        batch = Addition(steps=steps).load().train_batch(0, 16, seed)
        return (model(batch.inputs) - batch.targets).square().mean()
    if name.startswith("pixels"):
        xs = torch.rand(steps, 16, 1) * (torch.rand(steps, 16, 1) < 0.1)
        return nn.functional.cross_entropy(model(xs), torch.randint(0, 10, (16,)))
    characters = torch.randint(0, 50, (steps + 1, 16))
    logits = model(nn.functional.one_hot(characters[:-1], 50).float())
    return nn.functional.cross_entropy(logits.flatten(0, 1), characters[1:].flatten())


def starts_table(seeds: int = 3) -> None:
    print(f"The share of U at which its step has the effect of a step of W, of W and b, or of V; {seeds} starts:\n")
    print("| start | T | W | W and b | V | min(1, 3/√T) |\n| --- | --- | --- | --- | --- | --- |")
    for name, (settings, lengths) in STARTS.items():
        for steps in lengths:
            found: list[list[float]] = []
            for seed in range(seeds):
                torch.manual_seed(seed)
                model = Model(**settings)
                first_loss(name, model, steps, seed).backward()
                kappas, own = kappa_first(model, steps), {}
                for key, weight in model.named().items():
                    assert weight.grad is not None
                    own[key] = (weight.grad.double().square() / kappas[weight]).flatten()
                effects = (own["W"].mean(), torch.cat([own["W"], own["b"]]).mean(), own["V"].mean())
                found.append([math.sqrt(float(effect / own["U"].mean())) for effect in effects])
            entries = [f"{min(each):.3g} to {max(each):.3g}" for each in zip(*found, strict=True)]
            print(f"| {name} | {steps} | {' | '.join(entries)} | {min(1.0, 3 / math.sqrt(steps)):.3g} |")
    print()


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


def trained(kind: str, steps: int = 100, updates: int = 8000, lr: float = 0.03, seed: int = 0) -> None:
    """The validation error of a training, and the radius that it ends with; protected from spikes if T ≥ 400."""
    torch.manual_seed(seed)
    model, task = Model(), Addition(steps=steps, validation=512).load()
    optimiser = PathAdam(model.parameters(), model, lr=lr, steps=steps, invariant=True)
    if kind == "κᴬ":
        optimiser.preconditioner = AmplitudeScales(path_network(model), steps=steps, recurrent=1.0)
        optimiser.preconditioner.model = model
    rewind = Rewind(model, optimiser, at=1000.0) if steps >= 400 else None
    for update in range(updates):
        batch = task.train_batch(update, 16, seed)
        for group in optimiser.param_groups:
            group["lr"] = lr * min(1.0, (update + 1) / 500) * (1 - update / updates) * (rewind.factor if rewind else 1)
        optimiser.zero_grad()
        loss = (model(batch.inputs) - batch.targets).square().mean()
        loss.backward()
        if rewind is None or rewind.accepts(float(loss.detach())):
            optimiser.step()
    with torch.no_grad():
        errors = [float((model(it.inputs) - it.targets).square().mean()) for it in task.evaluation("validation", 512)]
    radius = float(torch.linalg.eigvals(model.named()["U"].detach()).abs().max())
    spikes = f", {rewind.count} rewinds" if rewind else ""
    print(f"T = {steps}, {updates} updates, lr = {lr}, {kind}: error {errors[0]:.2g}, ρ(U) = {radius:.2f}{spikes}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--train" in sys.argv[1:]:
        trained("κ⁽¹⁾")
        trained("κᴬ")
    elif "--long" in sys.argv[1:]:
        for kind in ("κ⁽¹⁾", "κᴬ"):
            trained(kind, steps=400, updates=30000, lr=0.006, seed=3)
    else:
        growth_table()
        starts_table()
        first_steps()
        shares()
        rounding()
        cost()
