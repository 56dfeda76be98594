"""Networks that each have one fault, and healthy ones: what the rules of ``holdfast.diagnose`` are tested on."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import holdfast as hf


class Tagger(nn.Module):
    """An answer at every step, or at the last."""

    def __init__(self, rnn: nn.Module, hidden: int, outputs: int = 1, last: bool = False):
        super().__init__()
        self.rnn, self.readout, self.last = rnn, nn.Linear(hidden, outputs), last

    def forward(self, xs):
        hs = self.rnn(xs)[0]
        return self.readout(hs[-1] if self.last else hs)


@dataclasses.dataclass
class Case:
    """Arguments of ``diagnose``."""

    model: nn.Module
    xs: torch.Tensor
    targets: torch.Tensor | None = None
    loss: Callable[..., torch.Tensor] | None = None
    more: dict[str, Any] = dataclasses.field(default_factory=dict)

    def diagnose(self):
        return hf.diagnose(self.model, self.xs, self.targets, self.loss, **self.more)


def every_step(model: nn.Module, steps: int = 40, batch: int = 6, features: int = 3, **more: Any) -> Case:
    xs = torch.randn(steps, batch, features)
    return Case(model, xs, 0.5 * xs[..., :1] + 0.5 * xs.roll(1, 0)[..., :1], more=more)


def exploding() -> Case:
    rnn = nn.RNN(3, 16)
    nn.init.orthogonal_(rnn.weight_hh_l0, gain=2.5)
    case = every_step(Tagger(rnn, 16))
    case.xs *= 0.2
    return case


def vanishing() -> Case:
    xs = torch.randn(80, 6, 3)
    return Case(Tagger(nn.RNN(3, 16), 16, last=True), xs, xs[0, :, :1])


def dead_relu() -> Case:
    rnn = hf.RNN(3, 16, nonlinearity="relu", init="np", backend="reference")
    with torch.no_grad():
        rnn.l0.bias[:8] = -10.0
    return every_step(Tagger(rnn, 16))


def saturated() -> Case:
    lstm = nn.LSTM(3, 16)
    with torch.no_grad():
        lstm.bias_ih_l0[:16] = -9.0  # input gates closed
        lstm.bias_ih_l0[48:] = 9.0  # output gates open
    return every_step(Tagger(lstm, 16))


def short_memory() -> Case:
    return every_step(Tagger(nn.GRU(3, 16), 16), steps=80, lag=60)


def unused() -> Case:
    rnn = nn.RNN(3, 16)
    with torch.no_grad():  # half of the units are read by nobody
        rnn.weight_hh_l0[:8, 8:] = 0.0
        model = Tagger(rnn, 16)
        model.readout.weight[:, 8:] = 0.0
    return every_step(model)


def nonfinite_weight() -> Case:
    case = every_step(Tagger(nn.GRU(3, 16), 16))
    with torch.no_grad():
        case.model.rnn.weight_hh_l0[3, 4] = float("nan")
    return case


def nonfinite_data() -> Case:
    case = every_step(Tagger(nn.GRU(3, 16), 16))
    case.xs[7, 2, 1] = float("nan")
    return case


def overflow() -> Case:
    rnn = hf.RNN(3, 8, nonlinearity="relu", backend="reference")
    with torch.no_grad():
        rnn.l0.weight_hh.copy_(2e9 * torch.eye(8))
    return every_step(Tagger(rnn, 8))


def large_scale() -> Case:
    case = every_step(Tagger(nn.GRU(3, 16), 16))
    case.xs *= 1e3
    return case


def small_scale() -> Case:
    rnn = nn.RNN(3, 16)
    with torch.no_grad():
        rnn.weight_ih_l0.mul_(1e-5)
    return every_step(Tagger(rnn, 16))


def initial_state() -> Case:
    rnn = hf.RNN(3, 8, backend="reference")
    with torch.no_grad():  # eight latches: each keeps the sign that it starts with, and inputs cannot change it
        rnn.l0.weight_hh.copy_(1.5 * torch.eye(8))
        rnn.l0.weight_ih.mul_(0.05)
        rnn.l0.bias.fill_(0.2)
    return every_step(Tagger(rnn, 8))


def end_only() -> Case:
    rnn = hf.SGORNN(3, 16, backend="reference", gates=hf.ScalarGates(clip="2alpha", horizon=40))
    case = every_step(Tagger(rnn, 16))
    case.loss = lambda answers, targets: (answers[-1] - targets[-1]).square().mean()
    return case


def learning_rate() -> Case:
    return every_step(Tagger(nn.GRU(3, 16), 16), lr=50.0)


FAULTS = {
    "exploding": exploding,
    "vanishing": vanishing,
    "dead_relu": dead_relu,
    "saturated": saturated,
    "short_memory": short_memory,
    "unused": unused,
    "nonfinite": nonfinite_weight,
    "large_scale": large_scale,
    "small_scale": small_scale,
    "initial_state": initial_state,
    "end_only": end_only,
    "learning_rate": learning_rate,
}


def healthy() -> dict[str, Callable[[], Case]]:
    """Ten healthy networks: other cells, other tasks, from their usual start or after a short training."""

    def last(rnn: nn.Module, hidden: int, steps: int) -> Case:
        xs = torch.randn(steps, 8, 3)
        return Case(Tagger(rnn, hidden, 4, last=True), xs, torch.randint(0, 4, (8,)))

    def trained(case: Case, updates: int = 60, lr: float = 1e-2) -> Case:
        optimiser = torch.optim.Adam(case.model.parameters(), lr=lr)
        for _ in range(updates):
            loss = (case.model(case.xs) - case.targets).square().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(case.model.parameters(), 1.0)
            optimiser.step()
        return case

    def addition(cell: str) -> Case:
        from holdfast.tasks import Addition
        from holdfast.train import ModelSettings, build

        task = Addition(steps=30, validation=16).load()
        batch = next(task.evaluation("validation", 16))
        options = {"backend": "reference", **({"gates": {"clip": "2alpha", "horizon": 30}} if cell == "sgornn" else {})}
        return Case(build(ModelSettings(cell, 16, options=options), task.spec), batch.inputs, batch.targets)

    return {
        "GRU, every step": lambda: every_step(Tagger(nn.GRU(3, 16), 16), lr=0.1),
        "LSTM, every step": lambda: every_step(Tagger(nn.LSTM(3, 16), 16), lr=0.1),
        "RNN, trained": lambda: trained(every_step(Tagger(nn.RNN(3, 16), 16))),
        "GRU, trained": lambda: trained(every_step(Tagger(nn.GRU(3, 16), 16))),
        "two layers": lambda: every_step(Tagger(nn.LSTM(3, 12, num_layers=2), 12)),
        "both directions": lambda: every_step(Tagger(nn.GRU(3, 8, bidirectional=True), 16)),
        "SGORNN, addition": lambda: addition("sgornn"),
        "LSTM, classes at the end": lambda: last(nn.LSTM(3, 16), 16, 15),
        "ExpRNN, classes at the end": lambda: last(hf.ExpRNN(3, 16, backend="reference"), 16, 60),
        "ReLU RNN, every step": lambda: every_step(
            Tagger(hf.RNN(3, 16, nonlinearity="relu", init="np", backend="reference"), 16)
        ),
    }
